"""The xarray `DataTree` that every version of ArviZ reads, in memory and in files."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray


def to_datatree(
    arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]
) -> "xarray.DataTree":
    """Build a tree with the groups and dimensions that ArviZ expects.

    Parameters
    ----------
    arrays
        Arrays by `group/variable`. The first axes are `chain` and `draw`, except in the group
        `collected`, whose arrays have axes of their own.
    attributes
        Attributes of the root and of every group.
    """
    import xarray

    groups: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        group, _, variable = name.partition("/")
        lead = ["chain", "draw"] if group != "collected" else []
        extra = [f"{variable}_dim_{i}" for i in range(array.ndim - len(lead))]
        groups.setdefault(group, {})[variable] = ([*lead, *extra], array)
    tree = {"/": xarray.Dataset(attrs=dict(attributes))}
    for group, variables in groups.items():
        coordinates = {}
        if group != "collected":
            num_chains, num_draws = next(iter(variables.values()))[1].shape[:2]
            coordinates = {"chain": np.arange(num_chains), "draw": np.arange(num_draws)}
        tree[group] = xarray.Dataset(variables, coordinates, dict(attributes))
    return xarray.DataTree.from_dict(tree)

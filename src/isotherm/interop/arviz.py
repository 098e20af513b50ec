"""Runs as xarray `DataTree`s, which every version of ArviZ reads."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from isotherm.tree import leaf_names

if TYPE_CHECKING:
    import xarray

    from isotherm.loop.run import Run


def to_datatree(run: "Run") -> "xarray.DataTree":
    """Give groups `posterior` and `sample_stats`, dimensions `chain` and `draw` first."""
    import xarray

    def dataset(names: list[str], arrays: list[np.ndarray]) -> "xarray.Dataset":
        variables = {}
        for name, array in zip(names, arrays, strict=True):
            extra = [f"{name}_dim_{i}" for i in range(array.ndim - 2)]
            variables[name] = (["chain", "draw", *extra], array)
        chains, draws = arrays[0].shape[:2] if arrays else (0, 0)
        coords = {"chain": np.arange(chains), "draw": np.arange(draws)}
        return xarray.Dataset(variables, coords, {"inference_library": "isotherm"})

    groups = {}
    if run.draws is not None:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(run.draws)]
        groups["posterior"] = dataset(leaf_names(run.draws), leaves)
    groups["sample_stats"] = dataset(list(run.stats), list(run.stats.values()))
    return xarray.DataTree.from_dict(groups)

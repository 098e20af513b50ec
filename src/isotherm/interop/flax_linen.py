"""Flax linen modules: the collection `params` is the position, all other collections are fixed."""

from collections.abc import Mapping
from typing import Any

import jax

from isotherm.interop.modules import Parts, library
from isotherm.types import ArrayTree


def from_linen(module: Any, variables: Mapping[str, Any], **arguments: Any) -> Parts:
    """Split a linen module and its variables into parameters and a pure function of them.

    A log likelihood must be the same function at every step. So there are no random streams for
    dropout, and the statistics of a batch normalisation do not change. Pass the arguments that
    evaluate your module, for example `from_linen(module, variables, train=False)`. If it still
    draws random numbers or updates statistics, linen raises its own error.

    Parameters
    ----------
    module
        Any `linen.Module`.
    variables
        From `module.init`, or from training.
    arguments
        Further arguments of `module.apply`.

    Returns
    -------
    `Parts(position, apply, put_back)`. The position is `variables["params"]`; `put_back` returns
    variables for `module.apply`.

    Raises
    ------
    ImportError
        If flax is missing: `pip install 'isotherm[interop]'`.
    ValueError
        If `variables` has no collection `params`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from flax import linen
    >>> layer, x = linen.Dense(2), jnp.ones((5, 3))
    >>> position, apply, put_back = from_linen(layer, layer.init(jax.random.key(0), x))
    >>> sorted(position), apply(position, x).shape
    (['bias', 'kernel'], (5, 2))
    """
    unfreeze = library("flax.core").unfreeze
    collections = unfreeze(variables)
    if "params" not in collections:
        raise ValueError(
            f"`variables` must have a collection 'params', as from module.init, got "
            f"{sorted(collections)}."
        )

    def put_back(position: ArrayTree) -> dict[str, Any]:
        return {**collections, "params": position}

    def apply(position: ArrayTree, x: Any) -> jax.Array:
        return module.apply(put_back(position), x, **arguments)

    return Parts(collections["params"], apply, put_back)

"""Flax NNX modules: their `nnx.Param`s are the position, everything else is fixed."""

from collections.abc import Callable
from typing import Any

import jax

from isotherm.interop.modules import Parts, library
from isotherm.types import ArrayTree


def from_nnx(
    module: Any, *, wrt: Any = None, call: Callable[[Any, Any], jax.Array] | None = None
) -> Parts:
    """Split an NNX module into parameters and a pure function of them.

    A log likelihood must be the same function at every step, so the module is put into evaluation
    mode (`module.eval()`, on a copy): dropout is off, and batch normalisation uses its current
    statistics, which no longer change: train first. The scale and bias of a normalisation are
    parameters like any other.

    Parameters
    ----------
    module
        Any `nnx.Module`; it is not changed.
    wrt
        Which variables are sampled, an NNX filter; by default every `nnx.Param`.
    call
        `(module, x) -> outputs` for a batch `x`; by default `module(x)`.

    Returns
    -------
    `Parts(position, apply, put_back)`. The position is a nested dictionary of arrays;
    `put_back` returns a new module, in evaluation mode.

    Raises
    ------
    ImportError
        If flax is missing: `pip install 'isotherm[interop]'`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> position, apply, put_back = from_nnx(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    >>> sorted(position), apply(position, jnp.ones((5, 3))).shape
    (['bias', 'kernel'], (5, 2))
    """
    nnx = library("flax.nnx")
    frozen = nnx.clone(module)
    frozen.eval()
    graph, params, rest = nnx.split(frozen, nnx.Param if wrt is None else wrt, ...)

    def put_back(position: ArrayTree) -> Any:
        state = jax.tree.map(lambda leaf: leaf, params)  # a copy to fill
        nnx.replace_by_pure_dict(state, position)
        return nnx.merge(graph, state, rest)

    def apply(position: ArrayTree, x: Any) -> jax.Array:
        whole = put_back(position)
        return whole(x) if call is None else call(whole, x)

    return Parts(nnx.to_pure_dict(params), apply, put_back)

"""Flax NNX modules: their `nnx.Param`s are the position, everything else is fixed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from isotherm.interop.modules import (
    Parts,
    check_trained,
    library,
    make_parts,
    measured_statistics,
    recalibrated_apply,
)
from isotherm.types import ArrayTree


def from_nnx(
    module: Any,
    *,
    wrt: Any = None,
    call: Callable[[Any, Any], jax.Array] | None = None,
    statistics_from: Any = None,
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
    statistics_from
        Training inputs on which the statistics of batch normalisations are computed, once, at the
        parameters of `module`: for a module that was not trained.

    Returns
    -------
    `Parts(position, apply, put_back)`. The position is a nested dictionary of arrays;
    `put_back` returns a new module, in evaluation mode. `parts.recalibrated(x)` is an `apply` whose
    batch statistics are computed on `x` at every position.

    Raises
    ------
    ImportError
        If flax is missing: `pip install 'isotherm[interop]'`.
    ValueError
        If nothing is sampled, or batch statistics were never trained.

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
    graph, params, statistics, rest = nnx.split(
        frozen, nnx.Param if wrt is None else wrt, nnx.BatchStat, ...
    )

    def filled(template: Any, values: ArrayTree) -> Any:
        state = jax.tree.map(lambda leaf: leaf, template)  # a copy to fill
        nnx.replace_by_pure_dict(state, values)
        return state

    def merged(position: ArrayTree, values: ArrayTree) -> Any:
        # With copies of all variables, because they must belong to the trace that uses them.
        states = filled(params, position), filled(statistics, values), rest
        return nnx.merge(graph, *states, copy=True)

    def evaluate(position: ArrayTree, values: ArrayTree, x: Any) -> jax.Array:
        whole = merged(position, values)
        return whole(x) if call is None else call(whole, x)

    def update(position: ArrayTree, values: ArrayTree, x: Any) -> ArrayTree:
        whole = merged(position, values)
        whole.set_attributes(use_running_average=False)
        whole(x) if call is None else call(whole, x)
        return nnx.to_pure_dict(nnx.state(whole, nnx.BatchStat))

    position, known = nnx.to_pure_dict(params), nnx.to_pure_dict(statistics)
    if statistics_from is None:
        check_trained(known)
    else:
        known = measured_statistics(update, known, position, [statistics_from])
    return make_parts(
        position,
        lambda position, x: evaluate(position, known, x),
        lambda position: merged(position, known),
        partial(recalibrated_apply, update, evaluate, known),
    )

"""Equinox modules: their floating-point arrays are the position, everything else is fixed."""

from collections.abc import Callable
from typing import Any, NoReturn

import jax

from isotherm.interop.modules import Parts, library, make_parts
from isotherm.types import ArrayTree


def from_equinox(
    module: Any, *, filter_spec: Any = None, call: Callable[[Any, Any], jax.Array] | None = None
) -> Parts:
    """Split an Equinox module into parameters and a pure function of them.

    A log likelihood must be the same function at every step, so the module is put into inference
    mode (`equinox.nn.inference_mode`): dropout is off, batch normalisation uses the statistics
    of the `State` that `call` passes on.

    Parameters
    ----------
    module
        Any `equinox.Module`.
    filter_spec
        Which leaves are sampled, as for `equinox.partition`; by default all floating-point arrays.
    call
        `(module, x) -> outputs` for a batch `x`; by default `jax.vmap(module)(x)`. With a state:
        `lambda module, x: jax.vmap(lambda row: module(row, state)[0])(x)`.

    Returns
    -------
    `Parts(position, apply, put_back)`. The position is the module with `None` in place of
    everything that is not sampled; `put_back` returns a complete module, in inference mode.

    Raises
    ------
    ImportError
        If equinox is missing: `pip install 'isotherm[interop]'`.
    ValueError
        If nothing is sampled.

    Examples
    --------
    >>> import equinox, jax, jax.numpy as jnp
    >>> layer = equinox.nn.Linear(3, 2, key=jax.random.key(0))
    >>> position, apply, put_back = from_equinox(layer)
    >>> position.weight.shape, apply(position, jnp.ones((5, 3))).shape
    ((2, 3), (5, 2))
    """
    equinox = library("equinox")
    position, rest = equinox.partition(
        equinox.nn.inference_mode(module),
        equinox.is_inexact_array if filter_spec is None else filter_spec,
    )

    def put_back(position: ArrayTree) -> Any:
        return equinox.combine(position, rest)

    def apply(position: ArrayTree, x: Any) -> jax.Array:
        whole = put_back(position)
        return jax.vmap(whole)(x) if call is None else call(whole, x)

    return make_parts(position, apply, put_back, _refuse_to_recalibrate)


def _refuse_to_recalibrate(x: Any, **training: Any) -> NoReturn:
    raise ValueError(
        "An Equinox module has its batch statistics in a State outside of it: compute the State of "
        "a draw on training data, and pass it on in `call`."
    )

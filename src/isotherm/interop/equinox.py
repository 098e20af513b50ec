"""Equinox modules: their floating-point arrays are the position, all else is frozen."""

from collections.abc import Callable
from typing import Any

import jax

from isotherm.interop.parts import Parts, library
from isotherm.types import ArrayTree


def from_equinox(
    module: Any, *, filter_spec: Any = None, call: Callable[[Any, Any], jax.Array] | None = None
) -> Parts:
    """Take an Equinox module apart: parameters, a pure function of them, and the way back.

    A log likelihood must be the same function at every step, so the module is put into inference
    mode (`equinox.nn.inference_mode`): dropout is off, batch normalisation uses the statistics of
    the `State` you pass on in `call`.

    Parameters
    ----------
    module
        Any `equinox.Module`.
    filter_spec
        Which leaves are sampled, as for `equinox.partition`; all arrays of inexact numbers if not
        given.
    call
        `(module, x) -> outputs` for a batch `x`; `jax.vmap(module)(x)` if not given. With a state:
        `lambda module, x: jax.vmap(lambda row: module(row, state)[0])(x)`.

    Returns
    -------
    `Parts(position, apply, put_back)`. The position is the module with `None` in place of
    everything that is not sampled; `put_back` gives a whole one, in inference mode.

    Raises
    ------
    ImportError
        If equinox is missing: `pip install 'isotherm[interop]'`.

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

    return Parts(position, apply, put_back)

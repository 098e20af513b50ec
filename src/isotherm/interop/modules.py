"""What `from_nnx`, `from_linen` and `from_equinox` return: a module as a position and a function.

A module of any library is split into the numbers that a sampler moves and a pure function of them.
The function, a start and a likelihood make a `Network`:

    position, apply, put_back = isotherm.from_nnx(model)
    network = Network(apply, lambda key: position, likelihood="gaussian", noise_sd=0.3)
    sampler = isotherm.msgnht(network.gradient(data_size), step_size=1e-3)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from isotherm.imports import require
from isotherm.types import ArrayTree


class Parts(NamedTuple):
    """The parts of a module; `put_back(position)` computes what `apply(position, ·)` does."""

    position: ArrayTree
    """The parameters, a pytree of arrays: a possible start of a chain."""
    apply: Callable[[ArrayTree, Any], jax.Array]
    """`(position, x) -> outputs`, pure; one row per row of `x`."""
    put_back: Callable[[ArrayTree], Any]
    """`position -> module`; everything that is not a parameter is unchanged."""


def library(name: str) -> Any:
    """Import a library of the extra `interop`."""
    return require(name, "interop", f"A model of {name.split('.')[0]}")

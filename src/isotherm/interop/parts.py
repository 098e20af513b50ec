"""What the bridges to network libraries share: the parts of a module, and how to ask for a library.

A module of any library is taken apart into the numbers a sampler moves and a pure function of
them. The function, a start and a likelihood make a `Network`:

    position, apply, put_back = isotherm.from_nnx(model)
    network = Network(apply, lambda key: position, likelihood="gaussian", noise_sd=0.3)
    sampler = isotherm.msgnht(network.gradient(data_size), step_size=1e-3)
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from isotherm.types import ArrayTree


class Parts(NamedTuple):
    """A module taken apart; `put_back(position)` computes what `apply(position, ·)` does."""

    position: ArrayTree
    """The parameters, a pytree of arrays: where a chain may start."""
    apply: Callable[[ArrayTree, Any], jax.Array]
    """`(position, x) -> outputs`, pure; one row per row of `x`."""
    put_back: Callable[[ArrayTree], Any]
    """`position -> module`, with everything that is no parameter as it was."""


def library(name: str) -> Any:
    """Import a library of the `interop` extra, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.split(".")[0]
        if (error.name or "").split(".")[
            0
        ] != package:  # it is there, but something it needs is not
            raise
        raise ImportError(
            f"A model of {package} needs {package}: pip install 'isotherm[interop]'."
        ) from error

r"""What a run keeps: draws, running moments, or any function averaged on the fly.

A collector is a small object the loop asks three things: how its memory starts, how a kept draw
changes it, and what is in it at the end. Weights of a network need not be stored to average its
predictions:

    isotherm.sample(..., collect={"probabilities": isotherm.collect.average(lambda w: predict(w, x))})

Results appear in `run.collected`, each with a leading axis over chains. What is read is the position,
or with `of="state"` the sampler's whole state (its momentum, its thermostat).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from isotherm.diagnostics.predictions import class_probabilities
from isotherm.types import ArrayTree

Read = Callable[[ArrayTree], ArrayTree]


def _itself(position: ArrayTree) -> ArrayTree:
    return position


@dataclass(frozen=True)
class _Reader:
    """Something read off a sampler's state."""

    read: Read = _itself
    of: str = "position"

    def __post_init__(self) -> None:
        if self.of not in ("position", "state"):
            raise ValueError(f"`of` must be 'position' or 'state', got {self.of!r}.")

    def look(self, state: Any) -> ArrayTree:
        """Read what is wanted off a state."""
        return self.read(state if self.of == "state" else state.position)


@dataclass(frozen=True)
class Draws(_Reader):
    """Keep what is read of every draw; moved off the device after each chunk."""


class RunningMoments(NamedTuple):
    """How many draws, their mean, and the sum of squared deviations from it."""

    num_draws: jax.Array
    mean: ArrayTree
    deviation: ArrayTree

    @property
    def variance(self) -> ArrayTree:
        """Variance over the draws seen so far (divided by their number)."""
        return jax.tree.map(lambda m2: m2 / _over(self.num_draws, m2), self.deviation)


def _over(count: jax.Array, like: jax.Array) -> jax.Array:
    """Give a count (one per chain, or a number) the rank that divides `like`."""
    return count.reshape(count.shape + (1,) * (like.ndim - count.ndim))


@dataclass(frozen=True)
class Running(_Reader):
    r"""Welford's recursion for the mean (and the variance) of what is read.

    $\bar x \leftarrow \bar x + (x - \bar x)/n$ and, with the variance,
    $S \leftarrow S + (x - \bar x_{old})(x - \bar x_{new})$: stable in single precision.
    """

    with_variance: bool = True

    def start(self, state: Any) -> RunningMoments:
        """Begin with nothing seen."""
        shapes = jax.eval_shape(self.look, state)
        zeros = jax.tree.map(
            lambda s: jnp.zeros(s.shape, jnp.promote_types(s.dtype, jnp.float32)), shapes
        )
        return RunningMoments(jnp.zeros(()), zeros, zeros if self.with_variance else None)

    def update(self, memory: RunningMoments, state: Any) -> RunningMoments:
        """Take one more draw into account."""
        x, count = self.look(state), memory.num_draws + 1
        mean = jax.tree.map(lambda m, v: m + (v - m) / count, memory.mean, x)
        if not self.with_variance:
            return RunningMoments(count, mean, None)
        deviation = jax.tree.map(
            lambda s, v, old, new: s + (v - old) * (v - new),
            memory.deviation,
            x,
            memory.mean,
            mean,
        )
        return RunningMoments(count, mean, deviation)

    def result(self, memory: RunningMoments) -> Any:
        """Give the moments, or only the mean if that was asked for."""
        return memory if self.with_variance else memory.mean


Collector = Draws | Running


def draws(read: Read = _itself, *, of: str = "position") -> Draws:
    """Keep every draw, or a function of it: `draws(lambda w: w["head"])`."""
    return Draws(read, of)


def moments(read: Read = _itself, *, of: str = "position") -> Running:
    """Keep only the running mean and variance: `.mean`, `.variance`, `.num_draws`."""
    return Running(read, of)


def average(read: Read, *, of: str = "position") -> Running:
    """Keep only the running mean of a function: a posterior expectation."""
    return Running(read, of, with_variance=False)


def probabilities(
    predict: Callable[[ArrayTree, Any], jax.Array], x: Any, *, rows_per_block: int = 2048
) -> Running:
    """Keep only a classifier's probabilities, averaged over the draws, and their mean entropy.

    The result has `"probabilities"`, (chain, row, class), and `"entropy"`, (chain, row), from which
    `isotherm.diagnostics.calibration.mutual_information` finds the epistemic uncertainty.

    Parameters
    ----------
    predict
        `(position, x) -> (rows, classes)`, probabilities; each row depends on its own row of `x` only.
    x
        Inputs: an array, or a pytree of arrays with the same first axis.
    rows_per_block
        Rows whose activations exist at the same time, per chain.
    """
    return average(class_probabilities(predict, x, rows_per_block=rows_per_block))

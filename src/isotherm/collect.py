r"""What a run keeps: draws, running moments, or any function averaged on the fly.

A collector is a small object the loop asks three things: how its memory starts, how a kept draw
changes it, and what is in it at the end. Weights of a network need not be stored to average its
predictions:

    isotherm.sample(..., collect={"probabilities": isotherm.average(lambda w: predict(w, x))})

Results appear in `run.collected`, each with a leading axis over chains.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from isotherm.types import ArrayTree

Read = Callable[[ArrayTree], ArrayTree]


def _itself(position: ArrayTree) -> ArrayTree:
    return position


@dataclass(frozen=True)
class Draws:
    """Keep `read(position)` of every draw; moved off the device after each chunk."""

    read: Read = _itself


class RunningMoments(NamedTuple):
    """How many draws, their mean, and the sum of squared deviations from it."""

    count: jax.Array
    mean: ArrayTree
    deviation: ArrayTree

    @property
    def variance(self) -> ArrayTree:
        """Variance over the draws seen so far (divided by their number)."""
        return jax.tree.map(lambda m2: m2 / _over(self.count, m2), self.deviation)


def _over(count: jax.Array, like: jax.Array) -> jax.Array:
    """Give a count (one per chain, or a number) the rank that divides `like`."""
    return count.reshape(count.shape + (1,) * (like.ndim - count.ndim))


@dataclass(frozen=True)
class Running:
    r"""Welford's recursion for the mean (and the variance) of `read(position)`.

    $\bar x \leftarrow \bar x + (x - \bar x)/n$ and, with the variance,
    $S \leftarrow S + (x - \bar x_{old})(x - \bar x_{new})$: stable in single precision.
    """

    read: Read = _itself
    with_variance: bool = True

    def start(self, position: ArrayTree) -> RunningMoments:
        """Begin with nothing seen."""
        shapes = jax.eval_shape(self.read, position)
        zeros = jax.tree.map(
            lambda s: jnp.zeros(s.shape, jnp.promote_types(s.dtype, jnp.float32)), shapes
        )
        return RunningMoments(jnp.zeros(()), zeros, zeros if self.with_variance else None)

    def update(self, memory: RunningMoments, position: ArrayTree) -> RunningMoments:
        """Take one more draw into account."""
        x, count = self.read(position), memory.count + 1
        mean = jax.tree.map(lambda m, v: m + (v - m) / count, memory.mean, x)
        if not self.with_variance:
            return RunningMoments(count, mean, None)
        deviation = jax.tree.map(
            lambda s, v, old, new: s + (v - old) * (v - new),
            memory.deviation, x, memory.mean, mean,
        )  # fmt: skip
        return RunningMoments(count, mean, deviation)

    def result(self, memory: RunningMoments) -> Any:
        """Give the moments, or only the mean if that was asked for."""
        return memory if self.with_variance else memory.mean


Collector = Draws | Running


def draws(read: Read = _itself) -> Draws:
    """Keep every draw, or a function of it: `draws(lambda w: w["head"])`."""
    return Draws(read)


def moments(read: Read = _itself) -> Running:
    """Keep only the running mean and variance: `.mean`, `.variance`, `.count`."""
    return Running(read)


def average(read: Read) -> Running:
    """Keep only the running mean of a function of the position: a posterior expectation."""
    return Running(read, with_variance=False)

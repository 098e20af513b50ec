r"""Collectors: what a run keeps of its draws.

`sample(..., collect={name: collector})` keeps every draw (`draws`), running moments (`moments`),
the posterior mean of any function (`average`) or a classifier's averaged probabilities
(`probabilities`). All but the first take constant memory, so that the weights of a network need
not be stored to average its predictions:

    isotherm.sample(..., collect={"mean": isotherm.collect.average(lambda w: predict(w, x))})

Results are in `run.collected`, each with a leading axis over chains. A collector reads the
position, or with `of="state"` the sampler's whole state (momentum and thermostat included).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.diagnostics.predictions import class_probabilities
from isotherm.gradients.convolutions import fast_convolutions
from isotherm.types import ArrayTree

Read = Callable[[ArrayTree], ArrayTree]


def _identity(position: ArrayTree) -> ArrayTree:
    return position


@dataclass(frozen=True)
class _Reader:
    """A function of a sampler's state."""

    read: Read = _identity
    of: str = "position"

    def __post_init__(self) -> None:
        if self.of not in ("position", "state"):
            raise ValueError(f"`of` must be 'position' or 'state', got {self.of!r}.")
        if not callable(self.read):
            raise ValueError(f"`read` must be a function of the {self.of}, got {self.read!r}.")

    @property
    def is_plain(self) -> bool:
        """Whether the value is the position or the state itself."""
        return self.read is _identity

    def value(self, state: Any) -> ArrayTree:
        """Evaluate the function at a state."""
        read = self.read if self.is_plain else fast_convolutions(self.read)
        return read(state if self.of == "state" else state.position)


@dataclass(frozen=True)
class Draws(_Reader):
    """Keep the value of every draw; values move to the host after each chunk."""

    dtype: np.dtype | None = None
    """Type in which floating-point numbers are kept; by default their own."""

    def value(self, state: Any) -> ArrayTree:
        """Evaluate the function at a state, in the type in which values are kept."""
        kept = super().value(state)
        if self.dtype is None:
            return kept
        return jax.tree.map(
            lambda x: x.astype(self.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, kept
        )


class RunningMoments(NamedTuple):
    """Number of draws, their mean, and the sum of squared deviations from the mean."""

    num_draws: jax.Array
    mean: ArrayTree
    deviation: ArrayTree

    @property
    def variance(self) -> ArrayTree:
        """Variance over the draws so far (divided by their number)."""
        return jax.tree.map(lambda m2: m2 / _expand(self.num_draws, m2), self.deviation)


def _expand(count: jax.Array, like: jax.Array) -> jax.Array:
    """Append axes to a count (one per chain, or a number) so that it divides `like`."""
    return count.reshape(count.shape + (1,) * (like.ndim - count.ndim))


@dataclass(frozen=True)
class Running(_Reader):
    r"""Welford's recursion for the mean, and optionally the variance, of the values.

    $\bar x \leftarrow \bar x + (x - \bar x)/n$ and, with the variance,
    $S \leftarrow S + (x - \bar x_{old})(x - \bar x_{new})$: stable in single precision.
    """

    with_variance: bool = True

    def start(self, state: Any) -> RunningMoments:
        """Return the accumulator before the first draw."""
        shapes = jax.eval_shape(self.value, state)
        zeros = jax.tree.map(
            lambda s: jnp.zeros(s.shape, jnp.promote_types(s.dtype, jnp.float32)), shapes
        )
        return RunningMoments(jnp.zeros(()), zeros, zeros if self.with_variance else None)

    def update(self, accumulator: RunningMoments, state: Any) -> RunningMoments:
        """Add one draw to the accumulator."""
        x, count = self.value(state), accumulator.num_draws + 1
        mean = jax.tree.map(lambda m, v: m + (v - m) / count, accumulator.mean, x)
        if not self.with_variance:
            return RunningMoments(count, mean, None)
        deviation = jax.tree.map(
            lambda s, v, old, new: s + (v - old) * (v - new),
            accumulator.deviation,
            x,
            accumulator.mean,
            mean,
        )
        return RunningMoments(count, mean, deviation)

    def result(self, accumulator: RunningMoments) -> Any:
        """Return the moments, or the mean alone if there is no variance."""
        return accumulator if self.with_variance else accumulator.mean


Collector = Draws | Running


def draws(read: Read = _identity, *, of: str = "position", dtype: Any = None) -> Draws:
    """Keep every draw, or a function of it.

    Parameters
    ----------
    read
        The function; by default the whole position.
    of
        What it is a function of: `"position"` or `"state"`.
    dtype
        Floating-point type in which the values are kept, such as `"bfloat16"` for half the memory:
        8 significant bits, which is 0.4 % of each number. `"float16"` has 11, but nothing beyond
        65504. The chains themselves keep their precision.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> run = isotherm.sample(
    ...     jax.random.key(0), isotherm.sghmc(lambda x, batch: -x, 0.2), jnp.zeros(3),
    ...     isotherm.no_batches(), num_draws=20,
    ...     collect={"x": draws(lambda x: x[0]), "p": draws(lambda s: s.momentum, of="state")},
    ... )
    >>> run.collected["x"].shape, run.collected["p"].shape
    ((1, 20), (1, 20, 3))
    """
    if dtype is not None:
        try:
            dtype = jnp.dtype(dtype)
        except TypeError as error:
            raise ValueError(f"`dtype` must be a floating-point type, got {dtype!r}.") from error
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"`dtype` must be a floating-point type, got {dtype}.")
    return Draws(read, of, dtype)


def moments(read: Read = _identity, *, of: str = "position") -> Running:
    """Keep the running mean and variance: `.mean`, `.variance` and `.num_draws`.

    Parameters
    ----------
    read, of
        As in `draws`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> run = isotherm.sample(
    ...     jax.random.key(0), isotherm.sghmc(lambda x, batch: -x, 0.2), jnp.zeros(3),
    ...     isotherm.no_batches(), num_draws=20, num_chains=2, collect={"moments": moments()},
    ... )
    >>> run.collected["moments"].variance.shape
    (2, 3)
    """
    return Running(read, of)


def average(read: Read, *, of: str = "position") -> Running:
    """Keep the running mean of a function: an estimate of its posterior expectation.

    Parameters
    ----------
    read, of
        As in `draws`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> run = isotherm.sample(
    ...     jax.random.key(0), isotherm.sghmc(lambda x, batch: -x, 0.2), jnp.zeros(3),
    ...     isotherm.no_batches(), num_draws=20, collect={"norm": average(jnp.linalg.norm)},
    ... )
    >>> run.draws is None, run.collected["norm"].shape
    (True, (1,))
    """
    return Running(read, of, with_variance=False)


def probabilities(
    predict: Callable[[ArrayTree, Any], jax.Array], x: Any, *, rows_per_block: int = 2048
) -> Running:
    """Keep a classifier's probabilities, averaged over the draws, and their mean entropy.

    The result is a dictionary with `"probabilities"`, of shape (chain, row, class), and
    `"entropy"`, of shape (chain, row). `isotherm.diagnostics.mutual_information`
    computes the epistemic uncertainty from the two.

    Parameters
    ----------
    predict
        `(position, x) -> probabilities` of shape (rows, classes). The result of a row may depend
        on no other row of `x`.
    x
        Inputs: an array, or a pytree of arrays with the same first axis.
    rows_per_block
        Rows that are evaluated at the same time, per chain; bounds the memory for activations.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> predict = lambda w, x: jax.nn.softmax(jnp.outer(x, w))
    >>> run = isotherm.sample(
    ...     jax.random.key(0), isotherm.sghmc(lambda w, batch: -w, 0.2), jnp.zeros(3),
    ...     isotherm.no_batches(), num_draws=20,
    ...     collect={"test": probabilities(predict, jnp.arange(5.0))},
    ... )
    >>> run.collected["test"]["probabilities"].shape, run.collected["test"]["entropy"].shape
    ((1, 5, 3), (1, 5))
    """
    return average(class_probabilities(predict, x, rows_per_block=rows_per_block))

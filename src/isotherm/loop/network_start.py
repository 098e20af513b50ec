r"""A start in the typical set of a network, and settings for its sampler.

A network has no useful mode: its posterior lies far from it, where the curvature is different. So
the sampler itself, with balanced minibatches (`isotherm.gradients.balanced`), moves away from the
mode in rounds of steps, in units of the prior, where every weight has prior variance 1. After each
round three numbers are measured at the current position, in the coordinates in use:

- the largest curvature $\lambda$, by power iteration: steps have $h \le 0.45/\sqrt\lambda$;
- the imbalance $R$ of a kick of duration 1, the mean of $s_i^2$: steps have $h^2 R \le 0.03$, so that
  friction can balance the noise of the minibatches;
- the frequency of the prior, $\omega^2 = \operatorname{tr}(M^\top H_{prior} M)/d$, which is 1 in
  units of the prior. The slowest motion of a network is along valleys as long as the prior is wide,
  and a chain crosses them fastest with the friction $D = \omega$. Thermostats respond in the
  same time: $\mu = 1/\omega^2$.

The largest $\lambda$ and $R$ of all rounds count. `coordinates="prior"` ends here. For
`coordinates="kronecker"` the curvature of every layer is then averaged over positions of all rounds
but the first, and the settings are measured in its eigenbasis. Curvature at one point would not do:
directions that are flat there are stiff elsewhere, and a basis stretched along them takes the chain
to where its steps are too long.

**Never silent.** At temperature 1 the log density of $d$ parameters is $d/2$ below its maximum, give
or take $\sqrt{d/2}$. A round that ends more than $1.5\,d$ below the mode has not sampled the
posterior: it is repeated with half the step size from where it began, and after four times the start
fails with an error.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches, full_batch, independent_batches
from isotherm.coordinates.kronecker import kronecker_eigenbasis
from isotherm.coordinates.linear import Coordinates, Diagonal
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.gradients.balanced import BalancedGradient
from isotherm.gradients.full_data import sum_over_rows
from isotherm.loop.sampling import run_chain
from isotherm.samplers.msgnht import msgnht
from isotherm.tree import leaf_sizes
from isotherm.types import ArrayTree, BatchPolicy, Key

STEP_TIMES_FREQUENCY = 0.45
r"""Largest $h\sqrt\lambda$."""
LARGEST_IMBALANCE = 0.03
"""Largest mean of $s_i^2$ over the rows of a batch."""
CURVATURE_ROWS = 1000
"""Rows from which the largest curvature is estimated."""
KRONECKER_FLOOR = 0.25
"""Smallest curvature of a Kronecker basis, as a fraction of the largest of the layer."""
POSITIONS_PER_ROUND = 4
"""Positions of each round over which the curvature of a Kronecker basis is averaged."""
MAX_HALVINGS = 4
"""How often a round is repeated with half the step size."""


class Scales(NamedTuple):
    """What bounds the step size at a position, in given coordinates."""

    stiffness: jax.Array
    """The largest curvature of minus the log density."""
    imbalance: jax.Array
    """The imbalance of a kick of duration 1."""
    frequency: jax.Array
    r"""$\omega$, the frequency of the prior."""

    def step_size(self, largest_imbalance: float) -> float:
        """Return the largest step size that both bounds allow."""
        dynamics = STEP_TIMES_FREQUENCY * float(self.stiffness) ** -0.5
        return min(dynamics, (largest_imbalance / max(float(self.imbalance), 1e-30)) ** 0.5)


class NetworkStart(NamedTuple):
    """The last position, the coordinates, and what was measured in them."""

    position: ArrayTree
    coordinates: Coordinates
    step_size: float
    scales: Scales


def prior_units(log_prior, position: ArrayTree) -> Diagonal:
    """Return coordinates in which every leaf has prior curvature 1, on average over the leaf."""
    ones = jax.tree.map(jnp.ones_like, position)
    second = jax.jvp(jax.grad(log_prior), (position,), (ones,))[1]

    def scale(leaf: jax.Array) -> jax.Array:
        curvature = -jnp.mean(leaf)
        return jnp.full(leaf.shape, jnp.where(curvature > 0, curvature, 1.0) ** -0.5, leaf.dtype)

    return Diagonal(jax.tree.map(scale, second))


def network_start(
    key: Key,
    grad_fn: BalancedGradient,
    mode: ArrayTree,
    batches: InMemoryBatches,
    *,
    coordinates: str,
    largest_imbalance: float,
    rounds: int,
    steps_per_round: int,
) -> NetworkStart:
    """Move from a mode into the typical set; return the last position and settings there.

    Parameters
    ----------
    key, batches
        As in `warm_start`.
    grad_fn
        The balanced gradient.
    mode
        A mode of the posterior.
    coordinates
        `"prior"` or `"kronecker"`.
    largest_imbalance
        Bound on the imbalance of a step.
    rounds, steps_per_round
        How often settings are measured again, and after how many steps of the sampler.
    """
    density = _Density(grad_fn, batches, mode)
    rows = _curvature_rows(batches)
    measure = partial(_measure, batches=batches, rows=rows, grad_fn=grad_fn)
    move = jax.jit(partial(_move, grad_fn, steps_per_round))  # compiled once for all rounds
    space, position = prior_units(grad_fn.gradient.log_prior, mode), mode
    scales = [measure(random.fold(key, 0), space, position)]
    visited: list[list[ArrayTree]] = []
    for i in range(1, rounds + 1):
        key_i = random.fold(key, i)
        path = _round(key_i, move, position, space, scales, largest_imbalance, density, batches)
        position = path[-1]
        visited.append(path)
        scales.append(measure(random.fold(key_i, 1), space, position))
    if coordinates == "kronecker":
        later = [x for path in visited[1:] or visited for x in path] or [mode]
        space = kronecker_eigenbasis(
            random.fold(key, rounds + 1),
            grad_fn.gradient,
            later[-1],
            batches,
            more_positions=later[:-1],
            floor=KRONECKER_FLOOR,
        )
        key = random.fold(key, rounds + 2)
        scales = [measure(random.fold(key, i), space, x) for i, x in enumerate(later)]
    worst = _largest(scales)
    return NetworkStart(position, space, worst.step_size(largest_imbalance), worst)


def _round(
    key: Key,
    move,
    position: ArrayTree,
    space: Coordinates,
    scales: Sequence[Scales],
    largest_imbalance: float,
    density: "_Density",
    batches: InMemoryBatches,
) -> list[ArrayTree]:
    """Return positions of a round, repeated with shorter steps if it was lost."""
    worst = _largest(scales)
    h = worst.step_size(largest_imbalance)
    for _ in range(MAX_HALVINGS):
        path = move(random.fold(key, 2), position, space, h, worst.frequency, batches)
        path = [jax.tree.map(lambda x, i=i: x[i], path) for i in range(POSITIONS_PER_ROUND)]
        if density.is_typical(path[-1]):
            return path
        h /= 2
    raise FloatingPointError(
        "The chain that starts at the mode does not stay in the typical set: its log density ends "
        f"{density.below_mode(path[-1]):.3g} below that of the mode, where {density.dimension} "
        f"parameters explain about {density.dimension / 2:.3g}, even at step size {2 * h:.3g}. "
        "Check the data for extreme values, the prior for extreme widths, or start from a better "
        "mode (`num_steps`, `optimizer`)."
    )


def _largest(scales: Sequence[Scales]) -> Scales:
    return jax.tree.map(lambda *values: max(values), *scales)


class _Density:
    """The log density over all data, relative to that of a mode."""

    def __init__(self, grad_fn: BalancedGradient, batches: InMemoryBatches, mode: ArrayTree):
        self._target, self._data = grad_fn.gradient, batches.data
        self._likelihood = jax.jit(self._target.log_likelihood_sum)
        self.dimension = int(leaf_sizes(mode).sum())
        self._at_mode = self._log_density(mode)

    def _log_density(self, position: ArrayTree) -> float:
        likelihood = sum_over_rows(self._likelihood, position, self._data, self._target.data_size)
        return float(likelihood + self._target.log_prior(position))

    def below_mode(self, position: ArrayTree) -> float:
        """Return how far the log density is below that of the mode."""
        return self._at_mode - self._log_density(position)

    def is_typical(self, position: ArrayTree) -> bool:
        """Return whether the log density is finite, and as high as in the posterior."""
        below = self.below_mode(position)
        return bool(np.isfinite(below)) and below <= 1.5 * self.dimension + 5 * self.dimension**0.5


def _curvature_rows(batches: InMemoryBatches) -> BatchPolicy:
    if batches.data_size <= CURVATURE_ROWS:
        return full_batch(batches.data)
    return independent_batches(batches.data, CURVATURE_ROWS)


@partial(jax.jit, static_argnames="grad_fn")
def _measure(
    key: Key,
    space: Coordinates,
    position: ArrayTree,
    *,
    batches: InMemoryBatches,
    rows: InMemoryBatches,
    grad_fn: BalancedGradient,
) -> Scales:
    like = space.momentum_like(position)
    batch = rows.batch(random.fold(key, 0), jnp.zeros((), jnp.int32))

    def hessian_times(direction: ArrayTree) -> ArrayTree:
        tangent = _as_tangent(space.push(direction), position)
        return space.pull(jax.jvp(lambda x: grad_fn(x, batch), (position,), (tangent,))[1])

    def prior_curvature(i: jax.Array) -> jax.Array:
        direction = random.gaussian(random.fold(random.fold(key, 3), i), like)
        tangent = _as_tangent(space.push(direction), position)
        second = jax.jvp(jax.grad(grad_fn.gradient.log_prior), (position,), (tangent,))[1]
        products = jax.tree.map(lambda d, s: -jnp.sum(d * s), direction, space.pull(second))
        sizes = jax.tree.map(lambda d: jnp.sum(d * d), direction)
        return sum(jax.tree.leaves(products)) / sum(jax.tree.leaves(sizes))

    stiffness = largest_eigenvalue(hessian_times, random.gaussian(random.fold(key, 4), like), 20)
    square = jnp.mean(jax.lax.map(prior_curvature, jnp.arange(8)))
    frequency = jnp.sqrt(jnp.maximum(square, 1e-6 * stiffness))
    imbalance = unit_imbalance(random.fold(key, 1), grad_fn, position, batches, space)
    return Scales(stiffness, imbalance, frequency)


def unit_imbalance(
    key: Key,
    grad_fn: BalancedGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    space: Coordinates,
) -> jax.Array:
    """Return the imbalance of a kick of duration 1, averaged over momenta and batches."""
    like = space.momentum_like(position)

    def one(i: jax.Array) -> jax.Array:
        velocity = space.push(random.gaussian(random.fold(random.fold(key, 0), i), like))
        return grad_fn.imbalance(position, batches.batch(random.fold(key, 1), i), velocity, 1.0)

    return jnp.mean(jax.lax.map(one, jnp.arange(64)))


def _as_tangent(direction: ArrayTree, position: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda d, x: d.astype(x.dtype), direction, position)


def _move(
    grad_fn: BalancedGradient,
    num_steps: int,
    key: Key,
    position: ArrayTree,
    space: Coordinates,
    h: jax.Array,
    frequency: jax.Array,
    batches: InMemoryBatches,
) -> ArrayTree:
    """Take steps of the sampler; return positions at equal distances, the last one at the end."""
    sampler = msgnht(grad_fn, h, frequency, thermostat_mass=frequency**-2, coordinates=space)
    thin = max(1, num_steps // POSITIONS_PER_ROUND)
    return run_chain(key, sampler, position, batches, num_draws=POSITIONS_PER_ROUND, thin=thin)[0]

r"""A start in the typical set of a network, and settings for its sampler.

A network has no useful mode: its posterior lies far from it, where the curvature is different. So
the sampler itself, with balanced minibatches (`isotherm.gradients.balanced`), moves away from the
mode in rounds of steps, in units of the prior, where every weight has prior variance 1. After each
round three numbers are measured at the current position, in the coordinates in use:

- the largest curvature $\lambda$, by power iteration: steps have $h \le 0.45/\sqrt\lambda$;
- the strengths $s_i$ of rows: steps are so short that the noise which the bounded weights leave
  unbalanced heats the chain by at most 0.5 % (`isotherm.gradients.balanced`);
- the frequency $\omega$ of motion as wide as the posterior, by
  $\omega^2 = \operatorname{tr}(M^\top V^{-1} M)/d$, where $V$ is the variance of the weights of
  each leaf along the chain, at most that of the prior. The slowest motion of a network is along
  valleys as long as the prior is wide, and a chain crosses them fastest with the friction
  $D = \omega$. Thermostats respond in the same time: $\mu = 1/\omega^2$. During the walk $V$ is the
  variance of the prior, and $\omega$ is 1.

The settings follow from the largest $\lambda$ and the strengths of all rounds.
`coordinates="prior"` ends here. For `coordinates="kronecker"` the curvature of every layer is then
averaged over positions of all rounds but the first, and the settings are measured in its
eigenbasis. Curvature at one point would not do: directions that are flat there are stiff elsewhere,
and a basis stretched along them takes the chain to where its steps are too long.

The chain then walks one more round in that eigenbasis, with the settings that follow.

**Failures are reported.** A round that ends outside the typical set (`isotherm.loop.typical_set`)
has not sampled the posterior: it is repeated with half the step size from where it began, and after
four attempts `warm_start` raises an error. No later step is longer than the one that worked, and if
that shortens the final step there is a warning; so there is if the last position predicts the data
worse than its parameters explain.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches, full_batch, independent_batches
from isotherm.coordinates.kronecker import kronecker_eigenbasis
from isotherm.coordinates.linear import Coordinates, Diagonal
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.gradients.balanced import BalancedGradient, unbalanced_heat
from isotherm.loop.sampling import run_chain
from isotherm.loop.typical_set import MAX_HALVINGS, TypicalSet, describe_shorter
from isotherm.loop.user_warnings import warn_user
from isotherm.samplers.msgnht import msgnht
from isotherm.types import ArrayTree, BatchPolicy, Key, Scalar

STEP_TIMES_FREQUENCY = 0.45
r"""Largest $h\sqrt\lambda$."""
LARGEST_HEAT = 0.005
"""Largest heat, relative to the temperature, that kicks may leave unbalanced."""
NUM_BATCHES = 128
"""Batches from which the strengths of rows are measured at a position."""
CURVATURE_ROWS = 1000
"""Rows from which the largest curvature is estimated."""
KRONECKER_FLOOR = 0.25
"""Smallest curvature of a Kronecker basis, as a fraction of the largest of the layer."""
POSITIONS_PER_ROUND = 4
"""Positions of each round over which the curvature of a Kronecker basis is averaged."""


class Scales(NamedTuple):
    """What bounds the step size, in given coordinates."""

    stiffness: jax.Array
    """The largest curvature of minus the log density."""
    frequency: jax.Array
    r"""$\omega$, the frequency of motion as wide as the posterior."""
    strengths: jax.Array
    """Strengths of rows in kicks of duration 1, (2, batches, rows), for `unbalanced_heat`."""


def joined(scales: Sequence[Scales]) -> Scales:
    """Return the largest curvature of all positions, the last frequency, and all strengths."""
    return Scales(
        max(each.stiffness for each in scales),
        scales[-1].frequency,
        jnp.concatenate([each.strengths for each in scales], axis=1),
    )


def longest_step(
    largest: float, strengths: jax.Array, friction: Scalar, dimension: int, largest_heat: float
) -> float:
    """Return the longest step size up to `largest` that leaves at most `largest_heat`."""
    heat = jax.jit(partial(unbalanced_heat, dimension=dimension))
    low, high = 0.0, largest
    if float(heat(strengths, high, friction)) <= largest_heat:
        return largest
    for _ in range(20):
        middle = (low + high) / 2
        enough = float(heat(strengths, middle, friction)) <= largest_heat
        low, high = (middle, high) if enough else (low, middle)
    return low


class NetworkStart(NamedTuple):
    """The last position, coordinates, and what was measured in them."""

    position: ArrayTree
    coordinates: Coordinates
    step_size: float
    scales: Scales
    heat: float
    """Heat that a step leaves unbalanced, relative to the temperature."""
    visited: Sequence[ArrayTree]
    """Positions of all rounds but the first."""


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
    data: Any,
    coordinates: str,
    largest_heat: float,
    rounds: int,
    steps_per_round: int,
    diffusion: float | None = None,
    sides: Mapping[str, str] | None = None,
) -> NetworkStart:
    r"""Move from a mode into the typical set; return the last position and settings there.

    Parameters
    ----------
    key, batches
        As in `warm_start`.
    grad_fn
        The balanced gradient.
    mode
        A mode of the posterior.
    data
        All data, as `full_gradient` takes them.
    coordinates
        `"prior"` or `"kronecker"`.
    largest_heat
        Bound on the heat that a step leaves unbalanced.
    rounds, steps_per_round
        How often settings are measured again, and after how many steps of the sampler.
    diffusion
        $D$, in place of the frequency $\omega$.
    sides
        As in `kronecker_eigenbasis`.
    """
    density = TypicalSet(grad_fn.gradient, data, mode)
    rows = _curvature_rows(batches)

    def measure(*arguments: Any) -> Scales:
        found = _measure(*arguments, batches=batches, rows=rows, grad_fn=grad_fn)
        return found if diffusion is None else found._replace(frequency=jnp.asarray(diffusion))

    move = jax.jit(partial(_move, grad_fn, steps_per_round))  # compiled once for all rounds
    walk = partial(_round, move=move, density=density, batches=batches, largest_heat=largest_heat)
    space, position = prior_units(grad_fn.gradient.log_prior, mode), mode
    precision = jax.tree.map(lambda scale: jnp.ravel(scale)[0] ** -2, space.scale)
    scales = [measure(random.fold(key, 0), space, position, precision)]
    visited: list[list[ArrayTree]] = []
    longest = np.inf
    for i in range(1, rounds + 1):
        key_i = random.fold(key, i)
        path, longest = walk(key_i, position, space, joined(scales), longest)
        position = path[-1]
        visited.append(path)
        scales.append(measure(random.fold(key_i, 1), space, position, precision))
    later = [x for path in visited[1:] or visited for x in path] or [mode]
    if len(later) > 1:
        precision = _precision(later, precision)
        scales.append(measure(random.fold(key, rounds + 3), space, position, precision))
    if coordinates == "kronecker":
        space = kronecker_eigenbasis(
            random.fold(key, rounds + 1),
            grad_fn.gradient,
            later[-1],
            batches,
            more_positions=later[:-1],
            floor=KRONECKER_FLOOR,
            sides=sides,
        )
        key = random.fold(key, rounds + 2)
        scales = [measure(random.fold(key, i), space, x, precision) for i, x in enumerate(later)]
        longest = np.inf
        if rounds > 0:
            key_i = random.fold(key, len(later))
            path, longest = walk(key_i, position, space, joined(scales), longest)
            position = path[-1]
            later = [*later, *path]
            scales.append(measure(random.fold(key_i, 1), space, position, precision))
    all_scales = joined(scales)
    h = _step_size(all_scales, density.dimension, largest_heat)
    if h > longest:
        warn_user(describe_shorter(h, longest))
        h = longest
    message = density.describe_prediction(position)
    if message is not None:
        warn_user(message)
    heat = unbalanced_heat(all_scales.strengths, h, all_scales.frequency, density.dimension)
    return NetworkStart(position, space, h, all_scales, float(heat), later)


def _step_size(scales: Scales, dimension: int, largest_heat: float) -> float:
    """Return the longest step size that curvature and noise allow."""
    largest = STEP_TIMES_FREQUENCY * float(scales.stiffness) ** -0.5
    return longest_step(largest, scales.strengths, scales.frequency, dimension, largest_heat)


def _round(
    key: Key,
    position: ArrayTree,
    space: Coordinates,
    scales: Scales,
    longest: float,
    *,
    move: Callable[..., ArrayTree],
    density: TypicalSet,
    batches: InMemoryBatches,
    largest_heat: float,
) -> tuple[list[ArrayTree], float]:
    """Return positions of a round and the longest step allowed; shorten it if the chain is lost."""
    h = min(_step_size(scales, density.dimension, largest_heat), longest)
    path = [position]
    for halvings in range(MAX_HALVINGS):
        moved = move(random.fold(key, 2), position, space, h, scales.frequency, batches)
        path = [jax.tree.map(lambda x, i=i: x[i], moved) for i in range(POSITIONS_PER_ROUND)]
        if density.is_typical(path):
            return path, h if halvings else longest
        h /= 2
    raise density.lost(path[-1], 2 * h)


def _precision(positions: Sequence[ArrayTree], prior: ArrayTree) -> ArrayTree:
    """Return one over the variance of each leaf along the chain, at least that of the prior."""

    def of_leaf(smallest: jax.Array, *values: jax.Array) -> jax.Array:
        return jnp.maximum(smallest, 1 / jnp.mean(jnp.var(jnp.stack(values), axis=0)))

    return jax.tree.map(of_leaf, prior, *positions)


def _curvature_rows(batches: InMemoryBatches) -> BatchPolicy:
    if batches.data_size <= CURVATURE_ROWS:
        return full_batch(batches.data)
    return independent_batches(batches.data, CURVATURE_ROWS)


@partial(jax.jit, static_argnames="grad_fn")
def _measure(
    key: Key,
    space: Coordinates,
    position: ArrayTree,
    precision: ArrayTree,
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

    def curvature(i: jax.Array) -> jax.Array:
        direction = random.gaussian(random.fold(random.fold(key, 3), i), like)
        pushed = space.push(direction)
        energy = jax.tree.map(lambda v, c: c * jnp.sum(v * v), pushed, precision)
        sizes = jax.tree.map(lambda d: jnp.sum(d * d), direction)
        return jnp.asarray(sum(jax.tree.leaves(energy)) / sum(jax.tree.leaves(sizes)))

    stiffness = largest_eigenvalue(hessian_times, random.gaussian(random.fold(key, 4), like), 20)
    frequency = jnp.sqrt(jnp.mean(jax.lax.map(curvature, jnp.arange(8))))
    strengths = unit_strengths(random.fold(key, 1), grad_fn, position, batches, space)
    return Scales(stiffness, frequency, strengths)


def unit_strengths(
    key: Key,
    grad_fn: BalancedGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    space: Coordinates,
) -> jax.Array:
    """Return the strengths of rows in kicks of duration 1, for two momenta: (2, batches, rows)."""
    like = space.momentum_like(position)

    def one(i: jax.Array) -> jax.Array:
        batch = batches.batch(random.fold(key, 0), i)
        momenta = [random.gaussian(random.fold(random.fold(key, j), i), like) for j in (1, 2)]
        return jnp.stack([grad_fn.strengths(position, batch, space.push(p), 1.0) for p in momenta])

    return jnp.swapaxes(jax.lax.map(one, jnp.arange(NUM_BATCHES)), 0, 1)


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

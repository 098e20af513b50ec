r"""A start in the typical set of a network, and settings for its sampler.

A network has no useful mode: its posterior lies far from it, where the curvature is different. So
a sampler with balanced minibatches (`isotherm.gradients.balanced`) and a fixed friction moves away
from the mode, in units of the prior, where every weight has prior variance 1. It walks in rounds,
and each round has four stretches. After every stretch two numbers are measured at the current
position, in the coordinates in use:

- the largest curvature $\lambda$, by power iteration: steps have $h \le 0.45/\sqrt\lambda$;
- the strengths $s_i$ of rows: steps are so short that the noise which the bounded weights leave
  unbalanced heats the chain by at most 1.5 % (`isotherm.gradients.balanced`).

The curvature grows up to a hundredfold on the way, so the first stretch has steps of an eighth, and
a step follows from the largest curvature of the last two rounds. Settings follow from all rounds
but the first. The friction is $D = 2\omega$, critical damping, with the frequency $\omega$ of
motion as wide as the posterior. That of a leaf with $d$ numbers is
$\omega^2 = \operatorname{tr}(M^\top V^{-1} M)/d$, where $V$ is the mean square distance of its
weights from the mode, at most the variance of the prior; $\omega$ is their geometric mean by size.
(A mean of squares would be that of a few biases, and the friction far too large for all weights;
the variance along the chain is too small if the chain is short.) During the first walk
$\omega = 1$. Thermostats respond in the same time, $\mu = D^{-2}$, and start with their law in
equilibrium (`dynamics/thermostats.py`): otherwise draws of the first $5/D$ units of time are too
cold.

`coordinates="prior"` ends here. For `coordinates="kronecker"` the curvature of every layer is
averaged over two thirds of the positions, and every leaf is brought to units of its posterior
width. At the other positions the largest curvature of the block of every leaf is measured, in the
basis, with two floors for the curvature of flat directions, and without the basis; the smallest
is best. So a leaf whose basis does not pay elsewhere than where it was measured keeps units of the
prior (`Kronecker.summary` shows which). The chain then walks one more round in that basis.

**What a walk finds is checked.** A round that ends outside the typical set
(`isotherm.loop.typical_set`) has not sampled the posterior. A round in which momenta are hot had
steps too long for the curvature or for the noise of minibatches: with a fixed friction the kinetic
temperature shows this, while a thermostat would hide it. Either is repeated with half the step
size from where it began. After four attempts a chain that is lost is an error (for a basis: its
units of the prior are used instead, with a warning), and one that is hot in the last round is a
warning. While the chain climbs away from the mode its momenta are cold; if they still are, there
are more rounds, up to twice as many, and then a warning: it is not there yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaincinv

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches, full_batch, independent_batches
from isotherm.coordinates.kronecker import Kronecker, kronecker_eigenbasis
from isotherm.coordinates.linear import Coordinates, Diagonal
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.exceptions import HealthWarning
from isotherm.gradients.balanced import BalancedGradient, unbalanced_heat
from isotherm.loop.typical_set import MAX_HALVINGS, TypicalSet, describe_shorter
from isotherm.loop.user_warnings import Message, warn_user
from isotherm.samplers.sghmc import sghmc
from isotherm.tree import leaf_sizes
from isotherm.types import ArrayTree, BatchPolicy, Key

STEP_TIMES_FREQUENCY = 0.45
r"""Largest $h\sqrt\lambda$."""
LARGEST_HEAT = 0.005
"""Largest heat, relative to the temperature, that kicks may leave unbalanced near a mode."""
NETWORK_HEAT = 0.015
"""The same for networks, where this estimate has heavy tails: temperatures are checked as well."""
NUM_BATCHES = 128
"""Batches from which the strengths of rows are measured at a position."""
CURVATURE_ROWS = 1000
"""Rows from which the largest curvature is estimated."""
KRONECKER_FLOORS = (0.25, 0.03)
"""Smallest curvatures of a basis that are tried, as fractions of the largest of a leaf."""
CURVATURE_POSITIONS, LEAF_ROWS = 3, 300
"""Positions and rows from which the curvature of every leaf is estimated."""
LARGEST_EXCESS = 0.1
r"""Largest mean of $T - 1$ of a leaf in a round, beyond what is chance."""
FALSE_ALARM = 1e-3
"""Probability that a temperature of a healthy round is beyond chance."""
STRETCHES = 4
"""Parts of a round; after each the position is kept, and curvature and noise are measured."""
GENTLE = 0.125
"""Size of the first steps away from a mode: the curvature grows on the way."""

STILL_HOT = (
    "Steps of {:.3g} still heat the chain (its momenta are too hot) after "
    "repeated shortening: draws are too far from the posterior. Try larger batches, a narrower "
    "prior, or a smaller `largest_heat`."
)
LOST_BASIS = (
    "A chain in the Kronecker basis does not stay in the typical set, so coordinates are units of "
    "the prior (`coordinates='prior'`): the curvature changes too much from place to place."
)
STILL_COLD = (
    "The chain still moves away from the mode at the end of the walk (its momenta are too "
    "cold): more `rounds` or longer ones are needed, or a `burn_in` as long as the walk."
)


class Scales(NamedTuple):
    """What bounds the step size, in given coordinates."""

    stiffness: jax.Array
    """The largest curvature of minus the log density."""
    friction: jax.Array
    r"""$D$: twice the frequency of motion as wide as the posterior."""
    strengths: jax.Array | np.ndarray
    """Strengths of rows in kicks of duration 1, for `unbalanced_heat`."""


def joined(scales: Sequence[Scales]) -> Scales:
    """Return the largest curvature of all positions, the last friction, and all strengths."""
    return Scales(
        np.max([each.stiffness for each in scales]),
        scales[-1].friction,
        np.stack([each.strengths for each in scales]),
    )


def longest_step(
    largest: float, strengths: ArrayLike, friction: float, dimension: int, largest_heat: float
) -> float:
    """Return the longest step size up to `largest` that leaves at most `largest_heat`."""
    strengths, low, high = np.asarray(strengths, np.float64), 0.0, largest
    if unbalanced_heat(strengths, high, friction, dimension) <= largest_heat:
        return largest
    for _ in range(20):
        middle = (low + high) / 2
        enough = unbalanced_heat(strengths, middle, friction, dimension) <= largest_heat
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
        $D$, in place of $2\omega$.
    sides
        As in `kronecker_eigenbasis`.
    """
    density = TypicalSet(grad_fn.gradient, data, mode)
    rows = _curvature_rows(batches)

    def measure(key: Key, space: Coordinates, position: ArrayTree, precision: ArrayTree) -> Scales:
        more = {"batches": batches, "rows": rows, "grad_fn": grad_fn}
        found = _measure(key, space, position, precision, **more)
        return found if diffusion is None else found._replace(friction=jnp.asarray(diffusion))

    walk = partial(
        _walk,
        move=partial(_move, grad_fn=grad_fn),
        num_steps=max(1, steps_per_round // STRETCHES),
        measure=measure,
        density=density,
        batches=batches,
        largest_heat=largest_heat,
    )
    space = prior_units(grad_fn.gradient.log_prior, mode)
    precision = jax.tree.map(lambda scale: jnp.ravel(scale)[0] ** -2, space.scale)
    at_mode = measure(random.fold(key, 0), space, mode, precision)
    walked = walk(random.fold(key, 1), mode, space, precision, [at_mode], rounds, from_mode=True)
    later = [x for each in walked[1:] or walked for x in each.path] or [mode]
    scales = [x for each in walked[1:] or walked for x in each.scales] or [at_mode]
    if len(later) > 1:
        precision = _precision(later, mode, precision)
        scales.append(measure(random.fold(key, 2), space, later[-1], precision))
    if coordinates == "kronecker":
        earlier = later[: -(len(later) // 3)] if len(later) > 2 else later
        whole = kronecker_eigenbasis(
            random.fold(key, 3),
            grad_fn.gradient,
            earlier[-1],
            batches,
            more_positions=earlier[:-1],
            floor=min(KRONECKER_FLOORS),
            sides=sides,
        )
        basis = _best_leaves(
            random.fold(key, 6), whole, later, precision, batches=batches, grad_fn=grad_fn
        )
        keys = [random.fold(random.fold(key, 4), i) for i in range(len(later))]
        inside = [measure(k, basis, x, precision) for k, x in zip(keys, later, strict=True)]
        try:
            again = walk(
                random.fold(key, 5),
                later[-1],
                basis,
                precision,
                inside,
                min(rounds, 1),
                from_mode=False,
            )
        except FloatingPointError:
            warn_user(Message(LOST_BASIS, HealthWarning))
        else:
            space = basis
            later = [*later, *(x for each in again for x in each.path)]
            scales = [*inside, *(x for each in again for x in each.scales)]
            walked = again or walked
    all_scales = joined(scales)
    h = _step_size(all_scales, density.dimension, largest_heat)
    for message in _messages(walked, h, density):
        warn_user(message)
    if walked:
        h *= walked[-1].caution
    friction = float(all_scales.friction)
    heat = unbalanced_heat(all_scales.strengths, h, friction, density.dimension)
    return NetworkStart(later[-1], space, h, all_scales, heat, later)


def _messages(walked: Sequence["_Round"], h: float, density: TypicalSet) -> list[Message]:
    """Return the warnings of a walk whose curvature and noise allow steps of a given size."""
    if not walked:
        return []
    last = walked[-1]
    found = [density.describe_prediction(last.path[-1])]
    if last.lost:
        found.append(describe_shorter(h, last.caution * h))
    if last.heat > 1:
        found.append(Message(STILL_HOT.format(last.caution * h), HealthWarning))
    if last.cold:
        found.append(Message(STILL_COLD, HealthWarning))
    return [message for message in found if message is not None]


def _step_size(scales: Scales, dimension: int, largest_heat: float) -> float:
    """Return the longest step size that curvature and noise allow."""
    largest = STEP_TIMES_FREQUENCY * float(scales.stiffness) ** -0.5
    return longest_step(largest, scales.strengths, float(scales.friction), dimension, largest_heat)


class _Round(NamedTuple):
    """What a round of steps found."""

    state: Any
    """Of the sampler, at the end."""
    path: list[ArrayTree]
    """The position after every stretch."""
    scales: list[Scales]
    """What was measured there."""
    caution: float
    """Steps were this fraction of what curvature and noise allow."""
    lost: bool
    """Whether the chain left the typical set at longer steps."""
    heat: float
    """The largest excess of a temperature (`excess_heat`)."""
    cold: bool
    """Whether the chain still climbs from the mode."""


def excess_heat(temperatures: ArrayLike, sizes: Sequence[int], span: float) -> np.ndarray:
    r"""Return $T - 1$ in units of the largest tolerated, leaf by leaf, and of all numbers.

    The square of a momentum forgets in a time of $1/2D$, so that the mean temperature of $n$
    numbers over a time $t$ is about $\chi^2_m/m$ with $m = n \max(1, Dt)$. Tolerated are its
    quantiles, and a tenth more.

    Parameters
    ----------
    temperatures
        Mean kinetic temperature of each leaf.
    sizes
        Numbers of each leaf.
    span
        $Dt$.
    """
    each = np.asarray(temperatures, np.float64)
    each = np.append(each, np.average(each, weights=sizes))
    half = np.append(sizes, sum(sizes)) * max(1.0, span) / 2
    highest = (1 + LARGEST_EXCESS) * gammaincinv(half, 1 - FALSE_ALARM) / half
    lowest = (1 - LARGEST_EXCESS) * gammaincinv(half, FALSE_ALARM) / half
    return (each - 1) / np.where(each > 1, highest - 1, 1 - lowest)


def _walk(
    key: Key,
    position: ArrayTree,
    space: Coordinates,
    precision: ArrayTree,
    scales: list[Scales],
    rounds: int,
    *,
    from_mode: bool,
    **tools: Any,
) -> list[_Round]:
    """Take rounds of steps, and up to twice as many while the chain is too cold or hot."""
    walked: list[_Round] = []
    friction = scales[-1].friction
    state = sghmc(None, 1.0, friction, coordinates=space).init(position, random.fold(key, 0))
    while len(walked) < rounds or (
        walked and (walked[-1].cold or walked[-1].heat > 1) and len(walked) < 2 * rounds
    ):
        key_i = random.fold(key, len(walked) + 1)
        caution = min(1.0, 2 * walked[-1].caution) if walked else 1.0
        recent = [*scales, *(x for each in walked for x in each.scales)][-2 * STRETCHES :]
        gentle = GENTLE if from_mode and not walked else 1.0
        walked.append(_round(key_i, state, space, precision, recent, caution, gentle, **tools))
        state = walked[-1].state
    return walked


def _round(
    key: Key,
    start: Any,
    space: Coordinates,
    precision: ArrayTree,
    before: list[Scales],
    caution: float,
    gentle: float,
    *,
    move: Callable[..., tuple[Any, jax.Array]],
    num_steps: int,
    measure: Callable[..., Scales],
    density: TypicalSet,
    batches: InMemoryBatches,
    largest_heat: float,
) -> _Round:
    """Take a round of steps; repeat it with shorter ones if the chain is lost, or heated."""
    sizes, friction = [int(n) for n in leaf_sizes(start.position)], before[0].friction
    found, lost, tried, path = None, False, [0.0], [start.position]
    for attempt in range(MAX_HALVINGS):
        if attempt > 0:  # with other momenta
            momenta = sghmc(None, 1.0, friction, coordinates=space).init
            start = momenta(start.position, random.fold(key, STRETCHES + attempt))
        state, path, scales, temperatures, tried = start, [], list(before), [], []
        for i in range(STRETCHES):
            key_i = random.fold(key, i)
            h = _step_size(joined(scales), density.dimension, largest_heat)
            tried.append(caution * (gentle if i == 0 else 1.0) * h)
            state, means = move(
                key_i, state, space, tried[-1], friction, batches, num_steps=num_steps
            )
            temperatures.append(np.asarray(means))
            path.append(state.position)
            scales.append(measure(random.fold(key_i, 1), space, state.position, precision))
        typical = density.is_typical(path)
        lost = lost or not typical
        if typical:
            span = sum(tried) * num_steps * float(friction)
            excess = excess_heat(np.average(temperatures, axis=0, weights=tried), sizes, span)
            heat, cold = float(excess.max()), bool(excess[-1] < -1)
            found = _Round(state, path, scales[len(before) :], caution, lost, heat, cold)
            if heat <= 1:
                break
        caution /= 2
    if found is None:
        raise density.lost(path[-1], min(tried))
    return found


def _precision(positions: Sequence[ArrayTree], mode: ArrayTree, prior: ArrayTree) -> ArrayTree:
    """Return one over the mean square distance of each leaf from the mode, at least the prior's.

    The variance along the chain would be too small if it is shorter than the posterior is wide.
    """

    def of_leaf(smallest: jax.Array, centre: jax.Array, *values: jax.Array) -> jax.Array:
        return jnp.maximum(smallest, 1 / jnp.mean((jnp.stack(values) - centre[None]) ** 2))

    return jax.tree.map(of_leaf, prior, mode, *positions)


def _best_leaves(
    key: Key,
    basis: Kronecker,
    positions: Sequence[ArrayTree],
    precision: ArrayTree,
    *,
    batches: InMemoryBatches,
    grad_fn: BalancedGradient,
) -> Kronecker:
    r"""Return the best of several stretches of every leaf, in units of its posterior width.

    Every candidate is scaled so that motion as wide as the posterior has frequency 1. A leaf is
    then the faster the smaller the largest curvature $\lambda_l$ of its block is. It is measured at
    later positions than those of the basis: a stretch too far, along directions that are flat at
    one place and stiff at another, shows in it. The candidates are the basis with the floors
    `KRONECKER_FLOORS`, and the leaf as it is.
    """
    some = positions[-CURVATURE_POSITIONS:]
    candidates = [_in_widths(basis, precision, floor) for floor in (*KRONECKER_FLOORS, None)]
    found = [
        np.max(
            [_stiffness_of_leaves(key, each, x, batches=batches, grad_fn=grad_fn) for x in some], 0
        )
        for each in candidates
    ]
    best = np.argmin(np.nan_to_num(found, nan=np.inf), axis=0)
    return Kronecker(tuple(candidates[k].leaves[i] for i, k in enumerate(best)))


def _in_widths(basis: Kronecker, precision: ArrayTree, floor: float | None) -> Kronecker:
    """Return a basis of which every leaf is in units of the width of the posterior."""
    leaves = []
    for sides, inverse in zip(basis.leaves, jax.tree.leaves(precision), strict=True):
        if floor is None:
            sides = replace(sides, left=None, right=None, scale=jnp.ones_like(sides.scale))
        else:
            shortest = jnp.min(sides.scale, axis=(-2, -1), keepdims=True)
            sides = replace(sides, scale=jnp.minimum(sides.scale, shortest * floor**-0.5))
        frequency = jnp.sqrt(jnp.mean(sides.scale**2) * inverse)
        leaves.append(replace(sides, scale=sides.scale / frequency))
    return Kronecker(tuple(leaves))


@partial(jax.jit, static_argnames="grad_fn")
def _stiffness_of_leaves(
    key: Key,
    space: Kronecker,
    position: ArrayTree,
    *,
    batches: InMemoryBatches,
    grad_fn: BalancedGradient,
) -> jax.Array:
    """Return the largest curvature of the block of every leaf, on a few hundred rows."""
    num_batches = max(1, LEAF_ROWS // batches.batch_size)
    rows = [batches.batch(random.fold(key, 0), jnp.asarray(i)) for i in range(num_batches)]
    batch = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
    structure = jax.tree.structure(position)
    like = space.momentum_like(position)

    def of_leaf(number: jax.Array) -> jax.Array:
        here = structure.unflatten([number == i for i in range(structure.num_leaves)])

        def only(tree: ArrayTree) -> ArrayTree:
            return jax.tree.map(lambda keep, x: jnp.where(keep, x, 0), here, tree)

        def hessian_times(direction: ArrayTree) -> ArrayTree:
            tangent = _as_tangent(space.push(only(direction)), position)
            product = jax.jvp(lambda x: grad_fn(x, batch), (position,), (tangent,))[1]
            return only(space.pull(product))

        start = only(random.gaussian(random.fold(key, 1), like))
        return largest_eigenvalue(hessian_times, start, 8)

    return jax.lax.map(of_leaf, jnp.arange(structure.num_leaves))


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

    def energies(i: jax.Array) -> jax.Array:
        direction = random.gaussian(random.fold(random.fold(key, 3), i), like)
        pushed = space.push(direction)
        return jnp.stack(
            [
                c * jnp.sum(v * v) / jnp.sum(d * d)
                for v, d, c in zip(
                    *map(jax.tree.leaves, (pushed, direction, precision)), strict=True
                )
            ]
        )

    stiffness = largest_eigenvalue(hessian_times, random.gaussian(random.fold(key, 4), like), 20)
    squares = jnp.mean(jax.lax.map(energies, jnp.arange(8)), axis=0)
    shares = jnp.asarray(leaf_sizes(position)) / sum(leaf_sizes(position))
    friction = 2 * jnp.exp(jnp.sum(shares * jnp.log(squares)) / 2)
    strengths = unit_strengths(random.fold(key, 1), grad_fn, position, batches, space)
    return Scales(stiffness, friction, strengths)


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


@partial(jax.jit, static_argnames=("num_steps", "grad_fn"))
def _move(
    key: Key,
    state: Any,
    space: Coordinates,
    h: jax.Array,
    friction: jax.Array,
    batches: InMemoryBatches,
    *,
    num_steps: int,
    grad_fn: BalancedGradient,
) -> tuple[Any, jax.Array]:
    """Take steps; return the state, and the mean kinetic temperature of each leaf over them."""
    sampler = sghmc(grad_fn, h, friction, coordinates=space)

    def step(i: jax.Array, carry: tuple) -> tuple:
        state, total = carry
        batch = batches.batch(random.fold(key, 0), i)
        state, info = sampler.step(random.fold(random.fold(key, 1), i), state, batch)
        return state, total + info.kinetic

    zero = jnp.zeros(len(jax.tree.leaves(state.momentum)))
    state, total = jax.lax.fori_loop(0, num_steps, step, (state, zero))
    return state, total / num_steps

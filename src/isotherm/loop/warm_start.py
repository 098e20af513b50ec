r"""A start in the typical set, and coordinates in which the posterior is close to isotropic.

`warm_start` finds a mode with any optax optimiser, measures the curvature there, and returns
coordinates with a step size, a diffusion and a thermostat mass that need no tuning:

    start = isotherm.warm_start(start_key, grad_fn, position, batches)
    sampler = isotherm.msgnht(grad_fn, **start.settings)
    run = isotherm.sample(run_key, sampler, start.position, batches, num_draws=1000, thin=20)

In natural coordinates the stiffness is 1, so $D = 1$ and $\mu = 10$ fit all problems, and only two
things bound the step: the dynamics ($h \le 0.1$) and the gradient noise
($C = h^2\sigma^2/4 \le 1/4$). In coordinates whose largest curvature $\lambda$ is not 1 the same
holds in units of $\lambda^{-1/2}$. Thermostats start at their equilibrium under the gradient noise,
$D + h\sigma^2/2$: otherwise the first draws of a chain with small batches are too hot.

**Many data, small batches.** There $\sigma^2 \approx N/n$, the step is $\sqrt{n/N}$ and the
friction $\sqrt{N/n}/2$: a draw costs a pass over the data, as it does without minibatches.
`control_variates=True` removes that noise (`isotherm.control_variates`, centred at the mode); the
remaining noise depends on the distance from the mode, hardly on $N$, and the step is 0.1 again. The
noise is then measured at typical draws, one standard deviation from the mode in every direction.
Sample with `start.grad_fn`.

**Which coordinates.** By default (`coordinates="auto"`) a position of more than 1000 numbers is
taken for a network. With fewer, the eigenbasis is used if the posterior is nearly normal: four
draws of the Gaussian approximation at the mode must be as typical as a normal posterior says
(`isotherm.loop.typical_set`), and the trial below must succeed at once. Above 200 numbers rougher
draws are tested first, which need no matrix (`isotherm.coordinates.curvature.rough_draw`). A small
network fails these tests, because directions that are flat at its mode are not flat far away.

**Trial.** All this holds near the mode. A chain of 500 steps is tried from there; if it leaves the
typical set (`isotherm.loop.typical_set`), the step size is halved with a warning, and after four
attempts `warm_start` raises an error.

**Networks** (`coordinates="prior"` or `"kronecker"`) have no useful mode. The sampler itself moves
away from it with balanced minibatches, and settings are measured along the way
(`isotherm.loop.network_start`). Sample with `start.grad_fn`, which is balanced.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.batches.streamed import StreamedBatches
from isotherm.coordinates.curvature import (
    WholeData,
    diagonal_coordinates,
    newton,
    rough_draw,
    stiffness_in,
)
from isotherm.coordinates.linear import Coordinates, Identity, eigenbasis
from isotherm.coordinates.natural import DIFFUSION, LARGEST_STEP, THERMOSTAT_MASS
from isotherm.diagnostics.noise import gradient_noise, largest_step_size
from isotherm.dynamics.thermostats import STATIONARY
from isotherm.gradients.balanced import BalancedGradient, balanced, unbalanced_heat
from isotherm.gradients.control_variates import control_variates as controlled
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.loop.find_mode import check_target, find_mode
from isotherm.loop.network_start import (
    LARGEST_HEAT,
    NETWORK_HEAT,
    longest_step,
    network_start,
    unit_strengths,
)
from isotherm.loop.sampling import run_chain
from isotherm.loop.typical_set import (
    MAX_HALVINGS,
    TypicalSet,
    describe_held_out,
    describe_shorter,
)
from isotherm.loop.user_warnings import warn_user
from isotherm.samplers.msgnht import msgnht
from isotherm.schedules import require_positive
from isotherm.tree import as_position, count, leaf_sizes
from isotherm.types import ArrayTree, GradFn, Key

NUM_KEPT_BATCHES = 200
"""Streamed batches whose rows are kept in memory."""
LARGEST_DENSE = 10_000
"""Numbers of a position up to which its curvature may be one matrix."""
LARGEST_AUTOMATIC = 1000
"""Numbers of a position up to which `"auto"` tries an eigenbasis."""
CHEAP_HESSIAN, ROUGH_FACTOR = 200, 4.0
"""Above so many numbers `"auto"` looks at rough draws first, which need no matrix; their log
density may be so many times further below the mode."""
TRIAL_STEPS, TRIAL_DRAWS = 500, 4
"""Steps after which a chain from the mode must still be in the typical set, and positions kept."""


class WarmStart(NamedTuple):
    """A start position, and settings of the sampler."""

    position: ArrayTree
    coordinates: Coordinates
    step_size: float
    diffusion: float
    thermostat_mass: float
    stiffness: float
    """Largest curvature in these coordinates; 1 in an eigenbasis."""
    noise_variance: float
    """Variance of the minibatch gradient in these coordinates: the 90 % quantile over them. NaN
    for a network, whose balanced gradient takes the noise out."""
    initial_thermostat: float | str | None = None
    """Where thermostats start; `None` for the diffusion."""
    grad_fn: GradFn | None = None
    """The gradient to sample with: the one passed in, with control variates or balanced."""
    kind: str = ""
    """The name of the coordinates: what `"auto"` chose, or what was asked for."""
    unbalanced_heat: float | None = None
    """Heat that the kicks of a balanced gradient leave, relative to the temperature."""

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments for `isotherm.msgnht` and `isotherm.sgnht`."""
        return {
            "step_size": self.step_size,
            "diffusion": self.diffusion,
            "thermostat_mass": self.thermostat_mass,
            "initial_thermostat": self.initial_thermostat,
            "coordinates": self.coordinates,
        }


def warm_start(
    key: Key,
    grad_fn: MinibatchGradient | BalancedGradient,
    position: ArrayTree,
    batches: InMemoryBatches | StreamedBatches,
    *,
    coordinates: str = "auto",
    curvature: str = "hessian",
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 2000,
    noise_ratio: float = 0.25,
    control_variates: bool = False,
    rounds: int = 4,
    steps_per_round: int = 1500,
    largest_heat: float | None = None,
    diffusion: float | None = None,
    sides: Mapping[str, str] | None = None,
    held_out: Any = None,
    chunk_size: int = 10_000,
) -> WarmStart:
    r"""Find a mode and natural coordinates around it.

    Parameters
    ----------
    key, grad_fn, position, batches, optimizer, num_steps
        As in `find_mode`; `num_steps=0` uses `position` as the mode. `grad_fn` may be balanced. Of
        streamed batches, 200 are kept in memory to measure the gradient noise, and for the rounds
        of a network.
    coordinates
        `"auto"` chooses: an eigenbasis if the position has up to 1000 numbers and the posterior is
        nearly normal around the mode, units of the prior otherwise; `kind` of the result says
        which. Or `"eigenbasis"` (dense, for up to a few thousand numbers), `"diagonal"` or
        `"identity"`; for networks `"prior"` (every weight in units of its prior, and balanced
        minibatches) or `"kronecker"` (an eigenbasis per layer).
    curvature
        `"hessian"` of $-\log\pi$ over all data, or `"fisher"`, the empirical Fisher matrix
        $\sum_i g_i g_i^\top$ plus the curvature of the prior. For an eigenbasis a few Newton steps
        with it refine the mode. The diagonal of a Hessian of more than 1000 numbers is estimated
        from products with random vectors.
    noise_ratio
        Bound on $C = h^2\sigma^2/4$, which limits the step size.
    control_variates
        Whether to remove the gradient noise at the mode from every gradient, for large data;
        sample with `grad_fn` of the result. Needs the eigenbasis.
    rounds, steps_per_round
        For networks: how often settings are measured again, and after how many steps.
    largest_heat
        With a balanced gradient: bound on the heat that the kicks of a step leave unbalanced,
        relative to the temperature (`isotherm.gradients.balanced`), which limits the step size. By
        default 0.005, and 0.015 for networks, whose temperatures are checked along the way as well.
    diffusion
        For networks: the friction $D$, in units of the prior; by default twice the frequency of
        motion as wide as the posterior. Steps may be the longer the larger it is, but the chain
        then diffuses.
    sides
        For Kronecker coordinates: letters of the axes of leaves, by name, where those that
        `isotherm.coordinates.leaf_sides` infers are wrong.
    held_out
        Rows that are not among the data, like a batch. A warning says if positions of the chain,
        averaged, predict them worse than the mode. Nothing else depends on them.
    chunk_size
        Rows per evaluation in passes over all data.

    Warns
    -----
    HealthWarning
        If steps had to be shortened, or if the chain predicts much worse than the mode.

    Raises
    ------
    FloatingPointError
        If a chain leaves the posterior also with shorter steps, or the mode is not finite.
    """
    wanted = grad_fn if isinstance(grad_fn, BalancedGradient) else None
    grad_fn = grad_fn.gradient if isinstance(grad_fn, BalancedGradient) else grad_fn
    check_target(grad_fn, batches)
    allowed = ("auto", "eigenbasis", "diagonal", "identity", "prior", "kronecker")
    if coordinates not in allowed:
        raise ValueError(f"`coordinates` must be one of {allowed}, got {coordinates!r}.")
    if curvature not in ("hessian", "fisher"):
        raise ValueError(f"`curvature` must be 'hessian' or 'fisher', got {curvature!r}.")
    size = int(leaf_sizes(as_position(position)).sum())
    if control_variates and coordinates not in ("auto", "eigenbasis"):
        raise ValueError(
            "`control_variates` needs `coordinates='eigenbasis'`, where the distance of draws from "
            f"the mode is known, got {coordinates!r}."
        )
    is_auto = coordinates == "auto"
    if is_auto:
        coordinates = "eigenbasis" if size <= LARGEST_AUTOMATIC or control_variates else "prior"
    if coordinates == "eigenbasis" and size > LARGEST_DENSE:
        raise ValueError(
            f"An eigenbasis of {size:,} numbers is a matrix of {size:,} rows and columns. Use "
            "`coordinates='prior'` for a network, or 'diagonal'."
        )
    if sides is not None and coordinates != "kronecker":
        raise ValueError(f"`sides` needs `coordinates='kronecker'`, got {coordinates!r}.")
    if diffusion is not None:
        require_positive("diffusion", diffusion)
        if is_auto or coordinates not in ("prior", "kronecker"):
            raise ValueError(
                "`diffusion` needs `coordinates='prior'` or 'kronecker', got "
                f"{'auto' if is_auto else coordinates!r}; pass it to the sampler instead."
            )
    num_steps, rounds = count("num_steps", num_steps, 0), count("rounds", rounds, 0)
    steps_per_round = count("steps_per_round", steps_per_round, 1)
    if largest_heat is not None:
        require_positive("largest_heat", largest_heat)
    if num_steps > 0:
        position = find_mode(
            random.fold(key, 0),
            grad_fn,
            position,
            batches,
            optimizer=optimizer,
            num_steps=num_steps,
        )
    mode, data = as_position(position), batches.data
    if isinstance(batches, StreamedBatches):  # whose data are read once per sum over all rows
        batches = batches.in_memory(random.fold(key, 4), NUM_KEPT_BATCHES)

    def of_network(kind: str) -> tuple[WarmStart, Sequence[ArrayTree]]:
        gradient = balanced(grad_fn) if wanted is None else wanted
        found = network_start(
            random.fold(key, 3),
            gradient,
            mode,
            batches,
            data=data,
            coordinates=kind,
            largest_heat=largest_heat or NETWORK_HEAT,
            rounds=rounds,
            steps_per_round=steps_per_round,
            diffusion=diffusion,
            sides=sides,
        )
        friction = float(found.scales.friction)
        start = WarmStart(
            position=found.position,
            coordinates=found.coordinates,
            step_size=found.step_size,
            diffusion=friction,
            thermostat_mass=friction**-2,
            stiffness=float(found.scales.stiffness),
            noise_variance=np.nan,
            kind=kind,
            initial_thermostat=STATIONARY,
            grad_fn=gradient,
            unbalanced_heat=found.heat,
        )
        return start, found.visited

    def near_mode(kind: str) -> tuple[WarmStart, Sequence[ArrayTree]] | None:
        """Return a start in coordinates of the mode, `None` if they do not suit the posterior."""
        whole = WholeData(grad_fn, data, mode, chunk_size)
        keys = [random.fold(random.fold(key, 3), i) for i in range(4)]
        may_leave = is_auto and not control_variates
        if may_leave and size > CHEAP_HESSIAN:
            density = TypicalSet(grad_fn, data, mode, chunk_size)
            rough = [rough_draw(k, whole, mode) for k in keys[:2]]
            if any(x is None for x in rough) or not density.is_nearly_normal(rough, ROUGH_FACTOR):
                return None
        centre, stiffness = mode, 1.0
        if kind == "eigenbasis":
            matrix = whole.hessian if curvature == "hessian" else whole.fisher
            centre = newton(whole, matrix, mode)
            space: Coordinates = eigenbasis(matrix(centre), centre)
        else:
            space = Identity()
            if kind == "diagonal":
                space = diagonal_coordinates(random.fold(key, 5), whole, centre, curvature)
            stiffness = stiffness_in(random.fold(key, 1), whole, centre, space)
        density = TypicalSet(grad_fn, data, centre, chunk_size)
        drawn = [_typical(k, centre, space) for k in keys] if kind == "eigenbasis" else []
        if may_leave and not density.is_nearly_normal(drawn):
            return None
        gradient: Any = grad_fn
        positions = [centre]
        if control_variates:
            gradient = controlled(grad_fn, centre, data, chunk_size=chunk_size)
            positions = drawn
        variance = _noise(random.fold(key, 2), gradient, positions, batches, space)
        unit = stiffness**-0.5
        noise, step_size = _step_size(variance, noise_ratio, LARGEST_STEP * unit)
        begin = DIFFUSION / unit + step_size * float(np.median(variance)) / 2
        heat = None
        if wanted is not None:
            gradient, begin = balanced(gradient, num_shards=wanted.num_shards), None
            measure = jax.jit(lambda k, x: unit_strengths(k, gradient, x, batches, space))
            each = [
                measure(random.fold(random.fold(key, 4), i), x) for i, x in enumerate(positions)
            ]
            strengths = np.stack(each)
            step_size = longest_step(
                step_size, strengths, DIFFUSION / unit, size, largest_heat or LARGEST_HEAT
            )
            heat = unbalanced_heat(strengths, step_size, DIFFUSION / unit, size)
        start = WarmStart(
            position=centre,
            coordinates=space,
            step_size=step_size,
            diffusion=DIFFUSION / unit,
            thermostat_mass=THERMOSTAT_MASS * unit**2,
            stiffness=stiffness,
            noise_variance=noise,
            kind=kind,
            initial_thermostat=begin,
            grad_fn=gradient,
            unbalanced_heat=heat,
        )
        return _tried(random.fold(key, 6), start, batches, density, may_leave)

    found = None
    if coordinates not in ("prior", "kronecker"):
        found = near_mode(coordinates)
    if found is None:
        found = of_network("prior" if is_auto else coordinates)
    start, path = found
    _warn_of_held_out(grad_fn, mode, path, held_out)
    return start


def _warn_of_held_out(
    target: MinibatchGradient, mode: ArrayTree, path: Sequence[ArrayTree], held_out: Any
) -> None:
    message = None if held_out is None else describe_held_out(target, mode, path, held_out)
    if message is not None:
        warn_user(message)


def _tried(
    key: Key, start: WarmStart, batches: InMemoryBatches, density: TypicalSet, may_leave: bool
) -> tuple[WarmStart, list[ArrayTree]] | None:
    """Return a start with steps so short that a chain stays in the typical set, and that chain.

    Coordinates and step size are those of the mode. Where the curvature elsewhere is much larger, a
    chain becomes unstable on its way; `None` then, if the coordinates may be left.
    """

    @jax.jit
    def move(key: Key, step_size: jax.Array, batches: InMemoryBatches) -> ArrayTree:
        sampler = msgnht(start.grad_fn, **{**start.settings, "step_size": step_size})
        kept = {"num_draws": TRIAL_DRAWS, "thin": TRIAL_STEPS // TRIAL_DRAWS}
        return run_chain(key, sampler, start.position, batches, **kept)[0]

    h, path = start.step_size, [start.position]
    for _ in range(MAX_HALVINGS):
        moved = move(key, h, batches)
        path = [jax.tree.map(lambda x, i=i: x[i], moved) for i in range(TRIAL_DRAWS)]
        if density.is_typical(path):
            break
        if may_leave:
            return None
        h /= 2
    else:
        raise density.lost(path[-1], 2 * h)
    if h < start.step_size:
        warn_user(describe_shorter(start.step_size, h))
    message = density.describe_prediction(path[-1])
    if message is not None:
        warn_user(message)
    return start._replace(step_size=h), path


def _typical(key: Key, mode: ArrayTree, space: Coordinates) -> ArrayTree:
    """Draw from the Gaussian approximation of the posterior, a standard normal in `space`."""
    steps = space.push(random.gaussian(key, space.momentum_like(mode)))
    return jax.tree.map(lambda x, step: x + step.astype(x.dtype), mode, steps)


def _noise(
    key: Key,
    grad_fn: GradFn,
    positions: Sequence[ArrayTree],
    batches: InMemoryBatches,
    space: Coordinates,
) -> np.ndarray:
    """Return the variance of the minibatch gradient per coordinate, averaged over positions."""
    variances = [
        gradient_noise(
            key,
            lambda x, batch: space.pull(grad_fn(x, batch)),
            position,
            lambda k: batches.batch(k, jnp.zeros((), jnp.int32)),
            num_batches=200,
        )
        for position in positions
    ]
    return np.mean([ravel_pytree(variance)[0] for variance in variances], axis=0)


def _step_size(variance: np.ndarray, noise_ratio: float, largest: float) -> tuple[float, float]:
    """Return the noise variance that bounds the step size, and the step size.

    It is a high quantile of the variance over the coordinates, not the largest: with rare features
    a few coordinates are zero in most batches and very large in some, and two hundred batches
    determine their variance only within a factor.
    """
    noise = float(np.quantile(variance, 0.9))
    bound = float(largest_step_size(noise, noise_ratio)) if noise > 0 else np.inf
    return noise, min(largest, bound)

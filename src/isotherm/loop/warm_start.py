r"""A start in the typical set, and coordinates in which the posterior is close to isotropic.

`warm_start` finds a mode with any optax optimiser, measures the curvature there, and returns
coordinates with a step size, a diffusion and a thermostat mass that need no tuning:

    start = isotherm.warm_start(key, grad_fn, position, batches)
    sampler = isotherm.msgnht(grad_fn, **start.settings)
    run = isotherm.sample(key, sampler, start.position, batches, num_draws=1000, thin=20)

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

**Networks** (`coordinates="kronecker"`) have no useful mode: the posterior lies far from it, where
the curvature is different. So the sampler itself moves away from the mode in rounds of steps, and
after each round the basis is measured again at the current position. The result is the last
position and the last basis. Directions much flatter than the stiffest of a layer are not scaled to
the full width of the prior but to five times the width of the stiffest (`KRONECKER_FLOOR`): the
further the weights move along them, the less accurate is the basis.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.batches.streamed import StreamedBatches
from isotherm.coordinates.curvature import WholeData, diagonal_coordinates, newton, stiffness_in
from isotherm.coordinates.kronecker import Kronecker, kronecker_eigenbasis
from isotherm.coordinates.linear import Coordinates, Identity, eigenbasis
from isotherm.coordinates.natural import DIFFUSION, LARGEST_STEP, THERMOSTAT_MASS
from isotherm.diagnostics.noise import gradient_noise, largest_step_size
from isotherm.gradients.control_variates import control_variates as controlled
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.loop.find_mode import check_target, find_mode
from isotherm.loop.sampling import run_chain
from isotherm.samplers.msgnht import msgnht
from isotherm.tree import as_position, count
from isotherm.types import ArrayTree, GradFn, Key

KRONECKER_FLOOR = 0.04
"""Smallest curvature of a Kronecker basis, as a fraction of the largest of the layer."""
NUM_HELD = 200
"""Streamed batches whose rows are kept in memory."""


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
    """Variance of the minibatch gradient in these coordinates: the 90 % quantile over them."""
    initial_thermostat: float | None = None
    """Where thermostats start; `None` for a network, whose layers differ."""
    grad_fn: GradFn | None = None
    """The gradient to sample with: the one passed in, or the same with control variates."""

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
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches | StreamedBatches,
    *,
    coordinates: str = "eigenbasis",
    curvature: str = "hessian",
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 2000,
    noise_ratio: float = 0.25,
    control_variates: bool = False,
    rounds: int = 4,
    steps_per_round: int = 1500,
    chunk_size: int = 10_000,
) -> WarmStart:
    r"""Find a mode and natural coordinates around it.

    Parameters
    ----------
    key, grad_fn, position, batches, optimizer, num_steps
        As in `find_mode`; `num_steps=0` uses `position` as the mode. Of streamed batches, 200 are
        kept in memory to measure the gradient noise, and for the rounds of a network.
    coordinates
        `"eigenbasis"` (dense, for up to a few thousand numbers), `"kronecker"` (per layer, for
        networks), `"diagonal"` or `"identity"`.
    curvature
        `"hessian"` of $-\log\pi$ over all data, or `"fisher"`, the empirical Fisher matrix
        $\sum_i g_i g_i^\top$ plus the curvature of the prior. For an eigenbasis a few Newton steps
        with it refine the mode.
    noise_ratio
        Bound on $C = h^2\sigma^2/4$, which limits the step size.
    control_variates
        Whether to remove the gradient noise at the mode from every gradient, for large data;
        sample with `grad_fn` of the result. Needs the eigenbasis.
    rounds, steps_per_round
        How often a Kronecker basis is measured again, and after how many steps of the sampler.
    chunk_size
        Rows per evaluation in passes over all data.
    """
    check_target(grad_fn, batches)
    allowed = ("eigenbasis", "kronecker", "diagonal", "identity")
    if coordinates not in allowed:
        raise ValueError(f"`coordinates` must be one of {allowed}, got {coordinates!r}.")
    if curvature not in ("hessian", "fisher"):
        raise ValueError(f"`curvature` must be 'hessian' or 'fisher', got {curvature!r}.")
    if control_variates and coordinates != "eigenbasis":
        raise ValueError(
            "`control_variates` needs `coordinates='eigenbasis'`, where the distance of draws from "
            f"the mode is known, got {coordinates!r}."
        )
    num_steps, rounds = count("num_steps", num_steps, 0), count("rounds", rounds, 0)
    steps_per_round = count("steps_per_round", steps_per_round, 1)
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
        batches = batches.in_memory(random.fold(key, 4), NUM_HELD)
    if coordinates == "kronecker":
        return _network_start(
            random.fold(key, 3), grad_fn, mode, batches, noise_ratio, rounds, steps_per_round
        )
    whole = WholeData(grad_fn, data, mode, chunk_size)
    stiffness = 1.0
    if coordinates == "eigenbasis":
        matrix = whole.hessian if curvature == "hessian" else whole.fisher
        mode = newton(whole, matrix, mode)
        space: Coordinates = eigenbasis(matrix(mode), mode)
    else:
        space = Identity()
        if coordinates == "diagonal":
            space = diagonal_coordinates(whole, mode, curvature)
        stiffness = stiffness_in(random.fold(key, 1), whole, mode, space)
    gradient: GradFn = grad_fn
    positions = [mode]
    if control_variates:
        gradient = controlled(grad_fn, mode, data, chunk_size=chunk_size)
        keys = [random.fold(random.fold(key, 3), i) for i in range(4)]
        positions = [_typical(k, mode, space) for k in keys]
    variance = _noise(random.fold(key, 2), gradient, positions, batches, space)
    unit = stiffness**-0.5
    noise, step_size = _step_size(variance, noise_ratio, LARGEST_STEP * unit)
    return WarmStart(
        position=mode,
        coordinates=space,
        step_size=step_size,
        diffusion=DIFFUSION / unit,
        thermostat_mass=THERMOSTAT_MASS * unit**2,
        stiffness=stiffness,
        noise_variance=noise,
        initial_thermostat=DIFFUSION / unit + step_size * float(np.median(variance)) / 2,
        grad_fn=gradient,
    )


def _typical(key: Key, mode: ArrayTree, space: Coordinates) -> ArrayTree:
    """Draw from the Gaussian approximation of the posterior, a standard normal in `space`."""
    steps = space.push(random.gaussian(key, space.momentum_like(mode)))
    return jax.tree.map(lambda x, step: x + step.astype(x.dtype), mode, steps)


def _network_start(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches,
    noise_ratio: float,
    rounds: int,
    steps_per_round: int,
) -> WarmStart:
    """Move from a mode into the typical set, and measure a Kronecker basis there."""

    def measure(key: Key, position: ArrayTree) -> tuple[Kronecker, float, float]:
        space = kronecker_eigenbasis(
            random.fold(key, 0), grad_fn, position, batches, floor=KRONECKER_FLOOR
        )
        variance = _noise(random.fold(key, 1), grad_fn, [position], batches, space)
        return space, *_step_size(variance, noise_ratio, LARGEST_STEP)

    move = jax.jit(partial(_move, grad_fn, steps_per_round))  # compiled once for all rounds
    space, noise, h = measure(random.fold(key, 0), position)
    for i in range(1, rounds + 1):
        key_i = random.fold(key, i)
        position = move(random.fold(key_i, 2), position, space, jnp.asarray(h), batches)
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(position)):
            raise FloatingPointError(
                f"The chain that starts at the mode diverged in round {i} at step size {h:.3g}. "
                "Use a smaller `noise_ratio`, or start from a better mode."
            )
        space, noise, h = measure(key_i, position)
    return WarmStart(position, space, h, DIFFUSION, THERMOSTAT_MASS, 1.0, noise, grad_fn=grad_fn)


def _move(
    grad_fn: MinibatchGradient,
    num_steps: int,
    key: Key,
    position: ArrayTree,
    space: Kronecker,
    h: jax.Array,
    batches: InMemoryBatches,
) -> ArrayTree:
    """Take steps of the sampler; return the last position."""
    sampler = msgnht(grad_fn, h, DIFFUSION, thermostat_mass=THERMOSTAT_MASS, coordinates=space)
    whole_steps = sampler._replace(halves=None)  # the rounding of version 0.1
    _, state = run_chain(key, whole_steps, position, batches, num_draws=num_steps)
    return state.position


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

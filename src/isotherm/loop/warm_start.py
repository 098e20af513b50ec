r"""Start where the posterior is, in coordinates where it is round.

`warm_start` finds a mode with any optax optimiser, measures the curvature there, and returns
coordinates with a step size, a diffusion and a thermostat mass that need no tuning:

    start = isotherm.warm_start(key, grad_fn, position, batches)
    sampler = isotherm.msgnht(grad_fn, **start.settings)
    run = isotherm.sample(key, sampler, start.position, batches, num_draws=1000, thin=20)

In natural coordinates the stiffness is 1, so $D = 1$ and $\mu = 10$ fit all problems, and the step is
bounded by two numbers only: the dynamics ($h \le 0.1$) and the gradient noise
($C = h^2\sigma^2/4 \le 1/4$). In coordinates whose largest curvature $\lambda$ is not 1 the same holds in
units of $\lambda^{-1/2}$. Thermostats start where the noise will take them, at $D + h\sigma^2/2$: otherwise the first draws of a
chain with small batches are too hot.

**Many data, small batches.** There $\sigma^2 \approx N/n$, the step is $\sqrt{n/N}$ and the friction $\sqrt{N/n}/2$: a draw costs a
pass over the data, as it does without minibatches. `control_variates=True` takes that noise out
(`isotherm.control_variates`, with the mode as its centre); what is left depends on the distance from the mode, hardly on $N$, and the step is
0.1 again. The noise is then measured where draws are, a standard deviation from the mode in every direction. Sample with `start.grad_fn`.

**Networks** (`coordinates="kronecker"`) have no useful mode: the posterior lies far from it, and where it
lies the curvature is another one. So from the mode the sampler itself walks on, some rounds of steps, and
after each the basis is measured anew where it stands. What is returned is the last place and the last
basis. Directions much flatter than a layer's stiffest are not stretched to the prior's full width but to
five times the stiffest one's (`KRONECKER_FLOOR`): the further the weights move along them, the less
the basis fits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.coordinates.curvature import WholeData, diagonal_coordinates, newton, stiffness_in
from isotherm.coordinates.kronecker import Kronecker, kronecker_eigenbasis
from isotherm.coordinates.linear import Coordinates, Identity, eigenbasis
from isotherm.coordinates.natural import DIFFUSION, LARGEST_STEP, THERMOSTAT_MASS
from isotherm.diagnostics.noise import gradient_noise, largest_step_size
from isotherm.gradients.control_variates import control_variates as controlled
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.samplers.msgnht import msgnht
from isotherm.tree import as_position
from isotherm.types import ArrayTree, GradFn, Key

KRONECKER_FLOOR = 0.04
"""Smallest curvature that a Kronecker basis believes in, as a fraction of a layer's largest."""


class WarmStart(NamedTuple):
    """A place to start from and settings to sample with."""

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
    """Where thermostats start; for a network, whose layers differ, nothing is said."""
    grad_fn: GradFn | None = None
    """What to sample with: the gradient that was given, or the same with control variates."""

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


def find_mode(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches,
    *,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 2000,
) -> ArrayTree:
    r"""Climb to a mode of the posterior with an optax optimiser on minibatches.

    Parameters
    ----------
    key
        For the batches.
    grad_fn
        From `isotherm.minibatch_gradient`.
    position
        Where to start.
    batches
        The data.
    optimizer
        Sees the gradient of $-\log\pi/N$; by default Adam with a cosine decay from 0.03 to 0.
    num_steps
        How many updates.
    """
    _check_target(grad_fn, batches)
    if optimizer is None:
        optimizer = optax.adam(optax.cosine_decay_schedule(0.03, num_steps))
    transform = optimizer

    @jax.jit
    def climb(position: ArrayTree, batches: InMemoryBatches) -> ArrayTree:
        def update(t: jax.Array, carry: tuple) -> tuple:
            position, memory = carry
            grads = grad_fn(position, batches.batch(key, t))
            loss_grads = jax.tree.map(lambda g: -g / grad_fn.data_size, grads)
            updates, memory = transform.update(loss_grads, memory, position)
            return optax.apply_updates(position, updates), memory

        return jax.lax.fori_loop(0, num_steps, update, (position, transform.init(position)))[0]

    return climb(as_position(position), batches)


def warm_start(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches,
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
        As in `find_mode`; `num_steps=0` takes `position` for the mode.
    coordinates
        `"eigenbasis"` (dense, for up to a few thousand numbers), `"kronecker"` (per layer, for
        networks), `"diagonal"` or `"identity"`.
    curvature
        `"hessian"` of $-\log\pi$ over all data, or `"fisher"`, the empirical one: $\sum_i g_i g_i^\top$
        plus the curvature of the prior. For an eigenbasis a few Newton steps with it polish the mode.
    noise_ratio
        The $C = h^2\sigma^2/4$ that the step size may reach.
    control_variates
        Whether to take the gradient's noise at the mode out of every gradient, for large data; `grad_fn` of what is returned does.
        Needs the eigenbasis.
    rounds, steps_per_round
        How often a Kronecker basis is measured anew, and after how many steps of the sampler.
    chunk_size
        Rows per evaluation in passes over all data.
    """
    _check_target(grad_fn, batches)
    allowed = ("eigenbasis", "kronecker", "diagonal", "identity")
    if coordinates not in allowed:
        raise ValueError(f"`coordinates` must be one of {allowed}, got {coordinates!r}.")
    if curvature not in ("hessian", "fisher"):
        raise ValueError(f"`curvature` must be 'hessian' or 'fisher', got {curvature!r}.")
    if control_variates and coordinates != "eigenbasis":
        raise ValueError(
            "`control_variates` needs `coordinates='eigenbasis'`: only there is it known how far "
            f"draws are from the mode, got {coordinates!r}."
        )
    if num_steps > 0:
        position = find_mode(
            random.fold(key, 0),
            grad_fn,
            position,
            batches,
            optimizer=optimizer,
            num_steps=num_steps,
        )
    mode = as_position(position)
    if coordinates == "kronecker":
        return _settled(
            random.fold(key, 3), grad_fn, mode, batches, noise_ratio, rounds, steps_per_round
        )
    whole = WholeData(grad_fn, batches.data, mode, chunk_size)
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
    places = [mode]
    if control_variates:
        gradient = controlled(grad_fn, mode, batches.data, chunk_size=chunk_size)
        places = [_typical(random.fold(random.fold(key, 3), i), mode, space) for i in range(4)]
    variance = _noise(random.fold(key, 2), gradient, places, batches, space)
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
    """Draw from the Gaussian that the posterior is in its natural coordinates."""
    steps = space.push(random.gaussian(key, space.momentum_like(mode)))
    return jax.tree.map(lambda x, step: x + step.astype(x.dtype), mode, steps)


def _settled(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches,
    noise_ratio: float,
    rounds: int,
    steps_per_round: int,
) -> WarmStart:
    """Walk from a mode to where the posterior is, and measure a Kronecker basis there."""

    @jax.jit
    def walk(
        position: ArrayTree, space: Kronecker, h: jax.Array, key: Key, batches: InMemoryBatches
    ) -> ArrayTree:
        sampler = msgnht(
            grad_fn, h, DIFFUSION, thermostat_mass=THERMOSTAT_MASS, coordinates=space
        )

        def step(t: jax.Array, state: Any) -> Any:
            batch = batches.batch(random.fold(key, 1), t)
            return sampler.step(random.fold(random.fold(key, 0), t), state, batch)[0]

        start = sampler.init(position, random.fold(key, 2))
        return jax.lax.fori_loop(0, steps_per_round, step, start).position

    def measure(key: Key, position: ArrayTree) -> tuple[Kronecker, float, float]:
        space = kronecker_eigenbasis(
            random.fold(key, 0), grad_fn, position, batches, floor=KRONECKER_FLOOR
        )
        variance = _noise(random.fold(key, 1), grad_fn, [position], batches, space)
        return space, *_step_size(variance, noise_ratio, LARGEST_STEP)

    space, noise, h = measure(random.fold(key, 0), position)
    for i in range(1, rounds + 1):
        key_i = random.fold(key, i)
        position = walk(position, space, jnp.asarray(h), random.fold(key_i, 2), batches)
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(position)):
            raise FloatingPointError(
                f"The walk away from the mode diverged in round {i} at step size {h:.3g}. "
                "Lower `noise_ratio`, or give a mode that is fitted better."
            )
        space, noise, h = measure(key_i, position)
    return WarmStart(position, space, h, DIFFUSION, THERMOSTAT_MASS, 1.0, noise, grad_fn=grad_fn)


def _check_target(grad_fn: object, batches: object) -> None:
    if not isinstance(grad_fn, MinibatchGradient):
        raise ValueError(
            "`grad_fn` must come from isotherm.minibatch_gradient: a warm start needs the log prior "
            f"and the log likelihood apart, got {grad_fn!r}."
        )
    if not isinstance(batches, InMemoryBatches):
        raise ValueError(
            "`batches` must hold the data, as isotherm.independent_batches((x, y), 100) does, "
            f"got {type(batches).__name__}."
        )


def _noise(
    key: Key,
    grad_fn: GradFn,
    places: Sequence[ArrayTree],
    batches: InMemoryBatches,
    space: Coordinates,
) -> np.ndarray:
    """Measure the variance of the minibatch gradient in every coordinate, averaged over places."""
    found = [
        gradient_noise(
            key,
            lambda x, batch: space.pull(grad_fn(x, batch)),
            place,
            lambda k: batches.batch(k, jnp.zeros((), jnp.int32)),
            num_batches=200,
        )
        for place in places
    ]
    return np.mean([ravel_pytree(variance)[0] for variance in found], axis=0)


def _step_size(variance: np.ndarray, noise_ratio: float, largest: float) -> tuple[float, float]:
    """Give the noise that the step size is chosen by, and the step size.

    It is a high quantile of the variance over the coordinates, not the largest: with rare features a few coordinates are zero in most
    batches and enormous in some, and two hundred batches tell their variance only within a factor.
    """
    noise = float(np.quantile(variance, 0.9))
    bound = float(largest_step_size(noise, noise_ratio)) if noise > 0 else np.inf
    return noise, min(largest, bound)

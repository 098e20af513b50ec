r"""Start where the posterior is, in coordinates where it is round.

`warm_start` finds a mode with any optax optimiser, measures the curvature there, and returns
coordinates with a step size, a diffusion and a thermostat mass that need no tuning:

    start = isotherm.warm_start(key, grad_fn, position, batches)
    sampler = isotherm.msgnht(grad_fn, **start.settings)
    run = isotherm.sample(key, sampler, start.position, batches, num_draws=1000, thin=20)

In natural coordinates the stiffness is 1, so $D = 1$ and $\mu = 10$ fit all problems, and the step is
bounded by two numbers only: the dynamics ($h \le 0.1$) and the gradient noise
($C = h^2\sigma^2/4 \le 1/4$). In coordinates whose largest curvature $\lambda$ is not 1 the same holds in
units of $\lambda^{-1/2}$.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.batches import InMemoryBatches
from isotherm.coordinates import Coordinates, Diagonal, Identity, diagonal, eigenbasis
from isotherm.diagnostics.gradient_noise import gradient_noise, largest_step_size
from isotherm.gradients import MinibatchGradient, sum_over_rows
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, Key

LARGEST_STEP = 0.1
"""Dimensionless step at which the splitting error is still below a percent."""


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

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments for `isotherm.msgnht` and `isotherm.sgnht`."""
        return {
            "step_size": self.step_size,
            "diffusion": self.diffusion,
            "thermostat_mass": self.thermostat_mass,
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
    chunk_size: int = 10_000,
) -> WarmStart:
    r"""Find a mode and natural coordinates around it.

    Parameters
    ----------
    key, grad_fn, position, batches, optimizer, num_steps
        As in `find_mode`; `num_steps=0` takes `position` for the mode.
    coordinates
        `"eigenbasis"` (dense, for up to a few thousand numbers), `"diagonal"` or `"identity"`.
    curvature
        `"hessian"` of $-\log\pi$ over all data, or `"fisher"`, the empirical one: $\sum_i g_i g_i^\top$
        plus the curvature of the prior. For an eigenbasis a few Newton steps with it polish the mode.
    noise_ratio
        The $C = h^2\sigma^2/4$ that the step size may reach.
    chunk_size
        Rows per evaluation in passes over all data.
    """
    _check_target(grad_fn, batches)
    if coordinates not in ("eigenbasis", "diagonal", "identity"):
        raise ValueError(
            f"`coordinates` must be 'eigenbasis', 'diagonal' or 'identity', got {coordinates!r}."
        )
    if curvature not in ("hessian", "fisher"):
        raise ValueError(f"`curvature` must be 'hessian' or 'fisher', got {curvature!r}.")
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
    whole = _Whole(grad_fn, batches.data, mode, chunk_size)
    stiffness = 1.0
    if coordinates == "eigenbasis":
        matrix = whole.hessian if curvature == "hessian" else whole.fisher
        mode = _newton(whole, matrix, mode)
        space: Coordinates = eigenbasis(matrix(mode), mode)
    else:
        space = Identity()
        if coordinates == "diagonal":
            space = _diagonal(whole, mode, curvature)
        stiffness = _stiffness(random.fold(key, 1), whole, mode, space)
    noise = _noise(random.fold(key, 2), grad_fn, mode, batches, space)
    unit = stiffness**-0.5
    bound = float(largest_step_size(noise, noise_ratio)) if noise > 0 else np.inf
    return WarmStart(
        position=mode,
        coordinates=space,
        step_size=min(LARGEST_STEP * unit, bound),
        diffusion=1.0 / unit,
        thermostat_mass=10.0 * unit**2,
        stiffness=stiffness,
        noise_variance=noise,
    )


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


class _Whole:
    """Sums over all data, each compiled once."""

    def __init__(
        self, grad_fn: MinibatchGradient, data: Batch, position: ArrayTree, chunk_size: int
    ) -> None:
        _, unravel = ravel_pytree(position)
        self.log_prior, self.size = grad_fn.log_prior, grad_fn.data_size
        self.data, self.chunk_size = data, chunk_size
        likelihood = grad_fn.log_likelihood_sum

        def outer_products(x: jax.Array, batch: Batch) -> jax.Array:
            each = jax.jacrev(lambda x: grad_fn.log_likelihood(unravel(x), batch))(x)
            return each.T @ each

        def squares(x: ArrayTree, batch: Batch) -> ArrayTree:
            each = jax.jacrev(grad_fn.log_likelihood)(x, batch)
            return jax.tree.map(lambda g: jnp.sum(g * g, axis=0), each)

        def times(x_and_v: tuple, batch: Batch) -> ArrayTree:
            x, v = x_and_v
            return jax.jvp(lambda y: jax.grad(likelihood)(y, batch), (x,), (v,))[1]

        self._value = jax.jit(likelihood)
        self._gradient = jax.jit(jax.grad(likelihood))
        self._hessian = jax.jit(jax.hessian(lambda x, b: likelihood(unravel(x), b)))
        self._prior_hessian = jax.jit(jax.hessian(lambda x: self.log_prior(unravel(x))))
        self._outer, self._squares, self._times = map(jax.jit, (outer_products, squares, times))

    def _sum(self, fn: Callable[[Any, Batch], Any], argument: Any) -> Any:
        return sum_over_rows(fn, argument, self.data, self.size, self.chunk_size)

    def log_density(self, position: ArrayTree) -> float:
        return float(self._sum(self._value, position) + self.log_prior(position))

    def gradient(self, position: ArrayTree) -> np.ndarray:
        prior = jax.grad(self.log_prior)(position)
        total = jax.tree.map(jnp.add, prior, self._sum(self._gradient, position))
        return np.asarray(ravel_pytree(total)[0], np.float64)

    def hessian(self, position: ArrayTree) -> np.ndarray:
        flat, _ = ravel_pytree(position)
        return -np.asarray(self._sum(self._hessian, flat) + self._prior_hessian(flat), np.float64)

    def fisher(self, position: ArrayTree) -> np.ndarray:
        flat, _ = ravel_pytree(position)
        return np.asarray(self._sum(self._outer, flat) - self._prior_hessian(flat), np.float64)

    def fisher_diagonal(self, position: ArrayTree) -> ArrayTree:
        """Compute the diagonal of the Fisher information; a separable prior is assumed."""
        ones = jax.tree.map(jnp.ones_like, position)
        prior = jax.jvp(jax.grad(self.log_prior), (position,), (ones,))[1]
        return jax.tree.map(jnp.subtract, self._sum(self._squares, position), prior)

    def hessian_times(self, position: ArrayTree, direction: ArrayTree) -> ArrayTree:
        prior = jax.jvp(jax.grad(self.log_prior), (position,), (direction,))[1]
        likelihood = self._sum(self._times, (position, direction))
        return jax.tree.map(lambda a, b: -(a + b), likelihood, prior)


def _newton(
    whole: _Whole,
    matrix: Callable[[ArrayTree], np.ndarray],
    position: ArrayTree,
    num_steps: int = 20,
) -> ArrayTree:
    """Polish a mode: Newton (or natural-gradient) steps while they pay.

    A step is shortened until the log density grows, and the last one gains less than a thousandth.
    """
    value = whole.log_density(position)
    for _ in range(num_steps):
        flat, unravel = ravel_pytree(position)
        values, vectors = np.linalg.eigh(matrix(position))
        values = np.maximum(np.abs(values), 1e-6 * np.abs(values).max())
        step = vectors @ ((vectors.T @ whole.gradient(position)) / values)
        for shrink in (1.0, 0.5, 0.25, 0.1, 0.01):
            trial = unravel(jnp.asarray(np.asarray(flat, np.float64) + shrink * step, flat.dtype))
            trial_value = whole.log_density(trial)
            if trial_value > value:
                break
        else:
            return position
        gain, position, value = trial_value - value, trial, trial_value
        if gain < 1e-3:
            return position
    return position


def _diagonal(whole: _Whole, position: ArrayTree, curvature: str) -> Diagonal:
    if curvature == "fisher":
        return diagonal(whole.fisher_diagonal(position))
    _, unravel = ravel_pytree(position)
    return diagonal(unravel(jnp.asarray(np.diag(whole.hessian(position)), jnp.float32)))


def _stiffness(key: Key, whole: _Whole, position: ArrayTree, space: Coordinates) -> float:
    """Find the largest curvature in some coordinates by power iteration."""
    direction = random.gaussian(key, space.momentum_like(position))
    size = 1.0
    for _ in range(30):
        norm = optax.tree.norm(direction)
        direction = jax.tree.map(lambda v, n=norm: v / n, direction)
        direction = space.pull(whole.hessian_times(position, space.push(direction)))
        size = float(optax.tree.norm(direction))
    return size


def _noise(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches,
    space: Coordinates,
) -> float:
    """Measure the variance of the minibatch gradient: a high quantile over the coordinates.

    Not the largest: with rare features a few coordinates are zero in most batches and enormous in
    some, and two hundred batches tell their variance only within a factor.
    """
    variance = gradient_noise(
        key,
        lambda x, batch: space.pull(grad_fn(x, batch)),
        position,
        lambda k: batches.batch(k, jnp.zeros((), jnp.int32)),
        num_batches=200,
    )
    return float(np.quantile(ravel_pytree(variance)[0], 0.9))

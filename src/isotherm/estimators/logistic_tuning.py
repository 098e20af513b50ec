"""Step size and batches of a logistic regression, chosen at typical positions."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.batches.importance import ImportanceBatches, multiplicities
from isotherm.coordinates.natural import LARGEST_STEP
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.diagnostics.noise import gradient_noise
from isotherm.estimators.logistic_surrogate import MAX_FULL_BATCH, gradient, surrogate_residuals
from isotherm.types import Key

MAX_STEP_TIMES_FREQUENCY = 0.5
r"""Largest $h\sqrt\lambda$, where $\lambda$ is the largest curvature at a typical position."""
MAX_NOISE_FRICTION = 0.05
r"""Largest friction $h\sigma^2/2$ that gradient noise may add in any direction to that of 1."""
MEAN_MULTIPLICITY = 8
"""Approximate mean multiplicity of a row."""
TRIAL_BATCH_SIZE = 128
"""Batch size at which the gradient noise is measured."""


def choose_step_size(full: ImportanceBatches, positions: np.ndarray) -> float:
    """Return a step size for the median over positions of the largest curvature."""
    curvature = float(np.median([_largest_curvature(full, each) for each in positions[:8]]))
    return _round_step_size(MAX_STEP_TIMES_FREQUENCY * curvature**-0.5)


def choose_batches(
    full: ImportanceBatches, positions: np.ndarray, step_size: float, batch_size: int | None
) -> tuple[ImportanceBatches, float]:
    """Return batches and a step size that is small enough for their gradient noise.

    Parameters
    ----------
    full
        The target with all rows in every batch.
    positions
        Typical positions.
    step_size
        The largest step size that the curvature allows.
    batch_size
        Rows per step; by default all if there are few, otherwise as few as the gradient noise
        allows.
    """
    if full.batch_size <= (MAX_FULL_BATCH if batch_size is None else batch_size):
        return full, step_size
    trial_size = TRIAL_BATCH_SIZE if batch_size is None else int(batch_size)
    trial = _importance_batches(full, positions, trial_size)
    noise = float(np.max(_noise_variance(trial, positions[:8])))
    chosen_size = trial_size
    if batch_size is None:
        sufficient = TRIAL_BATCH_SIZE * noise * step_size / (2 * MAX_NOISE_FRICTION)
        chosen_size = 2 ** int(np.ceil(np.log2(max(sufficient, 32))))
        noise *= TRIAL_BATCH_SIZE / chosen_size
    if 2 * chosen_size >= full.batch_size:
        return full, step_size
    batches = replace(trial, batch_size=chosen_size)
    return batches, min(step_size, _round_step_size(10 * MAX_NOISE_FRICTION / noise))


def _round_step_size(step_size: float) -> float:
    """Round down to `LARGEST_STEP` over a power of √2, so that similar problems share a program."""
    halvings = np.ceil(2 * np.log2(LARGEST_STEP / step_size) - 1e-6)
    return float(LARGEST_STEP * 2 ** (-0.5 * max(halvings, 0.0)))


@jax.jit
def _largest_curvature(full: ImportanceBatches, position: jax.Array) -> jax.Array:
    """Return the largest eigenvalue of the Hessian at a position, by power iteration."""

    def curvature_times(vector: jax.Array) -> jax.Array:
        def full_gradient(position: jax.Array) -> jax.Array:
            return gradient(position, (full.rows, full.shared))

        return -jax.jvp(full_gradient, (position,), (vector,))[1]

    return largest_eigenvalue(curvature_times, jnp.ones_like(position), 20)


@jax.jit
def _noise_variance(batches: ImportanceBatches, positions: jax.Array) -> jax.Array:
    """Return the variance of the gradient over batches, averaged over positions."""

    def draw_batch(key: Key) -> Any:
        return batches.batch(key, jnp.zeros((), jnp.int32))

    def variance(position: jax.Array) -> jax.Array:
        return gradient_noise(jax.random.key(0), gradient, position, draw_batch, 100)

    return jnp.mean(jax.vmap(variance)(positions), axis=0)


def _importance_batches(
    full: ImportanceBatches, positions: np.ndarray, batch_size: int
) -> ImportanceBatches:
    """Return batches with multiplicities in proportion to the rows' typical gradients."""
    squares = sum(
        np.asarray(_squared_residuals(full, position), np.float64)
        for position in positions[:16].astype(np.float32)
    )
    given = np.asarray(full.rows.weight, np.float64) / full.batch_size  # the weights of the rows
    contribution = given * np.sqrt(squares) * np.linalg.norm(full.rows.design, axis=1)
    multiplicity = multiplicities(contribution, MEAN_MULTIPLICITY)
    weight = jnp.asarray(given * (multiplicity.sum() / multiplicity), jnp.float32)
    repeated = jnp.asarray(np.repeat(np.arange(len(multiplicity)), multiplicity), jnp.int32)
    return ImportanceBatches(full.rows._replace(weight=weight), full.shared, repeated, batch_size)


@jax.jit
def _squared_residuals(full: ImportanceBatches, position: jax.Array) -> jax.Array:
    """Return the squared residual of each row's surrogate, summed over classes."""
    squares = surrogate_residuals(full.rows, full.shared, position) ** 2
    return squares if squares.ndim == 1 else jnp.sum(squares, axis=1)

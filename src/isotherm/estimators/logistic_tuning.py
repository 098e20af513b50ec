"""How to sample a logistic regression: step size and batches, from what typical places look like."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.batches.importance import UrnBatches
from isotherm.coordinates.natural import LARGEST_STEP
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.diagnostics.noise import gradient_noise
from isotherm.estimators.logistic_surrogate import SMALL, gradient, remainder
from isotherm.types import Key

STIFFEST = 0.5
r"""Largest step in units of the stiffest direction, $h\sqrt\lambda$, at a typical place."""
NOISE = 0.05
r"""What the noise of a batch may add to the friction, which is 1: $h\sigma^2/2$ in every direction."""
TICKETS = 8
"""In the urn, per row; at least one is the row's own."""
TRIAL = 128
"""Rows of a batch whose noise is measured."""


def choose_step(whole: UrnBatches, places: np.ndarray) -> float:
    """Choose a step size that suits the stiffest direction at the median place."""
    stiffness = float(np.median([_stiffness(whole, place) for place in places[:8]]))
    return _coarse(STIFFEST * stiffness**-0.5)


def choose_batches(
    whole: UrnBatches, places: np.ndarray, step_size: float, batch_size: int | None
) -> tuple[UrnBatches, float]:
    """Choose batches, and shorten the step if the noise of those that were asked for wants it.

    Parameters
    ----------
    whole
        The target with all rows in every batch.
    places
        Typical positions.
    step_size
        What the dynamics allow.
    batch_size
        Rows per step; by default all if there are few, and otherwise as few as the noise allows.
    """
    if whole.batch_size <= (SMALL if batch_size is None else batch_size):
        return whole, step_size
    trial = _urn(whole, places, TRIAL if batch_size is None else int(batch_size))
    noise = float(np.max(_noise(trial, places[:8])))
    chosen = trial.batch_size
    if batch_size is None:
        wanted = TRIAL * noise * step_size / (2 * NOISE)
        chosen = 2 ** int(np.ceil(np.log2(max(wanted, 32))))
        noise *= TRIAL / chosen
    if 2 * chosen >= whole.batch_size:
        return whole, step_size
    return replace(trial, batch_size=chosen), min(step_size, _coarse(10 * NOISE / noise))


def _coarse(step_size: float) -> float:
    """Round down to the largest step over a power of √2: similar problems share a program."""
    halvings = np.ceil(2 * np.log2(LARGEST_STEP / step_size) - 1e-6)
    return float(LARGEST_STEP * 2 ** (-0.5 * max(halvings, 0.0)))


@jax.jit
def _stiffness(whole: UrnBatches, place: jax.Array) -> jax.Array:
    """Find the largest curvature at a place, by power iteration."""

    def uphill(position: jax.Array) -> jax.Array:
        return gradient(position, (whole.rows, whole.shared))

    def times(direction: jax.Array) -> jax.Array:
        return -jax.jvp(uphill, (place,), (direction,))[1]

    return largest_eigenvalue(times, jnp.ones_like(place), 20)


@jax.jit
def _noise(batches: UrnBatches, places: jax.Array) -> jax.Array:
    """Measure the variance of the gradient over batches, averaged over places."""

    def batch(key: Key) -> Any:
        return batches.batch(key, jnp.zeros((), jnp.int32))

    def at(place: jax.Array) -> jax.Array:
        return gradient_noise(jax.random.key(0), gradient, place, batch, 100)

    return jnp.mean(jax.vmap(at)(places), axis=0)


def _urn(whole: UrnBatches, places: np.ndarray, batch_size: int) -> UrnBatches:
    """Give rows tickets in proportion to what they add to the gradient at typical places."""
    squares = sum(
        np.asarray(_squares(whole, place), np.float64) for place in places[:16].astype(np.float32)
    )
    *rows, _ = whole.rows
    share = np.sqrt(squares) * np.linalg.norm(rows[0], axis=1)
    tickets = 1 + np.floor((TICKETS - 1) * len(share) * share / share.sum()).astype(np.int64)
    weight = jnp.asarray(tickets.sum() / tickets, jnp.float32)
    urn = jnp.asarray(np.repeat(np.arange(len(tickets)), tickets), jnp.int32)
    return UrnBatches((*rows, weight), whole.shared, urn, batch_size)


@jax.jit
def _squares(whole: UrnBatches, place: jax.Array) -> jax.Array:
    missing = remainder(whole.rows, whole.shared, place) ** 2
    return missing if missing.ndim == 1 else jnp.sum(missing, axis=1)

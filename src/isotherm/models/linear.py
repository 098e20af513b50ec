r"""Bayesian linear regression with unknown noise.

$$ \log p(y \mid x, \theta, \sigma) = -\tfrac12\log 2\pi\sigma^2 - \frac{(y - x^\top\theta)^2}{2\sigma^2} $$

The prior is $\theta \sim \mathcal N(0, v)$, independently, and $\sigma \sim \text{half-Cauchy}(s)$. A sampler moves $\lambda = \log\sigma^2$, so
the density of the prior is that of $\lambda$, $\propto \sigma/(s^2 + \sigma^2)$: flat in $\sigma$ below $s$, so that a small noise is not ruled
out, and with a heavy tail above it (Gelman 2006, *Prior distributions for variance parameters in hierarchical
models*).

There is no separate intercept (`isotherm.models.logistic.with_intercept`). Features come as
`isotherm.models.logistic.as_rows` makes them, dense or sparse. `isotherm.references.conjugate` has the exact posterior.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from isotherm.models.logistic import Rows, logits
from isotherm.models.logistic import log_prior as weight_prior


class Position(NamedTuple):
    """What a sampler moves."""

    weights: jax.Array
    r"""$\theta$, one per feature."""
    log_noise: jax.Array
    r"""$\lambda = \log\sigma^2$."""


def log_prior(
    position: Position, variance: float | jax.Array, noise_scale: float | jax.Array = 1.0
) -> jax.Array:
    r"""Evaluate $\log p(\theta) + \log p(\lambda)$, normalised.

    Parameters
    ----------
    position
        Weights and log noise variance.
    variance
        $v$: a number, or one per weight.
    noise_scale
        $s$.
    """
    shift = position.log_noise - 2 * jnp.log(noise_scale)
    noise = 0.5 * shift - jax.nn.softplus(shift) - jnp.log(jnp.pi)
    return weight_prior(position.weights, variance) + noise


def log_likelihood(position: Position, batch: tuple[Rows, jax.Array]) -> jax.Array:
    r"""Evaluate $\log p(y \mid x, \theta, \sigma)$ of each row.

    Parameters
    ----------
    position
        Weights and log noise variance.
    batch
        `(rows, targets)`.
    """
    rows, target = batch
    misfit = (target - logits(position.weights, rows)) ** 2 * jnp.exp(-position.log_noise)
    return -0.5 * (misfit + position.log_noise + jnp.log(2 * jnp.pi))


def predict(position: Position, rows: Rows) -> jax.Array:
    """Compute the mean of each row; the predictive mean is the mean of this over draws."""
    return logits(position.weights, rows)

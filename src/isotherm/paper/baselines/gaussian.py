r"""Gaussian approximations of a posterior, and the evidence lower bound they maximize.

$$ q(\theta) = \mathcal N(\mu, LL^\top), \qquad
   \mathcal L(\mu, L) = \mathbb E_{z \sim \mathcal N(0, I)}\bigl[\log p(\theta, \text{data})
   \bigr]_{\theta = \mu + Lz} + \sum_i \log L_{ii} + \tfrac d2 \log 2\pi e
   \le \log p(\text{data}), $$

with $L$ lower triangular (`"full"`) or diagonal (`"diagonal"`). The entropy is exact; the
expectation is estimated with a few $z$ and a minibatch, and differentiated through
$\theta = \mu + Lz$. For a log-concave target $-\mathcal L$ is convex in $(\mu, L)$ (Challis &
Barber 2013), and so is each of its estimates.

At the optimum $(LL^\top)^{-1} = -\mathbb E_q[\nabla^2 \log p]$: on a Gaussian posterior of
precision $\Lambda$ the full approximation is exact, and the diagonal one has standard deviations
$\Lambda_{ii}^{-1/2}$, which are smaller than the true ones wherever coordinates are correlated.

References
----------
Challis & Barber (2013), *Gaussian Kullback-Leibler approximate inference*, JMLR.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.gradients.full_data import sum_over_rows
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.types import ArrayTree, Batch, Key

LogDensity = Callable[[jax.Array, Batch], jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GaussianApproximation:
    """A Gaussian that approximates the posterior; `sample` draws from it."""

    mean: ArrayTree
    r"""$\mu$, shaped like the position."""
    scale: jax.Array
    r"""$L$ over the flattened position (leaves in order): `(d, d)` lower triangular, or `(d,)`."""
    elbo: jax.Array
    r"""The noisy estimate of $\mathcal L$ at every step; `evidence_bound` gives a precise one."""

    @property
    def covariance(self) -> jax.Array:
        r"""$LL^\top$ over the flattened position."""
        return jnp.diag(self.scale**2) if self.scale.ndim == 1 else self.scale @ self.scale.T

    def standard_deviations(self) -> ArrayTree:
        """Return the marginal standard deviations, shaped like the position."""
        _, unflatten = flatten(self.mean)
        rows = jnp.abs(self.scale) if self.scale.ndim == 1 else jnp.linalg.norm(self.scale, axis=1)
        return unflatten(rows)

    def entropy(self) -> jax.Array:
        """Compute the entropy, in nats."""
        return log_volume(self.scale)

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions, with leading axes `(1, num_draws)` as in a run of one chain."""
        check_count("num_draws", num_draws)
        flat, unflatten = flatten(self.mean)
        noise = random.gaussian(key, jnp.zeros((num_draws, flat.size), flat.dtype))
        positions = jax.vmap(unflatten)(reparametrise(Parameters(flat, self.scale), noise))
        return jax.tree.map(lambda leaf: leaf[None], positions)


class Parameters(NamedTuple):
    """Variational parameters: the mean and a factor of the covariance of the flat position."""

    mean: jax.Array
    factor: jax.Array


def reparametrise(parameters: Parameters, noise: jax.Array) -> jax.Array:
    r"""Compute $\mu + Lz$ for every row $z$ of `noise`."""
    mean, factor = parameters
    if factor.ndim == 1:
        return mean[None, :] + factor[None, :] * noise
    return mean[None, :] + noise @ jnp.tril(factor).T


def log_volume(factor: jax.Array) -> jax.Array:
    r"""Compute the entropy of $\mathcal N(\mu, LL^\top)$ from its factor."""
    diagonal = factor if factor.ndim == 1 else jnp.diagonal(factor)
    return jnp.sum(jnp.log(diagonal)) + 0.5 * len(diagonal) * np.log(2 * np.pi * np.e)


def bound(
    log_density: LogDensity, parameters: Parameters, noise: jax.Array, batch: Batch
) -> jax.Array:
    r"""Estimate $\mathcal L$ from some $z$ (rows of `noise`) and one batch."""
    values = jax.vmap(lambda x: log_density(x, batch))(reparametrise(parameters, noise))
    return jnp.mean(values) + log_volume(parameters.factor)


def step_within(parameters: Parameters, step: Parameters) -> Parameters:
    r"""Take a step in which no $L_{ii}$ shrinks by more than half, so that all stay positive."""
    factor = parameters.factor + step.factor
    if factor.ndim == 1:
        factor = jnp.maximum(factor, 0.5 * parameters.factor)
    else:
        short = 0.5 * jnp.diagonal(parameters.factor) - jnp.diagonal(factor)
        factor = factor + jnp.diag(jnp.maximum(short, 0))
    return Parameters(parameters.mean + step.mean, factor)


def flatten(position: ArrayTree) -> tuple[jax.Array, Callable[[jax.Array], ArrayTree]]:
    """Flatten a position to at least single precision.

    Returns the flat array and the function that restores the structure and the dtypes.
    """
    flat, unravel = ravel_pytree(position)
    dtype = flat.dtype
    return flat.astype(jnp.promote_types(dtype, jnp.float32)), lambda x: unravel(x.astype(dtype))


def check_count(name: str, value: int) -> None:
    """Raise a `ValueError` unless the argument called `name` is at least 1."""
    if not value >= 1:
        raise ValueError(f"`{name}` must be at least 1, got {value}.")


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: jax.Array
    standard_error: jax.Array


def evidence_bound(
    key: Key,
    grad_fn: MinibatchGradient,
    approximation: GaussianApproximation,
    data: Batch,
    *,
    num_draws: int = 100,
    chunk_size: int = 10_000,
) -> Estimate:
    r"""Estimate $\mathcal L$ on all data, with its Monte Carlo error.

    Approximations of the same model can be compared by it (higher is closer to the posterior). It
    is a lower bound of $\log p(\text{data})$ if likelihood and prior are normalised.

    Parameters
    ----------
    key
        For the draws; two approximations with the same key are compared on the same $z$.
    grad_fn, approximation
        The target and its approximation.
    data
        All data, a pytree whose leaves have the same first axis.
    num_draws
        Number of $z$.
    chunk_size
        Rows per evaluation in the pass over the data.
    """
    positions = jax.tree.map(lambda leaf: leaf[0], approximation.sample(key, num_draws))

    def each(fn: Callable[..., jax.Array], *rest: Batch) -> jax.Array:
        return jax.lax.map(lambda position: fn(position, *rest), positions)

    likelihood = sum_over_rows(
        jax.jit(lambda _, rows: each(grad_fn.log_likelihood_sum, rows)),
        positions,
        data,
        grad_fn.data_size,
        chunk_size,
    )
    values = each(grad_fn.log_prior) + likelihood
    error = jnp.std(values, ddof=1) / np.sqrt(num_draws) if num_draws > 1 else jnp.array(jnp.inf)
    return Estimate(jnp.mean(values) + approximation.entropy(), error)

r"""The posterior of a linear regression with unknown noise, in coordinates where it is nearly normal.

On the principal axes of the design (`estimators/design_svd.py`) the model is one small regression per axis. With $c = U^\top y$ and
$\lambda = \log\sigma^2$,

$$ \zeta_j \mid \lambda, y \sim \mathcal N\Bigl(\frac{d_j c_j}{d_j^2 + e^\lambda},\
   \frac{e^\lambda}{d_j^2 + e^\lambda}\Bigr) . $$

Written as this mean plus this deviation times $q_j$, the coefficients are standard normal *and independent of the
noise*, whose own log density is

$$ \log p(\lambda \mid y) = \tfrac12\lambda - \log(1 + e^\lambda) - \tfrac12 N\lambda
   - \tfrac12\sum_j\log(1 + d_j^2 e^{-\lambda})
   - \tfrac12\Bigl[\rho\,e^{-\lambda} + \sum_j \frac{c_j^2}{d_j^2 + e^\lambda}\Bigr] . $$

The first two terms are the prior, a half-Cauchy distribution of $\sigma$ in units of the target; $\rho$ is the residual sum of
squares of the least-squares fit. The sampler moves $q$ and $t = (\lambda - \bar\lambda)/\mathrm{sd}(\lambda)$. All that the data say
is in $N$, $\rho$, $d$ and $c$, so gradients are exact and cost the same for a hundred rows and for a billion.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.batches.importance import COLUMNS, UrnBatches, padded
from isotherm.coordinates.natural import LARGEST_STEP
from isotherm.estimators.design_svd import Axes

SMALLEST_NOISE = 1e-7
"""In units of the target: a better fit than this is a perfect fit."""


class NoiseStatistics(NamedTuple):
    """What the density of the log noise variance is made of."""

    size: Any
    """$N$."""
    log_strengths: Any
    r"""$\log d_j^2$."""
    squares: Any
    """$c_j^2$."""
    log_residual: Any
    r"""$\log\rho$."""


def log_noise_density(log_noise: jax.Array, statistics: NoiseStatistics) -> jax.Array:
    r"""Evaluate $\log p(\lambda \mid y)$ up to a constant."""
    size, log_strengths, squares, log_residual = statistics
    prior = 0.5 * log_noise - jax.nn.softplus(log_noise)
    volume = size * log_noise + jnp.sum(jax.nn.softplus(log_strengths - log_noise))
    misfit = jnp.exp(log_residual - log_noise) + jnp.sum(
        squares / (jnp.exp(log_strengths) + jnp.exp(log_noise))
    )
    return prior - 0.5 * (volume + misfit)


def gradient(position: jax.Array, batch: tuple) -> jax.Array:
    """Compute the exact gradient; the first coordinate is that of the noise, if it is unknown."""
    _, noise = batch
    if noise is None:
        return -position
    statistics, center, width = noise
    slope = jax.grad(lambda t: log_noise_density(center + width * t, statistics))(position[0])
    return jnp.concatenate([slope[None], -position[1:]])


@dataclass(frozen=True)
class LinearTarget:
    """What a sampler needs to know of the posterior, and the way back to coefficients."""

    batches: UrnBatches
    dimension: int
    """How many numbers the sampler moves; those beyond the axes are there for company."""
    axes: Axes
    fit: np.ndarray
    """$c$, in units of the target."""
    unit: float
    """The target's standard deviation, or 1."""
    origin: float
    """Its mean, or 0."""
    center: float
    width: float
    r"""Mean and standard deviation of $\lambda$; a width of 0 if that is known."""

    gradient = staticmethod(gradient)
    step_size = LARGEST_STEP

    def read(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Turn draws of $(t, q)$ into coefficients, intercepts and noise variances."""
        first, draws = int(self.width > 0), draws.astype(np.float64)
        noise = np.exp(self.center + self.width * draws[..., :1])
        mean, deviation = self._conditional(noise)
        found = mean + deviation * draws[..., first : first + len(self.fit)]
        found = self.unit * found @ self.axes.loadings.T
        return {
            "coef": found[..., 1:],
            "intercept": found[..., 0] + self.origin,
            "noise_variance": noise[..., 0] * self.unit**2,
        }

    def locate(self, draws: dict[str, np.ndarray]) -> np.ndarray:
        """Find $(t, q)$ of coefficients, intercepts and noise variances."""
        noise = draws["noise_variance"][..., None] / self.unit**2
        intercept = draws["intercept"][..., None] - self.origin
        both = np.concatenate([intercept, draws["coef"]], axis=-1) / self.unit
        mean, deviation = self._conditional(noise)
        t = (np.log(noise) - self.center) / self.width if self.width > 0 else noise[..., :0]
        found = np.concatenate([t, (self.axes.locate(both) - mean) / deviation], axis=-1)
        return np.pad(found, [(0, 0), (0, self.dimension - found.shape[-1])])

    def _conditional(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give mean and deviation of the axes, if the noise has this variance."""
        total = self.axes.strengths**2 + noise
        return self.axes.strengths * self.fit / total, np.sqrt(noise / total)


def linear_target(
    axes: Axes, column: np.ndarray, unit: float, origin: float, size: int, known: float | None
) -> LinearTarget:
    """Find the coordinates of a posterior.

    Parameters
    ----------
    axes
        The principal axes of the features under the prior.
    column
        The target's column of the triangular factor, in units of the target.
    unit, origin
        These units.
    size
        $N$.
    known
        The noise variance in these units, if it is known.
    """
    shared = axes.left.T @ column
    num = min(len(axes.strengths), len(shared))
    fit = np.pad(shared[:num], (0, len(axes.strengths) - num))
    if known is not None:
        batches, (dimension,) = UrnBatches((), None, None, 1), padded(fit, COLUMNS).shape
        center, width = float(np.log(known)), 0.0
    else:
        residual = max(np.sum(shared[num:] ** 2), size * SMALLEST_NOISE**2)
        both = padded(np.array([np.append(0.0, axes.strengths), np.append(0.0, fit)]), 1, COLUMNS)
        dimension, (strengths, fits) = both.shape[1], both[:, 1:]
        log_strengths = np.log(np.maximum(strengths**2, 1e-300))
        statistics = NoiseStatistics(size, log_strengths, fits**2, np.log(residual))
        center, width = _noise_moments(statistics)
        noise = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (statistics, center, width))
        batches = UrnBatches((), noise, None, 1)
    return LinearTarget(batches, dimension, axes, fit, unit, origin, center, width)


def _noise_moments(statistics: NoiseStatistics) -> tuple[float, float]:
    """Integrate for the mean and the sd of the log noise variance, on narrower and narrower grids."""
    size, log_strengths, squares, log_residual = statistics
    strengths = np.exp(log_strengths)
    low, high = 2 * np.log(SMALLEST_NOISE) - 10, 20.0
    mean, sd = 0.0, 1.0
    for _ in range(12):
        grid = np.linspace(low, high, 1001)
        noise = np.exp(grid)[:, None]
        log_density = (
            (0.5 - 0.5 * size) * grid
            - np.log1p(noise[:, 0])
            - 0.5 * np.log1p(strengths / noise).sum(1)
            - 0.5 * (np.exp(log_residual - grid) + (squares / (strengths + noise)).sum(1))
        )
        mass = np.exp(log_density - log_density.max())
        mean = float(np.average(grid, weights=mass))
        sd = float(np.sqrt(np.average((grid - mean) ** 2, weights=mass)))
        reach = 10 * max(sd, grid[1] - grid[0])
        low, high = mean - reach, mean + reach
    return mean, sd

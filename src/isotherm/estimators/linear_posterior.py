r"""The posterior of a linear regression with unknown noise, in natural coordinates.

In the coordinates of the design's SVD (`isotherm.estimators.design_svd`) the model is one simple
regression per coordinate. With $c = U^\top y$ and $\lambda = \log\sigma^2$,

$$ \zeta_j \mid \lambda, y \sim \mathcal N\Bigl(\frac{d_j c_j}{d_j^2 + e^\lambda},\
   \frac{e^\lambda}{d_j^2 + e^\lambda}\Bigr) . $$

Let $q_j$ be $\zeta_j$ minus this mean, divided by this standard deviation. Then $q$ is standard
normal *and independent of the noise*, whose own log density is

$$ \log p(\lambda \mid y) = \tfrac12\lambda - \log(1 + e^\lambda) - \tfrac12 N\lambda
   - \tfrac12\sum_j\log(1 + d_j^2 e^{-\lambda})
   - \tfrac12\Bigl[\rho\,e^{-\lambda} + \sum_j \frac{c_j^2}{d_j^2 + e^\lambda}\Bigr] . $$

The first two terms are the prior, a half-Cauchy distribution of $\sigma$ on the scale of the
target; $\rho$ is the residual sum of squares of the least-squares fit. The sampler moves $q$ and
$t = (\lambda - \bar\lambda)/\mathrm{sd}(\lambda)$. The sufficient statistics are $N$, $\rho$, $d$
and $c$, so gradients are exact and cost the same for a hundred rows and for a billion.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.batches.importance import ImportanceBatches
from isotherm.coordinates.natural import LARGEST_STEP
from isotherm.estimators.design_svd import DesignSVD
from isotherm.estimators.padding import COLUMN_MULTIPLE, pad_to_multiples

MIN_NOISE_SD = 1e-7
"""On the scale of the target; smaller residuals are treated as if they were this large."""


class NoiseStatistics(NamedTuple):
    """Sufficient statistics of the log noise variance."""

    num_rows: Any
    """$N$."""
    log_squared_singular_values: Any
    r"""$\log d_j^2$."""
    squared_projections: Any
    """$c_j^2$."""
    log_residual: Any
    r"""$\log\rho$."""


def log_noise_density(log_noise: jax.Array, statistics: NoiseStatistics) -> jax.Array:
    r"""Return $\log p(\lambda \mid y)$ up to a constant."""
    num_rows, log_squares, projections, log_residual = statistics
    log_prior = 0.5 * log_noise - jax.nn.softplus(log_noise)
    log_determinant = num_rows * log_noise + jnp.sum(jax.nn.softplus(log_squares - log_noise))
    quadratic_form = jnp.exp(log_residual - log_noise) + jnp.sum(
        projections / (jnp.exp(log_squares) + jnp.exp(log_noise))
    )
    return log_prior - 0.5 * (log_determinant + quadratic_form)


def gradient(position: jax.Array, batch: tuple) -> jax.Array:
    """Return the exact gradient; the first coordinate is that of the noise, if it is unknown."""
    _, noise = batch
    if noise is None:
        return -position
    statistics, mean, sd = noise
    noise_gradient = jax.grad(lambda t: log_noise_density(mean + sd * t, statistics))(position[0])
    return jnp.concatenate([noise_gradient[None], -position[1:]])


@dataclass(frozen=True)
class LinearTarget:
    """The posterior as a target of the sampler, with the map to coefficients."""

    batches: ImportanceBatches
    dimension: int
    """Length of a position. Coordinates after those of the SVD are padding and standard normal."""
    svd: DesignSVD
    projection: np.ndarray
    """$c$, on the scale of the target."""
    target_scale: float
    """Standard deviation of the target, or 1."""
    target_mean: float
    """Mean of the target, or 0."""
    log_noise_mean: float
    log_noise_sd: float
    r"""Mean and standard deviation of $\lambda$; an sd of 0 if the noise is known."""

    gradient = staticmethod(gradient)
    step_size = LARGEST_STEP

    def to_parameters(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Convert draws of $(t, q)$ to coefficients, intercepts and noise variances."""
        first, positions = int(self.log_noise_sd > 0), positions.astype(np.float64)
        noise = np.exp(self.log_noise_mean + self.log_noise_sd * positions[..., :1])
        mean, sd = self._conditional(noise)
        zeta = mean + sd * positions[..., first : first + len(self.projection)]
        coefficients = self.target_scale * zeta @ self.svd.loadings.T
        return {
            "coef": coefficients[..., 1:],
            "intercept": coefficients[..., 0] + self.target_mean,
            "noise_variance": noise[..., 0] * self.target_scale**2,
        }

    def to_positions(self, parameters: dict[str, np.ndarray]) -> np.ndarray:
        """Return $(t, q)$ of coefficients, intercepts and noise variances."""
        noise = parameters["noise_variance"][..., None] / self.target_scale**2
        intercept = parameters["intercept"][..., None] - self.target_mean
        both = np.concatenate([intercept, parameters["coef"]], axis=-1) / self.target_scale
        mean, sd = self._conditional(noise)
        t = noise[..., :0]
        if self.log_noise_sd > 0:
            t = (np.log(noise) - self.log_noise_mean) / self.log_noise_sd
        q = (self.svd.from_coefficients(both) - mean) / sd
        position = np.concatenate([t, q], axis=-1)
        return np.pad(position, [(0, 0), (0, self.dimension - position.shape[-1])])

    def _conditional(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r"""Return the mean and standard deviation of $\zeta$ given the noise variance."""
        total = self.svd.singular_values**2 + noise
        return self.svd.singular_values * self.projection / total, np.sqrt(noise / total)


def linear_target(
    svd: DesignSVD,
    target_column: np.ndarray,
    target_scale: float,
    target_mean: float,
    num_rows: float,
    noise_variance: float | None,
) -> LinearTarget:
    """Build the posterior of a linear regression in natural coordinates.

    Parameters
    ----------
    svd
        SVD of the design under the prior.
    target_column
        The target's column of the triangular factor, after subtraction of `target_mean` and
        division by `target_scale`.
    target_scale, target_mean
        Scale and mean of the target.
    num_rows
        $N$.
    noise_variance
        The noise variance in units of `target_scale` squared, if it is known.
    """
    rotated = svd.left_vectors.T @ target_column
    num = min(len(svd.singular_values), len(rotated))
    projection = np.pad(rotated[:num], (0, len(svd.singular_values) - num))
    if noise_variance is not None:
        noise, (dimension,) = None, pad_to_multiples(projection, COLUMN_MULTIPLE).shape
        mean, sd = float(np.log(noise_variance)), 0.0
    else:
        residual = max(np.sum(rotated[num:] ** 2), num_rows * MIN_NOISE_SD**2)
        # One coordinate of the noise, then those of the SVD, then padding.
        values = np.array([np.append(0.0, svd.singular_values), np.append(0.0, projection)])
        values = pad_to_multiples(values, 1, COLUMN_MULTIPLE)
        dimension, (singular_values, projections) = values.shape[1], values[:, 1:]
        log_squares = np.log(np.maximum(singular_values**2, 1e-300))
        statistics = NoiseStatistics(num_rows, log_squares, projections**2, np.log(residual))
        mean, sd = _log_noise_moments(statistics)
        noise = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (statistics, mean, sd))
    batches = ImportanceBatches((), noise, None, 1)
    return LinearTarget(batches, dimension, svd, projection, target_scale, target_mean, mean, sd)


def _log_noise_moments(statistics: NoiseStatistics) -> tuple[float, float]:
    """Return mean and sd of the log noise variance, by sums over successively narrower grids."""
    num_rows, log_squares, projections, log_residual = statistics
    squares = np.exp(log_squares)
    low, high = 2 * np.log(MIN_NOISE_SD) - 10, 20.0
    mean, sd = 0.0, 1.0
    for _ in range(12):
        grid = np.linspace(low, high, 1001)
        noise = np.exp(grid)[:, None]
        log_density = (
            (0.5 - 0.5 * num_rows) * grid
            - np.log1p(noise[:, 0])
            - 0.5 * np.log1p(squares / noise).sum(1)
            - 0.5 * (np.exp(log_residual - grid) + (projections / (squares + noise)).sum(1))
        )
        mass = np.exp(log_density - log_density.max())
        mean = float(np.average(grid, weights=mass))
        sd = float(np.sqrt(np.average((grid - mean) ** 2, weights=mass)))
        half_width = 10 * max(sd, grid[1] - grid[0])
        low, high = mean - half_width, mean + half_width
    return mean, sd

r"""Posterior of a linear regression: in closed form, or by an integral over one variable.

With $y \sim \mathcal N(X\theta, \sigma^2)$ and $\theta \sim \mathcal N(0, v)$ the posterior is

$$ \theta \mid y \sim \mathcal N(S X^\top y/\sigma^2,\ S), \qquad
   S = (X^\top X/\sigma^2 + I/v)^{-1} . $$
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from isotherm.references.arguments import as_dense, check_data, prior_variances
from isotherm.schedules import require_positive


class GaussianPosterior(NamedTuple):
    """A multivariate normal distribution of weights."""

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of each weight."""
        return np.sqrt(np.diag(self.covariance))


def linear_posterior(
    x: Any, y: Any, prior_variance: Any, noise_variance: float
) -> GaussianPosterior:
    r"""Compute the posterior of a linear regression whose noise variance is known.

    Parameters
    ----------
    x
        (rows, features), dense or SciPy sparse. There is no separate intercept.
    y
        (rows,).
    prior_variance
        $v$: a number, or one per feature.
    noise_variance
        $\sigma^2$.

    Examples
    --------
    >>> linear_posterior(np.ones((3, 1)), np.ones(3), prior_variance=1.0, noise_variance=1.0)
    GaussianPosterior(mean=array([0.75]), covariance=array([[0.25]]))
    """
    x, y = check_data(x, y)
    require_positive("noise_variance", noise_variance)
    precision = as_dense(x.T @ x) / noise_variance + np.diag(1 / prior_variances(prior_variance, x))
    covariance = _inverse(precision)
    return GaussianPosterior(covariance @ (x.T @ y) / noise_variance, covariance)


class MixturePosterior(NamedTuple):
    """Posterior means and standard deviations of the weights and of the noise variance."""

    mean: np.ndarray
    sd: np.ndarray
    noise_mean: float
    noise_sd: float


def linear_posterior_half_cauchy(
    x: Any, y: Any, prior_variance: Any, noise_scale: float = 1.0
) -> MixturePosterior:
    r"""Compute the posterior of a linear regression with a half-Cauchy prior of the noise.

    $\theta \sim \mathcal N(0, v)$ and $\sigma \sim \text{half-Cauchy}(s)$, independently. Given
    $\sigma$ the posterior is Gaussian and so is the evidence,
    $y \sim \mathcal N(0, \sigma^2 I + X v X^\top)$. The remaining integral over $\log\sigma^2$ is a
    sum over a grid that is narrowed twice.

    Parameters
    ----------
    x, y, prior_variance
        As in `linear_posterior`.
    noise_scale
        $s$.
    """
    x, y = check_data(x, y)
    require_positive("noise_scale", noise_scale)
    # In the eigenbasis of X v X' all terms are positive: no cancellation, however small the noise.
    variance = prior_variances(prior_variance, x)
    cross_covariance = as_dense(x) * variance
    values, vectors = np.linalg.eigh(cross_covariance @ as_dense(x).T)
    values, squares = np.maximum(values, 0), (vectors.T @ y) ** 2
    cross_covariance = vectors.T @ cross_covariance

    def conditional(log_noise: float) -> tuple[float, np.ndarray, np.ndarray]:
        r"""Return the log density of $\log\sigma^2$, and mean and variance of the weights."""
        total = values + np.exp(log_noise)
        evidence = -0.5 * np.sum(np.log(total) + squares / total)
        prior = 0.5 * log_noise - np.log1p(np.exp(log_noise) / noise_scale**2)
        mean = cross_covariance.T @ (vectors.T @ y / total)
        explained = np.sum(cross_covariance**2 / total[:, None], axis=0)
        return evidence + prior, mean, variance - explained

    center, half_width = np.log(y @ y / len(y)), 40.0
    for num_points in (400, 400, 400):
        grid = np.linspace(center - half_width, center + half_width, num_points)
        log_density, means, variances = (
            np.array(each) for each in zip(*map(conditional, grid), strict=True)
        )
        weight = np.exp(log_density - log_density.max())
        weight /= weight.sum()
        center = weight @ grid
        half_width = 10 * max(np.sqrt(weight @ (grid - center) ** 2), grid[1] - grid[0])
    mean = weight @ means
    noise = np.exp(grid)
    return MixturePosterior(
        mean,
        np.sqrt(weight @ (variances + (means - mean) ** 2)),
        float(weight @ noise),
        float(np.sqrt(weight @ (noise - weight @ noise) ** 2)),
    )


def _inverse(precision: np.ndarray) -> np.ndarray:
    return linalg.cho_solve(linalg.cho_factor(precision), np.eye(len(precision)))

r"""Linear regression: posteriors in closed form, or by an integral over one variable.

With $y \sim \mathcal N(X\theta, \sigma^2)$ and $\theta \sim \mathcal N(0, v)$ the posterior is

$$ \theta \mid y \sim \mathcal N(S X^\top y/\sigma^2,\ S), \qquad S = (X^\top X/\sigma^2 + I/v)^{-1} . $$
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from isotherm.references.arguments import as_dense, check_data, prior_variances, require_positive


class GaussianPosterior(NamedTuple):
    """A normal distribution over weights."""

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of each weight."""
        return np.sqrt(np.diag(self.covariance))


class StudentPosterior(NamedTuple):
    r"""Weights and noise of a linear regression: the normal-inverse-gamma distribution.

    $\sigma^2 \sim \mathrm{IG}(a, b)$ and $\theta \mid \sigma^2 \sim \mathcal N(m, \sigma^2 S)$, so that $\theta$
    alone is Student's $t$ with $2a$ degrees of freedom.
    """

    mean: np.ndarray
    scale: np.ndarray
    """$S$."""
    noise_shape: float
    """$a$."""
    noise_rate: float
    """$b$."""

    @property
    def sd(self) -> np.ndarray:
        r"""Standard deviation of each weight: $E[\sigma^2] S_{ii}$ under the root."""
        return np.sqrt(self.noise_mean * np.diag(self.scale))

    @property
    def noise_mean(self) -> float:
        r"""The mean of $\sigma^2$, $b/(a - 1)$; infinite for $a \le 1$."""
        return self.noise_rate / (self.noise_shape - 1) if self.noise_shape > 1 else np.inf


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
    require_positive(noise_variance=noise_variance)
    precision = as_dense(x.T @ x) / noise_variance + np.diag(1 / prior_variances(prior_variance, x))
    covariance = _inverse(precision)
    return GaussianPosterior(covariance @ (x.T @ y) / noise_variance, covariance)


def linear_posterior_unknown_noise(
    x: Any, y: Any, prior_variance: Any, noise_shape: float, noise_rate: float
) -> StudentPosterior:
    r"""Compute the posterior of a linear regression whose noise variance is unknown.

    The conjugate prior: $\sigma^2 \sim \mathrm{IG}(a_0, b_0)$ and $\theta \mid \sigma^2 \sim \mathcal N(0, \sigma^2 v)$.
    Note that the weights are scaled by the noise.

    Parameters
    ----------
    x, y
        As in `linear_posterior`.
    prior_variance
        $v$, in units of the noise variance: a number, or one per feature.
    noise_shape, noise_rate
        $a_0$ and $b_0$.
    """
    x, y = check_data(x, y)
    require_positive(noise_shape=noise_shape, noise_rate=noise_rate)
    scale = _inverse(as_dense(x.T @ x) + np.diag(1 / prior_variances(prior_variance, x)))
    mean = scale @ (x.T @ y)
    misfit = y @ (y - x @ mean)  # = y'y - m'S⁻¹m
    return StudentPosterior(mean, scale, noise_shape + len(y) / 2, noise_rate + misfit / 2)


class MixturePosterior(NamedTuple):
    """First two moments of a linear regression's weights and noise variance."""

    mean: np.ndarray
    sd: np.ndarray
    noise_mean: float
    noise_sd: float


def linear_posterior_half_cauchy(
    x: Any, y: Any, prior_variance: Any, noise_scale: float = 1.0
) -> MixturePosterior:
    r"""Integrate the posterior of a linear regression whose noise has a half-Cauchy prior.

    $\theta \sim \mathcal N(0, v)$ and $\sigma \sim \text{half-Cauchy}(s)$, independently. Given $\sigma$ everything is Gaussian, and
    so is the evidence, $y \sim \mathcal N(0, \sigma^2 I + X v X^\top)$; what is left is an integral over $\log\sigma^2$, taken on
    a grid that is narrowed until it fits.

    Parameters
    ----------
    x, y, prior_variance
        As in `linear_posterior`.
    noise_scale
        $s$.
    """
    x, y = check_data(x, y)
    require_positive(noise_scale=noise_scale)
    # In the eigenbasis of X v X' all terms are positive: nothing cancels, however small the noise.
    variance = prior_variances(prior_variance, x)
    pull = as_dense(x) * variance
    values, vectors = np.linalg.eigh(pull @ as_dense(x).T)
    values, squares = np.maximum(values, 0), (vectors.T @ y) ** 2
    pull = vectors.T @ pull

    def given(log_noise: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Log density of the log noise variance; mean and variance of the weights given it."""
        total = values + np.exp(log_noise)
        evidence = -0.5 * np.sum(np.log(total) + squares / total)
        prior = 0.5 * log_noise - np.log1p(np.exp(log_noise) / noise_scale**2)
        mean = pull.T @ (vectors.T @ y / total)
        return evidence + prior, mean, variance - np.sum(pull**2 / total[:, None], axis=0)

    center, reach = np.log(y @ y / len(y)), 40.0
    for num in (400, 400, 400):
        grid = np.linspace(center - reach, center + reach, num)
        heights, means, variances = (np.array(each) for each in zip(*map(given, grid), strict=True))
        weight = np.exp(heights - heights.max())
        weight /= weight.sum()
        center = weight @ grid
        reach = 10 * max(np.sqrt(weight @ (grid - center) ** 2), grid[1] - grid[0])
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

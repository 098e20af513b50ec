"""Targets whose best Gaussian approximation is known.

- *Linear regression* with correlated and unscaled features: the posterior is Gaussian, the best
  full approximation is the posterior itself and the best diagonal one has deviations
  `PRECISION_ii ** -0.5`.
- *Logistic regression with one coefficient*: the bound is a one-dimensional integral. Its value and
  maximum are computed by Gauss-Hermite quadrature, in double precision, without code of the
  package.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import isotherm

RNG = np.random.default_rng(11)
SIZE, DIMENSION = 600, 4
CORRELATE = np.array([[1, 0, 0, 0], [0.8, 0.6, 0, 0], [0.5, 0.3, 0.8, 0], [0, 0.6, 0, 0.8]])
UNITS = np.array([1.0, 20.0, 0.05, 3.0])
X = (RNG.normal(size=(SIZE, DIMENSION)) @ CORRELATE.T * UNITS).astype(np.float32)
Y = (X @ (np.array([1.0, -2.0, 0.5, 1.5]) / UNITS) + RNG.normal(size=SIZE)).astype(np.float32)
PRIOR = np.diag(UNITS.astype(np.float64) ** 2)  # a prior precision in the units of the features
PRECISION = X.T.astype(np.float64) @ X + PRIOR
COVARIANCE = np.linalg.inv(PRECISION)
MEAN = COVARIANCE @ X.T.astype(np.float64) @ Y
DEVIATIONS = np.sqrt(np.diag(COVARIANCE))
MEAN_FIELD = np.diag(PRECISION) ** -0.5


def linear_regression(unflatten=lambda w: w):
    """Build a new target, for which programs are compiled again."""
    prior = jnp.asarray(np.diag(PRIOR), jnp.float32)

    def log_likelihood(w, batch):
        x, y = batch
        return -0.5 * (y - x @ unflatten(w)) ** 2 - 0.5 * np.log(2 * np.pi)

    def log_prior(w):
        normaliser = 0.5 * np.sum(np.log(np.diag(PRIOR) / (2 * np.pi)))
        return -0.5 * jnp.sum(prior * unflatten(w) ** 2) + normaliser

    return isotherm.minibatch_gradient(log_likelihood, log_prior, SIZE)


def log_evidence():
    """Return the log marginal likelihood of the linear regression, the maximum of the bound."""
    marginal = X.astype(np.float64) @ np.linalg.solve(PRIOR, X.T) + np.eye(SIZE)
    sign, logdet = np.linalg.slogdet(2 * np.pi * marginal)
    return -0.5 * (Y @ np.linalg.solve(marginal, Y.astype(np.float64)) + sign * logdet)


def errors(approximation, covariance="full"):
    """Return the largest errors of mean (in exact sds), sds and whitened covariance."""
    best = DEVIATIONS if covariance == "full" else MEAN_FIELD
    mean = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(approximation.mean)])
    deviations = jax.tree.leaves(approximation.standard_deviations())
    deviations = np.concatenate([np.ravel(leaf) for leaf in deviations])
    whiten = np.linalg.cholesky(PRECISION)
    whitened = whiten.T @ np.asarray(approximation.covariance, np.float64) @ whiten
    return (
        np.abs((mean - MEAN) / DEVIATIONS).max(),
        np.abs(deviations / best - 1).max(),
        np.abs(np.linalg.eigvalsh(whitened) - 1).max(),
    )


A = RNG.normal(size=(40, 1)).astype(np.float32)
B = np.where(RNG.random(40) < 1 / (1 + np.exp(-1.5 * A[:, 0])), 1, -1).astype(np.float32)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def logistic_regression():
    """Build logistic regression with one coefficient and prior N(0, 4), both normalised."""

    def log_likelihood(w, batch):
        a, b = batch
        return jax.nn.log_sigmoid(b * (a @ w))

    def log_prior(w):
        return -0.5 * jnp.sum(w**2) / 4 - 0.5 * np.log(2 * np.pi * 4)

    return isotherm.minibatch_gradient(log_likelihood, log_prior, len(A))


def log_joint(w):
    """Return the log of likelihood times prior of the logistic regression."""
    a, b = A[:, 0].astype(np.float64), B.astype(np.float64)
    fit = -np.logaddexp(0, -b * a * np.asarray(w)[..., None]).sum(-1)
    return fit - 0.5 * np.asarray(w) ** 2 / 4 - 0.5 * np.log(2 * np.pi * 4)


def logistic_bound(mean, deviation):
    """Return the bound at N(mean, deviation^2), by quadrature."""
    expected = WEIGHTS @ log_joint(mean + deviation * NODES)
    return expected + np.log(deviation) + 0.5 * np.log(2 * np.pi * np.e)


def best_logistic():
    """Return mean, deviation and bound of the best Gaussian, and the log evidence."""
    best = optimize.minimize(lambda p: -logistic_bound(p[0], np.exp(p[1])), [1.0, -1.0], tol=1e-10)
    grid = np.linspace(-10, 15, 100_001)
    evidence = np.log(np.trapezoid(np.exp(log_joint(grid)), grid))
    return best.x[0], np.exp(best.x[1]), -best.fun, evidence

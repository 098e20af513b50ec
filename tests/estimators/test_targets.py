"""Targets in natural coordinates have the densities of the plain models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from troubled_tables import classes

from isotherm.estimators.design_svd import column_statistics, design_matrix, design_svd
from isotherm.estimators.linear_posterior import (
    NoiseStatistics,
    linear_target,
    log_noise_density,
)
from isotherm.estimators.logistic_posterior import logistic_target
from isotherm.estimators.logistic_surrogate import fit_surrogate, full_batches, gradient
from isotherm.estimators.logistic_tuning import choose_batches
from isotherm.models import logistic
from marks import slow

SETTINGS = {"prior_variance": 6.25, "standardize": True, "fit_intercept": True}


def svd_of(x):
    return design_svd(column_statistics(x), **SETTINGS)


def plain_gradient(design, labels, precision, point):
    """The gradient of logistic regression's log posterior, in double precision."""
    with jax.enable_x64(True):
        rows, y = jnp.asarray(design), jnp.asarray(labels)

        def log_density(weights):
            weights = weights[:, 0] if weights.shape[1] == 1 else weights
            variance = 1 / precision if weights.ndim == 1 else (1 / precision)[:, None]
            variance = jnp.broadcast_to(variance, weights.shape)
            likelihood = logistic.log_likelihood(weights, (rows, y))
            return jnp.sum(likelihood) + logistic.log_prior(weights, variance)

        return np.asarray(jax.grad(log_density)(jnp.asarray(point)))


def logistic_parts(num_classes, rows=200, num_points=1):
    x, labels = classes(num_classes, rows)
    svd = svd_of(x)
    scale = (svd.singular_values**2 / 4 + 1) ** -0.5
    design = design_matrix(x, svd.loadings * scale)
    num_outputs = 1 if num_classes == 2 else num_classes
    rng = np.random.default_rng(1)
    points = rng.normal(size=(num_points, len(scale), num_outputs))
    return (
        design,
        labels,
        scale**2,
        fit_surrogate(design, labels, np.ones(len(design)), scale**2, points),
    )


@pytest.mark.parametrize("num_points", [1, 5])
@pytest.mark.parametrize("num_classes", [2, slow(3)])
def test_the_gradient_is_that_of_the_plain_model_for_any_surrogate(num_classes, num_points):
    design, labels, precision, surrogate = logistic_parts(num_classes, num_points=num_points)
    batches = full_batches(design, np.ones(len(design)), surrogate)
    size = batches.shared.center_gradient.size
    position = np.random.default_rng(2).normal(size=size).astype(np.float32)
    result = gradient(jnp.asarray(position), batches.batch(jax.random.key(0), 0))
    center, basis = surrogate.center, surrogate.basis
    point = center + (basis @ position[: len(basis)]).reshape(center.shape)
    expected = plain_gradient(design, labels, precision, point).ravel() @ basis
    np.testing.assert_allclose(result[: len(basis)], expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(result[len(basis) :], -position[len(basis) :], rtol=1e-6)


@pytest.mark.parametrize("num_classes", [2, slow(3)])
def test_importance_weights_keep_the_gradient_unbiased(num_classes):
    """The mean over all repeated rows, each a batch of its own, is the gradient over all rows."""
    design, _, _, surrogate = logistic_parts(num_classes, rows=1100)
    full = full_batches(design, np.ones(len(design)), surrogate)
    size = full.shared.center_gradient.size
    positions = np.random.default_rng(3).normal(size=(16, size)).astype(np.float32)
    batches, step_size = choose_batches(full, positions, 0.1, batch_size=7)
    assert batches.batch_size == 7 and 0 < step_size <= 0.1
    multiplicity = np.bincount(batches.repeated_rows)
    assert multiplicity.min() >= 1 and multiplicity.max() > 3 * multiplicity.min()
    all_rows = jax.tree.map(lambda leaf: leaf[batches.repeated_rows], batches.rows)
    position = jnp.asarray(positions[0])
    np.testing.assert_allclose(
        gradient(position, (all_rows, batches.shared)),
        gradient(position, (full.rows, full.shared)),
        rtol=1e-3,
        atol=1e-3,
    )


def test_the_gradient_at_the_mode_is_zero():
    x, labels = classes(3)
    target = logistic_target(x, labels, np.ones(len(x)), 3, svd_of(x), None)
    assert np.abs(target.surrogate.center_gradient).max() < 1e-4
    assert target.batches.repeated_rows is None
    assert target.step_size == 0.1 and not target.short_step
    batch = target.batches.batch(jax.random.key(0), 0)
    assert np.abs(gradient(jnp.zeros(target.dimension), batch)).max() < 1e-3


@pytest.mark.parametrize("num_classes", [2, 3])
def test_parameters_are_converted_back_to_positions(num_classes):
    x, labels = classes(num_classes)
    target = logistic_target(x, labels, np.ones(len(x)), num_classes, svd_of(x), None)
    positions = np.random.default_rng(4).normal(size=(2, 3, target.dimension))
    positions[..., len(target.surrogate.basis) :] = 0
    parameters = target.to_parameters(positions.astype(np.float32))
    last = {name: draws[:, -1] for name, draws in parameters.items()}
    np.testing.assert_allclose(target.to_positions(last), positions[:, -1], atol=1e-4)


def regression(rows=15, features=3):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, features)) * [1.0, 20.0, 0.1] + 3
    return x, x @ [1.0, 0.1, 5.0] + rng.normal(size=rows)


def linear_parts(noise_variance=None):
    x, y = regression()
    columns = column_statistics(np.column_stack([x, y]))
    svd = design_svd(columns.features, **{**SETTINGS, "standardize": False})
    target = linear_target(svd, columns.factor[:, -1], 1.0, 0.0, len(y), noise_variance)
    return x, y, target


def test_the_density_of_the_noise_is_the_evidence_times_the_prior():
    x, y, target = linear_parts()
    design = np.column_stack([np.ones(len(x)), x])
    statistics, center, width = target.batches.shared
    assert isinstance(statistics, NoiseStatistics)

    def expected_log_density(log_noise):
        noise = np.exp(log_noise)
        covariance = noise * np.eye(len(y)) + 6.25 * design @ design.T
        evidence = stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)
        return evidence + stats.halfcauchy.logpdf(noise**0.5) + 0.5 * log_noise

    grid = np.linspace(-3, 3, 7)
    expected = np.array([expected_log_density(each) for each in grid])
    result = np.array([log_noise_density(jnp.float32(each), statistics) for each in grid])
    np.testing.assert_allclose(result - result[3], expected - expected[3], rtol=1e-4, atol=1e-3)
    fine = np.linspace(-6, 8, 4001)
    mass = np.exp([expected_log_density(each) for each in fine] - expected.max())
    mean = np.average(fine, weights=mass)
    assert float(center) == pytest.approx(mean, abs=1e-3)
    assert float(width) ** 2 == pytest.approx(
        np.average((fine - mean) ** 2, weights=mass), rel=1e-3
    )


@pytest.mark.parametrize("noise_variance", [None, 0.5])
def test_the_linear_target_has_the_density_of_the_plain_model(noise_variance):
    """Up to a constant and the Jacobian determinant, which depends on the noise variance."""
    x, y, target = linear_parts(noise_variance)
    rng = np.random.default_rng(6)
    positions = rng.normal(size=(2, 4, target.dimension))
    parameters = target.to_parameters(positions)
    first = int(noise_variance is None)

    def plain_log_density(coef, intercept, noise):
        likelihood = stats.norm.logpdf(y, intercept + x @ coef, noise**0.5).sum()
        prior = stats.norm.logpdf([intercept, *coef], scale=6.25**0.5).sum()
        noise_prior = stats.halfcauchy.logpdf(noise**0.5) + 0.5 * np.log(noise)
        determinant = np.sum(np.log(noise / (noise + target.svd.singular_values**2)))
        return likelihood + prior + noise_prior + 0.5 * determinant

    names = ("coef", "intercept", "noise_variance")
    flat = [each.reshape(8, *each.shape[2:]) for each in (parameters[name] for name in names)]
    expected = np.array([plain_log_density(*parts) for parts in zip(*flat, strict=True)])
    q = positions.reshape(8, -1)[:, first : first + 4]
    result = -0.5 * (q**2).sum(1)
    if noise_variance is None:
        statistics, center, width = target.batches.shared
        t = positions.reshape(8, -1)[:, 0]
        result += [float(log_noise_density(center + width * each, statistics)) for each in t]
    np.testing.assert_allclose(result - result[0], expected - expected[0], atol=0.02)
    last = {name: draws[:, -1] for name, draws in parameters.items()}
    np.testing.assert_allclose(
        target.to_positions(last)[:, : first + 4], positions[:, -1, : first + 4], atol=1e-6
    )

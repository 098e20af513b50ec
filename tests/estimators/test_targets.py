"""Targets in natural coordinates are the plain models, seen from elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from troubled_tables import classes

from isotherm.estimators.design_svd import gather, principal_axes, times
from isotherm.estimators.linear_posterior import (
    NoiseStatistics,
    linear_target,
    log_noise_density,
)
from isotherm.estimators.logistic_posterior import logistic_target
from isotherm.estimators.logistic_surrogate import draw_lines, gradient, on_device
from isotherm.estimators.logistic_tuning import choose_batches
from isotherm.models import linear, logistic

SETTINGS = {"prior_variance": 6.25, "standardize": True, "fit_intercept": True}


def plain_gradient(design, labels, precision, place):
    """The gradient of logistic regression's log posterior, in double precision."""
    with jax.enable_x64(True):
        rows, y = jnp.asarray(design), jnp.asarray(labels)

        def log_density(weights):
            weights = weights[:, 0] if weights.shape[1] == 1 else weights
            variance = 1 / precision if weights.ndim == 1 else (1 / precision)[:, None]
            variance = jnp.broadcast_to(variance, weights.shape)
            likelihood = logistic.log_likelihood(weights, (rows, y))
            return jnp.sum(likelihood) + logistic.log_prior(weights, variance)

        return np.asarray(jax.grad(log_density)(jnp.asarray(place)))


def logistic_parts(num_classes, rows=200, num_places=1):
    x, labels = classes(num_classes, rows)
    axes = principal_axes(gather(x), **SETTINGS)
    scale = (axes.strengths**2 / 4 + 1) ** -0.5
    design = times(x, axes.loadings * scale)
    columns = 1 if num_classes == 2 else num_classes
    rng = np.random.default_rng(1)
    places = rng.normal(size=(num_places, len(scale), columns))
    return design, labels, scale**2, draw_lines(design, labels, scale**2, places)


@pytest.mark.parametrize("num_places", [1, 5])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_any_lines_give_the_gradient_of_the_plain_model(num_classes, num_places):
    design, labels, precision, lines = logistic_parts(num_classes, num_places=num_places)
    batches = on_device(design, lines)
    size = batches.shared.tilt.size
    position = np.random.default_rng(2).normal(size=size).astype(np.float32)
    found = gradient(jnp.asarray(position), batches.batch(jax.random.key(0), 0))
    inside = len(lines.basis)
    place = lines.center + (lines.basis @ position[:inside]).reshape(lines.center.shape)
    expected = plain_gradient(design, labels, precision, place).ravel() @ lines.basis
    np.testing.assert_allclose(found[:inside], expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(found[inside:], -position[inside:], rtol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_urn_is_unbiased(num_classes):
    """The average over all tickets, each a batch of its own, is the gradient over all rows."""
    design, _, _, lines = logistic_parts(num_classes, rows=1100)
    whole = on_device(design, lines)
    size = whole.shared.tilt.size
    places = np.random.default_rng(3).normal(size=(16, size)).astype(np.float32)
    urn, step_size = choose_batches(whole, places, 0.1, batch_size=7)
    assert urn.batch_size == 7 and 0 < step_size <= 0.1
    counts = np.bincount(urn.tickets)
    assert counts.min() >= 1 and counts.max() > 3 * counts.min()
    every = jax.tree.map(lambda leaf: leaf[urn.tickets], urn.rows)
    position = jnp.asarray(places[0])
    np.testing.assert_allclose(
        gradient(position, (every, urn.shared)),
        gradient(position, (whole.rows, whole.shared)),
        rtol=1e-3,
        atol=1e-3,
    )


def test_at_the_mode_nothing_is_left_over():
    x, labels = classes(3)
    target = logistic_target(x, labels, 3, principal_axes(gather(x), **SETTINGS), None)
    assert np.abs(target.lines.tilt).max() < 1e-4
    assert target.batches.tickets is None and target.step_size == 0.1 and not target.stiff
    there = gradient(jnp.zeros(target.dimension), target.batches.batch(jax.random.key(0), 0))
    assert np.abs(there).max() < 1e-3


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_way_back(num_classes):
    x, labels = classes(num_classes)
    target = logistic_target(x, labels, num_classes, principal_axes(gather(x), **SETTINGS), None)
    draws = np.random.default_rng(4).normal(size=(2, 3, target.dimension))
    draws[..., len(target.lines.basis) :] = 0
    there = target.read(draws.astype(np.float32))
    last = {name: each[:, -1] for name, each in there.items()}
    np.testing.assert_allclose(target.locate(last), draws[:, -1], atol=1e-4)


def regression(rows=15, features=3):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, features)) * [1.0, 20.0, 0.1] + 3
    return x, x @ [1.0, 0.1, 5.0] + rng.normal(size=rows)


def linear_parts(known=None):
    x, y = regression()
    columns = gather(np.column_stack([x, y]))
    axes = principal_axes(columns.features, **{**SETTINGS, "standardize": False})
    return x, y, linear_target(axes, columns.factor[:, -1], 1.0, 0.0, len(y), known)


def test_the_density_of_the_noise_is_the_evidence():
    x, y, target = linear_parts()
    design = np.column_stack([np.ones(len(x)), x])
    statistics, center, width = target.batches.shared
    assert isinstance(statistics, NoiseStatistics)

    def by_hand(log_noise):
        noise = np.exp(log_noise)
        covariance = noise * np.eye(len(y)) + 6.25 * design @ design.T
        evidence = stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)
        return evidence + stats.halfcauchy.logpdf(noise**0.5) + 0.5 * log_noise

    grid = np.linspace(-3, 3, 7)
    expected = np.array([by_hand(each) for each in grid])
    found = np.array([log_noise_density(jnp.float32(each), statistics) for each in grid])
    np.testing.assert_allclose(found - found[3], expected - expected[3], rtol=1e-4, atol=1e-3)
    fine = np.linspace(-6, 8, 4001)
    mass = np.exp([by_hand(each) for each in fine] - expected.max())
    mean = np.average(fine, weights=mass)
    assert float(center) == pytest.approx(mean, abs=1e-3)
    assert float(width) ** 2 == pytest.approx(
        np.average((fine - mean) ** 2, weights=mass), rel=1e-3
    )


@pytest.mark.parametrize("known", [None, 0.5])
def test_linear_coordinates_are_whitened_plain_ones(known):
    """Log densities along a line differ by a constant, and by the change of volume with the noise."""
    x, y, target = linear_parts(known)
    rng = np.random.default_rng(6)
    positions = rng.normal(size=(2, 4, target.dimension))
    there = target.read(positions)
    first = int(known is None)
    rows = jnp.asarray(np.column_stack([np.ones(len(x)), x]), jnp.float32)

    def plain(coef, intercept, noise):
        weights = jnp.asarray(np.append(intercept, coef), jnp.float32)
        position = linear.Position(weights, jnp.log(jnp.float32(noise)))
        data = (rows, jnp.asarray(y, jnp.float32))
        total = linear.log_prior(position, 6.25) + jnp.sum(linear.log_likelihood(position, data))
        volume = 0.5 * np.sum(np.log(noise / (noise + target.axes.strengths**2)))
        return float(total) + volume

    names = ("coef", "intercept", "noise_variance")
    flat = [each.reshape(8, *each.shape[2:]) for each in (there[name] for name in names)]
    expected = np.array([plain(*parts) for parts in zip(*flat, strict=True)])
    q = positions.reshape(8, -1)[:, first : first + 4]
    found = -0.5 * (q**2).sum(1)
    if known is None:
        statistics, center, width = target.batches.shared
        t = positions.reshape(8, -1)[:, 0]
        found += [float(log_noise_density(center + width * each, statistics)) for each in t]
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=0.02)
    last = {name: each[:, -1] for name, each in there.items()}
    np.testing.assert_allclose(
        target.locate(last)[:, : first + 4], positions[:, -1, : first + 4], atol=1e-6
    )

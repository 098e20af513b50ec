"""SWAG has the stationary law of SGD, which is known on a quadratic loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_posteriors import MEAN, SIZE, UNITS, X, Y, linear_regression
from jax.flatten_util import ravel_pytree

import isotherm
from isotherm.paper.baselines.swag import Swag, swag
from marks import slow


@pytest.fixture(scope="module")
def scalar():
    rng = np.random.default_rng(3)
    x = rng.normal(2.0, 1.5, 1000).astype(np.float32)
    grad_fn = isotherm.minibatch_gradient(
        lambda m, x: -0.5 * (x - m) ** 2, lambda m: -50.0 * m**2, data_size=1000
    )
    return x, grad_fn


@pytest.mark.parametrize("step_size", [0.1, slow(0.5)])
def test_variance_of_the_iterates(key, scalar, step_size):
    """Curvature 1.1 per datum, gradient noise var(x) / n: variance eta s^2 / lambda (2 - eta l)."""
    x, grad_fn = scalar
    fit = swag(
        key,
        grad_fn,
        jnp.array(x.mean() / 1.1),
        isotherm.independent_batches(x, 10),
        num_steps=60_000,
        step_size=step_size,
        momentum=0.0,
        collect_every=20,
        rank=3000,
    )
    exact = step_size * x.var() / 10 / (1.1 * (2 - 1.1 * step_size))
    # 3000 iterates that are nearly independent: relative error sqrt(2 / 3000) = 2.6 %
    np.testing.assert_allclose(fit.variances, exact, rtol=0.12)
    np.testing.assert_allclose(fit.mean, x.mean() / 1.1, atol=5 * (exact / 2000) ** 0.5)
    np.testing.assert_allclose(fit.covariance[0, 0], exact, rtol=0.12)


@pytest.mark.slow
def test_mean_of_a_linear_regression(key):
    """The mean of the iterates is the posterior mean, here after scaling the features."""
    grad_fn = linear_regression(lambda w: w / jnp.asarray(UNITS, jnp.float32))
    fit = swag(
        key,
        grad_fn,
        jnp.asarray(MEAN * UNITS, jnp.float32),
        isotherm.independent_batches((X, Y), 50),
        num_steps=6000,
        step_size=0.02,
    )
    assert fit.deviations.shape == (20, 4) and fit.losses.shape == (6000,)
    error = np.asarray(fit.mean) - MEAN * UNITS
    assert np.abs(error / np.sqrt(np.diag(fit.covariance))).max() < 1
    assert SIZE == 600


def test_draws_have_the_covariance_of_the_fit(key):
    deviations = jnp.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0], [0.3, 0.0, 2.0]])
    fit = Swag({"a": jnp.ones(2), "b": jnp.zeros(())}, jnp.array([0.1, 2, 0]), deviations, None)
    draws = fit.sample(key, 100_000)
    flat = np.asarray(jax.vmap(lambda d: ravel_pytree(d)[0])(jax.tree.map(lambda a: a[0], draws)))
    d = np.asarray(deviations)
    exact = 0.5 * (np.diag([0.1, 2, 0]) + d.T @ d / 2)
    np.testing.assert_allclose(fit.covariance, exact, rtol=1e-5)
    np.testing.assert_allclose(np.cov(flat.T), exact, atol=0.03)
    np.testing.assert_allclose(flat.mean(0), [1, 1, 0], atol=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 1}, "`rank` must be at least 2, got 1"),
        ({"collect_every": 0}, "`collect_every` must be at least 1"),
        ({"collect_every": 3}, "`num_steps` must be at least `rank \\* collect_every`, 60, got 40"),
        ({"step_size": -1.0}, "`step_size` must be positive"),
    ],
)
def test_bad_settings_raise(key, scalar, settings, message):
    x, grad_fn = scalar
    with pytest.raises(ValueError, match=message):
        swag(key, grad_fn, jnp.array(0.0), isotherm.full_batch(x), num_steps=40, **settings)

"""IVON finds the best diagonal Gaussian where it is known."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact_posteriors import (
    MEAN,
    MEAN_FIELD,
    UNITS,
    A,
    B,
    X,
    Y,
    best_logistic,
    linear_regression,
    logistic_regression,
)

import isotherm
from isotherm.models import Gaussian, HalfCauchy, NormalPrior, mlp
from isotherm.paper.baselines.ivon import ivon
from isotherm.references.conjugate import linear_posterior_half_cauchy


def cosine(step_size, num_steps):
    return {"step_size": optax.cosine_decay_schedule(step_size, num_steps), "num_steps": num_steps}


def test_linear_regression(key):
    """The mean is exact and deviations are those of the best diagonal Gaussian."""
    grad_fn = linear_regression(lambda w: w / jnp.asarray(UNITS, jnp.float32))
    batches = isotherm.independent_batches((X, Y), 100)
    q = ivon(
        key, grad_fn, jnp.zeros(4), batches, initial_curvature=1.0, beta2=0.999, **cosine(0.1, 8000)
    )
    exact = MEAN_FIELD * UNITS
    assert np.abs((np.asarray(q.mean) - MEAN * UNITS) / exact).max() < 0.3
    np.testing.assert_allclose(q.standard_deviations(), exact, rtol=0.1)
    # a wrong number of rows gives another width
    wrong = isotherm.minibatch_gradient(grad_fn.log_likelihood, grad_fn.log_prior, 1200)
    q = ivon(
        key, wrong, jnp.zeros(4), batches, initial_curvature=1.0, beta2=0.999, **cosine(0.1, 8000)
    )
    assert np.all(np.asarray(q.standard_deviations()) < 0.8 * exact)


@pytest.mark.slow
def test_logistic_regression(key):
    """The bound is not quadratic; its maximum is known by quadrature."""
    mean, deviation, _, _ = best_logistic()
    batches = isotherm.full_batch((A, B))
    q = ivon(
        key,
        logistic_regression(),
        jnp.zeros(1),
        batches,
        draws_per_step=10,
        beta2=0.998,
        **cosine(0.1, 6000),
    )
    np.testing.assert_allclose(q.mean, mean, atol=0.05 * deviation)
    np.testing.assert_allclose(q.standard_deviations(), deviation, rtol=0.03)


@pytest.mark.slow
def test_learned_noise(key):
    """A prior that is not Gaussian: the log standard deviation of the noise is learned too."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -0.5, 0.2]) + 0.4 * rng.normal(size=200)).astype(np.float32)
    network = mlp((3, 1), likelihood=Gaussian(HalfCauchy(1.0)), prior=NormalPrior(1.0, None))
    q = ivon(
        key,
        network.gradient(200),
        network.init(key),
        isotherm.full_batch((x, y)),
        initial_curvature=1.0,
        beta2=0.999,
        **cosine(0.1, 5000),
    )
    design = np.c_[x, np.ones(200)]
    exact = linear_posterior_half_cauchy(design, y, 1.0)
    layer, sd = q.mean["network"][0], q.standard_deviations()["network"][0]
    found = np.r_[np.ravel(layer.weights), layer.bias]
    assert np.abs((found - exact.mean) / exact.sd).max() < 0.3
    np.testing.assert_allclose(np.r_[np.ravel(sd.weights), sd.bias], exact.sd, rtol=0.1)
    noise = np.exp(2 * np.asarray(q.mean["shared"]))
    np.testing.assert_allclose(noise, exact.noise_mean, atol=0.3 * exact.noise_sd)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial_curvature": 0.0}, "`initial_curvature` must be positive"),
        ({"beta1": 1.0}, "`beta1` must be at least 0 and below 1, got 1.0"),
        ({"beta2": -0.1}, "`beta2` must be at least 0"),
        ({"draws_per_step": 0}, "`draws_per_step` must be at least 1"),
        ({"clip": 0.0}, "`clip` must be positive"),
        ({"step_size": 0.0}, "`step_size` must be positive"),
    ],
)
def test_bad_settings_raise(key, settings, message):
    batches = isotherm.full_batch((X, Y))
    with pytest.raises(ValueError, match=message):
        ivon(key, linear_regression(), jnp.zeros(4), batches, num_steps=2, **settings)

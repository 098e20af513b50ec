"""The double well: derivatives, expectations, exact draws and gradient noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from isotherm.models import double_well

FALSE_ALARM = 1e-4
"""Probability that a test below fails on correct code, per new seed."""


def test_gradient_and_curvature_are_derivatives_of_the_log_density():
    x = jnp.linspace(-5, 5, 41)
    first = jax.vmap(jax.grad(double_well.log_density))(x)
    second = jax.vmap(jax.grad(lambda x: double_well.gradient(x, None)))(x)
    np.testing.assert_allclose(double_well.gradient(x, None), first, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(double_well.curvature(x), -second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("f", [np.ones_like, np.sin, np.square, lambda x: 1.0 * (x > 0)])
def test_expectations_agree_with_adaptive_quadrature(f):
    def integral(g):
        return sum(integrate.quad(g, *ends, epsabs=1e-12)[0] for ends in ((-8, 0), (0, 8)))

    weight = integral(lambda x: np.exp(double_well.log_density(x)))
    mean = integral(lambda x: f(x) * np.exp(double_well.log_density(x))) / weight
    assert double_well.expectation(f) == pytest.approx(mean, abs=2e-7)
    assert double_well.density(0.3) == pytest.approx(np.exp(double_well.log_density(0.3)) / weight)


def test_exact_draws_follow_the_density(key):
    """Kolmogorov–Smirnov against quadrature; a shift by 0.05 is rejected in 40 of 40 seeds."""
    cells = np.linspace(-8, 8, 16_001)  # right ends of cells, and the mass below them
    below = np.cumsum(double_well.density(cells - 0.0005)) / 1000
    draws = np.asarray(double_well.exact_draws(key, 20_000))

    def p_value(draws):
        return stats.kstest(draws, lambda x: np.interp(x, cells, below)).pvalue

    assert p_value(draws) > FALSE_ALARM
    assert p_value(draws + 0.05) < FALSE_ALARM


def noise_p_value(key, grad_fn, *, step_size, level):
    """p-value of the mean and variance of h times the noise: exact tests, Bonferroni factor 4."""
    x, n = jnp.array([0.7, -2.0]), 20_000
    noisy = jax.vmap(grad_fn, (None, 0))(x, jax.random.split(key, n))
    exact = double_well.gradient(np.asarray(x, np.float64), None)
    noise = step_size * (np.asarray(noisy, np.float64) - exact)
    variance = 2 * level * step_size
    z = noise.mean() / np.sqrt(variance / noise.size)
    q = np.sum(noise**2) / variance
    tails = [stats.norm.sf(abs(z)), stats.chi2.cdf(q, noise.size), stats.chi2.sf(q, noise.size)]
    return min(1.0, 4 * min(tails))


@pytest.mark.parametrize(("step_size", "level"), [(0.1, 1.0), (0.01, 3.0)])
def test_noise_has_the_documented_covariance_per_unit_time(key, step_size, level):
    grad_fn = double_well.noisy_gradient(step_size, level)
    assert noise_p_value(key, grad_fn, step_size=step_size, level=level) > FALSE_ALARM


def test_the_noise_test_detects_a_wrong_level(key):
    """A 10 % error of the level is 14 standard errors of the variance."""
    grad_fn = double_well.noisy_gradient(0.1, 0.9)
    assert noise_p_value(key, grad_fn, step_size=0.1, level=1.0) < FALSE_ALARM


def test_noise_keeps_the_dtype():
    grads = double_well.noisy_gradient(0.1)(jnp.zeros(2, jnp.bfloat16), jax.random.key(0))
    assert grads.dtype == jnp.bfloat16


@pytest.mark.parametrize(("step_size", "level"), [(0.0, 1.0), (-0.1, 1.0), (0.1, -1.0)])
def test_invalid_noise_is_refused(step_size, level):
    with pytest.raises(ValueError, match="must"):
        double_well.noisy_gradient(step_size, level)

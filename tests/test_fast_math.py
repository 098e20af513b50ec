"""The fast elementary functions stay within their error bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

from isotherm.fast_math import exp, normal_quantile, polynomial


def test_exp_is_within_its_bound():
    x = np.linspace(-87, 88, 1_000_001).astype(np.float32)
    found = np.asarray(jax.jit(exp)(x), np.float64)
    assert np.abs(found / np.exp(x.astype(np.float64)) - 1).max() < 4e-7


def test_exp_is_finite_outside_its_range_and_keeps_nan():
    found = np.asarray(exp(jnp.array([-1e30, -jnp.inf, 1e30, jnp.inf, jnp.nan])))
    np.testing.assert_allclose(found[:4], [1.65e-38, 1.65e-38, 1.65e38, 1.65e38], rtol=0.01)
    assert np.isnan(found[4])


def test_exp_has_the_right_derivative():
    assert float(jax.grad(exp)(jnp.float32(1.3))) == pytest.approx(np.exp(1.3), rel=1e-5)


def test_the_normal_quantile_is_within_its_bound_to_the_last_lattice_point():
    steps = np.concatenate(
        [np.arange(2**19), np.arange(0, 2**23, 61), 2**23 - 1 - np.arange(2**19)]
    )
    x = (steps * 2.0**-23 + 2.0**-24).astype(np.float32)
    found = np.asarray(jax.jit(normal_quantile)(x), np.float64)
    exact = -ndtri((1 - x.astype(np.float64)) / 2)
    assert np.abs(found / exact - 1).max() < 1e-5
    np.testing.assert_array_equal(np.asarray(jax.jit(normal_quantile)(-x)), -found)


def test_other_precisions_use_the_general_functions():
    with jax.enable_x64(True):
        x = jnp.array([0.3, -0.99], jnp.float64)
        np.testing.assert_allclose(exp(x), np.exp(np.asarray(x)), rtol=1e-15)
        np.testing.assert_allclose(normal_quantile(x), ndtri((1 + np.asarray(x)) / 2), rtol=1e-12)


@pytest.mark.parametrize("degree", range(12))
def test_polynomials_of_every_degree(degree):
    coefficients = tuple(np.random.default_rng(degree).normal(size=degree + 1).tolist())
    x = jnp.linspace(-1, 1, 7)
    np.testing.assert_allclose(
        polynomial(x, coefficients),
        np.polynomial.Polynomial(coefficients)(np.asarray(x)),
        atol=1e-6,
    )

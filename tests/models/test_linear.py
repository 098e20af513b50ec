"""Linear regression with unknown noise: densities that integrate to one."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse, stats

from isotherm.models import linear
from isotherm.models.linear import Position
from isotherm.models.logistic import as_rows


def test_the_likelihood_is_normal():
    x = np.array([[1.0, 2.0], [0.0, -1.0]])
    position = Position(jnp.array([0.5, 1.0]), jnp.log(jnp.float32(4.0)))
    found = linear.log_likelihood(position, (as_rows(x), jnp.array([1.0, 3.0])))
    np.testing.assert_allclose(found, stats.norm(x @ [0.5, 1.0], 2.0).logpdf([1.0, 3.0]), rtol=1e-6)
    np.testing.assert_allclose(linear.predict(position, as_rows(x)), x @ [0.5, 1.0], rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_prior_is_normal_and_half_cauchy(scale):
    weights, log_noise = np.array([0.3, -1.0]), 0.7
    found = linear.log_prior(
        Position(jnp.asarray(weights, jnp.float32), jnp.float32(log_noise)), 2.0, scale
    )
    sigma = np.exp(log_noise / 2)
    density = stats.halfcauchy(scale=scale).logpdf(sigma) + np.log(sigma / 2)  # dσ/dλ = σ/2
    assert float(found) == pytest.approx(stats.norm(0, 2**0.5).logpdf(weights).sum() + density)


def test_sparse_rows_are_dense_rows():
    x = sparse.random_array((20, 100), density=0.02, format="csr", rng=np.random.default_rng(0))
    position = Position(jnp.arange(100.0), jnp.float32(0.1))
    target = jnp.arange(20.0)
    np.testing.assert_allclose(
        linear.log_likelihood(position, (as_rows(x), target)),
        linear.log_likelihood(position, (as_rows(x.toarray()), target)),
        rtol=1e-5,
    )

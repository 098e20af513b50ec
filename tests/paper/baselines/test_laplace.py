"""Laplace is exact for Gaussian posteriors; elsewhere its curvature is the Gauss-Newton matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from isotherm.models.networks import mlp
from isotherm.paper.baselines import laplace as module
from isotherm.paper.baselines.laplace import curvature_diagonal, laplace
from marks import slow

RNG = np.random.default_rng(9)
X = RNG.normal(size=(300, 3)).astype(np.float32) @ np.array([[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]])
X = X.astype(np.float32)
LABELS = RNG.integers(0, 4, 300).astype(np.int32)
TARGETS = RNG.normal(size=(300, 2)).astype(np.float32)


def hessian(network, position, data):
    """Return minus the Hessian of the log likelihood, by differentiation."""
    flat, unravel = ravel_pytree(position)
    return -np.asarray(jax.hessian(lambda w: network.log_likelihood(unravel(w), data).sum())(flat))


def gauss_newton(network, position, data):
    """Return the sum of J' Lambda J over rows, with every matrix written out."""
    flat, unravel = ravel_pytree(position)
    jacobian = np.asarray(jax.jacobian(lambda w: network.apply(unravel(w), data[0]))(flat))
    if network.likelihood == "gaussian":
        return np.einsum("icd,ice->de", jacobian, jacobian) / network.noise_sd**2
    p = np.asarray(network.predict(position, data[0]))
    middle = np.einsum("ic,cd->icd", p, np.eye(p.shape[1])) - p[:, :, None] * p[:, None, :]
    return np.einsum("icd,ick,ike->de", jacobian, middle, jacobian)


def test_linear_regression_is_exact(key):
    """With two outputs, against the posterior of the weights computed from the design."""
    network = mlp((3, 2), likelihood="gaussian", prior_sd=2.0, noise_sd=0.5)
    design = np.c_[X, np.ones(len(X))].astype(np.float64)
    precision = design.T @ design / 0.25 + np.eye(4) / 4
    mean = np.linalg.solve(precision, design.T @ TARGETS / 0.25)
    mode = network.init(key)[0]._replace(
        weights=jnp.asarray(mean[:3], jnp.float32), bias=jnp.asarray(mean[3], jnp.float32)
    )
    q = laplace(key, network, (mode,), (X, TARGETS))
    covariance = np.kron(np.linalg.inv(precision), np.eye(2))  # weights row by row, then the bias
    np.testing.assert_allclose(q.last.covariance, covariance, rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(q.last.scale, np.tril(q.last.scale))
    draws = np.asarray(
        jax.vmap(lambda w: ravel_pytree(w)[0])(
            jax.tree.map(lambda leaf: leaf[0], q.sample(key, 50_000))
        ),
        np.float64,
    )
    np.testing.assert_allclose(
        draws.mean(0), mean.ravel(), atol=5 * (covariance.max() / 50_000) ** 0.5
    )
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.03 * covariance.max())
    cooler = laplace(key, network, (mode,), (X, TARGETS), temperature=0.25)
    np.testing.assert_allclose(cooler.last.covariance, 0.25 * q.last.covariance, rtol=1e-4)
    narrow = laplace(key, network, (mode,), (X, TARGETS), prior_sd=0.1)
    stronger = np.kron(np.linalg.inv(precision - np.eye(4) / 4 + 100 * np.eye(4)), np.eye(2))
    np.testing.assert_allclose(narrow.last.covariance, stronger, rtol=1e-3, atol=1e-7)


@pytest.mark.slow
def test_curvature_of_the_last_layer_is_the_hessian(key, monkeypatch):
    """A network is linear in its last layer, so Gauss-Newton is the Hessian there."""
    monkeypatch.setattr(module, "CHUNK_ROWS", 70)
    network = mlp((3, 5, 4), activation="tanh", prior_sd=0.7)
    position = network.init(key)
    q = laplace(key, network, position, (X, LABELS))
    whole = hessian(network, position, (X, LABELS))
    block = whole[-24:, -24:] + np.eye(24) / 0.49  # 5 * 4 weights and 4 biases
    np.testing.assert_allclose(np.linalg.inv(q.last.covariance), block, rtol=1e-2, atol=0.02)
    draws = q.sample(key, 6)
    assert draws[1].weights.shape == (1, 6, 5, 4)
    np.testing.assert_array_equal(draws[0].weights[0, 5], position[0].weights)


@pytest.mark.parametrize(
    ("rows_per_group", "likelihood"),
    [slow(1, "categorical"), (1, "gaussian"), (7, "categorical"), slow(7, "gaussian")],
)
def test_diagonal_is_that_of_gauss_newton(key, likelihood, rows_per_group):
    """400 sweeps over 300 rows give errors of at most 1 %; the limit is 5 %."""
    outputs, labels = (4, LABELS) if likelihood == "categorical" else (2, TARGETS)
    noise_sd = 0.5 if likelihood == "gaussian" else 1.0
    network = mlp((3, 5, outputs), activation="tanh", likelihood=likelihood, noise_sd=noise_sd)
    position = network.init(key)
    estimate = curvature_diagonal(
        key, network, position, (X, labels), "ggn", rows_per_group, num_sweeps=400
    )
    exact = np.diag(gauss_newton(network, position, (X, labels)))
    np.testing.assert_allclose(ravel_pytree(estimate)[0], exact, rtol=0.05)


@pytest.mark.slow
def test_empirical_fisher_is_the_sum_of_squared_gradients(key):
    """With one row per group the estimate is not random."""
    network = mlp((3, 5, 4), activation="tanh")
    position = network.init(key)
    flat, unravel = ravel_pytree(position)
    each = jax.jacobian(lambda w: network.log_likelihood(unravel(w), (X, LABELS)))(flat)
    one = curvature_diagonal(key, network, position, (X, LABELS), "fisher", 1)
    np.testing.assert_allclose(ravel_pytree(one)[0], np.sum(each**2, axis=0), rtol=1e-3)
    many = curvature_diagonal(key, network, position, (X, LABELS), "fisher", 7, num_sweeps=400)
    np.testing.assert_allclose(ravel_pytree(many)[0], np.sum(each**2, axis=0), rtol=0.06)


@pytest.mark.slow
def test_precision_of_a_diagonal_gaussian(key):
    network = mlp((3, 5, 4), prior_sd=0.5)
    position = network.init(key)
    squares = curvature_diagonal(key, network, position, (X, LABELS), "fisher", 1)
    q = laplace(
        key,
        network,
        position,
        (X, LABELS),
        structure="diagonal",
        curvature="fisher",
        rows_per_group=1,
        temperature=0.3,
    )
    np.testing.assert_allclose(q.scale**2, 0.3 / (ravel_pytree(squares)[0] + 4), rtol=1e-4)
    assert q.sample(key, 3)[0].weights.shape == (1, 3, 3, 5)
    for structure in ("diagonal", "last-layer"):
        cold = laplace(key, network, position, (X, LABELS), structure=structure, temperature=0)
        jax.tree.map(
            lambda draw, leaf: np.testing.assert_array_equal(draw[0, 1], leaf),
            cold.sample(key, 2),
            position,
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"structure": "full"}, "`structure` must be 'last-layer' or 'diagonal', got 'full'"),
        ({"curvature": "hessian"}, "`curvature` must be 'ggn' or 'fisher'"),
        ({"curvature": "fisher"}, "`curvature` 'fisher' needs `structure` 'diagonal'"),
        ({"temperature": -1.0}, "`temperature` must not be negative, got -1.0"),
        ({"prior_sd": 0.0}, "`prior_sd` must be positive"),
        ({"rows_per_group": 0}, "`rows_per_group` must be at least 1, got 0"),
        ({"mode": (jnp.ones((3, 4)),)}, "`mode` must be made of"),
    ],
)
def test_bad_settings_raise(key, settings, message):
    network = mlp((3, 4))
    given = {"mode": network.init(key)} | settings
    with pytest.raises(ValueError, match=message):
        laplace(key, network, given.pop("mode"), (X, LABELS), **given)

"""Kronecker Laplace is exact for linear models; elsewhere its curvature is that of Gauss-Newton."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import optimize, stats

from isotherm.models import Gaussian, HalfCauchy, LearnedScales, NormalPrior, Poisson, mlp
from isotherm.models.networks import Layer
from isotherm.paper.baselines.kfac_laplace import kfac_laplace
from isotherm.paper.baselines.laplace import laplace

RNG = np.random.default_rng(9)
X = (RNG.normal(size=(90, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]])).astype(np.float32)
LABELS = RNG.integers(0, 3, 90).astype(np.int32)
DESIGN = np.c_[X, np.ones(90)].astype(np.float64)
TARGETS = (X @ np.array([[1, 0.3], [-1, 0], [0.5, 1]]) + 0.5 * RNG.normal(size=(90, 2))).astype(
    np.float32
)


def dense(fit):
    """Return the covariance of every block over its matrix flattened row by row."""
    covariances = []
    for block in fit.blocks:
        basis = np.kron(np.asarray(block.left, np.float64), np.asarray(block.right, np.float64))
        variance = 1 / np.ravel(block.curvature + block.factor)
        sd = np.ravel(block.prior_sd)
        covariances.append((sd[:, None] * basis) @ np.diag(variance) @ (sd[:, None] * basis).T)
    return covariances


def linear_mode(prior_precision, targets):
    precision = DESIGN.T @ DESIGN / 0.25 + prior_precision * np.eye(4)
    mean = np.linalg.solve(precision, DESIGN.T @ targets / 0.25)
    layer = Layer(jnp.asarray(mean[:3], jnp.float32), jnp.asarray(mean[3], jnp.float32))
    return precision, (layer,)


def test_linear_regression_is_exact(key):
    """Two outputs; covariance, evidence and draws, of weights and of linearised outputs."""
    network = mlp((3, 2), likelihood="gaussian", prior_sd=2.0, noise_sd=0.5)
    precision, mode = linear_mode(0.25, TARGETS)
    fit = kfac_laplace(key, network, mode, (X, TARGETS), prior="network")
    (covariance,) = dense(fit)
    exact = np.kron(np.linalg.inv(precision), np.eye(2))
    np.testing.assert_allclose(covariance, exact, rtol=1e-3, atol=1e-6)
    marginal = stats.multivariate_normal(np.zeros(90), 4 * DESIGN @ DESIGN.T + 0.25 * np.eye(90))
    evidence = sum(marginal.logpdf(TARGETS[:, i]) for i in range(2))
    np.testing.assert_allclose(fit.log_evidence, evidence, rtol=1e-4)
    draws = fit.sample(key, 20_000)
    outputs = fit.outputs(key, network, jnp.asarray(X[:5]), 20_000)
    same = jax.vmap(network.apply, (0, None))(jax.tree.map(lambda a: a[0], draws), X[:5])
    np.testing.assert_allclose(outputs, same, atol=1e-4)  # a linear model is its linearisation
    spread = np.einsum("id,de,ie->i", DESIGN[:5], np.linalg.inv(precision), DESIGN[:5])
    np.testing.assert_allclose(outputs.var(0), np.c_[spread, spread], rtol=0.06)


def test_prior_scale_by_marginal_likelihood(key):
    """For one output the maximum of the evidence is known; a mode of another prior is not moved."""
    network = mlp((3, 1), likelihood="gaussian", noise_sd=0.5)
    targets = TARGETS[:, :1]

    def negative_evidence(log_precision):
        variance = np.exp(-log_precision)
        cov = variance * DESIGN @ DESIGN.T + 0.25 * np.eye(90)
        return -stats.multivariate_normal(np.zeros(90), cov).logpdf(targets[:, 0])

    best = np.exp(optimize.minimize_scalar(negative_evidence, bounds=(-6, 6)).x)
    _, mode = linear_mode(best, targets)
    fit = kfac_laplace(key, network, mode, (X, targets))
    np.testing.assert_allclose(fit.blocks[0].factor, best, rtol=0.02)
    fixed = kfac_laplace(key, network, mode, (X, targets), prior="network")
    assert fixed.blocks[0].factor == 1 and fit.log_evidence > fixed.log_evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood",
    [
        "categorical",
        pytest.param("heteroscedastic", marks=pytest.mark.slow),
        pytest.param("learned noise", marks=pytest.mark.slow),
    ],
)
def test_curvature_is_the_gauss_newton_matrix_in_its_basis(key, likelihood):
    """Of the dense matrix of each layer: its diagonal in the basis, and its trace."""
    model = Gaussian(HalfCauchy(1.0)) if likelihood == "learned noise" else likelihood
    sizes = {"categorical": 3, "heteroscedastic": 2, "learned noise": 1}
    network = mlp(
        (3, 4, sizes[likelihood]), activation="tanh", likelihood=model, prior=NormalPrior(2)
    )
    position = network.init(key)
    y = LABELS if likelihood == "categorical" else TARGETS[:, 0]
    fit = kfac_laplace(key, network, position, (X, y), prior="network")
    flat, unravel = ravel_pytree(position)
    jacobian = np.asarray(jax.jacobian(lambda w: network.apply(unravel(w), X))(flat))
    outputs = np.asarray(network.apply(position, X))
    if likelihood == "categorical":
        p = np.asarray(jax.nn.softmax(outputs))
        middle = np.einsum("ic,cd->icd", p, np.eye(3)) - p[:, :, None] * p[:, None, :]
    elif likelihood == "heteroscedastic":
        middle = np.array([np.diag([np.exp(-2 * s), 2.0]) for _, s in outputs])
    else:
        middle = np.array([np.diag([np.exp(-2 * s), 0.0]) for _, s in outputs])
    whole = np.einsum("icd,ick,ike->de", jacobian, middle, jacobian)
    layers = position["network"] if likelihood == "learned noise" else position
    start = 0
    for block, layer in zip(fit.blocks, layers, strict=True):
        size = layer.weights.size + layer.bias.size  # weights row by row, then the bias
        exact = whole[start : start + size, start : start + size]
        sd = np.ravel(block.prior_sd)
        inside = np.kron(np.asarray(block.left), np.asarray(block.right))
        rotated = inside.T @ (sd[:, None] * exact * sd[None]) @ inside
        np.testing.assert_allclose(
            np.ravel(block.curvature), np.diag(rotated), rtol=2e-3, atol=1e-4 * rotated.max()
        )
        start += size


@pytest.mark.slow
def test_groups_of_rows_have_the_right_expectation(key):
    network = mlp((3, 4, 3), activation="tanh")
    position = network.init(key)
    exact = kfac_laplace(key, network, position, (X, LABELS), prior="network")
    keys = jax.random.split(key, 60)
    traces = [
        [
            float(block.curvature.sum())
            for block in kfac_laplace(k, network, position, (X, LABELS), rows_per_group=4).blocks
        ]
        for k in keys
    ]
    right = [float(block.curvature.sum()) for block in exact.blocks]
    error = np.std(traces, axis=0) / 60**0.5
    assert np.all(np.abs(np.mean(traces, axis=0) - right) < 4 * error)
    assert np.all(error < 0.1 * np.array(right))


@pytest.mark.slow
def test_learned_noise_is_fixed_and_the_last_layer_is_that_of_known_noise(key):
    learned = mlp((3, 4, 1), likelihood=Gaussian(HalfCauchy(1.0)), prior=NormalPrior(2.0, None))
    known = mlp((3, 4, 1), likelihood="gaussian", noise_sd=0.5, prior_sd=2.0)
    position = learned.init(key)
    position["shared"] = jnp.log(jnp.array([0.5]))
    data = (X, TARGETS[:, :1])
    one = laplace(key, learned, position, data)
    two = laplace(key, known, position["network"], data)
    np.testing.assert_allclose(one.last.covariance, two.last.covariance, rtol=1e-3, atol=1e-6)
    for fit in (one, kfac_laplace(key, learned, position, data)):
        draws = fit.sample(key, 3)
        np.testing.assert_array_equal(draws["shared"], np.full((1, 3, 1), position["shared"]))
        assert draws["network"][1].weights.shape == (1, 3, 4, 1)


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        (mlp((3, 3)), {"prior": "own"}, "`prior` must be 'evidence' or 'network', got 'own'"),
        (mlp((3, 3)), {"rows_per_group": 0}, "`rows_per_group` must be at least 1"),
        (mlp((3, 1), likelihood=Poisson()), {}, "must have a categorical or Gaussian likelihood"),
        (mlp((3, 3), prior=LearnedScales()), {}, "must have a prior with given scales"),
    ],
)
def test_bad_settings_raise(key, network, settings, message):
    with pytest.raises(ValueError, match=message):
        kfac_laplace(key, network, network.init(key), (X, LABELS), **settings)

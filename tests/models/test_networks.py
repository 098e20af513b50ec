"""Networks: outputs, log densities, initial weights, and draws from a known posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import isotherm
from isotherm.gradients.convolutions import by_patches
from isotherm.models.convolution import by_xla, max_pool
from isotherm.models.networks import ACTIVATIONS, lenet, mlp


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_the_forward_pass_equals_the_formula(activation):
    network = mlp((3, 5, 4, 2), activation=activation)
    weights = network.init(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    act = {
        "relu": lambda z: np.maximum(z, 0),
        "tanh": np.tanh,
        "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    }[activation]
    hidden = x
    for layer in weights[:-1]:
        hidden = act(hidden @ np.asarray(layer.weights) + np.asarray(layer.bias))
    outputs = hidden @ np.asarray(weights[-1].weights) + np.asarray(weights[-1].bias)
    np.testing.assert_allclose(network.apply(weights, x), outputs, atol=1e-5)
    np.testing.assert_allclose(network.predict(weights, x).sum(1), 1, atol=1e-6)


def test_log_densities_against_scipy():
    x, y = np.ones((4, 3), np.float32), np.array([0, 1, 1, 0])
    network = mlp((3, 4, 2), prior_sd=0.7)
    weights = network.init(jax.random.key(1))
    logits = np.asarray(network.apply(weights, x), np.float64)
    wanted = logits[np.arange(4), y] - np.logaddexp(*logits.T)
    np.testing.assert_allclose(network.log_likelihood(weights, (x, y)), wanted, rtol=1e-5)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(weights)])
    zero = jax.tree.map(jnp.zeros_like, weights)
    difference = network.log_prior(weights) - network.log_prior(zero)
    wanted = stats.norm.logpdf(flat, scale=0.7).sum() - stats.norm.logpdf(0 * flat, scale=0.7).sum()
    assert float(difference) == pytest.approx(wanted, rel=1e-4)
    regression = mlp((3, 4, 2), likelihood="gaussian", noise_sd=0.5)
    targets = np.ones((4, 2), np.float32)
    wanted = stats.norm.logpdf(targets, np.asarray(regression.predict(weights, x)), 0.5).sum(1)
    np.testing.assert_allclose(regression.log_likelihood(weights, (x, targets)), wanted, rtol=1e-4)


def test_initial_weights_have_the_stated_variance():
    he = mlp((400, 300, 10)).init(jax.random.key(2))[0].weights
    glorot = mlp((400, 300, 10), activation="tanh").init(jax.random.key(2))[0].weights
    for weights, variance in ((he, 2 / 400), (glorot, 2 / 700)):
        # The variance of 120 000 normal numbers has an error above 1.6 % once in 20 000 times.
        assert float(weights.var()) == pytest.approx(variance, rel=0.016)


@pytest.mark.slow
def test_convolution_by_patches_equals_xla_convolution():
    images = jax.random.normal(jax.random.key(0), (3, 9, 8, 2))
    kernel = jax.random.normal(jax.random.key(1), (5, 4, 2, 3))

    def loss(convolve, images, kernel):
        return jnp.sum(jnp.sin(convolve(images, kernel)))

    np.testing.assert_allclose(by_patches(images, kernel), by_xla(images, kernel), atol=1e-4)
    ours, theirs = (jax.grad(loss, argnums=(1, 2))(f, images, kernel) for f in (by_patches, by_xla))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_max_pool_returns_maxima_of_2_by_2_blocks():
    images = np.arange(16.0).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(max_pool(images)[0, :, :, 0], [[5, 7], [13, 15]])


def test_lenet_outputs_equal_those_of_xla_convolution_and_pooling():
    network = lenet(channels=(4, 6), hidden=(8,), num_classes=3)
    weights = network.init(jax.random.key(3))
    assert [layer.weights.shape for layer in weights] == [
        (5, 5, 1, 4),
        (5, 5, 4, 6),
        (96, 8),
        (8, 3),
    ]
    x = np.zeros((2, 784), np.float32)
    x[0, 300], x[1, 500] = 1, 1
    outputs = network.apply(weights, x)
    assert outputs.shape == (2, 3) and not np.allclose(outputs[0], outputs[1])
    # The same network with XLA's own convolution and pooling.
    z = x.reshape(2, 28, 28, 1)
    for layer in weights[:2]:
        z = jax.nn.relu(by_xla(z, layer.weights) + layer.bias[None, None, None])
        z = jax.lax.reduce_window(z, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    z = z.reshape(2, -1)
    z = jax.nn.relu(z @ weights[2].weights + weights[2].bias[None])
    np.testing.assert_allclose(outputs, z @ weights[3].weights + weights[3].bias[None], atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mlp((3,)), "`sizes` must be at least two"),
        (lambda: mlp((3, 0, 1)), "`sizes` must be at least two positive"),
        (lambda: mlp((3, 1), activation="swish"), "`activation` must be one of"),
        (lambda: mlp((3, 1), likelihood="gausian"), "`likelihood` must be one of"),
        (lambda: lenet(side=27), "`side` must be 4 k"),
    ],
)
def test_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_draws_of_a_linear_network_follow_its_exact_posterior():
    """One layer with Gaussian noise is Bayesian linear regression."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x @ [1.0, -0.5] + 0.3 + 0.5 * rng.normal(size=200)).astype(np.float32)[:, None]
    network = mlp((2, 1), likelihood="gaussian", noise_sd=0.5)
    design = np.column_stack([x, np.ones(200)])
    covariance = np.linalg.inv(design.T @ design / 0.25 + np.eye(3))
    mean = covariance @ design.T @ y[:, 0] / 0.25
    sampler = isotherm.msgnht(
        network.gradient(200), step_size=0.01, diffusion=20.0, thermostat_mass=0.01
    )
    run = isotherm.sample(
        jax.random.key(0),
        sampler,
        network.init(jax.random.key(1)),
        isotherm.full_batch((x, y)),
        num_draws=1000,
        thin=20,
        burn_in=500,
        num_chains=8,
    )
    layer = run.draws[0]
    draws = np.concatenate([layer.weights[..., 0], layer.bias], axis=-1).reshape(-1, 3)
    sd = np.sqrt(np.diag(covariance))
    # About 4000 effective draws: 0.08 sd in means and 6 % in sds are five standard errors.
    np.testing.assert_allclose((draws.mean(0) - mean) / sd, 0, atol=0.08)
    np.testing.assert_allclose(draws.std(0) / sd, 1, atol=0.06)

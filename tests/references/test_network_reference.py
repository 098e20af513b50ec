"""The reference posterior of a small network: its log density, gradient and draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import isotherm
from isotherm.references.conjugate import linear_posterior
from isotherm.references.hmc import hmc
from isotherm.references.network import network_target


@pytest.mark.slow
def test_log_density_and_gradient_are_those_of_the_network():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), rng.normal(size=(20, 1))
    network = isotherm.models.mlp(
        (2, 3, 1), activation="tanh", likelihood="gaussian", noise_sd=0.3, prior_sd=0.8
    )
    start = network.init(jax.random.key(0))
    flat, unravel = ravel_pytree(start)
    target = network_target(network, (x, y), start)
    np.testing.assert_allclose(target.mode, flat)
    assert target.mode.dtype == np.float64
    points = rng.normal(size=(4, 13))
    data = (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))

    def log_density(flat):
        w = unravel(flat)
        return network.log_prior(w) + network.log_likelihood(w, data).sum()

    value, gradient = target.log_density_and_gradient(points)
    assert value.dtype == gradient.dtype == np.float64
    expected = np.array([log_density(jnp.asarray(p, jnp.float32)) for p in points])
    np.testing.assert_allclose(np.diff(value), np.diff(expected), rtol=1e-4)
    grads = np.array([jax.grad(log_density)(jnp.asarray(p, jnp.float32)) for p in points])
    np.testing.assert_allclose(gradient, grads, rtol=2e-3, atol=1e-2)


def test_draws_of_a_network_without_hidden_layers_follow_the_exact_posterior():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(15, 1))
    y = 0.7 * x + 0.2 + 0.5 * rng.normal(size=x.shape)
    network = isotherm.models.mlp((1, 1), likelihood="gaussian", noise_sd=0.5)
    draws, accepted = hmc(
        network_target(network, (x, y), network.init(jax.random.key(0))),
        num_chains=16,
        num_draws=300,
        burn_in=50,
        seed=0,
        step_size=0.1,
        num_leapfrog=8,
        start_width=0.3,
    )
    exact = linear_posterior(np.column_stack([np.ones(15), x]), y[:, 0], 1.0, 0.25)
    flat = draws.reshape(-1, 2)[:, ::-1] if _bias_last(network) else draws.reshape(-1, 2)
    assert accepted > 0.8
    np.testing.assert_allclose(flat.mean(0), exact.mean, atol=5 * exact.sd.max() / np.sqrt(2000))
    np.testing.assert_allclose(flat.std(0), exact.sd, rtol=0.08)


def _bias_last(network):
    layer = network.init(jax.random.key(0))[0]
    return layer._fields[-1] == "bias"

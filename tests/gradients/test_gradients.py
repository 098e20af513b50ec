"""Gradient estimators are unbiased, and control variates have little noise near their centre."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import isotherm
from isotherm.gradients.full_data import full_gradient

X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0]) > 0).astype(np.float32)


def log_likelihood(w, batch):
    x, y = batch
    return y * jax.nn.log_sigmoid(x @ w) + (1 - y) * jax.nn.log_sigmoid(-x @ w)


def log_prior(w):
    return -0.5 * jnp.sum(w**2)


def exact(w):
    return jax.grad(lambda w: log_prior(w) + log_likelihood(w, (X, Y)).sum())(w)


PLAIN = isotherm.minibatch_gradient(log_likelihood, log_prior, len(X))
W = jnp.array([0.3, 0.7])


def over_all_batches(grad_fn, size=2):
    rows = itertools.product(range(6), repeat=size)  # with replacement, as independent batches are
    return np.stack([grad_fn(W, (X[list(i)], Y[list(i)])) for i in rows])


@pytest.mark.parametrize("kind", ["plain", "control variates"])
def test_the_average_over_all_batches_is_the_gradient(kind):
    grad_fn = PLAIN
    if kind == "control variates":
        grad_fn = isotherm.control_variates(PLAIN, jnp.array([0.5, -0.2]), (X, Y), chunk_size=4)
    np.testing.assert_allclose(over_all_batches(grad_fn).mean(0), exact(W), rtol=1e-4)


def test_control_variates_have_no_noise_at_the_centre_and_little_near_it():
    at = isotherm.control_variates(PLAIN, W, (X, Y))
    near = isotherm.control_variates(PLAIN, W + 0.05, (X, Y))
    assert over_all_batches(at).std(0).max() < 1e-5
    assert over_all_batches(near).std(0).max() < 0.1 * over_all_batches(PLAIN).std(0).max()


def test_full_gradient_in_chunks_is_the_gradient():
    np.testing.assert_allclose(full_gradient(PLAIN, W, (X, Y), chunk_size=4), exact(W), rtol=1e-5)


def test_find_mode_works_with_any_optimizer(key):
    for optimizer in (None, optax.sgd(0.5)):
        mode = isotherm.find_mode(
            key,
            PLAIN,
            jnp.zeros(2),
            isotherm.full_batch((X, Y)),
            optimizer=optimizer,
            num_steps=500,
        )
        np.testing.assert_allclose(exact(mode), 0, atol=0.02)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`data_size` must be at least 1"):
        isotherm.minibatch_gradient(log_likelihood, log_prior, 0)
    summed = isotherm.minibatch_gradient(lambda w, b: log_likelihood(w, b).sum(), log_prior, 6)
    with pytest.raises(ValueError, match="one value per datum"):
        summed(W, (X, Y))
    with pytest.raises(ValueError, match="`data` has 3 rows, but `data_size` is 6"):
        isotherm.control_variates(PLAIN, W, (X[:3], Y[:3]))

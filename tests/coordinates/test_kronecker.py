"""Kronecker coordinates are linear, and exact if the curvature is a Kronecker product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.coordinates.kronecker import kronecker_eigenbasis
from isotherm.coordinates.natural import DIFFUSION, THERMOSTAT_MASS

SIZE, BATCH = 4000, 50


@pytest.fixture(scope="module")
def problem():
    """A regression with several outputs, whose curvature is exactly a Kronecker product."""
    rng = np.random.default_rng(0)
    mix_in, mix_out = rng.normal(size=(3, 3)), rng.normal(size=(2, 2))
    x = (rng.normal(size=(SIZE, 3)) @ mix_in).astype(np.float32)
    precision = np.linalg.inv(mix_out @ mix_out.T).astype(np.float32)
    y = (rng.normal(size=(SIZE, 2)) @ mix_out.T).astype(np.float32)  # the true weights are zero

    def log_likelihood(w, batch):
        residual = batch[1] - batch[0] @ w
        return -0.5 * jnp.einsum("ni,ij,nj->n", residual, precision, residual)

    grad_fn = isotherm.minibatch_gradient(log_likelihood, lambda w: -0.5 * jnp.sum(w**2), SIZE)
    batches = isotherm.independent_batches((x, y), BATCH)
    curvature = np.kron(x.T @ x, precision) + np.eye(6)
    position = jnp.asarray(np.linalg.solve(x.T @ x, x.T @ y), jnp.float32)
    return grad_fn, batches, position, curvature


def as_a_matrix(space, like):
    columns = [space.push(row.reshape(like.shape)).ravel() for row in jnp.eye(like.size)]
    return np.asarray(jnp.stack(columns, axis=1), np.float64)


def test_it_whitens_a_kronecker_product(problem):
    grad_fn, batches, position, curvature = problem
    space = kronecker_eigenbasis(jax.random.key(0), grad_fn, position, batches, num_batches=4096)
    basis = as_a_matrix(space, position)
    whitened = basis.T @ curvature @ basis
    # 2048 pairs of batches: variances within 16 % at five sigma; close eigenvalues mix their axes.
    np.testing.assert_allclose(np.diag(whitened), 1, atol=0.2)
    assert np.abs(whitened - np.diag(np.diag(whitened))).max() < 0.25
    # In plain coordinates the correlations are large.
    scaled = curvature / np.sqrt(np.outer(np.diag(curvature), np.diag(curvature)))
    assert np.abs(scaled - np.eye(6)).max() > 0.5


def test_pull_is_the_transpose_of_push(problem):
    grad_fn, batches, position, _ = problem
    space = kronecker_eigenbasis(jax.random.key(0), grad_fn, position, batches, num_batches=64)
    v, g = (jax.random.normal(jax.random.key(i), position.shape) for i in (1, 2))
    assert float(jnp.sum(g * space.push(v))) == pytest.approx(
        float(jnp.sum(space.pull(g) * v)), rel=1e-4
    )


def test_convolutions_vectors_and_scalars_have_coordinates():
    position = {"kernel": jnp.ones((2, 2, 1, 3)), "bias": jnp.ones(3), "scale": jnp.ones(())}

    def log_likelihood(w, batch):
        features = batch @ w["kernel"].reshape(4, 3) + w["bias"][None]
        return -0.5 * jnp.sum(features**2, axis=1) * w["scale"]

    def log_prior(w):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))

    x = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    grad_fn = isotherm.minibatch_gradient(log_likelihood, log_prior, 100)
    space = kronecker_eigenbasis(
        jax.random.key(0), grad_fn, position, isotherm.independent_batches(x, 10)
    )
    pushed = space.push(position)
    assert jax.tree.map(jnp.shape, pushed) == jax.tree.map(jnp.shape, position)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(pushed))


@pytest.mark.slow
def test_sampling_gives_the_exact_posterior(problem):
    """With the settings for natural coordinates: h = 0.05, D = 1, mass 10."""
    grad_fn, batches, position, curvature = problem
    space = kronecker_eigenbasis(jax.random.key(0), grad_fn, position, batches, num_batches=1024)
    sampler = isotherm.msgnht(
        grad_fn, 0.05, DIFFUSION, thermostat_mass=THERMOSTAT_MASS, coordinates=space
    )
    run = isotherm.sample(
        jax.random.key(1),
        sampler,
        position,
        batches,
        num_draws=2000,
        thin=40,
        burn_in=2000,
        num_chains=8,
    )
    draws = run.draws.reshape(-1, 6)
    sd = np.sqrt(np.diag(np.linalg.inv(curvature)))
    # About 8000 effective draws: an sd within 4 % at five sigma; 2 % remain for discretisation.
    np.testing.assert_allclose(draws.std(0) / sd, 1, atol=0.06)

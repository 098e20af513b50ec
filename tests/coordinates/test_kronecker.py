"""Kronecker coordinates are linear, and exact if the curvature is a Kronecker product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.coordinates.kronecker import kronecker_eigenbasis, leaf_sides
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


@pytest.mark.parametrize(
    ("leaves", "letters"),
    [
        ({"kernel": (3, 3, 4, 8), "bias": (8,)}, {"kernel": "lllr", "bias": "r"}),
        ({"weight": (8, 4, 3, 3), "bias": (8, 1, 1)}, {"weight": "rlll", "bias": "rrr"}),
        ({"w": (4, 8), "b": (8,)}, {"w": "lr", "b": "r"}),
        ({"query.kernel": (16, 2, 8), "query.bias": (2, 8)}, {"query.kernel": "lrr"}),
        ({"out.kernel": (2, 8, 16), "out.bias": (16,)}, {"out.kernel": "llr"}),
        ({"query.kernel": (6, 16, 2, 8), "query.bias": (6, 2, 8)}, {"query.kernel": "slrr"}),
        ({"kernel": (6, 4, 8), "bias": (6, 8)}, {"kernel": "slr", "bias": "sr"}),
        ({"weight": (6, 8, 4), "bias": (6, 8)}, {"weight": "srl", "bias": "sr"}),
        ({"scale": (6, 8), "bias": (6, 8)}, {"scale": "sr", "bias": "sr"}),
        ({"value.kernel": (16, 2, 8), "value.bias": (2, 8)}, {"value.kernel": "lrr"}),
        ({"kernel.value": (4, 8), "bias.raw_value": (8,)}, {"kernel.value": "lr"}),
        ({"blocks.up.weight": (2, 8, 4), "blocks.up.bias": (2, 8)}, {"blocks.up.weight": "srl"}),
        ({"blocks.q.weight": (2, 4, 4), "blocks.up.bias": (2, 8)}, {"blocks.q.weight": "srl"}),
        ({"conv.weight": (2, 4, 4), "blocks.up.bias": (2, 8)}, {"conv.weight": "rll"}),
        ({"token_embed.embedding": (50, 8)}, {"token_embed.embedding": ".r"}),
        ({"embed.weight": (50, 8)}, {"embed.weight": ".r"}),
        ({"embed.weight": (16, 8), "embed.bias": (16,)}, {"embed.weight": "rl"}),
        ({"embed.kernel": (8, 16), "embed.bias": (16,)}, {"embed.kernel": "lr"}),
        ({"lora.a": (64, 4), "lora.b": (4, 10)}, {"lora.a": "lr", "lora.b": "lr"}),
        ({"temperature": ()}, {"temperature": ""}),
    ],
)
def test_the_sides_of_layers_are_inferred(leaves, letters):
    found = leaf_sides({name: jnp.zeros(shape) for name, shape in leaves.items()})
    assert {name: found[name] for name in letters} == letters


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ({"v": "lr"}, "the leaves are"),
        ({"w": "l"}, "for each of 2 axes"),
        ({"w": "lx"}, "for each of 2 axes"),
    ],
)
def test_wrong_sides_are_refused(sides, message):
    with pytest.raises(ValueError, match=message):
        leaf_sides({"w": jnp.zeros((2, 3))}, sides)


def test_other_layouts_have_the_coordinates_of_the_matrix(problem):
    """A transposed, a stacked and a split leaf are whitened like the matrix itself."""
    grad_fn, batches, position, _ = problem
    size = grad_fn.data_size

    def basis(shape, to_matrix, sides):
        def log_likelihood(w, batch):
            return grad_fn.log_likelihood(to_matrix(w), batch)

        target = isotherm.minibatch_gradient(
            log_likelihood, lambda w: grad_fn.log_prior(to_matrix(w)), size
        )
        space = kronecker_eigenbasis(
            jax.random.key(0), target, shape, batches, num_batches=64, sides={"position": sides}
        )
        return space, jnp.sort(space.leaves[0].scale.ravel())

    _, plain = basis(position, lambda w: w, "lr")
    _, transposed = basis(position.T, lambda w: w.T, "rl")
    stacked_space, stacked = basis(position[None], lambda w: w[0], "slr")
    _, split = basis(position.reshape(3, 1, 2), lambda w: w.reshape(3, 2), "lrr")
    for other in (transposed, stacked, split):
        np.testing.assert_allclose(other, plain, rtol=1e-3)
    assert stacked_space.leaves[0].left.shape == (1, 3, 3)
    # A side that is not rotated gives other scales.
    _, diagonal = basis(position, lambda w: w, ".r")
    assert np.abs(diagonal / plain - 1).max() > 0.01


def test_each_layer_of_a_stack_has_a_basis_of_its_own():
    x = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    inputs = np.stack([x @ np.diag([1, 10, 1, 1]), x @ np.diag([1, 1, 1, 0.1])], 1)
    position = {"kernel": jnp.zeros((2, 4, 3)), "bias": jnp.zeros((2, 3))}

    def log_likelihood(w, batch):
        outputs = jnp.einsum("nsi,sio->nso", batch, w["kernel"]) + w["bias"][None]
        return -0.5 * jnp.sum((outputs - 1) ** 2, axis=(1, 2))

    def log_prior(w):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))

    grad_fn = isotherm.minibatch_gradient(log_likelihood, log_prior, 500)
    batches = isotherm.independent_batches(inputs.astype(np.float32), 20)
    space = kronecker_eigenbasis(jax.random.key(0), grad_fn, position, batches)
    kernel = space.leaves[1]
    # The eigenvector of the largest eigenvalue is the last: input 1 of the first layer only.
    assert abs(float(kernel.left[0, 1, -1])) > 0.99
    assert abs(float(kernel.left[1, 1, -1])) < 0.99
    summary = space.summary(position).splitlines()
    assert summary[0].split() == ["leaf", "shape", "sides", "condition", "units"]
    assert summary[2].split()[:6] == ["kernel", "2", "x", "4", "x", "3"]
    assert " slr " in summary[2]
    pushed = space.push(position)
    assert jax.tree.map(jnp.shape, pushed) == jax.tree.map(jnp.shape, position)
    v, g = (
        jax.tree.map(lambda leaf, i=i: jax.random.normal(jax.random.key(i), leaf.shape), position)
        for i in (1, 2)
    )
    one, other = (
        sum(float(jnp.sum(a * b)) for a, b in zip(*map(jax.tree.leaves, pair), strict=True))
        for pair in ((g, space.push(v)), (space.pull(g), v))
    )
    assert one == pytest.approx(other, rel=1e-4)

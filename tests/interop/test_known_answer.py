"""The same network in three libraries and as a plain tree has the same, known posterior.

The law test runs independent chains to one draw each, so draws are i.i.d. and differ from the exact
posterior only by the splitting error (0.3 % of a variance, against a standard error of 2 %). It
fails on correct code with probability `laws.FALSE_ALARM` per fresh seed; the seed is fixed.
"""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import isotherm
import laws
from isotherm.interop.equinox import from_equinox
from isotherm.interop.flax_linen import from_linen
from isotherm.interop.flax_nnx import from_nnx
from isotherm.models.networks import Network

LIBRARIES = ("nnx", "linen", "equinox")
PRIOR_SD, NOISE_SD, NUM_CHAINS = 0.7, 1.5, 4000
rng = np.random.default_rng(0)
X = (rng.normal(size=(30, 2)) @ [[1.0, 0.6], [0.0, 0.8]]).astype(np.float32)
Y = (X @ [1.0, -2.0] + 0.5 + NOISE_SD * rng.normal(size=30)).astype(np.float32)


class Tanh(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(2, 8, rngs=rngs)
        self.second = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


def line(library, slopes, intercept):
    """A linear model at these values, and a function that reads them from its draws."""
    if library == "equinox":
        position, apply, _ = from_equinox(equinox.nn.Linear(2, 1, key=jax.random.key(1)))
        position = jax.tree.unflatten(jax.tree.structure(position), [slopes[None], intercept])
        return position, apply, lambda t: np.concatenate([t.weight[..., 0, :], t.bias], -1)
    if library == "nnx":
        parts = from_nnx(nnx.Linear(2, 1, rngs=nnx.Rngs(1)))
    else:
        parts = from_linen(linen.Dense(1), linen.Dense(1).init(jax.random.key(1), X))
    position = {"kernel": slopes[:, None], "bias": intercept}
    return position, parts.apply, lambda t: np.concatenate([t["kernel"][..., 0], t["bias"]], -1)


def posterior():
    """Exact mean and covariance of (slopes, intercept)."""
    design = np.column_stack([X, np.ones(len(X))]).astype(np.float64)
    precision = design.T @ design / NOISE_SD**2 + np.eye(3) / PRIOR_SD**2
    covariance = np.linalg.inv(precision)
    return covariance @ design.T @ Y / NOISE_SD**2, covariance


WRONG = {"prior": (0.8, NOISE_SD), "noise": (PRIOR_SD, 1.4)}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_draws_have_the_exact_posterior_as_their_law(key, library):
    """A prior or noise that is slightly wrong is detected."""
    mean, covariance = posterior()
    start = jnp.asarray(mean + np.sqrt(np.diag(covariance)), jnp.float32)
    position, apply, read = line(library, start[:2], start[2:])
    curvature = 1 / np.linalg.eigvalsh(covariance)[0]

    def build(setting):
        network = Network(apply, lambda key: position, "gaussian", *setting)
        gradient = network.gradient(len(X))
        return isotherm.msgnht(
            lambda position, _: gradient(position, (X, Y[:, None])),
            0.1 / curvature**0.5,
            curvature**0.5,
            thermostat_mass=10 / curvature,
        )

    settings = [(PRIOR_SD, NOISE_SD), *WRONG.values()]
    states = laws.final_states(key, build, settings, position, 400, NUM_CHAINS)
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    right, *wrong = [
        laws.gaussian_p_value((read(s.position) - mean) @ whiten.T, np.zeros(3), np.eye(3))
        for s in states
    ]
    assert right > laws.FALSE_ALARM
    assert max(wrong) < laws.FALSE_ALARM


def classifier(library):
    """A network, and the same one as a plain tree with leaves in the same order."""
    if library == "equinox":
        mlp = equinox.nn.MLP(2, 3, 8, 1, activation=jnp.tanh, key=jax.random.key(2))
        parts = from_equinox(mlp)
        tree = [(layer.weight, layer.bias) for layer in mlp.layers]

        def apply(tree, x):
            (w, b), (v, c) = tree
            return jnp.tanh(x @ w.T + b[None]) @ v.T + c[None]

        return parts, tree, apply
    if library == "nnx":
        parts = from_nnx(Tanh(nnx.Rngs(2)))
    else:
        mlp = linen.Sequential([linen.Dense(8), jnp.tanh, linen.Dense(3)])
        parts = from_linen(mlp, mlp.init(jax.random.key(2), X))
    tree = [(layer["bias"], layer["kernel"]) for layer in parts.position.values()]

    def apply(tree, x):
        (b, w), (c, v) = tree
        return jnp.tanh(x @ w + b[None]) @ v + c[None]

    return parts, tree, apply


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_gradient_equals_that_of_the_plain_tree(key, library):
    (position, apply, put_back), tree, plain = classifier(library)
    batch = (X[:10], np.arange(10) % 3)
    theirs, ours = (
        jax.jit(Network(function, lambda key, at=at: at).gradient(len(X)))(at, batch)
        for at, function in [(position, apply), (tree, plain)]
    )
    for one, other in zip(*map(jax.tree.leaves, (theirs, ours)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    moved = jax.tree.map(lambda leaf: leaf + 0.3, position)
    whole = put_back(moved)
    if library == "linen":
        outputs = linen.Sequential([linen.Dense(8), jnp.tanh, linen.Dense(3)]).apply(whole, X)
    else:
        outputs = jax.vmap(whole)(X) if library == "equinox" else whole(X)
    np.testing.assert_array_equal(outputs, apply(moved, X))
    assert np.abs(outputs - apply(position, X)).max() > 0.1


@pytest.mark.slow
def test_a_chain_equals_that_of_the_plain_tree(key):
    parts, tree, plain = classifier("nnx")
    batches = isotherm.independent_batches((X, np.arange(len(X)) % 3), batch_size=10)
    draws = []
    for start, function in [(parts.position, parts.apply), (tree, plain)]:
        network = Network(function, lambda key, start=start: start)
        sampler = isotherm.msgnht(network.gradient(len(X)), step_size=0.05)
        draws.append(isotherm.sample(key, sampler, start, batches, num_draws=30).draws)
    for theirs, ours in zip(*map(jax.tree.leaves, draws), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)

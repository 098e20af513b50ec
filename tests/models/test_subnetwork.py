"""Some weights of a network are sampled as if the others were constants of the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.models import LearnedScales, NormalPrior, build_network, subnetwork


@pytest.fixture
def problem():
    """Return a network, its weights, a mask, and rows."""
    network = isotherm.models.mlp((4, 6, 3), activation="tanh", prior=NormalPrior(2.0))
    weights = network.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(25, 4)).astype(np.float32), rng.integers(0, 3, 25)
    first, last = weights
    mask = (
        first._replace(weights=rng.random((4, 6)) < 0.4, bias=False),
        last._replace(weights=True, bias=np.arange(3) == 1),
    )
    return network, weights, mask, rows


def test_density_gradient_and_predictions_are_those_of_the_whole_network(problem):
    network, weights, mask, (x, y) = problem
    part, whole = subnetwork(network, weights, mask)
    start = part.init(jax.random.key(1))
    sizes = [leaf.shape for leaf in jax.tree.leaves(start)]
    assert sizes == [(int(mask[0].weights.sum()),), (6, 3), (1,)]
    jax.tree.map(np.testing.assert_array_equal, whole(start), weights)
    moved = jax.tree.map(lambda leaf: leaf + 0.3, start)
    everything = whole(moved)
    changed = jax.tree.leaves(jax.tree.map(lambda a, b: np.asarray(a != b), everything, weights))
    expected = [mask[0].weights, np.zeros(6, bool), np.ones((6, 3), bool), np.arange(3) == 1]
    for found, wanted in zip(changed, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    grads = part.gradient(100)(moved, (x, y))
    of_whole = network.gradient(100)(everything, (x, y))
    np.testing.assert_allclose(
        grads[0].weights, of_whole[0].weights[mask[0].weights], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(grads[1].bias, of_whole[1].bias[1:2], rtol=1e-5)
    np.testing.assert_allclose(part.predict(moved, x), network.predict(everything, x), rtol=1e-6)
    assert float(part.log_prior(moved)) == pytest.approx(float(network.log_prior(everything)))


def test_a_masked_linear_model_is_sampled_from_its_conditional_posterior(key):
    """The law of some weights of a Gaussian, given the others, is known."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5, 3.0]) + rng.normal(size=50)).astype(np.float32)[:, None]
    network = build_network(lambda w, x: x @ w, lambda key: jnp.ones((4, 1)), likelihood="gaussian")
    mask = np.array([[True], [False], [True], [False]])
    part, whole = subnetwork(network, network.init(key), mask)
    start = isotherm.warm_start(
        key, part.gradient(50), part.init(key), isotherm.full_batch((x, y)), num_steps=200
    )
    sampler = isotherm.msgnht(start.grad_fn, **start.settings)
    settings = {"num_draws": 4000, "thin": 10, "burn_in": 500, "num_chains": 2}
    run = isotherm.sample(key, sampler, start.position, isotherm.full_batch((x, y)), **settings)
    assert run.draws.shape == (2, 4000, 2)
    free, fixed = x[:, [0, 2]], x[:, [1, 3]].sum(1)
    covariance = np.linalg.inv(free.T @ free + np.eye(2))
    mean = covariance @ free.T @ (y[:, 0] - fixed)
    draws = run.draws.reshape(-1, 2)
    spread = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.15 * spread.min())
    np.testing.assert_allclose(draws.std(0), spread, rtol=0.08)
    everything = jax.vmap(jax.vmap(whole))(run.draws)
    assert everything.shape == (2, 4000, 4, 1)
    assert np.all(everything[..., [1, 3], 0] == 1)


def test_scales_that_are_learned_may_be_fixed_or_sampled():
    network = isotherm.models.mlp((4, 6, 3), prior=LearnedScales())
    weights = network.init(jax.random.key(0))
    part, _ = subnetwork(network, weights, {"weights": (False, True), "log_scales": True})
    start = part.init(jax.random.key(0))
    assert len(jax.tree.leaves(start)) == 2 + len(jax.tree.leaves(weights["log_scales"]))
    assert np.isfinite(float(part.log_prior(start)))
    drawn = part.sample_prior(jax.random.key(3))
    assert jax.tree.structure(drawn) == jax.tree.structure(start)


def test_bad_masks_are_refused(problem):
    network, weights, mask, _ = problem
    for selected, message in (
        (False, "selects nothing"),
        ((mask[0],), "structure of `position`"),
        ((mask[0], 1), "must have booleans, got int"),
        (
            (mask[0]._replace(weights=np.ones((4, 5), bool)), True),
            r"cannot be broadcast to \(4, 6\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            subnetwork(network, weights, selected)

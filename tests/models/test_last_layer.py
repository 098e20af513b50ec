"""The last layer on cached features is the last layer of the whole network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.models import Gaussian, HalfCauchy, last_layer


@pytest.fixture
def problem():
    """Return a network, its weights, its features, and rows."""
    network = isotherm.models.mlp((4, 6, 3), activation="tanh")
    first, last = network.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(25, 4)).astype(np.float32), rng.integers(0, 3, 25)

    def features(x):
        return jnp.tanh(x @ first.weights + first.bias[None])

    return network, (first, last), features, (x, y)


def test_the_density_and_predictions_are_those_of_the_whole_network(problem):
    network, (first, last), features, (x, y) = problem
    head, cached = last_layer(features, last, x, rows_per_block=10, prior_sd=2.0)
    np.testing.assert_allclose(cached, features(x), rtol=1e-4)
    start = head.init(jax.random.key(1))
    moved = jax.tree.map(lambda leaf: leaf + 0.1, start)
    whole = network.log_likelihood((first, moved), (x, y))
    np.testing.assert_allclose(head.log_likelihood(moved, (cached, y)), whole, rtol=1e-4)
    np.testing.assert_allclose(
        head.predict(start, features(x)), network.predict((first, last), x), rtol=1e-4
    )
    squares = sum(float((leaf**2).sum()) for leaf in moved)
    assert float(head.log_prior(moved)) == pytest.approx(-squares / 8, rel=1e-5)


def test_features_of_a_pytree_of_inputs_and_other_likelihoods(problem):
    _, _, features, (x, _) = problem
    weights = np.zeros((6, 1), np.float32), np.zeros(1, np.float32)
    head, cached = last_layer(
        lambda rows: features(rows["x"]), weights, {"x": x}, likelihood=Gaussian(HalfCauchy(1.0))
    )
    position = head.init(jax.random.key(0))
    assert sorted(position) == ["network", "shared"]
    assert head.log_likelihood(position, (cached, x[:, 0])).shape == (25,)


def test_a_layer_of_another_shape_is_refused(problem):
    _, (_, last), features, (x, _) = problem
    with pytest.raises(ValueError, match=r"features of shape \(25, 6\), got \(3, 6\)"):
        last_layer(features, (last.weights.T, last.bias), x)

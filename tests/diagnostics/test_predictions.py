"""Predictions averaged over the draws of samplers and of Gaussian approximations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.diagnostics.calibration import mutual_information
from isotherm.diagnostics.predictions import WithEntropy, class_probabilities, posterior_predictive
from isotherm.paper.baselines.gaussian import GaussianApproximation
from marks import slow


def probabilities(weights, x):
    return jax.nn.softmax(x @ weights["w"] + weights["b"][None, :])


@pytest.fixture
def draws(key):
    return {
        "w": np.asarray(jax.random.normal(key, (2, 5, 3, 4))),
        "b": np.linspace(-1, 1, 40, dtype=np.float32).reshape(2, 5, 4),
    }


@pytest.mark.parametrize(("draws_per_block", "rows_per_block"), [(16, 4096), (3, 4), (1, 1)])
def test_blocks_do_not_change_the_average(key, draws, draws_per_block, rows_per_block):
    x = jax.random.normal(jax.random.fold_in(key, 1), (9, 3))
    mean = posterior_predictive(
        probabilities, draws, x, draws_per_block=draws_per_block, rows_per_block=rows_per_block
    )
    each = [
        probabilities(jax.tree.map(lambda leaf, c=c, d=d: leaf[c, d], draws), x)
        for c in range(2)
        for d in range(5)
    ]
    np.testing.assert_allclose(mean, np.mean(each, axis=0), rtol=1e-5, atol=1e-6)
    assert mean.dtype == jnp.float32


@pytest.mark.slow
def test_draws_of_a_sampler_and_of_an_approximation_predict_the_same(key):
    """Both sample the same Gaussian posterior."""
    x = jnp.linspace(-2, 2, 5)
    predict = lambda w, x: jax.nn.sigmoid(w * x)  # noqa: E731
    run = isotherm.sample(
        key,
        isotherm.sgld(lambda w, batch: -w, step_size=0.05),
        jnp.zeros(()),
        isotherm.no_batches(),
        num_draws=4000,
        thin=5,
        burn_in=100,
        num_chains=4,
    )
    q = GaussianApproximation(jnp.zeros(()), jnp.ones(1), jnp.zeros(1))
    chain, gauss = (posterior_predictive(predict, d, x) for d in (run.draws, q.sample(key, 16_000)))
    np.testing.assert_allclose(chain, gauss, atol=0.03)


def test_predictions_may_be_trees(draws):
    x = {"x": jnp.ones((4, 3))}
    both = posterior_predictive(
        lambda w, x: {"p": probabilities(w, x["x"]), "b": x["x"][:, 0] * w["b"][0]}, draws, x
    )
    assert both["p"].shape == (4, 4)
    np.testing.assert_allclose(both["b"], draws["b"][..., 0].mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draws": jnp.ones(3)}, r"`draws` must have leading axes \(chain, draw\)"),
        ({"draws": jnp.ones((1, 0, 2))}, "`draws` must have leaves of the same length"),
        ({"x": (jnp.ones(3), jnp.ones(4))}, "`x` must have leaves of the same length"),
        (
            {"predict": lambda w, x: jnp.sum(x)},
            r"`predict` must return one row per row of `x` \(3 rows\)",
        ),
        ({"rows_per_block": 0}, "`rows_per_block` must be at least 1, got 0"),
    ],
)
def test_bad_input_of_posterior_predictive_is_refused(change, message):
    arguments = {"predict": lambda w, x: x * w[0], "draws": jnp.ones((1, 2, 2)), "x": jnp.ones(3)}
    with pytest.raises(ValueError, match=message):
        posterior_predictive(**(arguments | change))


@pytest.mark.parametrize("rows_per_block", [slow(1), 4, slow(9), 100])
def test_averages_while_sampling_equal_those_of_stored_draws(key, rows_per_block):
    """Both are averages over draws, for any block size."""
    x = np.asarray(jax.random.normal(jax.random.fold_in(key, 1), (9, 3)))
    start = {"w": jnp.zeros((3, 4)), "b": jnp.zeros(4)}
    read = class_probabilities(probabilities, x, rows_per_block=rows_per_block)
    sampler = isotherm.sgld(lambda w, batch: jax.tree.map(jnp.negative, w), step_size=0.2)
    run = isotherm.sample(
        key,
        sampler,
        start,
        isotherm.no_batches(),
        num_draws=20,
        thin=3,
        num_chains=2,
        collect={"draws": isotherm.collect.draws(), "test": isotherm.collect.average(read)},
    )
    afterwards = posterior_predictive(WithEntropy(probabilities), run.draws, x)
    test = run.collected["test"]
    assert test["probabilities"].shape == (2, 9, 4) and test["entropy"].shape == (2, 9)
    for name, mean in afterwards.items():
        np.testing.assert_allclose(test[name].mean(0), mean, rtol=1e-4)
    # The entropy of one draw; its mean is below the entropy of the mean.
    p = np.asarray(probabilities(jax.tree.map(lambda leaf: leaf[1, 4], run.draws), x), np.float64)
    one = WithEntropy(probabilities)(jax.tree.map(lambda leaf: leaf[1, 4], run.draws), x)
    np.testing.assert_allclose(one["entropy"], -np.sum(p * np.log(p), axis=1), rtol=1e-5)
    epistemic = mutual_information(afterwards["probabilities"], afterwards["entropy"])
    assert np.all(epistemic > 0.01)


def test_the_entropy_of_certain_predictions_is_zero():
    read = class_probabilities(lambda w, x: jnp.stack([x * w, 1 - x * w], axis=1), jnp.ones(3))
    np.testing.assert_array_equal(read(jnp.ones(()))["entropy"], np.zeros(3))


def test_inputs_may_be_trees():
    read = class_probabilities(
        lambda w, x: jax.nn.softmax(x["a"] * w + x["b"][:, None]),
        {"a": np.ones((5, 2)), "b": np.arange(5.0)},
        rows_per_block=2,
    )
    assert read(jnp.ones(()))["probabilities"].shape == (5, 2)


def test_predictions_are_computed_in_blocks_of_rows():
    shapes = set()

    def predict(w, x):
        shapes.add(x.shape)
        return jax.nn.softmax(x * w)

    for rows_per_block in (3, 100):
        class_probabilities(predict, jnp.ones((10, 2)), rows_per_block=rows_per_block)(jnp.ones(()))
    assert shapes == {(3, 2), (1, 2), (10, 2)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows_per_block": 0}, "`rows_per_block` must be at least 1, got 0"),
        ({"x": jnp.ones((0, 2))}, "`x` must have leaves of the same length"),
        ({"predict": lambda w, x: x[:, 0]}, r"probabilities of shape \(rows, classes\)"),
    ],
)
def test_bad_input_of_class_probabilities_is_refused(change, message):
    arguments = {"predict": lambda w, x: x * w, "x": jnp.ones((3, 2))}
    with pytest.raises(ValueError, match=message):
        class_probabilities(**(arguments | change))(jnp.ones(()))


@pytest.mark.slow
def test_a_program_is_not_compiled_for_every_number_of_rows():
    """Sizes are padded, and what is padded does not count."""
    compiled = []

    def predict(w, x):
        compiled.append(x.shape)
        return jnp.log(x) * w  # of a padded row of zeros it would be infinite

    draws = jnp.arange(1.0, 39.0).reshape(2, 19)
    sizes = range(1, 60)
    for size in sizes:
        x = jnp.arange(1.0, size + 1)
        found = isotherm.posterior_predictive(predict, draws, x, rows_per_block=48)
        np.testing.assert_allclose(found, jnp.log(x) * 19.5, rtol=1e-5)
    padded = set(compiled) - {(size,) for size in sizes} | {(8,), (16,), (24,), (32,), (40,), (48,)}
    assert padded == {(8,), (16,), (24,), (32,), (40,), (48,)}
    assert len(compiled) < len(sizes) + 2 * 2 * len(padded)  # one abstract evaluation per call

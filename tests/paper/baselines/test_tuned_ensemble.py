"""Tuned ensembles choose what predicts best on held-out rows, and end at the known mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.models import mlp
from isotherm.paper.baselines.training import draw_outputs
from isotherm.paper.baselines.tuned_ensemble import train_members, tuned_ensemble
from isotherm.references.conjugate import linear_posterior

RNG = np.random.default_rng(4)
X = RNG.normal(size=(120, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0]) + 0.5 * RNG.normal(size=120)).astype(np.float32)[:, None]
HELD_OUT = np.arange(0, 120, 5)
GOOD = mlp((2, 1), likelihood="gaussian", noise_sd=0.5)
NARROW = mlp((2, 1), likelihood="gaussian", noise_sd=0.5, prior_sd=0.01)
SETTINGS = {"batch_size": 32, "num_steps": 800, "num_members": 3, "num_checkpoints": 4}


@pytest.fixture(scope="module")
def tuned():
    return tuned_ensemble(
        jax.random.key(0), [NARROW, GOOD], (X, Y), HELD_OUT, step_sizes=(0.03,), **SETTINGS
    )


def test_the_best_candidate_is_chosen(tuned):
    """A prior that is far too narrow predicts badly."""
    assert tuned.network is GOOD and tuned.step_size == 0.03
    assert tuned.scores.shape == (2, 4)
    best = np.unravel_index(np.argmax(tuned.scores), (2, 4))
    assert best[0] == 1
    assert tuned.num_steps == (best[1] + 1) * 200  # three batches per epoch in both


@pytest.mark.slow
def test_members_are_the_posterior_mode(tuned, key):
    """The loss is convex: all members end at the mean of the Gaussian posterior."""
    members = train_members(
        key,
        GOOD,
        isotherm.shuffled_batches((X, Y), 40),
        step_size=0.03,
        num_steps=3000,
        num_members=2,
    )
    exact = linear_posterior(np.c_[X, np.ones(120)], Y[:, 0], 1.0, 0.25)
    (layer,) = members.members
    found = np.concatenate([layer.weights[..., 0], layer.bias], axis=1)
    assert np.abs((found - exact.mean) / exact.sd).max() < 0.2
    free = train_members(
        key,
        NARROW,
        isotherm.shuffled_batches((X, Y), 40),
        step_size=0.03,
        num_steps=3000,
        prior=False,
    )
    likelihood = np.linalg.lstsq(np.c_[X, np.ones(120)], Y[:, 0], rcond=None)[0]
    found = np.r_[np.ravel(free.members[0].weights), np.ravel(free.members[0].bias)]
    assert np.abs((found - likelihood) / exact.sd).max() < 0.2
    outputs = draw_outputs(members, GOOD, key, X[:5], 4)
    assert outputs.shape == (4, 5, 1)
    np.testing.assert_allclose(outputs[0], outputs[1], atol=0.05)


@pytest.mark.slow
def test_divergence(key):
    hopeless = mlp((2, 1), likelihood=lambda outputs, y: jnp.log(outputs[:, 0] - 1e9))
    with pytest.raises(FloatingPointError, match="All candidates diverged"):
        tuned_ensemble(key, [hopeless], (X, Y), HELD_OUT, step_sizes=(0.1,), **SETTINGS)
    with pytest.raises(FloatingPointError, match="diverged"):
        batches = isotherm.full_batch((X, Y))
        train_members(key, hopeless, batches, step_size=0.1, num_steps=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_steps": 3}, "`num_steps` must be at least 4, got 3"),
        ({"num_members": 0}, "`num_members` must be at least 1"),
        ({"step_sizes": (0.1, 0.0)}, "`step_sizes` must be positive"),
    ],
)
def test_bad_settings_raise(key, settings, message):
    with pytest.raises(ValueError, match=message):
        tuned_ensemble(key, [GOOD], (X, Y), HELD_OUT, **(SETTINGS | settings))

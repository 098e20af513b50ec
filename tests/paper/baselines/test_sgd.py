"""SGD and deep ensembles: single steps, and the points where training ends."""

import exact_posteriors as exact
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import isotherm
from isotherm import random
from isotherm.paper.baselines.deep_ensemble import deep_ensemble
from isotherm.paper.baselines.sgd import sgd
from marks import slow

UNITS = jnp.asarray(exact.UNITS, jnp.float32)
GRADIENT = exact.linear_regression(lambda w: w / UNITS)  # a prior N(0, 1) and features of one size
DATA = (exact.X, exact.Y)
FULL, BATCHES = isotherm.full_batch(DATA), isotherm.shuffled_batches(DATA, 60)
ZERO = jnp.zeros(exact.DIMENSION)
LIKELIEST = np.linalg.lstsq(exact.X.astype(np.float64), exact.Y, rcond=None)[0]


def loss(w, rows):
    """Return the loss of the module docstring, written independently."""
    x, y = rows
    return 0.5 * jnp.mean((y - x @ (w / UNITS)) ** 2) + 0.5 * jnp.sum(w**2) / exact.SIZE


def test_a_step_is_a_step_of_momentum(key):
    fit = sgd(key, GRADIENT, ZERO + 1, FULL, num_steps=3, step_size=0.1, momentum=0.7)
    w, v = ZERO + 1, ZERO
    for _ in range(3):
        v = 0.7 * v + jax.grad(loss)(w, DATA)
        w = w - 0.1 * v
    np.testing.assert_allclose(fit.position, w, rtol=1e-4)
    constant = 0.5 * np.log(2 * np.pi) * (1 + exact.DIMENSION / exact.SIZE)
    # The prior of the test is normalised in the features' units.
    constant -= np.sum(np.log(exact.UNITS)) / exact.SIZE
    assert fit.losses[0] == pytest.approx(float(loss(ZERO + 1, DATA)) + constant, rel=1e-4)


@pytest.mark.parametrize("prior", [True, slow(False)], ids=["mode", "maximum likelihood"])
def test_training_ends_at_the_mode_or_the_maximum_likelihood(key, prior):
    best = exact.MEAN if prior else LIKELIEST
    schedule = isotherm.schedules.halving(0.2, every=400)
    fit = sgd(key, GRADIENT, ZERO, BATCHES, num_steps=4000, step_size=schedule, prior=prior)
    np.testing.assert_allclose(fit.position, best * exact.UNITS, atol=2e-3)
    # The two points differ by more than the tolerance.
    assert np.abs((exact.MEAN - LIKELIEST) * exact.UNITS).max() > 6e-3
    assert fit.losses.shape == (4000,) and fit.losses[-100:].mean() < fit.losses[:10].mean()


def test_another_optimizer(key):
    adam = optax.adam(optax.cosine_decay_schedule(0.1, 1000))
    fit = sgd(key, GRADIENT, ZERO, FULL, num_steps=1000, optimizer=adam)
    np.testing.assert_allclose(fit.position, exact.MEAN * exact.UNITS, atol=1e-3)


def test_draws_are_copies(key):
    fit = sgd(key, GRADIENT, ZERO, FULL, num_steps=2)
    draws = fit.sample(key, 3)
    np.testing.assert_array_equal(draws, np.broadcast_to(fit.position, (1, 3, exact.DIMENSION)))


@pytest.mark.slow
def test_the_number_of_chunks_does_not_matter(key, monkeypatch):
    one = sgd(key, GRADIENT, ZERO, BATCHES, num_steps=97)
    monkeypatch.setattr("isotherm.paper.baselines.training.NUM_CHUNKS", 3)
    other = sgd(key, GRADIENT, ZERO, BATCHES, num_steps=97)
    np.testing.assert_array_equal(one.position, other.position)
    np.testing.assert_array_equal(one.losses, other.losses)


@pytest.mark.slow
def test_members_of_an_ensemble_are_runs_of_sgd(key):
    def init(key):
        return random.gaussian(key, ZERO)

    def fit(key):
        return deep_ensemble(
            key, GRADIENT, init, BATCHES, num_steps=20, num_members=3, step_size=0.05
        )

    ensemble = fit(key)
    for m in range(3):
        start_key, train_key = (random.fold(random.fold(key, m), i) for i in range(2))
        alone = sgd(train_key, GRADIENT, init(start_key), BATCHES, num_steps=20, step_size=0.05)
        np.testing.assert_allclose(ensemble.members[m], alone.position, rtol=1e-5)
        np.testing.assert_allclose(ensemble.losses[m], alone.losses, rtol=1e-5)
    np.testing.assert_array_equal(fit(key).members, ensemble.members)
    distances = np.linalg.norm(ensemble.members[:, None] - ensemble.members[None], axis=-1)
    assert np.all(distances[~np.eye(3, dtype=bool)] > 0.01)


@pytest.mark.slow
def test_draws_of_an_ensemble_repeat_no_member_before_all_are_used(key):
    ensemble = deep_ensemble(
        key, GRADIENT, lambda k: random.gaussian(k, ZERO), FULL, num_steps=1, num_members=4
    )
    draws = np.asarray(ensemble.sample(key, 8)[0])
    for part in (draws[:4], draws[4:]):
        np.testing.assert_array_equal(np.sort(part[:, 0]), np.sort(ensemble.members[:, 0]))
    few = {float(ensemble.sample(k, 1)[0, 0, 0]) for k in jax.random.split(key, 30)}
    assert len(few) == 4


def test_divergence_raises_with_the_step(key):
    with pytest.raises(
        FloatingPointError, match=r"SGD diverged: it is not finite from step \d+ on"
    ):
        sgd(key, GRADIENT, ZERO, FULL, num_steps=500, step_size=100.0)
    with_nan = (exact.X, np.where(np.arange(exact.SIZE) == 3, np.nan, exact.Y))
    with pytest.raises(FloatingPointError, match="from step 0 on"):
        sgd(key, GRADIENT, ZERO, isotherm.full_batch(with_nan), num_steps=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_steps": 0}, "`num_steps` must be at least 1, got 0"),
        ({"step_size": 0.0}, "`step_size` must be positive"),
        ({"momentum": 1.0}, "`momentum` must be at least 0 and below 1, got 1.0"),
        ({"grad_fn": lambda w, b: w}, r"`grad_fn` must come from `isotherm.minibatch_gradient`"),
        ({"batches": DATA}, "`batches` must be a batch policy such as"),
        ({"position": jnp.zeros(4, jnp.int32)}, "dtype int32"),
    ],
)
def test_bad_settings_raise(key, settings, message):
    given = {"grad_fn": GRADIENT, "position": ZERO, "batches": FULL, "num_steps": 2} | settings
    with pytest.raises(ValueError, match=message):
        sgd(key, **given)


def test_bad_counts_raise(key):
    with pytest.raises(ValueError, match="`num_members` must be at least 1, got 0"):
        deep_ensemble(key, GRADIENT, lambda k: ZERO, FULL, num_steps=1, num_members=0)
    fit = sgd(key, GRADIENT, ZERO, FULL, num_steps=1)
    with pytest.raises(ValueError, match="`num_draws` must be at least 1, got 0"):
        fit.sample(key, 0)

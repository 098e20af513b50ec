"""Masks have the right rate and mean; training a linear model with them is ridge regression."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import isotherm
from isotherm.models.networks import Layer, lenet, mlp
from isotherm.paper.baselines import mc_dropout as module
from isotherm.paper.baselines.mc_dropout import Dropout, mc_dropout
from marks import slow

RNG = np.random.default_rng(5)
FALSE_ALARM = 1e-4


def test_draws_keep_or_drop_whole_rows(key):
    network = mlp((6, 50, 40, 3))
    position = network.init(key)
    rates = (0.0, 0.5, 0.2)
    draws = Dropout(position, jnp.zeros(1), rates).sample(key, 400)
    for layer, drawn, rate in zip(position, draws, rates, strict=True):
        assert drawn.weights.shape == (1, 400, *layer.weights.shape)
        np.testing.assert_array_equal(drawn.bias[0, 7], layer.bias)
        scaled = layer.weights / (1 - rate)
        kept = np.asarray(drawn.weights[0] != 0)
        assert np.all(kept == kept[..., :1])  # whole rows
        np.testing.assert_allclose(drawn.weights[0], np.where(kept, scaled, 0), rtol=1e-6)
        dropped = int(np.sum(~kept[..., 0]))
        if rate == 0:
            assert dropped == 0
            continue
        test = stats.binomtest(dropped, kept[..., 0].size, rate)
        assert test.pvalue > FALSE_ALARM
        # Units and draws are independent: counts per unit and per draw spread as a binomial's.
        for axis, size in ((0, 400), (1, kept.shape[1])):
            counts = np.sum(~kept[..., 0], axis=axis)
            spread = np.sum((counts - size * rate) ** 2) / (size * rate * (1 - rate))
            assert FALSE_ALARM < stats.chi2.sf(spread, len(counts)) < 1 - FALSE_ALARM
    # The mean over draws is the position: 400 draws of relative error sqrt(r/k).
    mean = np.asarray(draws[1].weights[0].mean(0) / position[1].weights)
    assert abs(mean.mean() - 1) < 5 * (1 / 400 / 50) ** 0.5


def test_a_masked_row_is_a_dropped_unit(key):
    """Masked weights have the same outputs as units that are set to zero and scaled."""
    network = mlp((4, 30, 2))
    position = network.init(key)
    draw = module.masked(key, position, (0.0, 0.4))
    kept = (draw[1].weights != 0)[:, 0]
    x = jnp.asarray(RNG.normal(size=(5, 4)), jnp.float32)
    hidden = jax.nn.relu(x @ position[0].weights + position[0].bias[None])
    by_hand = (hidden * kept[None] / 0.6) @ position[1].weights + position[1].bias[None]
    np.testing.assert_allclose(network.apply(draw, x), by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_convolutions_drop_channels(key):
    network = lenet(12 + 4, channels=(6, 8), hidden=(10,), num_classes=3)
    position = network.init(key)
    draw = module.masked(key, position, (0.0, 0.5, 0.5, 0.5))
    kept = np.asarray(draw[1].weights != 0)
    assert kept.shape == (5, 5, 6, 8)
    assert np.all(kept == kept[:1, :1, :, :1]) and 0 < kept[0, 0, :, 0].sum() < 6
    assert network.predict(draw, jnp.ones((2, 256))).shape == (2, 3)


SIZE, RATE = 400, 0.3
X = (RNG.normal(size=(SIZE, 3)) * [1.0, 0.5, 2.0] + [0.0, 0.5, 0.0]).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5] + 0.7 + RNG.normal(size=SIZE) * 0.5).astype(np.float32)[:, None]


def ridge(rate):
    """Return the minimum of the mean, over masks, of squared error and prior."""
    design = np.c_[X, np.ones(SIZE)].astype(np.float64)
    matrix = design.T @ design
    penalty = rate / (1 - rate) * np.diag(matrix) + 1 / (1 - rate)
    penalty[-1] = 1.0  # the bias is never dropped
    return np.linalg.solve(matrix + np.diag(penalty), design.T @ Y[:, 0].astype(np.float64))


def train(key, rate=RATE, **settings):
    network = mlp((3, 1), likelihood="gaussian")
    start = jax.tree.map(jnp.zeros_like, network.init(key))
    adam = optax.adam(optax.cosine_decay_schedule(0.03, 4000))
    return mc_dropout(
        key,
        network.gradient(SIZE),
        start,
        isotherm.shuffled_batches((X, Y), 100),
        num_steps=4000,
        rates=(rate,),
        optimizer=adam,
        **settings,
    )


def distance(fit, rate=RATE):
    (layer,) = fit.position
    return np.abs(np.r_[np.ravel(layer.weights), np.ravel(layer.bias)] - ridge(rate)).max()


@pytest.mark.parametrize("masks_per_batch", [slow(1), 10, slow(100)])
def test_training_a_linear_model_is_ridge_regression(key, masks_per_batch):
    """Over 10 other seeds the largest error was 0.025 (one mask); without dropout it is 0.96."""
    fit = train(key, masks_per_batch=masks_per_batch)
    assert distance(fit) < 0.1
    assert np.abs(ridge(RATE) - ridge(0.0)).max() > 0.3


@pytest.mark.slow
def test_mutants_are_caught(key, monkeypatch):
    """Another dropout rate, and masks that are not scaled up."""
    assert distance(train(key, rate=0.15)) > 0.1
    drop = module._drop

    def unscaled(key, layer, rate):
        drawn = drop(key, layer, rate)
        return Layer(drawn.weights * (1 - rate), drawn.bias)

    monkeypatch.setattr(module, "_drop", unscaled)
    assert distance(train(key)) > 0.1


@pytest.mark.slow
def test_fit_and_draws_are_reproducible(key):
    network = mlp((3, 8, 1), likelihood="gaussian")

    def fit(key):
        return mc_dropout(
            key,
            network.gradient(SIZE),
            network.init(jax.random.key(0)),
            isotherm.full_batch((X, Y)),
            num_steps=5,
            step_size=0.01,
        )

    one, two, other = fit(key), fit(key), fit(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, one.sample(key, 3), two.sample(key, 3))
    assert one.rates == (0.0, 0.2)
    assert not np.array_equal(one.position[1].weights, other.position[1].weights)
    draws = one.sample(key, 2)[1].weights[0]
    assert not np.array_equal(draws[0], draws[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rates": 1.0}, "`rates` must be at least 0 and below 1, got 1.0"),
        ({"rates": (0.1, 0.2, 0.3)}, "`rates` must be one number or one per layer, so 2, got 3"),
        ({"masks_per_batch": 0}, "`masks_per_batch` must be at least 1"),
        ({"masks_per_batch": 7}, "`masks_per_batch` must divide the 400 rows of a batch, got 7"),
        ({"momentum": -0.1}, "`momentum` must be at least 0"),
        ({"position": {"w": jnp.ones((3, 1))}}, "`position` must be made of"),
    ],
)
def test_bad_settings_raise(key, settings, message):
    network = mlp((3, 8, 1), likelihood="gaussian")
    given = {"position": network.init(key), "num_steps": 2} | settings
    with pytest.raises(ValueError, match=message):
        mc_dropout(
            key,
            network.gradient(SIZE),
            given.pop("position"),
            isotherm.full_batch((X, Y)),
            **given,
        )

"""Warm starts and batch policies against an exact posterior: Bayesian linear regression.

Correlated features, unscaled, unit noise: the posterior is Gaussian and known. Standard errors of
the variances are about 2 %; the limits below are five of them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import isotherm
from isotherm import random
from isotherm.coordinates.curvature import NUM_PROBES, WholeData, rough_draw
from isotherm.coordinates.kronecker import Kronecker, Sides
from isotherm.coordinates.linear import Identity
from isotherm.diagnostics import classifier_scores
from isotherm.exceptions import HealthWarning
from isotherm.gradients.balanced import balanced
from isotherm.loop.network_start import (
    NETWORK_HEAT,
    STEP_TIMES_FREQUENCY,
    _best_leaves,
    _measure,
    excess_heat,
)
from isotherm.loop.typical_set import MAX_HALVINGS, TypicalSet
from marks import slow

RNG = np.random.default_rng(3)
SIZE, DIMENSION = 2000, 5
MIXING = RNG.normal(size=(DIMENSION, DIMENSION)) * np.array([1.0, 3.0, 0.3, 1.0, 0.5])
X = (RNG.normal(size=(SIZE, DIMENSION)) @ MIXING).astype(np.float32)
Y = (X @ RNG.normal(size=DIMENSION) + RNG.normal(size=SIZE)).astype(np.float32)
PRECISION = X.T.astype(np.float64) @ X + np.eye(DIMENSION)
COVARIANCE = np.linalg.inv(PRECISION)
MEAN = COVARIANCE @ X.T.astype(np.float64) @ Y


def log_likelihood(w, batch):
    x, y = batch
    return -0.5 * (y - x @ w) ** 2


GRADIENT = isotherm.minibatch_gradient(log_likelihood, lambda w: -0.5 * jnp.sum(w**2), SIZE)
BATCHES = isotherm.independent_batches((X, Y), 40)


def variance_ratio(run):
    return run.draws.reshape(-1, DIMENSION).astype(np.float64).var(0) / np.diag(COVARIANCE)


def posterior(key, sampler, batches=BATCHES, num_draws=2500):
    return isotherm.sample(
        key,
        sampler,
        jnp.asarray(MEAN, jnp.float32),
        batches,
        num_draws=num_draws,
        thin=20,
        burn_in=4000,
        num_chains=4,
    )


@pytest.mark.parametrize("curvature", ["hessian", slow("fisher")])
def test_natural_coordinates_give_the_posterior_without_tuning(key, curvature):
    start = isotherm.warm_start(key, GRADIENT, jnp.zeros(DIMENSION), BATCHES, curvature=curvature)
    offset = np.abs(np.asarray(start.position) - MEAN) / np.sqrt(np.diag(COVARIANCE))
    assert offset.max() < 0.05
    assert 0.02 < start.step_size <= 0.1
    run = posterior(key, isotherm.msgnht(GRADIENT, **start.settings))
    np.testing.assert_allclose(variance_ratio(run), 1, atol=0.1)
    shift = (run.draws.mean((0, 1)) - MEAN) / np.sqrt(np.diag(COVARIANCE))
    np.testing.assert_allclose(shift, 0, atol=0.1)


@pytest.mark.slow
def test_plain_coordinates_give_wrong_variances(key):
    """A per-coordinate thermostat is wrong where gradient noise is correlated."""
    start = isotherm.warm_start(
        key, GRADIENT, jnp.zeros(DIMENSION), BATCHES, coordinates="identity"
    )
    assert start.stiffness == pytest.approx(np.linalg.eigvalsh(PRECISION).max(), rel=0.01)
    plain = posterior(key, isotherm.msgnht(GRADIENT, **start.settings))
    assert np.abs(np.log(variance_ratio(plain))).max() > 0.3


def test_diagonal_coordinates_remove_the_units(key):
    start = isotherm.warm_start(
        key, GRADIENT, jnp.zeros(DIMENSION), BATCHES, coordinates="diagonal", curvature="fisher"
    )
    scale = np.asarray(start.coordinates.scale)
    np.testing.assert_allclose(scale, np.diag(PRECISION) ** -0.5, rtol=0.2)
    by_hessian = isotherm.warm_start(
        key, GRADIENT, jnp.asarray(MEAN, jnp.float32), BATCHES, coordinates="diagonal", num_steps=0
    )
    np.testing.assert_allclose(by_hessian.coordinates.scale, np.diag(PRECISION) ** -0.5, rtol=1e-3)


def test_the_diagonal_of_a_large_position_is_estimated_from_products(key, monkeypatch):
    """Hutchinson's estimate; never below the curvature of the prior, which is 1."""
    mode = jnp.asarray(MEAN, jnp.float32)
    whole = WholeData(GRADIENT, (X, Y), mode, 10_000)
    monkeypatch.setattr("isotherm.coordinates.curvature.LARGEST_EXACT", DIMENSION - 1)
    monkeypatch.setattr(whole, "hessian", None)  # no matrix is built
    found = np.asarray(whole.hessian_diagonal(key, mode))
    squares = PRECISION**2
    error = np.sqrt(2 * (squares.sum(1) - np.diag(squares)) / NUM_PROBES)
    assert np.all(np.abs(found - np.diag(PRECISION)) < 5 * error)
    flat = isotherm.minibatch_gradient(lambda w, b: 0 * b[1], lambda w: -0.5 * w @ w, SIZE)
    flat = WholeData(flat, (X, Y), mode, 10_000)
    np.testing.assert_allclose(flat.hessian_diagonal(key, mode), 1, rtol=1e-5)


def valley(edge):
    """Return a standard normal between walls, where the curvature is 3000; NaN beyond `edge`."""

    def log_prior(w):
        beyond = jnp.maximum(jnp.abs(w) - 1, 0)
        outside = jnp.abs(w[0]) > edge
        return -0.5 * jnp.sum(w**2 + 3000 * beyond**2) + jnp.where(outside, jnp.nan, 0.0)

    return isotherm.minibatch_gradient(lambda w, b: 0 * b[1], log_prior, SIZE)


def cliff(edge):
    """Return a narrow normal around 0.001, with a gradient of NaN beyond `edge`."""

    def log_prior(w):
        factor = jnp.where(jnp.abs(w) > edge, jnp.nan, 1.0)
        return -0.5 * SIZE * jnp.sum(factor * (w - 1e-3) ** 2)

    return isotherm.minibatch_gradient(lambda w, b: 0 * b[1], log_prior, SIZE)


def test_a_search_for_the_mode_that_runs_away_is_repeated_or_refused(key):
    """Adam's first steps are as long as its rate."""
    with pytest.warns(HealthWarning, match="ran away"):
        mode = isotherm.find_mode(key, cliff(0.02), jnp.zeros(2), BATCHES, num_steps=200)
    np.testing.assert_allclose(mode, 1e-3, atol=1e-4)
    with pytest.raises(FloatingPointError, match="ran away"):
        isotherm.find_mode(key, cliff(1e-9), jnp.zeros(2), BATCHES, num_steps=20)
    with pytest.raises(FloatingPointError, match="ran away"):
        adam = optax.adam(0.1)
        isotherm.find_mode(key, cliff(0.02), jnp.zeros(2), BATCHES, num_steps=20, optimizer=adam)


SETTINGS = {"coordinates": "identity", "num_steps": 0}


def test_steps_that_suit_only_the_mode_are_shortened_and_it_says_so(key):
    """At the walls h sqrt(curvature) is 5.5 for the step that suits the mode, 0.1."""
    with pytest.warns(HealthWarning, match="so the step size is"):
        start = isotherm.warm_start(key, valley(np.inf), jnp.zeros(2), BATCHES, **SETTINGS)
    assert 0.01 < start.step_size < 0.051


def test_a_chain_that_ends_in_nan_is_refused(key):
    with pytest.raises(FloatingPointError, match="does not stay in the typical set"):
        isotherm.warm_start(key, valley(1e-3), jnp.zeros(2), BATCHES, **SETTINGS)
    with pytest.raises(FloatingPointError, match="not finite at the mode"):
        isotherm.warm_start(key, valley(np.inf), jnp.full(2, jnp.nan), BATCHES, **SETTINGS)


def narrow(copies, n=300):
    """Return 300 data far from the prior; the mean of each is a sum of so many numbers."""
    y = 4 * RNG.normal(size=n).astype(np.float32)
    grad_fn = isotherm.minibatch_gradient(
        lambda w, batch: -0.5 * (batch[1] - w[batch[0]].sum(1)) ** 2,
        lambda w: -0.5 * copies * jnp.sum(w**2),
        n,
    )
    batches = isotherm.independent_batches((np.arange(n), y), n)
    return grad_fn, batches, jnp.asarray(np.repeat(y[:, None], copies, axis=1) / copies)


@pytest.mark.parametrize("copies", [1, slow(10)])  # ten times as many parameters as data
def test_a_start_that_predicts_much_worse_than_its_position_warns(key, copies):
    """The data are far from the prior, so that every typical draw predicts badly."""
    grad_fn, batches, fitted = narrow(copies)
    with pytest.warns(HealthWarning, match="predicts the training data much worse"):
        isotherm.warm_start(key, grad_fn, fitted, batches, **SETTINGS)
    isotherm.warm_start(key, grad_fn, fitted / 2, batches, **SETTINGS)  # the mode: silent


def test_held_out_rows_are_compared(key):
    grad_fn, batches, fitted = narrow(1)
    with (
        pytest.warns(HealthWarning, match="predicts the training data much worse"),
        pytest.warns(HealthWarning, match="the 300 held-out rows worse than the mode: by"),
    ):
        isotherm.warm_start(
            key, grad_fn, fitted, batches, held_out=(np.arange(300), fitted[:, 0]), **SETTINGS
        )
    rows = (X[:500], Y[:500])  # of the data themselves: the posterior is as good as its mode
    isotherm.warm_start(
        key, GRADIENT, jnp.asarray(MEAN, jnp.float32), BATCHES, held_out=rows, num_steps=0
    )


def test_what_is_typical():
    """A normal far from its mode; the spike of a hierarchy; weights that have run away."""
    flat = isotherm.minibatch_gradient(lambda w, b: 0 * b, lambda w: -0.5 * jnp.sum(w**2), 10)
    normal = TypicalSet(flat, jnp.zeros(10), jnp.zeros(100))
    draws = [jnp.asarray(RNG.normal(size=100), jnp.float32) for _ in range(4)]
    assert normal.is_typical(draws)
    assert not normal.is_typical([3 * draw for draw in draws])
    assert not normal.is_typical([*draws, jnp.full(100, jnp.nan)])

    def spike(w):  # 50 effects of a normal with the scale exp(w[0]), which has a normal prior
        scale = jnp.exp(w[0])
        return -0.5 * w[0] ** 2 - 50 * w[0] - 0.5 * jnp.sum((w[1:] / scale) ** 2)

    hierarchy = isotherm.minibatch_gradient(lambda w, b: 0 * b, spike, 10)
    density = TypicalSet(hierarchy, jnp.zeros(10), jnp.zeros(51).at[0].set(-20.0))
    scales = RNG.normal(size=4)
    draws = [np.concatenate([[s], np.exp(s) * RNG.normal(size=50)]) for s in scales]
    draws = [jnp.asarray(draw, jnp.float32) for draw in draws]
    assert density.below_mode(draws[-1]) > 500
    assert density.is_typical(draws)
    assert not density.is_typical([draw.at[1:].multiply(10.0) for draw in draws])


@pytest.mark.slow
def test_an_eigenbasis_of_a_network_is_refused(key):
    """In the eigenbasis of a mode, flat directions are as long as the prior: it was 13 % right."""
    x, y = load_digits(return_X_y=True)
    rows = (x[:300] / 16).astype(np.float32), y[:300].astype(np.int32)
    network = isotherm.models.mlp((64, 8, 10))
    batches, grad_fn = isotherm.independent_batches(rows, 50), network.gradient(300)
    with pytest.raises(FloatingPointError, match="`coordinates='prior'`"):
        isotherm.warm_start(key, grad_fn, network.init(key), batches, coordinates="eigenbasis")


@pytest.mark.slow
def test_shuffled_epochs_reduce_the_variance_as_the_warning_says(key):
    start = isotherm.warm_start(key, GRADIENT, jnp.zeros(DIMENSION), BATCHES)
    sampler = isotherm.msgnht(GRADIENT, **start.settings)
    with pytest.warns(isotherm.exceptions.PolicyWarning):
        run = posterior(key, sampler, isotherm.shuffled_batches((X, Y), 40))
    assert variance_ratio(run).max() < 0.8


@pytest.mark.slow
def test_thermostats_start_at_their_equilibrium_with_small_batches(key):
    batches = isotherm.independent_batches((X, Y), 4)
    start = isotherm.warm_start(key, GRADIENT, jnp.zeros(DIMENSION), batches)
    sampler = isotherm.msgnht(GRADIENT, **start.settings)
    run = posterior(key, sampler, batches, num_draws=200)
    settled = float(run.state.thermostat.mean())
    assert settled > 5 * start.diffusion
    assert start.initial_thermostat == pytest.approx(settled, rel=0.2)
    first = isotherm.sample(key, sampler, start.position, batches, num_draws=200, num_chains=50)
    assert 0.9 < first.stats["kinetic_temperature"].mean() < 1.3
    cold = isotherm.msgnht(GRADIENT, **start.settings | {"initial_thermostat": None})
    hot = isotherm.sample(key, cold, start.position, batches, num_draws=200, num_chains=50)
    assert hot.stats["kinetic_temperature"].mean() > 3


@pytest.mark.slow
def test_control_variates_allow_long_steps_with_small_batches(key):
    batches = isotherm.independent_batches((X, Y), 10)
    plain = isotherm.warm_start(key, GRADIENT, jnp.zeros(DIMENSION), batches)
    start = isotherm.warm_start(key, GRADIENT, jnp.zeros(DIMENSION), batches, control_variates=True)
    assert plain.grad_fn is GRADIENT and start.grad_fn is not GRADIENT
    assert start.noise_variance < plain.noise_variance / 20
    assert start.step_size == 0.1 > plain.step_size
    run = posterior(key, isotherm.msgnht(start.grad_fn, **start.settings), batches)
    np.testing.assert_allclose(variance_ratio(run), 1, atol=0.1)


def test_misuse_is_refused(key):
    with pytest.raises(ValueError, match="`control_variates` needs `coordinates='eigenbasis'`"):
        isotherm.warm_start(
            key, GRADIENT, jnp.zeros(5), BATCHES, coordinates="diagonal", control_variates=True
        )
    with pytest.raises(ValueError, match="`coordinates` must be"):
        isotherm.warm_start(key, GRADIENT, jnp.zeros(5), BATCHES, coordinates="polar")
    with pytest.raises(ValueError, match="matrix of 20,000 rows"):
        isotherm.warm_start(key, GRADIENT, jnp.zeros(20_000), BATCHES, coordinates="eigenbasis")
    with pytest.raises(ValueError, match="`sides` needs `coordinates='kronecker'`"):
        isotherm.warm_start(key, GRADIENT, jnp.zeros(5), BATCHES, sides={"position": "r"})
    with pytest.raises(ValueError, match="`diffusion` needs `coordinates='prior'`"):
        isotherm.warm_start(key, GRADIENT, jnp.zeros(5), BATCHES, diffusion=5.0)
    with pytest.raises(ValueError, match="`diffusion` must be positive"):
        isotherm.warm_start(
            key, GRADIENT, jnp.zeros(5), BATCHES, coordinates="prior", diffusion=0.0
        )
    with pytest.raises(ValueError, match="`curvature` must be"):
        isotherm.warm_start(key, GRADIENT, jnp.zeros(5), BATCHES, curvature="ricci")
    with pytest.raises(ValueError, match=r"must come from isotherm.minibatch_gradient"):
        isotherm.warm_start(key, lambda w, b: -w, jnp.zeros(5), BATCHES)
    with pytest.raises(ValueError, match="must hold the data"):
        isotherm.find_mode(key, GRADIENT, jnp.zeros(5), isotherm.no_batches())
    with pytest.raises(ValueError, match="2000 rows"):
        short = isotherm.minibatch_gradient(log_likelihood, lambda w: -0.5 * jnp.sum(w**2), 10)
        isotherm.warm_start(key, short, jnp.zeros(5), BATCHES)


def ring(num_rows=300):
    """Points inside and outside a circle."""
    x = RING.normal(size=(num_rows, 2)).astype(np.float32)
    return x, (np.hypot(*x.T) > 1.2).astype(np.int32)


RING = np.random.default_rng(0)
SHORT = {"num_steps": 300, "rounds": 1, "steps_per_round": 40}


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [((2, 20, 2), "prior"), slow((2, 2), "eigenbasis"), slow((2, 60, 10, 2), "prior")],
)
@pytest.mark.filterwarnings("ignore:The chain still moves away")
def test_the_default_coordinates_suit_the_posterior(key, sizes, kind):
    """A small network, a logistic regression, and a network too large to be tried near its mode."""
    network, rows = isotherm.models.mlp(sizes, activation="tanh"), ring()
    batches = isotherm.independent_batches(rows, 50)
    start = isotherm.warm_start(key, network.gradient(300), network.init(key), batches, **SHORT)
    assert start.kind == kind
    assert (start.grad_fn is not None) and np.isnan(start.noise_variance) == (kind == "prior")


def test_the_default_coordinates_of_a_regression_are_an_eigenbasis(key):
    start = isotherm.warm_start(key, GRADIENT, jnp.asarray(MEAN, jnp.float32), BATCHES, num_steps=0)
    same = isotherm.warm_start(
        key,
        GRADIENT,
        jnp.asarray(MEAN, jnp.float32),
        BATCHES,
        num_steps=0,
        coordinates="eigenbasis",
    )
    assert (start.kind, same.kind) == ("eigenbasis", "eigenbasis")
    assert start.step_size == same.step_size


def test_rough_draws_have_the_covariance_of_a_normal_posterior():
    whole = WholeData(GRADIENT, (X, Y), jnp.zeros(DIMENSION), 10_000)
    mode = jnp.asarray(MEAN, jnp.float32)
    keys = [random.fold(jax.random.key(0), i) for i in range(200)]
    draws = np.array([rough_draw(k, whole, mode) for k in keys], np.float64) - MEAN
    whitened = draws @ np.linalg.cholesky(PRECISION)
    assert abs(whitened.var() - 1) < 0.3  # 1000 numbers; residuals have about unit variance
    convex = isotherm.minibatch_gradient(
        lambda w, batch: 5.0 * batch[1] ** 2 * w[0] ** 2, lambda w: -0.5 * jnp.sum(w**2), SIZE
    )
    whole = WholeData(convex, (X, Y), jnp.zeros(2), 10_000)
    assert rough_draw(jax.random.key(0), whole, jnp.ones(2)) is None


def test_hot_momenta_are_told_from_chance():
    sizes = [10_000, 10]
    assert excess_heat([1.0, 1.5], sizes, span=1.0).max() < 1  # ten numbers
    assert excess_heat([1.2, 1.0], sizes, span=1.0).max() > 1
    assert excess_heat([1.0, 1.5], sizes, span=1000.0).max() > 1
    assert excess_heat([0.8, 1.0], sizes, span=1.0)[-1] < -1  # it still climbs
    rng = np.random.default_rng(0)
    healthy = [rng.chisquare(n, size=10_000) / n for n in sizes]
    alarms = [excess_heat(pair, sizes, span=0.5).max() > 1 for pair in zip(*healthy, strict=True)]
    assert np.mean(alarms) < 0.05


def test_the_friction_is_that_of_the_bulk_of_the_weights(key):
    """Ten numbers that move a thousand times as fast had set the friction of all others."""
    position = {"few": jnp.zeros(10), "many": jnp.zeros(1000)}
    grad_fn = balanced(
        isotherm.minibatch_gradient(
            lambda w, x: -0.5 * (x - w["many"][0]) ** 2,
            lambda w: -0.5 * jnp.sum(w["many"] ** 2) - 0.5e6 * jnp.sum(w["few"] ** 2),
            100,
        )
    )
    batches = isotherm.independent_batches(jnp.zeros(100), 10)
    precision = {"few": jnp.asarray(1e6), "many": jnp.asarray(1.0)}
    found = _measure(
        key, Identity(), position, precision, batches=batches, rows=batches, grad_fn=grad_fn
    )
    assert float(found.friction) == pytest.approx(2 * 1000 ** (10 / 1010), rel=1e-3)


def test_a_leaf_whose_basis_does_not_pay_keeps_units_of_the_prior(key):
    """One leaf is stretched along the directions that are stiff; the other as it should be."""
    scales = jnp.asarray([1.0, 1e-2])
    factor = jnp.stack([scales, scales[::-1]])

    def log_likelihood(w, x):
        return -0.5 * x * (jnp.sum((w["good"] / factor) ** 2) + jnp.sum((w["bad"] / factor) ** 2))

    def log_prior(w):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))

    grad_fn = balanced(isotherm.minibatch_gradient(log_likelihood, log_prior, 100))
    batches = isotherm.independent_batches(jnp.full(100, 0.01), 10)
    basis = Kronecker(
        (Sides(None, None, 1 / factor, "lr"), Sides(None, None, factor, "lr"))  # bad, good
    )
    position = {"bad": jnp.zeros((2, 2)), "good": jnp.zeros((2, 2))}
    precision = {"bad": jnp.asarray(1.0), "good": jnp.asarray(1.0)}
    best = _best_leaves(key, basis, [position], precision, batches=batches, grad_fn=grad_fn)
    assert [leaf.has_basis for leaf in best.leaves] == [False, True]
    units = [line.split()[-1] for line in best.summary(position).splitlines()]
    assert units == ["units", "prior", "basis"]


@pytest.mark.parametrize("coordinates", ["prior", "kronecker"])
@pytest.mark.slow
def test_a_wide_network_is_sampled_at_its_temperature(coordinates):
    """It had been too cold by 10 % at first, then frozen by the friction of its biases.

    The log prior of 17 610 weights is half their number below its maximum (full gradients with
    short steps: 8 710 to 8 930), if the chain has reached the posterior.
    """
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int32)
    train, test = (x[:1200], y[:1200]), (x[1200:], y[1200:])
    network = isotherm.models.mlp((64, 100, 100, 10))
    grad_fn, batches = network.gradient(1200), isotherm.independent_batches(train, 100)
    keys = jax.random.split(jax.random.key(0), 4)
    mode = isotherm.find_mode(keys[1], grad_fn, network.init(keys[0]), batches)
    start = isotherm.warm_start(
        keys[2], grad_fn, mode, batches, coordinates=coordinates, num_steps=0
    )
    run = isotherm.sample(
        keys[3],
        isotherm.msgnht(start.grad_fn, **start.settings),
        start.position,
        batches,
        num_draws=200,
        thin=20,
        num_chains=4,
        collect={"test": isotherm.collect.probabilities(network.predict, test[0])},
    )
    temperatures = run.stats["kinetic_temperature"].mean((0, 1))
    assert abs(np.average(temperatures, weights=run.momentum_sizes) - 1) < 0.03
    for i in range(4):
        last = jax.tree.map(lambda leaf, i=i: leaf[i], run.state.position)
        assert 0.95 < -2 * float(network.log_prior(last)) / 17_610 < 1.1
        assert float(network.log_likelihood(last, train).sum()) > -100
    averaged = classifier_scores(run.collected["test"]["probabilities"].mean(0), test[1])
    at_mode = classifier_scores(network.predict(mode, test[0]), test[1])
    assert averaged["nll"] < at_mode["nll"] + 0.15


@pytest.mark.slow
def test_a_kronecker_start_gives_the_posterior_of_a_linear_network():
    """Several outputs, one layer: the exact posterior is known, and nothing is tuned."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(1000, 3)) @ rng.normal(size=(3, 3))).astype(np.float32)
    y = (x @ rng.normal(size=(3, 2)) + 0.5 * rng.normal(size=(1000, 2))).astype(np.float32)
    network = isotherm.models.mlp((3, 2), likelihood="gaussian", noise_sd=0.5)
    grad_fn, batches = network.gradient(1000), isotherm.independent_batches((x, y), 50)
    start = isotherm.warm_start(
        jax.random.key(0),
        grad_fn,
        network.init(jax.random.key(1)),
        batches,
        coordinates="kronecker",
        num_steps=500,
        rounds=1,
        steps_per_round=200,
    )
    run = isotherm.sample(
        jax.random.key(2),
        isotherm.msgnht(start.grad_fn, **start.settings),
        start.position,
        batches,
        num_draws=1500,
        thin=20,
        burn_in=1000,
        num_chains=8,
    )
    design = np.column_stack([x, np.ones(1000)])
    sd = np.sqrt(np.diag(np.linalg.inv(design.T @ design / 0.25 + np.eye(4))))
    weights, bias = run.draws[0]
    measured = np.concatenate([weights, bias[:, :, None]], axis=2).reshape(-1, 4, 2).std(0)
    # About 5000 effective draws: five sigma are 5 %. With a bias the curvature is not quite a
    # Kronecker product.
    np.testing.assert_allclose(measured, np.repeat(sd[:, None], 2, axis=1), rtol=0.08)


def spiral(num_rows=240, noise=0.3):
    """Three arms of a spiral: a classification with rare rows of large gradients."""
    rng = np.random.default_rng(0)
    label, radius = np.arange(num_rows) % 3, rng.uniform(0.1, 1, num_rows)
    angle = 2 * np.pi * label / 3 + 2.5 * radius + noise * rng.normal(size=num_rows)
    x = (radius * np.stack([np.cos(angle), np.sin(angle)])).T
    return x.astype(np.float32), label.astype(np.int32)


@pytest.mark.parametrize("coordinates", ["prior", "kronecker"])
@pytest.mark.slow
def test_the_start_of_a_network_is_typical_and_its_kicks_are_balanced(key, coordinates):
    rows = spiral()
    network = isotherm.models.mlp((2, 10, 3), activation="tanh")
    batches, grad_fn = isotherm.independent_batches(rows, 24), network.gradient(240)
    start = isotherm.warm_start(
        key,
        grad_fn,
        network.init(key),
        batches,
        coordinates=coordinates,
        num_steps=500,
        rounds=2,
        steps_per_round=1000,
    )
    assert start.unbalanced_heat <= NETWORK_HEAT
    assert start.step_size <= STEP_TIMES_FREQUENCY * start.stiffness**-0.5
    run = isotherm.sample(
        random.fold(key, 1),
        isotherm.msgnht(start.grad_fn, **start.settings),
        start.position,
        batches,
        num_draws=200,
        thin=20,
        burn_in=1000,
        num_chains=4,
    )
    temperature = np.asarray(run.stats["kinetic_temperature"]).mean((0, 1))
    np.testing.assert_allclose(temperature, 1, atol=0.15)
    below = [
        float(network.log_likelihood(jax.tree.map(lambda a, i=i: a[i, -1], run.draws), rows).sum())
        for i in range(4)
    ]
    at_start = float(network.log_likelihood(start.position, rows).sum())
    assert abs(np.mean(below) - at_start) < 63  # one nat for each of the 63 parameters


def test_the_friction_of_a_network_start_can_be_given(key):
    """More friction hides noise that is left, so that steps may be longer."""
    network, rows = isotherm.models.mlp((2, 3)), spiral()
    starts = [
        isotherm.warm_start(
            key,
            network.gradient(240),
            network.init(key),
            isotherm.independent_batches(rows, 8),
            coordinates="prior",
            num_steps=0,
            rounds=0,
            diffusion=diffusion,
        )
        for diffusion in (None, 100.0)
    ]
    default, large = starts
    assert default.diffusion == pytest.approx(
        2
    )  # critical damping in the width of the prior, without a walk
    assert large.diffusion == pytest.approx(100)
    assert large.thermostat_mass == pytest.approx(1e-4)
    assert 1.1 * default.step_size < large.step_size
    assert large.step_size <= STEP_TIMES_FREQUENCY * large.stiffness**-0.5


@pytest.mark.slow
def test_a_walk_that_is_lost_is_repeated_with_shorter_steps_and_then_refused(key, monkeypatch):
    rows = spiral()
    network = isotherm.models.mlp((2, 4, 3), activation="tanh")
    batches, grad_fn = isotherm.independent_batches(rows, 24), network.gradient(240)
    tried = []

    def lost(self, position):
        tried.append(position)
        return False

    monkeypatch.setattr(TypicalSet, "is_typical", lost)
    with pytest.raises(FloatingPointError, match=r"27 parameters explain about 13\.5"):
        isotherm.warm_start(
            key,
            grad_fn,
            network.init(key),
            batches,
            coordinates="prior",
            num_steps=0,
            steps_per_round=8,
        )
    assert len(tried) == MAX_HALVINGS


@pytest.mark.parametrize(
    ("edge", "message"),
    [(0.0, "not finite at the mode"), slow(0.2, "does not stay in the typical set")],
)
def test_a_network_start_reports_nan(edge, message):
    network = isotherm.models.mlp((2, 2))
    rng = np.random.default_rng(0)
    batches = isotherm.independent_batches(
        (rng.normal(size=(20, 2)).astype(np.float32), rng.integers(0, 2, 20)), 5
    )

    def log_likelihood(w, batch):
        outside = jnp.abs(w[0].weights).max() >= edge
        return network.log_likelihood(w, batch) * jnp.where(outside, jnp.nan, 1.0)

    grad_fn = isotherm.minibatch_gradient(log_likelihood, network.log_prior, 20)
    zero = jax.tree.map(jnp.zeros_like, network.init(jax.random.key(1)))
    with pytest.raises(FloatingPointError, match=message):
        isotherm.warm_start(
            jax.random.key(0), grad_fn, zero, batches, coordinates="kronecker", num_steps=0
        )

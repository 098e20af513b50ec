"""Networks behind `fit`: exact where the answer is known, and honest where data end."""

import numpy as np
import pytest
from sklearn.datasets import make_moons

from isotherm import BayesianMLPClassifier, BayesianMLPRegressor
from isotherm.estimators.network_posterior import Shape, _rounded
from isotherm.references.conjugate import linear_posterior_half_cauchy
from isotherm.references.logistic import logistic_posterior


def rows(size=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 2)) * [1.0, 30.0] + [5.0, 0.0]
    return x, 2 * x[:, 0] - 0.05 * x[:, 1] + rng.normal(size=size)


def test_without_a_hidden_layer_the_regressor_is_the_exact_regression():
    x, y = rows()
    model = BayesianMLPRegressor((), num_draws=500, thin=50, random_state=0).fit(x, y)
    design = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])
    v = model.prior_variance
    exact = linear_posterior_half_cauchy(design, (y - y.mean()) / y.std(), [v / 2, v / 2, v])
    root = np.sqrt([v / 2, v / 2, v])
    draws = np.asarray(model.draws_["weights"], np.float64).reshape(-1, 4)[:, :3] * root
    # 2000 draws, ESS above 1000: 5 Monte Carlo errors, so a false alarm once in 10**5 runs.
    assert np.all(np.abs(draws.mean(0) - exact.mean) < 5 * exact.sd / np.sqrt(1000))
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=5 / np.sqrt(2 * 1000))
    assert model.noise_variance_ / y.var() == pytest.approx(exact.noise_mean, rel=0.05)


def test_without_a_hidden_layer_the_classifier_is_logistic_regression():
    x, y = rows()
    label = (y > y.mean() + np.random.default_rng(1).normal(size=len(y))).astype(int)
    model = BayesianMLPClassifier((), num_draws=500, thin=50, random_state=0).fit(x, label)
    design = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])
    v = model.prior_variance  # the difference of two logits has twice the variance of each
    exact = logistic_posterior(
        design, label, prior_variance=np.array([v, v, 2 * v]), num_chains=8, num_draws=1000
    )
    weights = np.asarray(model.draws_["weights"], np.float64).reshape(-1, 6)
    slopes = weights[:, :4].reshape(-1, 2, 2) * np.sqrt(v / 2)
    bias = weights[:, 4:] * np.sqrt(v)
    draws = np.column_stack([slopes[..., 1] - slopes[..., 0], bias[:, 1] - bias[:, 0]])
    assert np.all(np.abs(draws.mean(0) - exact.mean) < 6 * exact.sd / np.sqrt(700))
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=6 / np.sqrt(2 * 700))


def test_a_regressor_knows_where_its_data_end():
    x = np.linspace(-1, 1, 50)[:, None]
    y = np.sin(3 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=50)
    model = BayesianMLPRegressor((12,), num_draws=50, num_chains=2, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.95
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.6)
    _, sd = model.predict(np.array([[0.0], [4.0]]), return_std=True)
    assert sd[1] > 3 * sd[0]


def test_going_on_is_one_longer_run_and_new_rows_count():
    x, y = make_moons(80, noise=0.1, random_state=0)
    settings = {"thin": 10, "burn_in": 500, "num_chains": 2, "random_state": 0}
    long = BayesianMLPClassifier((5,), num_draws=40, **settings).fit(x, y)
    short = BayesianMLPClassifier((5,), num_draws=20, **settings).fit(x, y)
    short.partial_fit(x, y)
    np.testing.assert_array_equal(long.draws_["weights"], short.draws_["weights"])
    before = short.predict_proba(x)
    short.partial_fit(x + np.array([3.0, 0.0]), 1 - y)
    assert short.draws_["weights"].shape[1] == 20
    assert np.abs(short.predict_proba(x) - before).max() > 0.01


def test_bad_settings_are_refused():
    x, y = rows(20)
    with pytest.raises(ValueError, match="`hidden_layer_sizes` must be a tuple of positive"):
        BayesianMLPRegressor((0,)).fit(x, y)
    with pytest.raises(ValueError, match="`activation` must be one of"):
        BayesianMLPRegressor(activation="step").fit(x, y)
    with pytest.raises(ValueError, match="at least two classes"):
        BayesianMLPClassifier().fit(x, np.ones(20))


def test_step_sizes_fall_on_few_values_and_dimensions_add_up():
    assert _rounded(0.011) == pytest.approx(2**-6.75) and _rounded(0.011) < 0.011
    assert Shape((3, 5, 2), "relu", 1.0, classes=True).dimension == 20 + 12
    assert Shape((3, 5, 1), "relu", 1.0, classes=False).dimension == 20 + 6 + 1

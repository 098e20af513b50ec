"""Networks as estimators: exact posteriors without hidden layers, uncertainty, `partial_fit`."""

import numpy as np
import pytest
from sklearn.datasets import make_moons

from isotherm import BayesianMLPClassifier, BayesianMLPRegressor
from isotherm.estimators.network_posterior import MLPModel, _round_step_size
from isotherm.references.conjugate import linear_posterior_half_cauchy
from isotherm.references.logistic import logistic_posterior


def make_rows(size=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 2)) * [1.0, 30.0] + [5.0, 0.0]
    return x, 2 * x[:, 0] - 0.05 * x[:, 1] + rng.normal(size=size)


def test_without_a_hidden_layer_the_regressor_is_linear_regression():
    x, y = make_rows()
    model = BayesianMLPRegressor((), num_draws=500, thin=50, random_state=0).fit(x, y)
    design = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])
    v = model.prior_variance
    exact = linear_posterior_half_cauchy(design, (y - y.mean()) / y.std(), [v / 2, v / 2, v])
    parts = [model.draws_["weights_1"][..., 0], model.draws_["bias_1"]]
    draws = np.concatenate(parts, axis=-1).astype(np.float64).reshape(-1, 3)
    # 2000 draws with an ESS above 1000; 5 standard errors: one false alarm in 10**5 seeds.
    assert np.all(np.abs(draws.mean(0) - exact.mean) < 5 * exact.sd / np.sqrt(1000))
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=5 / np.sqrt(2 * 1000))
    assert model.noise_variance_ / y.var() == pytest.approx(exact.noise_mean, rel=0.05)


def test_without_a_hidden_layer_the_classifier_is_logistic_regression():
    x, y = make_rows()
    label = (y > y.mean() + np.random.default_rng(1).normal(size=len(y))).astype(int)
    model = BayesianMLPClassifier((), num_draws=500, thin=50, random_state=0).fit(x, label)
    design = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])
    v = model.prior_variance  # the prior variance of a difference of two logits is doubled
    exact = logistic_posterior(
        design, label, prior_variance=np.array([v, v, 2 * v]), num_chains=8, num_draws=1000
    )
    slopes = model.draws_["weights_1"].astype(np.float64).reshape(-1, 2, 2)
    bias = model.draws_["bias_1"].astype(np.float64).reshape(-1, 2)
    draws = np.column_stack([slopes[..., 1] - slopes[..., 0], bias[:, 1] - bias[:, 0]])
    assert np.all(np.abs(draws.mean(0) - exact.mean) < 6 * exact.sd / np.sqrt(700))
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=6 / np.sqrt(2 * 700))


def test_the_predictive_sd_of_a_regressor_is_larger_beyond_the_data():
    x = np.linspace(-1, 1, 50)[:, None]
    y = np.sin(3 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=50)
    model = BayesianMLPRegressor((12,), num_draws=50, num_chains=2, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.95
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.6)
    _, sd = model.predict(np.array([[0.0], [4.0]]), return_std=True)
    assert sd[1] > 3 * sd[0]


def test_partial_fit_equals_a_longer_run_or_adds_rows():
    x, y = make_moons(80, noise=0.1, random_state=0)
    settings = {"thin": 10, "burn_in": 500, "num_chains": 2, "random_state": 0}
    long = BayesianMLPClassifier((5,), num_draws=40, **settings).fit(x, y)
    short = BayesianMLPClassifier((5,), num_draws=20, **settings).fit(x, y)
    short.partial_fit(x, y)
    assert list(long.draws_) == ["weights_1", "bias_1", "weights_2", "bias_2"]
    for name, draws in long.draws_.items():
        np.testing.assert_array_equal(draws, short.draws_[name])
    before = short.predict_proba(x)
    short.partial_fit(x + np.array([3.0, 0.0]), 1 - y)
    assert short.draws_["weights_2"].shape == (2, 20, 5, 2)
    assert np.abs(short.predict_proba(x) - before).max() > 0.01


def test_invalid_settings_are_refused():
    x, y = make_rows(20)
    with pytest.raises(ValueError, match="`hidden_layer_sizes` must be a tuple of positive"):
        BayesianMLPRegressor((0,)).fit(x, y)
    with pytest.raises(ValueError, match="`activation` must be one of"):
        BayesianMLPRegressor(activation="step").fit(x, y)
    with pytest.raises(ValueError, match="at least two classes"):
        BayesianMLPClassifier().fit(x, np.ones(20))


def test_step_sizes_are_rounded_down_to_few_values():
    assert _round_step_size(0.011) == pytest.approx(2**-6.75) and _round_step_size(0.011) < 0.011


@pytest.mark.parametrize("kind", [BayesianMLPClassifier, BayesianMLPRegressor])
def test_predictions_are_averages_of_the_outputs_computed_from_draws(kind):
    """The outputs computed from `draws_` are those that predictions are averages of."""
    x, y = make_rows(30)
    y = y > y.mean() if kind is BayesianMLPClassifier else y
    model = kind((4, 3), num_draws=3, num_chains=2, thin=5, burn_in=0, random_state=0).fit(x, y)
    draws, hidden = model.draws_, ((x - x.mean(0)) / x.std(0))[None, None]
    for i in (1, 2, 3):
        outputs = hidden @ draws[f"weights_{i}"] + draws[f"bias_{i}"][..., None, :]
        hidden = np.tanh(outputs)
    if kind is BayesianMLPClassifier:
        expected = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
        np.testing.assert_allclose(model.predict_proba(x), expected.mean((0, 1)), atol=1e-5)
    else:
        expected = y.mean() + y.std() * outputs.mean((0, 1))[:, 0]
        np.testing.assert_allclose(model.predict(x), expected, rtol=1e-4, atol=1e-4)
        assert draws["noise_variance"].shape == (2, 3)
        assert model.noise_variance_ == pytest.approx(draws["noise_variance"].mean())
    assert not any(hasattr(model, name) for name in ("coef_", "intercept_", "fit_intercept"))


def test_dimensions():
    classifier = MLPModel((3, 5, 2), "relu", 1.0, classification=True)
    regressor = MLPModel((3, 5, 1), "relu", 1.0, classification=False)
    assert classifier.dimension == 20 + 12 and regressor.dimension == 20 + 6 + 1

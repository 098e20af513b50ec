"""Networks as estimators: exact posteriors without hidden layers, uncertainty, `partial_fit`."""

import time

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from isotherm import BayesianMLPClassifier, BayesianMLPRegressor
from isotherm.estimators import network_posterior
from isotherm.estimators.network import LIKELIHOODS, NUM_FOLDS, _best, _folds
from isotherm.estimators.network_posterior import MLPModel, network_target
from isotherm.models import CuratedLabels, NoisyDirichlet
from isotherm.models.likelihoods import Categorical, Gaussian
from isotherm.references.conjugate import linear_posterior_half_cauchy
from isotherm.references.logistic import logistic_posterior
from marks import slow

EXACT = {"prior_variance": 4.0, "num_draws": 500, "thin": 50, "random_state": 0}


def make_rows(size=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 2)) * [1.0, 30.0] + [5.0, 0.0]
    return x, 2 * x[:, 0] - 0.05 * x[:, 1] + rng.normal(size=size)


@pytest.mark.parametrize("number", [1e300, 1e-300])
@pytest.mark.parametrize("model", [BayesianMLPClassifier, BayesianMLPRegressor])
def test_numbers_whose_squares_overflow_are_refused(model, number):
    x, y = make_rows()
    target = (y > y.mean()).astype(int)
    with pytest.raises(ValueError, match=r"`X`, column 0, has a largest absolute value of .*e"):
        model().fit(x * number, target)
    if model is BayesianMLPRegressor:
        with pytest.raises(ValueError, match="`y` has a largest absolute value"):
            model().fit(x, y * number)


@pytest.mark.slow
def test_without_a_hidden_layer_the_regressor_is_linear_regression():
    x, y = make_rows()
    model = BayesianMLPRegressor((), noise="constant", noise_df=None, **EXACT).fit(x, y)
    design = np.column_stack([standardized(x, 2.5), np.ones(len(x))])
    v = model.prior_variance
    exact = linear_posterior_half_cauchy(design, (y - y.mean()) / y.std(), [v / 2, v / 2, v])
    parts = [model.draws_["weights_1"][..., 0], model.draws_["bias_1"]]
    draws = np.concatenate(parts, axis=-1).astype(np.float64).reshape(-1, 3)
    # 2000 draws with an ESS above 1000; 5 standard errors: one false alarm in 10**5 seeds.
    assert np.all(np.abs(draws.mean(0) - exact.mean) < 5 * exact.sd / np.sqrt(1000))
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=5 / np.sqrt(2 * 1000))
    assert model.noise_variance_ / y.var() == pytest.approx(exact.noise_mean, rel=0.05)


@pytest.mark.slow
def test_without_a_hidden_layer_the_classifier_is_logistic_regression():
    x, y = make_rows()
    label = (y > y.mean() + np.random.default_rng(1).normal(size=len(y))).astype(int)
    model = BayesianMLPClassifier((), **EXACT).fit(x, label)
    design = np.column_stack([standardized(x, 2.5), np.ones(len(x))])
    v = model.prior_variance  # the prior variance of a difference of two logits is doubled
    exact = logistic_posterior(
        design, label, prior_variance=np.array([v, v, 2 * v]), num_chains=8, num_draws=1000
    )
    slopes = model.draws_["weights_1"].astype(np.float64).reshape(-1, 2, 2)
    bias = model.draws_["bias_1"].astype(np.float64).reshape(-1, 2)
    draws = np.column_stack([slopes[..., 1] - slopes[..., 0], bias[:, 1] - bias[:, 0]])
    assert np.all(np.abs(draws.mean(0) - exact.mean) < 6 * exact.sd / np.sqrt(700))
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=6 / np.sqrt(2 * 700))


@pytest.mark.slow
def test_the_predictive_sd_of_a_regressor_is_larger_beyond_the_data():
    x = np.linspace(-1, 1, 50)[:, None]
    y = np.sin(3 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=50)
    model = BayesianMLPRegressor((12,), num_draws=50, thin=50, num_chains=2, random_state=0)
    model.fit(x, y)
    assert model.score(x, y) > 0.95
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.6)
    _, sd = model.predict(np.array([[0.0], [4.0]]), return_std=True)
    assert sd[1] > 3 * sd[0]


@pytest.mark.slow
def test_partial_fit_equals_a_longer_run_or_adds_rows():
    x, y = make_moons(80, noise=0.1, random_state=0)
    settings = {"thin": 10, "burn_in": 500, "num_chains": 2, "random_state": 0}
    long = BayesianMLPClassifier((5,), num_draws=40, **settings).fit(x, y)
    short = BayesianMLPClassifier((5,), num_draws=20, **settings).fit(x, y)
    short.partial_fit(x, y)
    names = ["weights_1", "bias_1", "weights_2", "bias_2", "scale_1", "scale_2"]
    assert list(long.draws_) == names
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
    with pytest.raises(ValueError, match="`prior_variance` must be 'learned' or a positive"):
        BayesianMLPRegressor(prior_variance="wide").fit(x, y)
    with pytest.raises(ValueError, match="`prior_variance` must be 'auto' or 'learned' or a pos"):
        BayesianMLPClassifier(prior_variance="wide").fit(x, y > y.mean())
    with pytest.raises(ValueError, match="`noise` must be"):
        BayesianMLPRegressor(noise="loud").fit(x, y)
    with pytest.raises(ValueError, match="noise_df"):
        BayesianMLPRegressor(noise_df=0.0).fit(x, y)
    with pytest.raises(ValueError, match="`max_time` must not be given together with"):
        BayesianMLPRegressor(max_time=1.0, checkpoint="folder", random_state=0).fit(x, y)
    with pytest.raises(ValueError, match="`likelihood` must be one of classes"):
        BayesianMLPClassifier(likelihood="heteroscedastic").fit(x, y > y.mean())


SHORT = {"num_draws": 3, "num_chains": 2, "thin": 5, "burn_in": 0, "random_state": 0}


def standardized(x, largest):
    """Scale columns by their standard deviations, or more if rows are more than `largest` away."""
    centred = x - x.mean(0)
    return centred / np.maximum(x.std(0), abs(centred).max(0) / largest)


def outputs_of_draws(model, x):
    """Compute the outputs of every draw from `draws_` in NumPy, (chain, draw, rows, outputs)."""
    is_classifier = isinstance(model, BayesianMLPClassifier)
    draws, hidden = model.draws_, standardized(x, 2.5 if is_classifier else 5.0)[None, None]
    outputs = hidden
    activation = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0)}[model.activation]
    for i in range(1, 2 + len(model.hidden_layer_sizes)):
        outputs = hidden @ draws[f"weights_{i}"] + draws[f"bias_{i}"][..., None, :]
        hidden = activation(outputs)
    return outputs.astype(np.float64)


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize("prior_variance", [4.0, slow("learned")])
def test_class_probabilities_are_averages_over_draws(prior_variance):
    x, y = make_rows(30)
    model = BayesianMLPClassifier((4, 3), prior_variance=prior_variance, **SHORT)
    expected = np.exp(outputs_of_draws(model.fit(x, y > y.mean()), x))
    expected = expected / expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(x), expected.mean((0, 1)), atol=1e-5)
    right = model.predict(x) == (y > y.mean())
    shown = model.plot_calibration(x, y > y.mean()).axes[0].lines[1].get_ydata()
    assert shown.min() <= right.mean() <= shown.max()
    with pytest.raises(ValueError, match=r"labels that `fit` has not seen: \[2\]"):
        model.plot_calibration(x, np.full(len(x), 2))
    assert not any(hasattr(model, name) for name in ("coef_", "intercept_", "fit_intercept"))


@pytest.mark.usefixtures("compile_quickly")
def test_chains_of_a_classifier_are_compared_by_log_probabilities():
    x, y = make_rows(30)
    model = BayesianMLPClassifier((4,), likelihood="categorical", **SHORT).fit(x, y > y.mean())
    compared = model._convergence_draws()
    assert compared.shape == (2, 3, 30 * 2)
    probabilities = np.exp(compared.reshape(6, 30, 2)).mean(0)
    np.testing.assert_allclose(probabilities, model.predict_proba(x), atol=1e-5)


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize("model", [BayesianMLPClassifier, slow(BayesianMLPRegressor)])
def test_a_prediction_is_never_silently_nan(model):
    """In single precision these inputs are infinite, and the first class was returned."""
    x, y = make_rows()
    fitted = model((4, 3), prior_variance=4.0, **SHORT).fit(x, (y > y.mean()).astype(int))
    for number in (1e60, 1e300, -1e308):
        with pytest.raises(ValueError, match=r"`X` has .* in row 2, column 1, more than 1e\+15"):
            fitted.predict(np.where(np.arange(120).reshape(60, 2) == 5, number, x))
    for number in (1e14, -1e14, 1e-300):
        predicted = getattr(fitted, "predict_proba", fitted.predict)(x * number)
        assert np.isfinite(predicted).all()


def test_softmax_is_replaced_only_by_what_is_clearly_better():
    weight = np.ones(100)
    alternating = np.where(np.arange(100) % 2, 1.0, -1.0)  # a standard error of 0.1
    scores = np.stack([np.zeros(100), 0.29 + alternating, 0.31 + alternating, -1 + 0 * alternating])
    assert _best(scores, weight) == 2
    assert _best(scores[[0, 1, 3]], weight) == 0
    assert _best(np.stack([scores[0], 0.1 + 0 * alternating, scores[2]]), weight) == 2
    only_first = np.where(np.arange(100) < 2, 1.0, 0.0)
    assert _best(np.stack([scores[0], 1 - 2 * only_first]), weight) == 1
    assert _best(np.stack([scores[0], 1 - 2 * only_first]), only_first) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # little work
def test_the_likelihood_follows_from_held_out_rows(monkeypatch):
    monkeypatch.setattr(BayesianMLPClassifier, "_work", 1.0)
    x = np.random.default_rng(0).normal(size=(200, 2))
    label = (x[:, 0] > 0).astype(int)
    model = BayesianMLPClassifier((4,), num_draws=50, random_state=0)
    assert model.fit(x, label).likelihood_ == LIKELIHOODS[1]
    assert "scale_1" not in model.draws_
    deeper = BayesianMLPClassifier((4, 4), num_draws=50, random_state=0)
    assert deeper.fit(x, label).likelihood_ == Categorical()
    clean = model.predict_proba(x)
    often_wrong = np.where(np.random.default_rng(1).random(200) < 0.4, 1 - label, label)
    assert model.fit(x, often_wrong).likelihood_ == Categorical()
    assert clean.max(1).mean() > model.predict_proba(x).max(1).mean()
    model.partial_fit(x[:20], label[:20])  # added rows do not change the choice
    assert model.likelihood_ == Categorical()


def test_folds_spread_every_class_evenly():
    y = np.repeat([0, 1, 2], [52, 26, 2])
    folds = _folds(y, np.random.default_rng(0))
    assert np.bincount(folds).tolist() == [16] * NUM_FOLDS
    for label in np.unique(y):
        counts = np.bincount(folds[y == label], minlength=NUM_FOLDS)
        assert np.ptp(counts) <= 1
    assert not np.array_equal(folds, _folds(y, np.random.default_rng(1)))


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    ("prior_variance", "likelihood", "learned"),
    [
        ("learned", NoisyDirichlet(), True),
        ("auto", NoisyDirichlet(), False),
        slow("auto", "auto", True),
        slow(9.0, NoisyDirichlet(), False),
    ],
)
def test_scales_are_learned_as_told(prior_variance, likelihood, learned):
    x, y = make_rows(30)  # too few to compare likelihoods
    model = BayesianMLPClassifier(
        (4,), prior_variance=prior_variance, likelihood=likelihood, **SHORT
    ).fit(x, y > y.mean())
    assert ("scale_1" in model.draws_) == learned
    assert model.likelihood_ == (Categorical() if likelihood == "auto" else likelihood)


@pytest.mark.slow
def test_curated_labels_are_the_likelihood_and_the_prediction():
    x, y = make_rows(30)
    model = BayesianMLPClassifier((4,), likelihood=CuratedLabels(5.0), **SHORT)
    expected = np.exp(5 * outputs_of_draws(model.fit(x, y > y.mean()), x))
    expected = expected / expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(x), expected.mean((0, 1)), atol=1e-5)


@pytest.mark.parametrize(
    ("noise", "df"),
    [("constant", None), slow("input-dependent", 5.0)],
)
@pytest.mark.usefixtures("compile_quickly")
def test_predictive_distributions_are_mixtures_over_draws(noise, df):
    x, y = make_rows(30)
    model = BayesianMLPRegressor((4, 3), noise=noise, noise_df=df, **SHORT).fit(x, y)
    outputs, variance = outputs_of_draws(model, x), model.draws_["noise_variance"][..., None]
    location = (y.mean() + y.std() * outputs[..., 0]).reshape(6, 30)
    log_factor = 0.0
    if noise == "input-dependent":
        slopes, inputs = model.draws_["noise_slopes"], (x - x.mean(0)) / x.std(0)
        linear = (
            slopes[..., :-1] @ inputs.T / x.shape[1] ** 0.5 + slopes[..., -1:] * outputs[..., 0]
        )
        log_factor = 2 * np.tanh(linear / 2)
    scale = (np.sqrt(variance) * np.exp(log_factor) * np.ones(30)).reshape(6, 30)
    part = stats.norm if df is None else stats.t(df)
    density = np.mean(part.pdf((y - location) / scale) / scale, axis=0)
    np.testing.assert_allclose(model.log_density(x, y), np.log(density), rtol=1e-3, atol=1e-4)
    lower, upper = model.predict_interval(x, 0.8)
    for end, level in ((lower, 0.1), (upper, 0.9)):
        reached = np.mean(part.cdf((end - location) / scale), axis=0)
        np.testing.assert_allclose(reached, level, atol=1e-4)
    np.testing.assert_allclose(model.predict_quantiles(x, [0.1, 0.9]), [lower, upper])
    mean, sd = model.predict(x, return_std=True)
    ratio = 1.0 if df is None else df / (df - 2)
    np.testing.assert_allclose(mean, location.mean(0), rtol=1e-4, atol=1e-4)
    expected = location.var(0) + ratio * np.mean(scale**2, axis=0)
    np.testing.assert_allclose(sd**2, expected, rtol=1e-3)
    assert model.noise_variance_ == pytest.approx(ratio * np.mean(scale**2), rel=1e-4)
    samples = model.sample_predictive(x, 4000, random_state=1)
    # Of 4000 samples, 5 standard errors; one false alarm in 60 000 seeds over the 30 rows.
    error = np.sqrt(np.mean(scale**2, 0) * ratio + location.var(0)) / np.sqrt(4000)
    assert np.all(np.abs(samples.mean(0) - mean) < 5 * error) and samples.shape == (4000, 30)


@pytest.mark.usefixtures("compile_quickly")
def test_the_noise_of_grades_is_reported_with_their_rounding_errors():
    x, _ = make_rows(60)
    grades = np.random.default_rng(0).integers(1, 4, 60).astype(float)
    model = BayesianMLPRegressor((4, 3), noise_df=None, **SHORT).fit(x, grades)
    variance = model.draws_["noise_variance"]
    assert variance.min() > 1 / 12
    assert model.noise_variance_ == pytest.approx(variance.mean(), rel=1e-5)
    mixture = model.predictive(x[:2])
    _, sd = model.predict(x[:2], return_std=True)
    np.testing.assert_allclose(mixture.variance, sd**2, rtol=1e-3)
    assert np.all(sd**2 >= variance.mean() * (1 - 1e-5))


@pytest.mark.slow
def test_a_weight_of_two_is_a_row_twice():
    """Without a hidden layer: the exact posterior given repeated rows."""
    x, y = make_rows(40)
    weight = np.where(np.arange(40) < 20, 2.0, 1.0)
    model = BayesianMLPRegressor((), noise_df=None, **EXACT).fit(x, y, sample_weight=weight)
    twice = np.repeat(np.arange(40), weight.astype(int))
    x, y = x[twice], y[twice]
    design, y = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(60)]), (y - y.mean()) / y.std()
    exact = linear_posterior_half_cauchy(design, y, [2.0, 2.0, 4.0])
    parts = [model.draws_["weights_1"][..., 0], model.draws_["bias_1"]]
    draws = np.concatenate(parts, axis=-1).astype(np.float64).reshape(-1, 3)
    assert np.all(np.abs(draws.mean(0) - exact.mean) < 5 * exact.sd / np.sqrt(1000))
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=5 / np.sqrt(2 * 1000))
    once = linear_posterior_half_cauchy(design[::2], y[::2], [2.0, 2.0, 4.0])
    assert np.any(np.abs(draws.mean(0) - once.mean) > 5 * once.sd / np.sqrt(1000))  # it can fail


@pytest.mark.slow
def test_learned_scales_find_the_scale_of_the_weights():
    """The prior median is 2; targets that need steep units have a first layer above it."""
    x = np.random.default_rng(0).uniform(-1, 1, (300, 1))
    settings = {"num_draws": 100, "thin": 40, "num_chains": 2, "random_state": 0}
    steep = BayesianMLPRegressor((8,), **settings).fit(x, np.sin(12 * x[:, 0]))
    flat = BayesianMLPRegressor((8,), **settings).fit(x, x[:, 0])
    assert steep.draws_["scale_1"].mean() > 2 * flat.draws_["scale_1"].mean()


@pytest.mark.slow
def test_early_stopping_returns_the_best_network_on_held_out_rows():
    """Noise alone: a network trained to the end fits it, one that is stopped does not."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)), rng.normal(size=60)
    model = MLPModel((5, 30, 1), "tanh", 16.0, Gaussian(None), noise="constant")
    stopped = network_target(jax.random.key(0), model, x, y, num_chains=2, adapt=False).trained
    assert np.all(stopped[:, -1] > -0.5)  # log noise; that of the targets is 0
    fewer = network_target(jax.random.key(0), model, x[:30], y[:30], num_chains=2, adapt=False)
    assert np.all(fewer.trained[:, -1] < -1)  # all rows are trained on


@pytest.mark.slow
def test_chains_have_arrived_when_the_likelihood_stops_drifting(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=100)
    model = MLPModel((2, 5, 1), "tanh", 4.0, Gaussian(None), noise="constant")
    target = network_target(jax.random.key(0), model, x, y, num_chains=2)
    assert target.has_arrived and target.steps_left > 0
    curve = target.log_likelihoods
    assert abs(curve[:, -8:].mean() - curve[:, -16:-8].mean()) < 2 * curve[:, -16:].std()
    monkeypatch.setattr(network_posterior, "LARGEST_DRIFT", 0.0)  # no curve is flat enough
    monkeypatch.setattr(network_posterior, "WORK", 0.1)
    x, y = 3 * x, 3 * y
    with pytest.warns(ConvergenceWarning, match="have not arrived") as caught:
        BayesianMLPRegressor((5,), num_draws=2, num_chains=2, random_state=0).fit(x, y)
    assert caught[0].filename == __file__  # the line of the user, not one of the package


@pytest.mark.slow
def test_a_round_that_diverges_is_repeated_with_shorter_steps(monkeypatch):
    monkeypatch.setattr(network_posterior, "STEP_TIMES_FREQUENCY", 50.0)  # unstable above 2
    x, y = make_rows(60)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    model = MLPModel((2, 5, 1), "tanh", 4.0, Gaussian(None), noise="constant")
    target = network_target(jax.random.key(0), model, x, y, num_chains=2, adapt=False)
    assert np.isfinite(target.log_likelihoods).all()
    monkeypatch.setattr(network_posterior, "MAX_RESTARTS", 1)
    with pytest.raises(FloatingPointError, match="lose what these have learned"):
        network_target(jax.random.key(0), model, x, y, num_chains=2, adapt=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The chains have not arrived")  # the limit is short
def test_a_time_limit_ends_a_fit():
    x, y = make_rows(200)
    start = time.monotonic()
    model = BayesianMLPRegressor((8,), max_time=5.0, num_draws=20, num_chains=2, random_state=0)
    model.fit(x, y)
    assert time.monotonic() - start < 60  # compilation is not counted
    assert np.isfinite(model.log_density(x, y)).all()


def test_dimensions():
    classifier = MLPModel((3, 5, 2), "relu", 1.0, Categorical())
    regressor = MLPModel((3, 5, 1), "relu", 1.0, Gaussian(None), True, "input-dependent")
    assert classifier.dimension == 20 + 12
    assert regressor.dimension == 20 + 6 + 2 + 4 + 1  # weights, scales, slopes and the noise


def test_targets_on_a_grid_have_at_least_the_noise_of_rounding():
    grades = np.random.default_rng(0).integers(1, 6, 200).astype(float)
    scaled = (grades - grades.mean()) / grades.std()
    spacing = 1 / grades.std()
    assert network_posterior.rounding_error(scaled) == pytest.approx(spacing / 12**0.5)
    assert network_posterior.rounding_error(np.random.default_rng(0).normal(size=200)) == 0
    model = MLPModel((2, 3, 1), "tanh", 4.0, Gaussian(None), noise="constant")
    position = np.full(model.dimension, -30.0, np.float32)  # hardly any noise
    x, ones = np.ones((3, 2), np.float32), np.ones(3, np.float32)
    mean = np.asarray(model.apply(position, x)[:, 0])
    y, rounding = mean + np.array([0, 0.2, 0.4]), np.float32([0.2, 0.2, 0.5])
    values = model.log_likelihood(position, (x, y, ones, rounding))
    np.testing.assert_allclose(values, stats.norm.logpdf(y, mean, rounding), rtol=1e-4)


@pytest.mark.slow
def test_stiff_directions_are_stretched_and_steps_are_longer():
    """The same chains without stretched directions need steps several times as short."""
    x, y = make_rows(200)
    y = (y - y.mean()) / y.std()
    model = MLPModel((x.shape[1], 8, 1), "tanh", 4.0, Gaussian(None), True, "constant")
    target = network_target(jax.random.key(0), model, x, y, num_chains=2, adapt=False)
    space = target.coordinates
    gram = np.asarray(space.basis.T @ space.basis)
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-4)
    assert np.all(np.diff(space.stretch) >= -1e-6) and space.stretch[0] < 0.2
    ones = np.ones(200, np.float32)
    rows = (x.astype(np.float32), y.astype(np.float32), ones, 0 * ones)

    def minus_log_density(q):
        return -model.log_likelihood(q, rows).sum() - model.log_prior(q)

    def largest(stretched):
        hessian = np.asarray(jax.hessian(minus_log_density)(target.starts[0]), np.float64)
        if stretched:
            space_map = np.asarray(jax.vmap(space.push)(np.eye(len(hessian), dtype=np.float32)))
            hessian = space_map @ hessian @ space_map
        return np.abs(np.linalg.eigvalsh(hessian)).max()

    assert largest(True) < largest(False) / 4
    assert target.step_size < 1.4 * 0.5 * largest(True) ** -0.5


@pytest.mark.slow
def test_a_pipeline_with_categorical_columns_learns_them_and_shows_plots():
    rng = np.random.default_rng(0)
    kind, number = rng.choice(["red", "green", "blue"], 150), rng.normal(size=150)
    y = np.select([kind == "red", kind == "green"], [3.0, -3.0], 0.0) + number
    y = y + 0.3 * rng.normal(size=150)
    x = np.array([kind, number], dtype=object).T
    columns = make_column_transformer((OneHotEncoder(), [0]), (StandardScaler(), [1]))
    model = BayesianMLPRegressor(
        (4,), num_draws=40, num_chains=2, thin=10, burn_in=0, random_state=0
    )
    pipeline = make_pipeline(columns, model).fit(x[:100], y[:100])
    assert pipeline.score(x[100:], y[100:]) > 0.9
    inputs = pipeline[:-1].transform(x[100:])
    histogram = pipeline[-1].plot_calibration(inputs, y[100:]).axes[0]
    assert sum(bar.get_height() for bar in histogram.patches[:5]) == 50  # every row is in a bar
    lines = pipeline[-1].plot_learning_curve().axes[0].lines
    np.testing.assert_array_equal([line.get_ydata() for line in lines], model.learning_curve_)

"""Linear models beyond scikit-learn's contract: labels, frames, sparse rows, `partial_fit`."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from troubled_tables import classes

from isotherm import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
)
from isotherm.estimators.design_svd import column_statistics
from isotherm.exceptions import HealthWarning
from isotherm.models.logistic_mode import logistic_log_density
from marks import slow

SHORT = {"num_draws": 30, "num_chains": 2, "random_state": 0}
X, Y = classes(2)
X3, Y3 = classes(3)


def both(**settings):
    """The two linear models, each with data."""
    settings = {**SHORT, **settings}
    target = X[:, 0] + X @ [0.0, 0.1, 0.01, 0.001]
    return [
        (BayesianLogisticRegression(**settings), X, Y),
        (BayesianLinearRegression(**settings), X, target),
    ]


def same_draws(a, b):
    return all(np.array_equal(a.draws_[name], b.draws_[name]) for name in a.draws_)


@pytest.mark.parametrize("number", [1e300, 1e-300])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_numbers_whose_squares_overflow_are_refused(number, form):
    """They gave the accuracy of a constant, without a word."""
    for model, x, y in both():
        with pytest.raises(ValueError, match=r"`X`, column 0, has a largest absolute value of .*e"):
            model.fit(form(x * number), y)
    x = X.copy()
    x[:, 2] *= number
    with pytest.raises(ValueError, match="`X`, column 2, has a largest absolute value"):
        BayesianLogisticRegression(**SHORT).fit(form(x), Y)
    with pytest.raises(ValueError, match="`y` has a largest absolute value"):
        BayesianLinearRegression(**SHORT).fit(form(X), X[:, 0] * number)


@pytest.mark.slow
def test_very_large_and_very_small_units_do_not_matter():
    for model, x, y in both():
        expected = model.fit(x, y).score(x, y)
        for unit in (1e95, 1e-95):
            scaled = clone(model).fit(x * unit, y)
            assert scaled.score(x * unit, y) == pytest.approx(expected, abs=0.02)


def weighted(y):
    """Whole weights that depend on the target, so that they matter; some are 0."""
    low = y < np.median(y) if len(np.unique(y)) > 3 else y == 0
    return np.where(low, 3, np.arange(len(y)) % 2)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.slow
def test_a_row_of_weight_three_counts_as_three_rows_and_one_of_weight_zero_not_at_all(form):
    settings = {**SHORT, "num_draws": 300}
    noisy = X[:, 0] + np.random.default_rng(0).normal(size=len(X))
    cases = [
        (BayesianLinearRegression(**settings), X, noisy),
        (BayesianLogisticRegression(**settings), X, Y),
        (BayesianLogisticRegression(**settings), X3, Y3),
    ]
    for model, x, y in cases:
        weight = weighted(y)
        rows = np.repeat(np.arange(len(y)), weight)
        a = clone(model).fit(form(x), y, sample_weight=weight)
        b = clone(model).fit(form(x[rows]), y[rows])
        plain = clone(model).fit(form(x), y)
        for name in ("coef", "intercept"):
            sd = b.draws_[name].std((0, 1))
            shift = np.abs(getattr(a, f"{name}_") - getattr(b, f"{name}_")) / sd
            assert shift.max() < 0.25  # Monte Carlo error of about 0.06
            np.testing.assert_allclose(a.draws_[name].std((0, 1)), sd, rtol=0.2)
        predicted = [
            each.predict_proba(x) if hasattr(each, "predict_proba") else each.predict(x)
            for each in (a, b, plain)
        ]
        error, effect = (np.abs(each - predicted[1]).mean() for each in predicted[::2])
        assert effect > 5 * error  # the weights matter


@pytest.mark.parametrize(
    "model",
    [
        BayesianLinearRegression,
        BayesianLogisticRegression,
        BayesianMLPClassifier,
        BayesianMLPRegressor,
    ],
)
def test_masked_rows_are_refused(model):
    masked = np.ma.array(X, mask=False)
    masked[3, 1] = np.ma.masked
    with pytest.raises(ValueError, match="`X` has masked entries"):
        model().fit(masked, Y)
    with pytest.raises(ValueError, match="`y` has masked entries"):
        model().fit(X, np.ma.array(Y, mask=np.arange(len(Y)) == 1))
    weight = np.ma.array(np.ones(len(Y)), mask=np.arange(len(Y)) == 1)
    with pytest.raises(ValueError, match="`sample_weight` has masked entries"):
        model().fit(X, Y, sample_weight=weight)


def test_masked_rows_are_not_predicted():
    model = BayesianLinearRegression(**SHORT).fit(np.ma.array(X), Y)
    with pytest.raises(ValueError, match="`X` has masked entries"):
        model.predict(np.ma.array(X, mask=X > 1))


def test_weights_of_the_target_are_exact():
    """The same in double precision, without chains: mode, curvature and gradient."""
    for x, y, num_classes in ((X, Y, 2), (X3, Y3, 3)):
        weight = weighted(y)
        rows = np.repeat(np.arange(len(y)), weight)
        some = weight > 0
        one = logistic_log_density(x[some], y[some], np.ones(4), num_classes, weight[some])
        other = logistic_log_density(x[rows], y[rows], np.ones(4), num_classes)
        mode = one.mode()
        np.testing.assert_allclose(mode, other.mode(), atol=1e-8)
        np.testing.assert_allclose(one.curvature(mode), other.curvature(mode), rtol=1e-10)
        a, b = (each.value_and_gradient(mode[None] + 0.3) for each in (one, other))
        np.testing.assert_allclose(a[0], b[0], rtol=1e-12)
        np.testing.assert_allclose(a[1], b[1], rtol=1e-9, atol=1e-9)
        first, second = column_statistics(x[some], None, weight[some]), column_statistics(x[rows])
        np.testing.assert_allclose(np.abs(first.factor), np.abs(second.factor), atol=1e-9)
        assert first.num_rows == second.num_rows
        np.testing.assert_allclose(first.num_nonzero, second.num_nonzero)


def test_equal_weights_change_no_bit_and_partial_fit_takes_weights():
    for model, x, y in both():
        plain, ones = clone(model).fit(x, y), clone(model).fit(x, y, np.ones(len(y)))
        np.testing.assert_allclose(plain.coef_, ones.coef_, rtol=1e-4, atol=1e-6)
        half = len(y) // 2
        model.partial_fit(x[:half], y[:half], sample_weight=np.full(half, 2.0))
        model.partial_fit(x[half:], y[half:])
        assert model.draws_["coef"].shape[1] == 30
        with pytest.raises(ValueError, match="`sample_weight` must have shape"):
            model.fit(x, y, np.ones((len(y), 2)))
        for wrong in (-np.ones(len(y)), np.zeros(len(y)), np.full(len(y), np.nan)):
            with pytest.raises(ValueError, match="must be finite and not negative"):
                model.fit(x, y, sample_weight=wrong)
        for size in (1e300, 1e-300):  # the first overflows, the second leaves only the prior
            with pytest.raises(ValueError, match=r"has a largest value of 1e.300; .* scale"):
                model.fit(x, y, sample_weight=np.full(len(y), size))


@pytest.mark.slow
def test_weights_and_minibatches_agree():
    """With more rows than a full batch, importance batches have the weights as well."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 3))
    y = (rng.random(3000) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    weight = np.where(y == 1, 2.0, 0.5)
    settings = {"num_draws": 300, "num_chains": 2, "random_state": 0}
    full = BayesianLogisticRegression(batch_size=3000, **settings).fit(x, y, weight)
    some = BayesianLogisticRegression(batch_size=200, **settings).fit(x, y, weight)
    sd = full.draws_["intercept"].std((0, 1))
    assert np.abs(full.intercept_ - some.intercept_) < 0.3 * sd
    assert full.intercept_ > 0.8  # log 4 more than without weights


def test_attributes_of_a_binary_model():
    labels = np.array(["no", "yes"])[Y]
    model = BayesianLogisticRegression(**SHORT).fit(X, labels)
    assert model.classes_.tolist() == ["no", "yes"] and model.n_features_in_ == 4
    assert model.coef_.shape == (1, 4) and model.intercept_.shape == (1,)
    assert model.draws_["coef"].shape == (2, 30, 1, 4)
    np.testing.assert_allclose(model.coef_, model.draws_["coef"].mean((0, 1)))
    probabilities = model.predict_proba(X)
    z = model.draws_["coef"][..., 0, :] @ X.T + model.draws_["intercept"]
    np.testing.assert_allclose(probabilities[:, 1], (1 / (1 + np.exp(-z))).mean((0, 1)))
    assert set(model.predict(X)) == {"no", "yes"} and model.score(X, labels) > 0.7


def test_attributes_of_a_multinomial_model():
    model = BayesianLogisticRegression(**SHORT).fit(X3, Y3)
    assert model.coef_.shape == (3, 4) and model.draws_["intercept"].shape == (2, 30, 3)
    probabilities = model.predict_proba(X3)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    z = np.einsum("cskf,nf->csnk", model.draws_["coef"], X3) + model.draws_["intercept"][:, :, None]
    each = np.exp(z - z.max(-1, keepdims=True))
    np.testing.assert_allclose(probabilities, (each / each.sum(-1, keepdims=True)).mean((0, 1)))


def test_the_predictive_sd_includes_coefficients_and_noise():
    x, y = load_diabetes(return_X_y=True)
    model = BayesianLinearRegression(**SHORT).fit(x, y)
    assert model.coef_.shape == (10,) and np.ndim(model.intercept_) == 0
    mean, sd = model.predict(x, return_std=True)
    np.testing.assert_array_equal(mean, model.predict(x))
    each = model.draws_["coef"] @ x.T + model.draws_["intercept"][..., None]
    np.testing.assert_allclose(mean, each.mean((0, 1)))
    np.testing.assert_allclose(sd**2, each.var((0, 1)) + model.draws_["noise_variance"].mean())
    _, far = model.predict(1e200 * x, return_std=True)  # whose square overflows
    np.testing.assert_allclose(far / 1e200, (model.draws_["coef"] @ x.T).std((0, 1)))


def test_a_known_noise_variance_is_not_sampled():
    _, (_, x, y) = both()
    model = BayesianLinearRegression(noise_variance=2.0, **SHORT).fit(x, y)
    np.testing.assert_allclose(model.draws_["noise_variance"], 2.0)


def test_diagnostics_list_coefficients_temperatures_and_step_size():
    for model, x, y in both(num_draws=50):
        text = str(model.fit(x, y).diagnostics_)
        assert "coef[" in text and "rhat" in text and "temperature" in text
        assert "step size 0.1" in text and "diverged chains: none" in text
        rows = {row["name"] for row in model.diagnostics_.rows}
        assert len(rows) == 5 + isinstance(model, BayesianLinearRegression)


def test_sparse_and_dense_rows_agree():
    for model, x, y in both():
        x = x * (np.random.default_rng(0).random(x.shape) < 0.3)
        dense = clone(model).fit(x, y)
        for kind in (sparse.csr_array, sparse.csc_matrix, sparse.coo_array):
            other = clone(model).fit(kind(x), y)
            np.testing.assert_allclose(other.coef_, dense.coef_, rtol=1e-3, atol=1e-6)
            np.testing.assert_allclose(other.predict(kind(x)), dense.predict(x), rtol=1e-3)


def test_feature_names_of_data_frames_are_checked():
    frame, target = load_iris(return_X_y=True, as_frame=True)
    model = BayesianLogisticRegression(**SHORT).fit(frame, target)
    assert model.feature_names_in_[0] == "sepal length (cm)"
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[frame.columns[::-1]])


@pytest.mark.parametrize("random_state", [7, np.random.RandomState])
def test_the_seed_determines_everything(random_state):
    for model, x, y in both():
        seed = random_state if isinstance(random_state, int) else random_state(3)
        again = random_state if isinstance(random_state, int) else random_state(3)
        first = clone(model).set_params(random_state=seed).fit(x, y)
        second = clone(model).set_params(random_state=again).fit(x, y)
        other = clone(model).set_params(random_state=8).fit(x, y)
        assert same_draws(first, second) and not same_draws(first, other)


@pytest.mark.parametrize("batch_size", [None, slow(20)])
def test_partial_fit_with_the_same_rows_equals_a_longer_run_bit_for_bit(batch_size):
    for model, x, y in both():
        if batch_size is not None:
            if isinstance(model, BayesianLinearRegression):
                continue
            model.set_params(batch_size=batch_size)
        long = clone(model).set_params(num_draws=90).fit(x, y)
        model.fit(x, y).partial_fit(x, y)
        copy = pickle.loads(pickle.dumps(model))
        for each in (model, copy):
            each.partial_fit(x, y)
            assert same_draws(each, long)
            np.testing.assert_array_equal(each.coef_, long.coef_)
            assert (
                str(each.diagnostics_).splitlines()[1:] == str(long.diagnostics_).splitlines()[1:]
            )


@pytest.mark.slow
def test_partial_fit_with_other_rows_samples_the_posterior_given_all_rows():
    for model, x, y in both(num_draws=400):
        whole = clone(model).set_params(random_state=1).fit(x, y)
        model.partial_fit(x[:100], y[:100])
        steps = int(model._run.state.step_index[0])
        first = model.draws_["coef"].copy()
        model.partial_fit(x[100:], y[100:])
        assert int(model._run.state.step_index[0]) > steps
        assert model.draws_["coef"].shape == first.shape  # the old draws are dropped
        sd = whole.draws_["coef"].std((0, 1))
        shift = np.abs(model.coef_ - whole.coef_) / sd
        # 9 comparisons with 2 x 600 effective draws: 5 standard errors.
        assert shift.max() < 0.35
        np.testing.assert_allclose(model.draws_["coef"].std((0, 1)) / sd, 1, atol=0.25)
        assert np.abs(first.std((0, 1)) / sd - 1).max() > 0.25


def test_classes_may_be_absent_from_the_first_rows():
    model = BayesianLogisticRegression(**SHORT)
    ones = Y == 1
    model.partial_fit(X[ones], Y[ones], classes=[0, 1])
    assert model.predict(X[ones]).tolist() == [1] * ones.sum()
    model.partial_fit(sparse.csr_array(X[~ones]), Y[~ones])
    assert model.score(X, Y) > 0.7
    with pytest.raises(ValueError, match="not the same as on the last call"):
        model.partial_fit(X, Y, classes=[1, 2])
    with pytest.raises(ValueError, match=r"new labels: \[5\]"):
        model.partial_fit(X, Y + 4 * (Y == 1))


def test_works_inside_scikit_learn():
    pipeline = make_pipeline(StandardScaler(), BayesianLogisticRegression(**SHORT))
    assert cross_val_score(pipeline, X, Y, cv=2).mean() > 0.7


def test_progress_is_shown_if_verbose(capfd):
    model = BayesianLogisticRegression(**SHORT).fit(X, Y)
    assert not capfd.readouterr().err
    model.set_params(verbose=True).fit(X, Y)
    assert "msgnht" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        ({"num_draws": 0}, ValueError, "num_draws == 0, must be >= 1"),
        ({"num_draws": None}, TypeError, "num_draws must be an instance of"),
        ({"num_chains": 1.5}, TypeError, "num_chains must be an instance of"),
        ({"thin": 0}, ValueError, "thin == 0, must be >= 1"),
        ({"burn_in": -1}, ValueError, "burn_in == -1, must be >= 0"),
        ({"prior_variance": 0.0}, ValueError, r"prior_variance == 0.0, must be > 0"),
        ({"prior_variance": "wide"}, TypeError, "prior_variance must be an instance of"),
    ],
)
def test_settings_are_checked_in_fit(setting, error, message):
    for model, x, y in both(**setting):
        with pytest.raises(error, match=message):
            model.fit(x, y)
        with pytest.raises(NotFittedError):
            _ = model.diagnostics_


def test_invalid_data_and_settings_are_refused():
    with pytest.raises(ValueError, match="got one class: \\['a'\\]"):
        BayesianLogisticRegression(**SHORT).fit(X, ["a"] * len(X))
    with pytest.raises(ValueError, match="batch_size == 0"):
        BayesianLogisticRegression(batch_size=0, **SHORT).fit(X, Y)
    with pytest.raises(ValueError, match="noise_variance == -1"):
        BayesianLinearRegression(noise_variance=-1, **SHORT).fit(X, Y)
    for model, _, _ in both():
        with pytest.raises(ValueError, match="10001 coefficients are too many"):
            model.fit(sparse.csr_array((4, 10_000)), [0, 1, 0, 1])


@pytest.mark.parametrize("target", ["constant", "perfect", "one row"])
def test_a_target_without_noise_has_a_narrow_and_finite_posterior(target):
    x = X[:1] if target == "one row" else X
    y = np.full(len(x), 5.0) if target != "perfect" else x @ [1.0, 2.0, 3.0, 4.0]
    model = BayesianLinearRegression(**SHORT).fit(x, y)
    mean, sd = model.predict(x, return_std=True)
    assert np.isfinite(sd).all()
    if target != "one row":
        np.testing.assert_allclose(mean, y, rtol=1e-4)
        assert sd.max() < 1e-3 * max(1, y.std())


@pytest.mark.slow
def test_chains_that_disagree_cause_a_warning():
    """Separable classes with a very wide prior: the posterior fills a half-space."""
    x = np.random.default_rng(0).normal(size=(60, 3))
    model = BayesianLogisticRegression(prior_variance=1e8, num_draws=200, random_state=0)
    with (
        pytest.warns(ConvergenceWarning, match="R-hat of") as caught,
        pytest.warns(HealthWarning, match="too cold|too hot|stand still"),
    ):
        model.fit(x, x[:, 0] > 0)
    assert all(warning.filename == __file__ for warning in caught)
    assert not any("Chains do not agree" in str(each.message) for each in caught)  # said once

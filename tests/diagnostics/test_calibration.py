"""Scores of predictions agree with explicit formulas, SciPy and enumeration."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from isotherm.diagnostics import calibration as c

P = np.array([[0.9, 0.1, 0.0], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.05, 0.9, 0.05]])
Y = np.array([0, 1, 2, 0])
RNG = np.random.default_rng(3)


def test_scores_by_hand():
    assert c.accuracy(P, Y) == 0.5
    assert c.negative_log_likelihood(P, Y) == pytest.approx(
        -np.log([0.9, 0.3, 0.6, 0.05]).mean(), rel=1e-12
    )
    rows = [0.01 + 0.01, 0.25 + 0.49 + 0.04, 0.04 + 0.04 + 0.16, 0.95**2 + 0.81 + 0.05**2]
    assert c.brier_score(P, Y) == pytest.approx(np.mean(rows), rel=1e-12)
    # Confidences 0.9, 0.5, 0.6, 0.9; correct, wrong, correct, wrong; bins (0.4, 0.6] and (0.8, 1].
    curve = c.reliability(P, Y, num_bins=5)
    assert curve.count.tolist() == [0, 0, 2, 0, 2]
    np.testing.assert_allclose(curve.confidence[[2, 4]], [0.55, 0.9], rtol=1e-12)
    np.testing.assert_allclose(curve.accuracy[[2, 4]], [0.5, 0.5], rtol=1e-12)
    assert np.isnan(curve.confidence[[0, 1, 3]]).all() and np.isnan(curve.accuracy[3])
    ece = c.expected_calibration_error(P, Y, num_bins=5)
    assert ece == curve.error == pytest.approx(0.5 * 0.05 + 0.5 * 0.4, rel=1e-12)


def test_bins_are_closed_above():
    p = np.array([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]])
    assert c.reliability(p, [0, 0, 0], num_bins=4).count.tolist() == [0, 1, 1, 1]


def test_bins_of_equal_mass_have_equal_counts_and_do_not_split_ties():
    top = np.linspace(0.51, 0.99, 60)
    p = np.stack([top, 1 - top], axis=1)
    curve = c.reliability(p, np.zeros(60, int), num_bins=6, bins="equal-mass")
    assert curve.count.tolist() == [10] * 6
    # All predictions are correct, so the error is the mean of 1 - confidence for any bins.
    assert curve.error == pytest.approx(np.mean(1 - top), rel=1e-12)
    tied = np.array([0.6] * 10 + [0.8] * 2)
    p = np.stack([tied, 1 - tied], axis=1)
    labels = np.array([0] * 6 + [1] * 4 + [0, 0])
    curve = c.reliability(p, labels, num_bins=4, bins="equal-mass")
    assert curve.count.tolist() == [10, 2]
    assert curve.error == pytest.approx((0 * 10 + 0.2 * 2) / 12, abs=1e-12)
    same = c.reliability(p[:3], labels[:3], bins="equal-mass")
    assert same.count.tolist() == [3]


@pytest.mark.parametrize("bins", ["equal-width", "equal-mass"])
def test_calibration_error_of_calibrated_and_underconfident_classifiers(bins):
    """With labels drawn from the probabilities the error is of order n^-1/2."""
    p = RNG.dirichlet(np.ones(3), size=40_000)
    labels = (p.cumsum(1) > RNG.random((len(p), 1))).argmax(1)
    assert c.expected_calibration_error(p, labels, bins=bins) < 0.015
    always = p.argmax(1)  # always correct: the error of a bin is its mean of 1 - confidence
    gap = c.expected_calibration_error(p, always, bins=bins)
    assert gap == pytest.approx(np.mean(1 - p.max(1)), rel=1e-9)


def test_zero_probabilities_are_replaced_by_the_floor():
    p = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert c.negative_log_likelihood(p, [0, 1]) == pytest.approx(0.5 * 126 * np.log(2), rel=1e-12)
    np.testing.assert_array_equal(c.predictive_entropy(p), [0, 0])


def test_entropy_and_its_parts():
    p = RNG.dirichlet(np.ones(4), size=(7, 5))  # (draw, row, class)
    each = stats.entropy(p, axis=-1)
    mean = p.mean(0)
    np.testing.assert_allclose(c.predictive_entropy(mean), stats.entropy(mean, axis=-1), rtol=1e-12)
    divergence = stats.entropy(p, mean[None], axis=-1).mean(
        0
    )  # another formula for the mutual information
    np.testing.assert_allclose(c.mutual_information(mean, each.mean(0)), divergence, rtol=1e-10)
    # Zero if all draws agree; log 2 if they contradict each other.
    np.testing.assert_array_equal(
        c.mutual_information(mean, stats.entropy(mean, axis=-1)), 0 * each[0]
    )
    np.testing.assert_allclose(c.mutual_information([[0.5, 0.5]], [0.0]), [np.log(2)])


@pytest.mark.parametrize("digits", [1, 12], ids=["ties", "none"])
def test_auroc_is_the_share_of_pairs(digits):
    inside, outside = RNG.normal(size=80).round(digits), RNG.normal(0.7, size=50).round(digits)
    higher = outside[:, None] - inside[None, :]
    pairs = np.mean(higher > 0) + 0.5 * np.mean(higher == 0)
    assert c.auroc(inside, outside) == pytest.approx(pairs, abs=1e-12)
    u = stats.mannwhitneyu(outside, inside).statistic
    assert c.auroc(inside, outside) == pytest.approx(u / (80 * 50), abs=1e-12)
    assert c.auroc(outside, inside) == pytest.approx(1 - pairs, abs=1e-12)
    assert c.auroc([0, 1], [2, 3]) == 1 and c.auroc([1], [1]) == 0.5


def test_classifier_scores_contain_all_scores():
    scores = c.classifier_scores(P, Y, 0.5 * c.predictive_entropy(P))
    assert list(scores) == [
        "accuracy",
        "nll",
        "brier",
        "ece",
        "ece_equal_mass",
        "entropy",
        "epistemic",
    ]
    assert scores["epistemic"] == pytest.approx(0.5 * scores["entropy"])
    assert scores["nll"] == c.negative_log_likelihood(P, Y)
    assert scores["ece_equal_mass"] == c.expected_calibration_error(P, Y, bins="equal-mass")
    assert "epistemic" not in c.classifier_scores(jnp.asarray(P), jnp.asarray(Y))
    assert all(type(value) is float for value in scores.values())


def test_regression_against_scipy():
    mean, sd, y = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.5, 2.0]), np.array([0.5, 2.0, -2.0])
    scores = c.regressor_scores(mean, sd, y)
    assert scores["nll"] == pytest.approx(-stats.norm.logpdf(y, mean, sd).mean(), rel=1e-12)
    assert scores["rmse"] == pytest.approx(np.sqrt(1.25 / 3), rel=1e-12)

    def squared(t, m, s, target):
        return (stats.norm.cdf(t, m, s) - (t >= target)) ** 2

    crps = [
        quad(squared, m - 12 * s, m + 12 * s, args=(m, s, t), points=[t])[0]
        for m, s, t in zip(mean, sd, y, strict=True)
    ]
    assert scores["crps"] == pytest.approx(np.mean(crps), rel=1e-6)
    # |z| is 0.5, 2 and 0: 0.674 bounds the central half and 1.645 nine tenths.
    assert scores["coverage_50"] == scores["coverage_90"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: c.accuracy([0.1, 0.9], [0]), r"`probabilities` must have shape \(rows, classes\)"),
        (lambda: c.accuracy(np.zeros((0, 2)), []), r"got \(0, 2\)"),
        (lambda: c.accuracy([[0.4, 0.4]], [0]), "every row must sum to 1"),
        (lambda: c.accuracy([[-0.5, 1.5]], [0]), "`probabilities` must not be negative"),
        (lambda: c.brier_score([[np.nan, 1.0]], [0]), "`probabilities` must not be negative"),
        (lambda: c.accuracy(P, Y[:2]), r"one class number per row, shape \(4,\), got shape \(2,\)"),
        (lambda: c.accuracy(P, Y.astype(float)), "`labels` must be integers, got dtype float64"),
        (lambda: c.accuracy(P, Y + 1), "`labels` must be from 0 to 2, got 1 to 3"),
        (lambda: c.accuracy(P, Y - 1), "got -1 to 1"),
        (lambda: c.reliability(P, Y, num_bins=0), "`num_bins` must be at least 1, got 0"),
        (lambda: c.reliability(P, Y, bins="quantile"), "`bins` must be 'equal-width' or"),
        (lambda: c.mutual_information(P, [0.1]), r"`mean_entropy` must have one value per row"),
        (lambda: c.mutual_information(P, [9.0] * 4), "must not exceed the entropy of the mean"),
        (lambda: c.mutual_information(P, [np.nan] * 4), "must not exceed the entropy of the mean"),
        (lambda: c.auroc([], [1.0]), r"`inside` must have shape \(rows,\)"),
        (lambda: c.auroc([1.0], [np.nan]), "`outside` must have shape"),
        (lambda: c.regressor_scores([0.0], [0.0], [1.0]), "`sd` must be positive and finite"),
        (lambda: c.regressor_scores([0.0], [1.0], [np.nan]), "`targets` must be finite"),
        (lambda: c.regressor_scores([0.0], [1.0, 1.0], [1.0]), "must have one shape"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

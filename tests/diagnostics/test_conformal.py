"""Conformal intervals and sets have exactly the coverage k / (n + 1).

Each replicate has its own calibration rows and one new row, so hits are independent Bernoulli
numbers with a known probability: an exact binomial test with the false-alarm rate of `laws`. The
models are wrong on purpose (biased and too narrow); the guarantee does not need a right one. In
every test a mutant, the quantile without the correction for a finite sample, must be detected.
"""

import jax
import numpy as np
import pytest
from scipy import stats

import laws
from isotherm.diagnostics import conformal as c
from isotherm.diagnostics import conformal_intervals, conformal_sets, gaussian_mixture
from marks import slow

ROWS, REPLICATES, LEVEL = 9, 500, 0.85
EXACT = 9 / 10
"""k of n + 1, rounded up from 8.5; the mutant has k = 8, rounded up from 0.85 times 9."""


def p_value(hits):
    return stats.binomtest(int(np.sum(hits)), len(hits), EXACT).pvalue


def uncorrected(scores, level):
    """The mutant: the empirical quantile."""
    return float(np.quantile(scores, level, method="inverted_cdf"))


@pytest.mark.parametrize("method", ["quantile", "normalized"])
@pytest.mark.parametrize("kind", [slow("mixture"), "moments"])
def test_intervals_have_the_stated_coverage(monkeypatch, method, kind):
    def predictions(x):
        if kind == "moments":
            return 0.3 * x, 0.2 + 0.1 * x**2
        return gaussian_mixture(np.stack([0.3 * x, 0.3 * x - 0.4]), 0.3)

    def hits(seed):
        rng = np.random.default_rng(seed)
        result = []
        for _ in range(REPLICATES):
            x = rng.normal(size=ROWS + 1)
            y = x + rng.standard_t(3, ROWS + 1)
            fitted = conformal_intervals(predictions(x[:-1]), y[:-1], level=LEVEL, method=method)
            low, high = fitted.interval(predictions(x[-1:]))
            result.append(low[0] <= y[-1] <= high[0])
        return result

    assert p_value(hits(1)) > laws.FALSE_ALARM
    monkeypatch.setattr(c, "_threshold", uncorrected)
    assert p_value(hits(2)) < laws.FALSE_ALARM


@pytest.mark.parametrize("method", ["lac", "aps", "aps without a key"])
def test_sets_have_the_stated_coverage(monkeypatch, method):
    def hits(seed):
        rng = np.random.default_rng(seed)
        keys = iter(jax.random.split(jax.random.key(seed), 2 * REPLICATES))
        result = []
        for _ in range(REPLICATES):
            p = rng.dirichlet(np.ones(4), size=ROWS + 1)
            sharp = p**3 / np.sum(p**3, axis=1, keepdims=True)  # the model is too sure
            y = (p.cumsum(1) > rng.random((ROWS + 1, 1))).argmax(1)
            one, two = (next(keys), next(keys)) if method == "aps" else (None, None)
            fitted = conformal_sets(sharp[:-1], y[:-1], level=LEVEL, method=method[:3], key=one)
            result.append(fitted.sets(sharp[-1:], two)[0, y[-1]])
        return result

    if method == "aps without a key":  # scores of the last class are 1: ties, so more coverage
        assert np.mean(hits(1)) > EXACT - 4 * np.sqrt(EXACT * (1 - EXACT) / REPLICATES)
        return
    assert p_value(hits(1)) > laws.FALSE_ALARM
    monkeypatch.setattr(c, "_threshold", uncorrected)
    assert p_value(hits(2)) < laws.FALSE_ALARM


def test_scores_and_thresholds_by_hand():
    y = np.arange(1.0, 10.0)  # residuals 1 … 9 in units of the sd
    fitted = conformal_intervals((np.zeros(9), np.ones(9)), y, level=0.7, method="normalized")
    assert fitted.threshold == 7 and fitted.num_rows == 9
    low, high = fitted.interval((np.array([1.0]), np.array([2.0])))
    assert (low[0], high[0]) == (-13, 15)
    half = stats.norm.ppf(0.85)
    fitted = conformal_intervals((np.zeros(9), np.ones(9)), y, level=0.7)
    assert fitted.threshold == pytest.approx(7 - half)
    low, high = fitted.interval((np.array([0.0]), np.array([1.0])))
    assert high[0] == pytest.approx(7)
    p = np.array([[0.5, 0.2, 0.3]])
    np.testing.assert_allclose(c._class_scores(p, "aps", None), [[0.5, 1.0, 0.8]])
    np.testing.assert_allclose(c._class_scores(p, "lac", None), [[0.5, 0.8, 0.7]])
    random = c._class_scores(p, "aps", jax.random.key(0))[0]
    u = random[0] / 0.5
    assert 0 < u < 1
    np.testing.assert_allclose(random, [0.5 * u, 0.8 + 0.2 * u, 0.5 + 0.3 * u])


def test_a_mixture_is_used_with_its_own_quantiles_and_moments():
    rng = np.random.default_rng(0)
    mixture = gaussian_mixture(rng.normal(size=(5, 40)), 0.5)
    y = rng.normal(size=40)
    low, high = mixture.interval(0.9)
    fitted = conformal_intervals(mixture, y)
    scores = np.sort(np.maximum(low - y, y - high))
    assert fitted.threshold == scores[36]  # k = 37 of 40
    normalized = conformal_intervals(mixture, y, method="normalized")
    scores = np.sort(np.abs(y - mixture.mean) / np.sqrt(mixture.variance))
    assert normalized.threshold == scores[36]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: conformal_intervals((np.zeros(8), np.ones(8)), np.zeros(8)),
            "must have at least 9 rows for `level` 0.9, got 8",
        ),
        (
            lambda: conformal_intervals((np.zeros(9), np.ones(9)), np.zeros(9), method="cqr"),
            "`method` must be 'quantile' or 'normalized'",
        ),
        (
            lambda: conformal_intervals((np.zeros(9), np.zeros(9)), np.zeros(9)),
            "pair .mean, sd. of one shape, with positive sd",
        ),
        (
            lambda: conformal_intervals((np.zeros(9), np.ones(9)), np.zeros(8)),
            "must have one shape",
        ),
        (
            lambda: conformal_sets([[0.5, 0.5]] * 9, [0] * 9, method="raps"),
            "`method` must be 'lac' or 'aps'",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

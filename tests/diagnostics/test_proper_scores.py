"""CRPS, interval score and lppd agree with their definitions; mutants do not."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from isotherm.diagnostics import crps, gaussian_mixture, interval_score, lppd

RNG = np.random.default_rng(11)


def test_crps_of_draws_is_the_mean_over_pairs():
    x, y = RNG.normal(size=(9, 2, 3)).round(1), RNG.normal(size=(2, 3))
    pairs = np.abs(x[:, None] - x[None])
    np.testing.assert_allclose(
        crps(x, y), np.abs(x - y).mean(0) - 0.5 * pairs.mean((0, 1)), rtol=1e-12
    )
    fair = np.abs(x - y).mean(0) - 0.5 * pairs.sum((0, 1)) / (9 * 8)
    np.testing.assert_allclose(crps(x, y, fair=True), fair, rtol=1e-12)
    assert np.abs(crps(x, y) - fair).min() > 1e-3  # the mutant


def test_crps_of_draws_is_the_integral_over_the_empirical_distribution():
    x, y = np.sort(RNG.normal(size=7)), 0.4

    def squared(t):
        return (np.mean(x <= t) - (t >= y)) ** 2

    exact = quad(squared, x.min() - 0.1, x.max() + 0.1, points=[*x, y], limit=200)[0]
    assert float(crps(x, y)) == pytest.approx(exact, rel=1e-9)


def test_the_fair_crps_of_draws_is_unbiased_for_that_of_their_distribution():
    """Mean over 4000 samples of five draws, within 4 standard errors; the other is 0.11 too big."""
    draws = RNG.normal(0.5, 2.0, size=(5, 4000))
    exact = float(gaussian_mixture(np.array([[0.5]]), 2.0).crps([1.0])[0])
    for fair, agrees in ((True, True), (False, False)):
        scores = crps(draws, np.ones(4000), fair=fair)
        z = (scores.mean() - exact) / (scores.std() / 4000**0.5)
        assert (abs(z) < 4) == agrees


def test_interval_score_by_hand_and_as_pinball_loss():
    low, high, y = np.array([0.0, 0, 0]), np.array([2.0, 2, 2]), np.array([1.0, -0.5, 3])
    np.testing.assert_allclose(interval_score(low, high, y, level=0.9), [2, 12, 22], rtol=1e-12)
    y = RNG.normal(size=50)
    low, high = np.full(50, -0.7), np.full(50, 1.1)

    def pinball(q, p):
        return np.maximum(p * (y - q), (p - 1) * (y - q))

    for level, right in ((0.8, True), (0.7, False)):  # the second is the mutant
        known = 2 / 0.2 * (pinball(low, 0.1) + pinball(high, 0.9))
        assert np.allclose(interval_score(low, high, y, level=level), known, rtol=1e-12) == right


def test_interval_score_is_proper():
    """The true quantiles have the smallest expected score."""
    y = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    half = stats.norm.ppf(0.95)

    def score(width):
        return interval_score(np.full(len(y), -width), np.full(len(y), width), y).mean()

    assert score(half) < min(score(0.9 * half), score(1.1 * half))


def test_lppd_and_its_standard_error():
    values = RNG.normal(-2, 3, size=(2, 5, 40))
    score = lppd(jnp.asarray(values))
    rows = np.log(np.exp(np.asarray(jnp.asarray(values), np.float64)).mean((0, 1)))
    np.testing.assert_allclose(score.rows, rows, rtol=1e-12)
    assert score.total == pytest.approx(rows.sum()) and score.mean == pytest.approx(rows.mean())
    assert score.total_standard_error == pytest.approx(np.sqrt(40 * rows.var(ddof=1)))
    assert score.standard_error == pytest.approx(stats.sem(rows))
    assert abs(score.total - values.mean((0, 1)).sum()) > 1  # the mutant: the mean of logarithms
    assert lppd(values - 2000).total == pytest.approx(lppd(values).total - 80_000, rel=1e-12)
    assert np.isnan(lppd(values[..., :1]).standard_error)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: crps(np.zeros((3, 2)), np.zeros(3)), "`draws` must have shape"),
        (lambda: crps(np.zeros((1, 2)), np.zeros(2), fair=True), "at least 2 draws"),
        (lambda: interval_score([1.0], [0.0], [0.0]), "`lower` must not exceed `upper`"),
        (lambda: interval_score([0.0], [1.0], [np.nan]), "`targets` must not be NaN"),
        (lambda: interval_score([0.0], [1.0], [0.0, 1.0]), "must have one shape"),
        (lambda: interval_score([0.0], [1.0], [0.0], level=0.0), "`level` must be between"),
        (lambda: lppd([0.0, 1.0]), "at least one axis of draws"),
        (lambda: lppd([[np.nan]]), "must not be NaN or infinite"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""PIT values are uniform for right predictions and only for those."""

import jax
import numpy as np
import pytest
from scipy import stats

import laws
from isotherm.diagnostics import gaussian_mixture, pit_histogram, pit_values, randomized_pit

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("digits", [0, 12], ids=["ties", "none"])
def test_pit_values_of_exchangeable_draws_are_uniform(key, digits):
    """Kolmogorov-Smirnov; a prediction 15 % too wide is detected."""
    draws, y = RNG.normal(size=(9, 30_000)), RNG.normal(size=30_000)
    for width, uniform in ((1.0, True), (1.15, False)):
        u = pit_values((width * draws).round(digits), y.round(digits), key)
        p_value = stats.kstest(u, "uniform").pvalue
        assert (p_value > laws.FALSE_ALARM) == uniform


def test_pit_values_of_counts_are_uniform(key):
    """Draws from a mixture of two Poisson distributions; one of them alone is detected."""
    rates = np.array([2.0, 7.0])
    y = RNG.poisson(rates[RNG.integers(0, 2, 20_000)])

    def cdf(values, rates):
        return stats.poisson.cdf(np.asarray(values)[:, None], rates).mean(1)

    for parts, uniform in ((rates, True), (rates[1:], False)):
        u = randomized_pit(cdf(y - 1, parts), cdf(y, parts), key)
        assert (stats.kstest(u, "uniform").pvalue > laws.FALSE_ALARM) == uniform


def test_histogram_of_right_and_of_too_narrow_predictions():
    y = RNG.normal(size=4000)
    right = gaussian_mixture(np.zeros((1, 4000)), 1.0).cdf(y)
    narrow = gaussian_mixture(np.zeros((1, 4000)), 0.8).cdf(y)
    good, bad = pit_histogram(right), pit_histogram(narrow)
    assert good.p_value > laws.FALSE_ALARM and bad.p_value < laws.FALSE_ALARM
    assert bad.count[0] > bad.band[1] and bad.count[5] < bad.band[0]
    np.testing.assert_allclose(good.density.mean(), 1)
    np.testing.assert_array_equal(good.count, np.histogram(right, np.linspace(0, 1, 11))[0])


@pytest.mark.parametrize(
    ("rows", "num_bins", "level"), [(1000, 10, 0.95), (37, 4, 0.5), (9, 3, 0.9)]
)
def test_band_and_p_value_against_scipy(rows, num_bins, level):
    histogram = pit_histogram(RNG.random(rows) ** 1.2, num_bins=num_bins, level=level)
    tail = 0.5 * (1 - level) / num_bins
    assert histogram.band == tuple(stats.binom.ppf([tail, 1 - tail], rows, 1 / num_bins))
    assert histogram.p_value == pytest.approx(stats.chisquare(histogram.count).pvalue, rel=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pit_values(np.zeros((2, 3)), np.zeros(2), jax.random.key(0)), "`draws` must have"),
        (lambda: randomized_pit([0.5], [0.4], jax.random.key(0)), "0 <= cdf_before <= cdf <= 1"),
        (lambda: pit_histogram([]), "`values` must be from 0 to 1"),
        (lambda: pit_histogram([1.1]), "`values` must be from 0 to 1"),
        (lambda: pit_histogram([0.5], num_bins=1), "`num_bins` must be a whole number"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

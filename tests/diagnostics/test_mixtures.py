"""Mixtures over draws agree with SciPy's components, quadrature and the law of their samples.

In each test a mutant, a mixture that is slightly wrong, must be detected.
"""

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

import laws
from isotherm.diagnostics import gaussian_mixture, student_t_mixture
from isotherm.diagnostics import mixtures as m

RNG = np.random.default_rng(7)
MEAN, SD, DF = RNG.normal(0, 2, (6, 3)), RNG.uniform(0.2, 2, (6, 3)), RNG.uniform(0.8, 9, (6, 3))
WEIGHTS = RNG.uniform(0.5, 2, 6)
Y = np.array([-1.0, 0.3, 6.0])


def components(kind):
    """Return our mixture, and SciPy's components."""
    if kind == "gaussian":
        return gaussian_mixture(MEAN, SD, weights=WEIGHTS), stats.norm(MEAN, SD)
    return student_t_mixture(MEAN, SD, DF, weights=WEIGHTS), stats.t(DF, MEAN, SD)


@pytest.mark.parametrize("kind", ["gaussian", "student-t"])
def test_density_and_distribution_function_are_the_weighted_means(kind):
    mixture, parts = components(kind)
    weights = WEIGHTS / WEIGHTS.sum()
    np.testing.assert_allclose(mixture.log_density(Y), np.log(weights @ parts.pdf(Y)), rtol=1e-12)
    np.testing.assert_allclose(mixture.cdf(Y), weights @ parts.cdf(Y), rtol=1e-12)
    # The mutant: equal weights.
    equal = np.full(6, 1 / 6)
    assert np.abs(mixture.cdf(Y) - equal @ parts.cdf(Y)).max() > 1e-3


def test_log_density_far_in_the_tail_is_finite():
    value = gaussian_mixture([[0.0], [1.0]], 0.5).log_density([100.0])
    exact = stats.norm.logpdf(100, 1, 0.5) - np.log(2)  # the other component is e^-398 of it
    np.testing.assert_allclose(value, [exact], rtol=1e-12)


@pytest.mark.parametrize("kind", ["gaussian", "student-t"])
def test_quantiles_invert_the_distribution_function(kind):
    mixture, _ = components(kind)
    q = np.array([1e-12, 1e-4, 0.05, 0.5, 0.9, 1 - 1e-6])
    y = mixture.quantile(q)
    assert y.shape == (6, 3)
    for value, row in zip(q, y, strict=True):
        # Half a unit in the last place of y changes F by p(y) y eps.
        slack = 8 * np.finfo(float).eps * (1 + np.exp(mixture.log_density(row)) * np.abs(row))
        np.testing.assert_allclose(mixture.cdf(row), value, rtol=1e-12, atol=slack.max())
    assert np.all(np.diff(y, axis=0) > 0)
    lower, upper = mixture.interval(0.8)
    np.testing.assert_allclose(mixture.cdf(upper) - mixture.cdf(lower), 0.8, rtol=1e-12)
    # The mutant: quantiles of the Gaussian with the moments of the mixture.
    gaussian = gaussian_mixture(MEAN, SD, weights=WEIGHTS)
    moments = stats.norm.ppf(0.05, gaussian.mean, np.sqrt(gaussian.variance))
    assert np.abs(gaussian.cdf(moments) - 0.05).max() > 1e-3


def test_quantiles_between_modes_where_the_density_is_zero():
    """Newton's method alone divides by zero there."""
    mixture = gaussian_mixture([[-1e6], [1e6], [1e6]], [1e-3, 1e-3, 1e3])
    third, low, high = mixture.quantile([1 / 3, 0.2, 0.9])
    assert -1e6 < third[0] < 1e6 and mixture.cdf(third)[0] == pytest.approx(1 / 3, abs=1e-12)
    assert low[0] == pytest.approx(-1e6 + 1e-3 * stats.norm.ppf(0.6), abs=1e-9)
    assert mixture.cdf(high)[0] == pytest.approx(0.9, abs=1e-9)


def test_one_component_has_its_own_quantiles():
    y = gaussian_mixture(MEAN[:1], SD[:1]).quantile(0.3)
    np.testing.assert_allclose(y, stats.norm.ppf(0.3, MEAN[0], SD[0]), rtol=1e-14)
    y = student_t_mixture(MEAN[:1], SD[:1], 3.0).quantile(0.3)
    np.testing.assert_allclose(y, stats.t.ppf(0.3, 3, MEAN[0], SD[0]), rtol=1e-12)


def test_mean_and_variance():
    mixture = student_t_mixture(MEAN, SD, 5.0, weights=WEIGHTS)
    w = WEIGHTS / WEIGHTS.sum()
    np.testing.assert_allclose(mixture.mean, w @ MEAN, rtol=1e-12)
    second = w @ (stats.t.var(5, MEAN, SD) + MEAN**2)
    np.testing.assert_allclose(mixture.variance, second - (w @ MEAN) ** 2, rtol=1e-12)
    heavy = student_t_mixture(MEAN, SD, [5.0, 5.0, 5.0, 5.0, 5.0, 2.0])
    assert np.isnan(heavy.variance).all() and np.isfinite(heavy.mean).all()
    assert np.isnan(student_t_mixture(MEAN, SD, 1.0).mean).all()


def test_crps_equals_its_integral():
    mixture = gaussian_mixture(MEAN, SD, weights=WEIGHTS)
    w = WEIGHTS / WEIGHTS.sum()
    for size in (6, 5):  # an even and an odd number of components
        mixture = gaussian_mixture(MEAN[:size], SD[:size], weights=w[:size])
        weights = w[:size] / w[:size].sum()
        exact = []
        for i, y in enumerate(Y):

            def squared(t, i=i, y=y, size=size, weights=weights):
                return (weights @ stats.norm.cdf(t, MEAN[:size, i], SD[:size, i]) - (t >= y)) ** 2

            exact.append(quad(squared, -25, y, limit=200)[0] + quad(squared, y, 25, limit=200)[0])
        np.testing.assert_allclose(mixture.crps(Y), exact, rtol=1e-7)
        # The mutant: noise left out of the second term.
        assert np.abs(gaussian_mixture(MEAN, SD * 0.98).crps(Y) - exact).min() > 1e-4
    single = gaussian_mixture(MEAN[:1], SD[:1]).crps(Y)
    z = (Y - MEAN[0]) / SD[0]
    known = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
    np.testing.assert_allclose(single, SD[0] * known, rtol=1e-12)


def test_results_do_not_depend_on_blocks(monkeypatch):
    mixture = gaussian_mixture(MEAN, SD)
    whole = mixture.log_density(Y), mixture.quantile(0.3), mixture.crps(Y)
    monkeypatch.setattr(m, "MOST_ENTRIES", 7)
    blocks = mixture.log_density(Y), mixture.quantile(0.3), mixture.crps(Y)
    for one, other in zip(whole, blocks, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


@pytest.mark.parametrize("kind", ["gaussian", "student-t"])
def test_samples_have_the_law_of_the_mixture(key, kind):
    """Kolmogorov-Smirnov per target, Bonferroni over three; mutants are detected."""
    mixture, _ = components(kind)
    samples = mixture.sample(key, 20_000)
    wide = m.Mixture(mixture.location, 1.2 * mixture.scale, mixture.df, mixture.weights)

    def p_value(reference):
        each = [
            stats.kstest(samples[:, i], lambda t, i=i: column_cdf(reference, i, t)).pvalue
            for i in range(3)
        ]
        return 3 * min(each)

    def column_cdf(reference, i, t):
        df = None if reference.df is None else np.repeat(reference.df[:, i : i + 1], len(t), 1)
        parts = (
            np.repeat(a[:, i : i + 1], len(t), 1) for a in (reference.location, reference.scale)
        )
        return m.Mixture(*parts, df, reference.weights).cdf(t)

    assert p_value(mixture) > laws.FALSE_ALARM
    assert p_value(wide) < laws.FALSE_ALARM


def test_targets_of_one_sample_share_their_component(key):
    mixture = gaussian_mixture([[-5.0, -5.0], [5.0, 5.0]], 0.1)
    samples = mixture.sample(key, 200)
    assert np.all(np.sign(samples[:, 0]) == np.sign(samples[:, 1]))
    assert 0.2 < np.mean(samples[:, 0] > 0) < 0.8


def test_shapes_of_scales_and_targets():
    full = gaussian_mixture(MEAN, np.repeat(SD[:, :1], 3, 1))
    per_draw = gaussian_mixture(MEAN, SD[:, 0])
    np.testing.assert_array_equal(full.log_density(Y), per_draw.log_density(Y))
    scalar = gaussian_mixture(MEAN[:, 0], SD[:, 0])
    assert scalar.shape == () and scalar.quantile([0.1, 0.2]).shape == (2,)
    assert scalar.log_density(0.0).shape == () and scalar.sample(jax.random.key(0), 4).shape == (4,)
    np.testing.assert_allclose(scalar.quantile(0.1), per_draw.quantile(0.1)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_mixture(MEAN, 0.0), "`sd` must be positive"),
        (lambda: gaussian_mixture(MEAN, SD[:2]), r"`sd` must be a number, one per draw \(6,\)"),
        (lambda: gaussian_mixture(np.zeros((0, 2)), 1.0), "`mean` must be finite"),
        (lambda: student_t_mixture(MEAN, 1.0, -1.0), "`df` must be positive"),
        (lambda: student_t_mixture(MEAN, np.inf, 1.0), "`scale` must be positive"),
        (lambda: gaussian_mixture(MEAN, SD, weights=[1.0]), "`weights` must be positive, one per"),
        (lambda: gaussian_mixture(MEAN, SD).log_density(0.0), r"`y` must have shape \(3,\)"),
        (lambda: gaussian_mixture(MEAN, SD).quantile(1.0), "`q` must be a number or a vector in"),
        (lambda: gaussian_mixture(MEAN, SD).interval(1.5), "`level` must be between 0 and 1"),
        (lambda: student_t_mixture(MEAN, SD, 3.0).crps(Y), "exact for Gaussian components only"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

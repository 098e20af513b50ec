"""Principal axes: one pass, any units, and the prior that is documented."""

import numpy as np
import pytest
from scipy import sparse
from troubled_tables import standardised, with_trouble

from isotherm.estimators import design_svd as module
from isotherm.estimators.design_svd import gather, moments, principal_axes, times, units

RNG = np.random.default_rng(0)
X = with_trouble(RNG.normal(size=(40, 5)) * [1.0, 1e3, 1e-3, 5.0, 1.0] + 7)
X = np.column_stack([X, RNG.integers(0, 2, size=40), 5 - 3 * (RNG.random(40) < 0.1)])
X = np.column_stack([X, RNG.poisson(0.3, size=40), RNG.poisson(2.0, size=40)])


def axes_of(x, standardize=True, fit_intercept=True):
    settings = {"standardize": standardize, "fit_intercept": fit_intercept}
    return principal_axes(gather(x), prior_variance=6.25, **settings)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_what_is_gathered_does_not_depend_on_how_rows_come(kind, monkeypatch):
    whole = gather(X)
    monkeypatch.setattr(module, "BLOCK", 50)
    pieces = gather(kind(X[25:]), gather(kind(X[:25])))
    gram = whole.factor.T @ whole.factor
    np.testing.assert_allclose(pieces.factor.T @ pieces.factor, gram, rtol=1e-12, atol=1e-9)
    for found, expected in zip(pieces[1:], whole[1:], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_third_value_in_other_rows_is_seen():
    x = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    later = np.array([[0.0, 2.0, 0.5], [1.0, 1.0, 1.0]])
    assert gather(later, gather(x)).two_valued.tolist() == [True, True, False, False]


def test_units_are_those_documented():
    _, mean, expected = standardised(X)
    columns = gather(X)
    np.testing.assert_allclose(moments(columns, centred=True)[0], mean, rtol=1e-12)
    np.testing.assert_allclose(moments(columns, centred=True)[1][:5], X.std(0)[:5], rtol=1e-9)
    found = units(columns, centred=True)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[-4:-2].tolist() == [1.0, 3.0]  # two switches
    assert found[-2] >= 1 > X[:, -2].std()  # mostly 0
    found = units(columns, centred=False)
    square = np.sqrt((X**2).mean(0))
    np.testing.assert_allclose(found[:7], np.where(square == 0, 1, square)[:7], rtol=1e-9)
    assert found[-4] == 1.0 and found[-3] > 4  # one that is 0 when off, one that is not


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
def test_the_prior_is_the_documented_one(standardize, fit_intercept):
    """Axes are N(0, I), so coefficients have the covariance loadings · loadingsᵀ."""
    axes = axes_of(X, standardize, fit_intercept)
    covariance = axes.loadings @ axes.loadings.T
    unit = axes.unit if standardize else np.ones(X.shape[1])
    np.testing.assert_allclose(
        covariance[1:, 1:] * np.outer(unit, unit), 6.25 * np.eye(X.shape[1]), atol=1e-9
    )
    at_mean = np.append(1.0, axes.mean)
    expected = 6.25 if fit_intercept else 0.0
    assert at_mean @ covariance @ at_mean == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
def test_axes_are_orthogonal_and_as_strong_as_they_say(standardize):
    axes = axes_of(X, standardize)
    design = times(X, axes.loadings)
    np.testing.assert_allclose(
        np.linalg.norm(design, axis=0), axes.strengths, atol=1e-9 * axes.strengths[0]
    )
    strong = axes.strengths > 1e-6 * axes.strengths[0]
    scaled = design[:, strong] / axes.strengths[strong]
    np.testing.assert_allclose(scaled.T @ scaled, np.eye(strong.sum()), atol=1e-6)
    np.testing.assert_allclose(times(sparse.csr_array(X), axes.loadings), design, atol=1e-9)


def test_coefficients_find_back_to_their_axes():
    for axes in (axes_of(X), axes_of(X, fit_intercept=False)):
        place = np.random.default_rng(1).normal(size=(3, len(axes.strengths)))
        np.testing.assert_allclose(axes.locate(place @ axes.loadings.T), place, atol=1e-7)

"""SVD of the design: statistics in one pass, scales of columns, and the documented prior."""

import numpy as np
import pytest
from scipy import sparse
from troubled_tables import standardised, with_trouble

from isotherm.estimators import design_svd as module
from isotherm.estimators.design_svd import (
    column_scales,
    column_statistics,
    design_matrix,
    design_svd,
    means_and_sds,
)

RNG = np.random.default_rng(0)
X = with_trouble(RNG.normal(size=(40, 5)) * [1.0, 1e3, 1e-3, 5.0, 1.0] + 7)
X = np.column_stack([X, RNG.integers(0, 2, size=40), 5 - 3 * (RNG.random(40) < 0.1)])
X = np.column_stack([X, RNG.poisson(0.3, size=40), RNG.poisson(2.0, size=40)])


def svd_of(x, standardize=True, fit_intercept=True):
    settings = {"standardize": standardize, "fit_intercept": fit_intercept}
    return design_svd(column_statistics(x), prior_variance=6.25, **settings)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_statistics_do_not_depend_on_how_rows_are_split(kind, monkeypatch):
    at_once = column_statistics(X)
    monkeypatch.setattr(module, "BLOCK_SIZE", 50)
    in_parts = column_statistics(kind(X[25:]), column_statistics(kind(X[:25])))
    gram = at_once.factor.T @ at_once.factor
    np.testing.assert_allclose(in_parts.factor.T @ in_parts.factor, gram, rtol=1e-12, atol=1e-9)
    for result, expected in zip(in_parts[1:], at_once[1:], strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_third_value_in_later_rows_is_noticed():
    x = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    later = np.array([[0.0, 2.0, 0.5], [1.0, 1.0, 1.0]])
    statistics = column_statistics(later, column_statistics(x))
    assert statistics.two_valued.tolist() == [True, True, False, False]


def test_scales_are_those_documented():
    _, mean, expected = standardised(X)
    columns = column_statistics(X)
    means, sds = means_and_sds(columns, centered=True)
    np.testing.assert_allclose(means, mean, rtol=1e-12)
    np.testing.assert_allclose(sds[:5], X.std(0)[:5], rtol=1e-9)
    scales = column_scales(columns, centered=True)
    np.testing.assert_allclose(scales, expected, rtol=1e-9)
    assert scales[-4:-2].tolist() == [1.0, 3.0]  # two binary features
    assert scales[-2] >= 1 > X[:, -2].std()  # mostly 0
    scales = column_scales(columns, centered=False)
    rms = np.sqrt((X**2).mean(0))
    np.testing.assert_allclose(scales[:7], np.where(rms == 0, 1, rms)[:7], rtol=1e-9)
    assert scales[-4] == 1.0 and scales[-3] > 4  # binary features with and without a value of 0


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
def test_the_prior_is_the_documented_one(standardize, fit_intercept):
    """SVD coordinates are N(0, I), so coefficients have the covariance loadings · loadingsᵀ."""
    svd = svd_of(X, standardize, fit_intercept)
    covariance = svd.loadings @ svd.loadings.T
    scale = svd.scale if standardize else np.ones(X.shape[1])
    np.testing.assert_allclose(
        covariance[1:, 1:] * np.outer(scale, scale), 6.25 * np.eye(X.shape[1]), atol=1e-9
    )
    at_mean = np.append(1.0, svd.mean)
    expected = 6.25 if fit_intercept else 0.0
    assert at_mean @ covariance @ at_mean == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
def test_columns_of_the_design_are_orthogonal_with_norms_equal_to_singular_values(standardize):
    svd = svd_of(X, standardize)
    design, values = design_matrix(X, svd.loadings), svd.singular_values
    np.testing.assert_allclose(np.linalg.norm(design, axis=0), values, atol=1e-9 * values[0])
    nonzero = values > 1e-6 * values[0]
    scaled = design[:, nonzero] / values[nonzero]
    np.testing.assert_allclose(scaled.T @ scaled, np.eye(nonzero.sum()), atol=1e-6)
    by_sparse = design_matrix(sparse.csr_array(X), svd.loadings)
    np.testing.assert_allclose(by_sparse, design, atol=1e-9)


def test_from_coefficients_inverts_the_loadings():
    for svd in (svd_of(X), svd_of(X, fit_intercept=False)):
        zeta = np.random.default_rng(1).normal(size=(3, len(svd.singular_values)))
        np.testing.assert_allclose(svd.from_coefficients(zeta @ svd.loadings.T), zeta, atol=1e-7)

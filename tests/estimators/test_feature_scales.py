"""Scales of features: one per column, or one for all columns in the same units."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from isotherm.data.uci import load_uci, uci_names
from isotherm.estimators.feature_scales import feature_scales, have_same_units

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_pixels_share_the_root_mean_square_of_their_standard_deviations():
    x = load_digits().data
    scales = feature_scales(x, np.ones(len(x)), 2.5)
    varies = np.ptp(x, axis=0) > 0
    assert not varies.all()  # a constant pixel has the scale of the others, too
    np.testing.assert_allclose(scales, np.sqrt(np.mean(x[:, varies].var(0))))


@pytest.mark.parametrize("rows", [40, 100, 400])
def test_pixels_of_a_few_images_are_recognised(rows):
    order = np.random.default_rng(rows).permutation(1797)
    assert have_same_units(load_digits().data[order[:rows]])


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris, load_wine])
def test_columns_in_different_units_have_scales_of_their_own(load):
    x = load().data
    assert not have_same_units(x)
    scales = feature_scales(x, np.ones(len(x)), 2.5)
    farthest = np.abs(x - x.mean(0)).max(0)
    np.testing.assert_allclose(scales, np.maximum(x.std(0), farthest / 2.5))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", uci_names())
def test_uci_columns_have_scales_of_their_own(name):
    assert not have_same_units(load_uci(name).split(0)[0].x)


def test_seven_equal_columns_are_too_few_to_share_a_scale():
    x = np.random.default_rng(0).integers(0, 17, (200, 8)).astype(float)
    assert have_same_units(x)
    assert not have_same_units(x[:, :7])


def test_no_value_is_more_than_five_shared_scales_from_its_mean():
    x = np.zeros((1000, 12))
    x[np.arange(12), np.arange(12)] = 1.0  # one row each
    scales = feature_scales(x, np.ones(1000), 2.5)
    assert np.all(np.abs(x - x.mean(0)).max(0) / scales <= 5.0 * (1 + 1e-12))


@pytest.mark.parametrize("columns", [3, 12])
def test_a_weight_of_two_counts_as_two_rows(columns):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 5, (60, columns)).astype(float)
    weight = rng.integers(1, 3, 60)
    repeated = np.repeat(x, weight, axis=0)
    expected = feature_scales(repeated, np.ones(len(repeated)), 5.0)
    np.testing.assert_allclose(feature_scales(x, weight.astype(float), 5.0), expected)


def _beside_indicators(columns):
    indicators = np.random.default_rng(0).integers(0, 2, (len(columns), 8)).astype(float)
    return np.concatenate([indicators, columns], axis=1)


@pytest.mark.parametrize("size", [1e-2, 1e-8])
@pytest.mark.parametrize("start", [0.0, 3.0])
def test_a_small_column_beside_indicators_keeps_its_own_scale(size, start):
    small = start + size * np.random.default_rng(1).exponential(size=(400, 1))
    small[0] = start
    x = _beside_indicators(small)
    assert have_same_units(x)
    scale = feature_scales(x, np.ones(400), 2.5)[-1]
    np.testing.assert_allclose(scale, max(small.std(), np.abs(small - small.mean()).max() / 2.5))


@pytest.mark.parametrize("size", [1e-2, 1e-8])
def test_no_column_is_divided_by_much_more_than_its_own_scale(size):
    x = np.random.default_rng(2).uniform(size=(400, 10))
    x[0] = 0.0
    x[:, -1] *= size
    assert have_same_units(x)
    scaled = x / feature_scales(x, np.ones(400), 2.5)
    assert scaled[:, -1].std() > scaled[:, 0].std() / 20

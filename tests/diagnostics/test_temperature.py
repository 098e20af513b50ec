"""Temperatures average to T on exact draws, for any centre, and wrong ones are outside the band."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from isotherm.diagnostics.temperature import (
    configurational_temperature,
    kinetic_temperature,
    temperature_band,
    temperature_table,
    virial,
)

FALSE_ALARM = 1e-4  # probability that one statistical test fails on correct code
KEY = jax.random.key(0)


def series(temperature=1.0, memory=0.0, shape=(4, 1000), size=10, seed=0):
    """Return kinetic temperatures (chain, draw, 1) of stationary AR(1) momenta."""
    rng = np.random.default_rng(seed)
    p = rng.normal(size=(shape[0], size))
    out = []
    for _ in range(shape[1]):
        out.append(temperature * (p**2).mean(-1))
        p = memory * p + np.sqrt(1 - memory**2) * rng.normal(size=p.shape)
    return np.stack(out, 1)[..., None]


def test_kinetic_temperature_is_one_number_per_leaf_in_flatten_order():
    momentum = {"w": jnp.full((2, 3), 2.0, jnp.bfloat16), "b": jnp.array(3.0)}
    result = jax.jit(kinetic_temperature)(momentum)
    assert result.dtype == jnp.float32
    np.testing.assert_array_equal(result, [9.0, 4.0])


def test_half_precision_is_squared_and_averaged_in_single_precision():
    x = jnp.full(4097, 1 + 2.0**-7, jnp.bfloat16)  # its square is no bfloat16
    for result in (kinetic_temperature(x), virial(x, -x)):
        np.testing.assert_allclose(result, [(1 + 2.0**-7) ** 2], rtol=1e-6)


def test_the_band_has_the_quantiles_of_chi_square():
    size, num_draws = np.array([1, 7, 1000]), np.array([[1.0], [50.5]])
    df = size * num_draws
    for got, q in zip(temperature_band(size, num_draws, 2.0, 0.9), (0.05, 0.95), strict=True):
        np.testing.assert_allclose(got, 2.0 * stats.chi2.ppf(q, df) / df, rtol=1e-9)


@pytest.mark.parametrize(("hot", "inside"), [(1.0, True), (1.02, False), (0.98, False)])
def test_kinetic_temperature_is_in_its_band_and_a_mutant_is_not(hot, inside):
    """False alarms 1e-4; the band is ±0.55 % (200 × 5000), so that the 2 % mutants are outside."""
    momenta = jnp.sqrt(0.5 * hot) * jax.random.normal(KEY, (5000, 200))
    mean = np.mean(jax.vmap(kinetic_temperature)(momenta))
    low, high = temperature_band(200, 5000, 0.5, 1 - FALSE_ALARM)
    assert (low < mean < high) == inside


@pytest.mark.parametrize("center", [None, 0.0, 5.0])
@pytest.mark.parametrize(("hot", "inside"), [(1.0, True), (1.05, False)])
def test_configurational_temperature_of_a_gaussian_holds_for_any_center(center, hot, inside):
    """The z-test uses the variance in the module docstring; false alarms 1e-4."""
    T, precision, mean, d = 0.5, 4.0, 1.0, 10
    draws = mean + jnp.sqrt(hot * T / precision) * jax.random.normal(KEY, (4, 5000, d))
    result = configurational_temperature(
        {"x": draws},
        lambda x, batch: {"x": precision * (batch - x["x"])},
        jnp.float32(mean),
        None if center is None else {"x": jnp.full(d, center)},
    )
    assert result.shape == (4, 5000, 1)
    result = np.asarray(result, np.float64)
    offset = 0.0 if center is None else mean - center
    variance = 2 * T**2 / d + T * precision * offset**2 / d
    z = (result.mean() - T) / np.sqrt(variance / result.size)
    if inside:
        np.testing.assert_allclose(result.var(), variance, rtol=0.05)
        assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)
    elif center != 5.0:  # this far from the mean the variance is too large to detect 5 %
        assert abs(z) > stats.norm.isf(FALSE_ALARM / 2)


@pytest.mark.parametrize(("stretch", "inside"), [(1.0, True), (1.03, False)])
def test_configurational_temperature_needs_no_gaussian(stretch, inside):
    draws = stretch * jax.random.logistic(KEY, (100_000,))
    result = np.asarray(jax.vmap(virial)(draws, -jnp.tanh(draws / 2)), np.float64)
    z = (result.mean() - 1) / (result.std() / np.sqrt(result.size))
    assert (abs(z) < stats.norm.isf(FALSE_ALARM / 2)) == inside


def test_noisy_gradients_do_not_change_the_mean():
    draws, noise = jax.random.normal(KEY, (2, 200_000))
    result = np.asarray(jax.vmap(virial)(draws, -draws + noise), np.float64)
    assert abs(result.mean() - 1) / np.sqrt(3 / result.size) < stats.norm.isf(FALSE_ALARM / 2)


def test_the_table_has_a_row_per_tensor_and_chain():
    both = np.concatenate([series(seed=1), series(1.3, seed=2)], -1)
    rows = temperature_table(both, [10, 10], names=["cold", "hot"])
    assert [(r.name, r.chain) for r in rows] == [(n, c) for n in ("cold", "hot") for c in range(4)]
    assert [r.inside for r in rows] == [True] * 4 + [False] * 4
    np.testing.assert_allclose([r.mean for r in rows], both.mean(1).T.ravel())
    assert temperature_table(both, [10, 10])[-1].name == "leaf 1"


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_false_alarms_of_the_table_are_as_stated(memory):
    """Level 0.9, 1000 rows: 100 alarms expected, sd 9.5; 0.15 is 5 sd. Mutant: 20 % too hot.

    Measured on 10 seeds: 0.087 to 0.102 without memory, 0.088 to 0.125 with memory 0.9 (effective
    sample size near 100); the mutant is found in more than 98 % of the rows.
    """
    correct = temperature_table(series(1.0, memory, (1000, 1000)), [10], level=0.9)
    assert np.mean([not row.inside for row in correct]) < 0.15
    hot = temperature_table(series(1.2, memory, (1000, 1000)), [10], level=0.9)
    assert np.mean([not row.inside for row in hot]) > 0.95


def test_correlated_draws_get_a_wider_band():
    free, slow = (temperature_table(series(memory=m), [10])[0] for m in (0.0, 0.95))
    assert slow.ess < 0.3 * free.ess
    assert slow.high - slow.low > 1.5 * (free.high - free.low)


def test_tolerance_widens_the_bands():
    for wrong in (series(1.1), series(0.9)):
        assert not any(row.inside for row in temperature_table(wrong, [10]))
        assert all(row.inside for row in temperature_table(wrong, [10], tolerance=0.1))


def test_a_series_with_nan_is_outside():
    broken = series()
    broken[2, 500:] = np.nan
    rows = temperature_table(broken, [10], level=1 - FALSE_ALARM)
    assert [row.inside for row in rows] == [True, True, False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: temperature_band(0, 10), "`size` must be positive, got 0"),
        (lambda: temperature_band(3, 0), "`num_draws` must be positive, got 0"),
        (lambda: temperature_band(3, 10, -1.0), "`temperature` must be positive, got -1.0"),
        (lambda: temperature_band(3, 10, level=1.0), "`level` must be between 0 and 1, got 1.0"),
        (lambda: temperature_table(series(), [1, 2]), r"must have shape \(chain, draw, 2\)"),
        (lambda: temperature_table(series(), [10], names=[]), "`names` must have 1 entries"),
        (lambda: temperature_table(series(), [10], tolerance=-1), "`tolerance` must not be neg"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

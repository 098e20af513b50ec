"""Grid densities and divergences agree with the authors' formulas and with theory."""

import numpy as np
import pytest
from scipy import stats

from isotherm.diagnostics.grid import authors_kl, grid_density, symmetric_kl, total_variation

CELL = 0.01
GRID = np.arange(-5, 5.001, CELL)


def normal(mean=0.0, sd=1.0):
    return stats.norm(mean, sd).pdf(GRID)


def draws(size, seed=0):
    return np.random.default_rng(seed).normal(size=size)


def test_density_is_the_histogram_with_open_outer_cells():
    x = 2.5 * draws((4, 5000))
    edges = np.concatenate([[-np.inf], (GRID[1:] + GRID[:-1]) / 2, [np.inf]])
    np.testing.assert_allclose(grid_density(x, GRID), np.histogram(x, edges)[0] / x.size / CELL)


def test_draws_outside_the_grid_are_in_the_outer_cells():
    density = grid_density([-1e300, 0.0, 1e300, 7.0], GRID)
    assert density.sum() * CELL == pytest.approx(1)
    assert density[0] * CELL == pytest.approx(0.25) and density[-1] * CELL == pytest.approx(0.5)


def test_symmetric_kl_of_two_gaussians():
    """Half of Jeffreys' divergence: (m² + (s² - 1)²/s² ...) in closed form."""
    m, s = 0.3, 1.1
    forward = np.log(s) + (1 + m**2) / (2 * s**2) - 0.5
    backward = -np.log(s) + (s**2 + m**2) / 2 - 0.5
    value = symmetric_kl(normal(), normal(m, s), CELL)
    assert value == pytest.approx((forward + backward) / 2, rel=1e-3)


def test_authors_kl_follows_their_formula_and_is_a_hundred_times_the_usual():
    y, f = normal(), grid_density(draws(20_000), GRID)  # has empty cells
    expected = (y * np.log(y / (f + 1e-60))).sum() / 2
    expected += ((f + 1e-60) * np.log((f + 1e-60) / (y + 1e-60))).sum() / 2
    assert authors_kl(y, f) == pytest.approx(expected, rel=1e-12)
    assert authors_kl(y, f) == pytest.approx(100 * symmetric_kl(y, f, CELL), rel=1e-12)


def test_divergences_are_symmetric_finite_and_zero_for_equal_densities():
    p, q = normal(), np.where(GRID > 0, 2 * normal(), 0)
    for divergence in (symmetric_kl, total_variation):
        assert divergence(p, p, CELL) == 0
        assert divergence(p, q, CELL) == divergence(q, p, CELL)
    assert np.isfinite(symmetric_kl(p, q, CELL))
    assert total_variation(p, q, CELL) == pytest.approx(0.5, abs=0.01)


def test_exact_draws_converge_and_wrong_draws_do_not():
    """Symmetric KL of n exact draws in k cells is about k/2n: 1e6 draws give 5e-4 or so."""
    fine = grid_density(draws(1_000_000), GRID)
    coarse = grid_density(draws(10_000), GRID)
    hot = grid_density(1.1 * draws(1_000_000), GRID)
    for divergence in (symmetric_kl, total_variation):
        exact = divergence(fine, normal(), CELL)
        assert 3 * exact < divergence(coarse, normal(), CELL)
        assert 3 * exact < divergence(hot, normal(), CELL)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grid_density([1, np.nan, np.inf], GRID), "`draws` must be finite, got 2 of 3"),
        (lambda: grid_density([], GRID), "`draws` must not be empty"),
        (lambda: grid_density([0.0], GRID[::-1]), "`grid` must be increasing"),
        (lambda: grid_density([0.0], [0, 1, 3]), "`grid` must be increasing and evenly spaced"),
        (lambda: grid_density([0.0], [0]), r"two points or more, got shape \(1,\)"),
        (lambda: symmetric_kl([1, np.nan], [1, 1], 1.0), "`p` must be finite and not negative"),
        (lambda: total_variation([1, 1], [1, -1], 1.0), "`q` must be finite and not negative"),
        (lambda: symmetric_kl([1, 1], [1], 1.0), r"one grid, got shapes \(2,\) and \(1,\)"),
        (lambda: total_variation([1], [1], 0.0), "`cell` must be positive, got 0.0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

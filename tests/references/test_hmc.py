"""Hamiltonian Monte Carlo: the right law in any coordinates, and tests that would see a wrong one."""

import numpy as np
import pytest
from scipy import stats

from isotherm.references.hmc import Hill, hmc, logistic_hill

SETTINGS = {"num_chains": 200, "num_draws": 50, "burn_in": 20, "seed": 0}


def student(x):
    """Student's t with 5 degrees of freedom in each of two coordinates, far from a normal."""
    return -3 * np.log1p(x**2 / 5).sum(1), -6 * x / (5 + x**2)


@pytest.mark.parametrize("curvature", [np.eye(2), np.diag([4.0, 0.3]), [[2.0, 1.0], [1.0, 1.0]]])
def test_draws_follow_the_law(curvature):
    """The last draws of 200 chains are independent. Two Kolmogorov tests: one false alarm in 5000."""
    hill = Hill(np.zeros(2), np.asarray(curvature, float), student)
    draws, taken = hmc(hill, **SETTINGS)
    assert draws.shape == (200, 50, 2) and 0.5 < taken < 1
    for coordinate in draws[:, -1].T:
        assert stats.kstest(coordinate, stats.t(5).cdf).pvalue > 1e-4


@pytest.mark.parametrize("temperature", [1.0, 1.25])
def test_a_wrong_temperature_is_caught(temperature):
    """Every fifth draw of 1000 chains; false alarms one in 10^4."""

    def hot(x):
        return tuple(value / temperature for value in student(x))

    many = {**SETTINGS, "num_chains": 1000, "num_draws": 60}
    draws, _ = hmc(Hill(np.zeros(2), np.eye(2), hot), **many)
    pvalue = stats.kstest(draws[:, ::5].ravel(), stats.t(5).cdf).pvalue
    assert (pvalue > 1e-4) == (temperature == 1)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_gradient_mode_and_curvature_of_a_logistic_hill(num_classes):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)), rng.integers(0, num_classes, 50)
    hill = logistic_hill(x, y, np.array([0.5, 1.0, 2.0]), num_classes)
    size = 3 if num_classes == 2 else 3 * num_classes
    assert hill.mode.shape == (size,)
    np.testing.assert_allclose(hill.evaluate(hill.mode[None])[1], 0, atol=1e-6)
    steps, at = 1e-5 * np.eye(size), hill.mode + rng.normal(size=size)
    high, low = hill.evaluate(at + steps), hill.evaluate(at - steps)
    slope = hill.evaluate(at[None])[1][0]
    np.testing.assert_allclose((high[0] - low[0]) / 2e-5, slope, rtol=1e-5, atol=1e-5)
    bend = hill.evaluate(hill.mode + steps)[1] - hill.evaluate(hill.mode - steps)[1]
    np.testing.assert_allclose(-bend / 2e-5, hill.curvature, rtol=1e-5, atol=1e-5)

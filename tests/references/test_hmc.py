"""Hamiltonian Monte Carlo draws from the target in any coordinates; a wrong target is detected."""

import numpy as np
import pytest
from scipy import stats

from isotherm.references.hmc import LogDensityTarget, hmc

SETTINGS = {"num_chains": 200, "num_draws": 50, "burn_in": 20, "seed": 0}


def student(x):
    """Log density and gradient of two independent Student's t with 5 degrees of freedom."""
    return -3 * np.log1p(x**2 / 5).sum(1), -6 * x / (5 + x**2)


@pytest.mark.parametrize("curvature", [np.eye(2), np.diag([4.0, 0.3]), [[2.0, 1.0], [1.0, 1.0]]])
def test_draws_follow_the_target(curvature):
    """The last draws of 200 chains are independent; two Kolmogorov tests: 1 false alarm in 5000."""
    target = LogDensityTarget(np.zeros(2), np.asarray(curvature, float), student)
    draws, accepted = hmc(target, **SETTINGS)
    assert draws.shape == (200, 50, 2) and 0.5 < accepted < 1
    for coordinate in draws[:, -1].T:
        assert stats.kstest(coordinate, stats.t(5).cdf).pvalue > 1e-4


@pytest.mark.parametrize("temperature", [1.0, 1.25])
def test_a_wrong_temperature_is_detected(temperature):
    """Every fifth draw of 1000 chains; one false alarm in 10^4."""

    def tempered(x):
        return tuple(value / temperature for value in student(x))

    many = {**SETTINGS, "num_chains": 1000, "num_draws": 60}
    draws, _ = hmc(LogDensityTarget(np.zeros(2), np.eye(2), tempered), **many)
    pvalue = stats.kstest(draws[:, ::5].ravel(), stats.t(5).cdf).pvalue
    assert (pvalue > 1e-4) == (temperature == 1)

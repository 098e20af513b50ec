"""The rates experiment: rules of the paper, known exponents, and claims that can fail."""

import numpy as np
import pytest

from isotherm.paper.experiments import rates, runner
from isotherm.paper.report.document import FIELDS

PAPER = np.array([[-1 / 2, -2 / 3], [-2 / 3, -4 / 5]])
"""Exponents of the error by integrator (Euler, splitting) and quantity (bias, MSE)."""


@pytest.mark.slow
def test_claims_hold_in_the_smoke_run(tmp_path):
    document = runner.execute("rates", smoke=True, out=tmp_path)
    assert set(document) == FIELDS
    assert len(document["claims"]) == 6 and all(claim["holds"] for claim in document["claims"])
    assert [row["exponent, paper"] for row in document["rows"]] == pytest.approx(PAPER.ravel())
    assert len({tuple(row) for row in document["rows"]}) == 1


def test_rules_balance_the_two_terms():
    for i in range(2):
        for q, quantity in enumerate(rates.QUANTITIES):
            rule = rates._rule(rates.Config(), i, quantity)
            power = (i + 1) * (q + 1)  # h^K for the bias, h^2K for the MSE
            assert rule.error_exponent == pytest.approx(PAPER[i, q])
            assert rule.step_exponent * power == pytest.approx(rule.error_exponent)
            assert -1 - rule.step_exponent == pytest.approx(rule.error_exponent)


@pytest.mark.parametrize(("quantity", "exponent"), [("bias", -0.5), ("MSE", -1.0)])
def test_exponents_and_bootstrap_errors(quantity, exponent):
    """A bias T^(-1/2) with Gaussian noise of the same size; false alarm rate 1e-6."""
    nums_steps, rng = np.array([100, 200, 400, 800]), np.random.default_rng(1)
    scale = nums_steps[:, None] ** -0.5
    fit = rates._errors(scale * (1 + rng.standard_normal((4, 5_000))), nums_steps, quantity)
    assert fit["exponent"] == pytest.approx(exponent, abs=5 * fit["exponent_spread"])
    relative = 1.0 if quantity == "bias" else np.sqrt(6) / 2  # sd over mean of (1 + normal)^2
    x = np.log(nums_steps) - np.log(nums_steps).mean()
    expected = relative / np.sqrt(5_000 * np.sum(x**2))
    assert fit["exponent_spread"] == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("shift", [0.0, 0.1, -0.1])
def test_claims_hold_for_the_papers_exponents_and_not_for_others(shift):
    result = {"exponent": PAPER.copy(), "exponent_spread": np.full((2, 2), 0.005)}
    result["exponent"][1, 0] += shift
    holds = [claim.holds for claim in rates.check(rates.Config(), result)]
    assert holds == [True, True, shift == 0, True, True, True]


def test_claims_fail_if_the_splitting_is_as_slow_as_euler():
    result = {"exponent": PAPER[[0, 0]], "exponent_spread": np.full((2, 2), 0.005)}
    claims = rates.check(rates.Config(), result)
    assert [claim.holds for claim in claims] == [True, True, False, False, False, False]

"""Table and claims of the small network, for synthetic results."""

import numpy as np
import pytest

from isotherm.paper.experiments import network_exact
from isotherm.paper.experiments.network_exact import Case, Config


@pytest.fixture
def result():
    config, grid = Config(), np.linspace(-1.5, 1.5, 61)
    arrays = {"x": grid, "y": grid, "grid": grid, "exact/taken": np.array(0.9)}
    sds = {"exact": 1.0} | {
        case.name: 1.01 if case.batches == "all data" else 1 + 0.2 * min(case.step, 1)
        for case in config.cases()
    }
    for name, sd in sds.items():
        arrays |= {f"{name}/mean": np.zeros(61), f"{name}/sd": np.full(61, sd)}
        arrays |= {f"{name}/ess": np.full(61, 100.0), f"{name}/rhat": np.ones(61)}
        arrays[f"{name}/temperature"] = np.ones(4)
    return arrays


def failed(result):
    return [claim.claim for claim in network_exact.check(Config(), result) if not claim.holds]


def test_claims_hold_and_the_table_shows_where_the_error_is(result):
    assert failed(result) == []
    name = Case("kronecker", "independent", 1.0).name
    result[f"{name}/sd"] = np.where(np.abs(result["grid"]) <= 1, 1.5, 0.8)
    row = next(r for r in network_exact.rows(Config(), result) if r["sampler"] == name)
    assert row["among the data (%)"] == 50 and row["beyond them (%)"] == -20


@pytest.mark.parametrize(
    ("key", "value", "failing"),
    [
        ("exact/rhat", 1.1, "reference has converged"),
        (Case("kronecker", "all data", 1.0).name + "/sd", 1.05, "with exact gradients"),
        (Case("kronecker", "independent", 0.1).name + "/sd", 1.3, "less so with a shorter step"),
    ],
)
def test_every_claim_can_fail(result, key, value, failing):
    result[key] = np.full(61, value)
    (text,) = failed(result)
    assert failing in text


def test_figures_are_drawn(result):
    assert set(network_exact.plot(Config(), result)) == {"function"}

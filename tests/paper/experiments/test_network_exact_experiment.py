"""Table and claims of the small networks, for synthetic results."""

import numpy as np
import pytest

from isotherm.paper.experiments import network_exact
from isotherm.paper.experiments.network_exact import Case, Config

PRIOR = Case("warm prior", "independent", 1.0, balanced=True).name
KRONECKER = Case("kronecker", "independent", 1.0, balanced=True).name


@pytest.fixture
def result():
    config, grid = Config(), np.linspace(-1.5, 1.5, 61)
    arrays = {}
    problems = {"regression": config.cases(), "classification": config.class_cases()}
    for problem, cases in problems.items():
        arrays |= {f"{problem}/x": grid[:, None], f"{problem}/y": grid[:, None]}
        arrays |= {f"{problem}/grid": grid[:, None], f"{problem}/inside": np.abs(grid) <= 1}
        arrays[f"{problem}/exact/taken"] = np.array(0.9)
        sds = {"exact": 1.0} | {case.name: sd_of(case) for case in cases}
        for name, sd in sds.items():
            label = f"{problem}/{name}"
            arrays |= {f"{label}/mean": np.zeros(61), f"{label}/sd": np.full(61, sd)}
            arrays |= {f"{label}/ess": np.full(61, 1e4), f"{label}/rhat": np.ones(61)}
            arrays |= {f"{label}/temperature": np.ones(4), f"{label}/thermostat": np.ones(4)}
            arrays[f"{label}/step_size"] = np.array(0.1)
    return arrays


def sd_of(case):
    return 1.01 if case.batches == "all data" or case.balanced else 1 + 0.2 * min(case.step, 1)


def failed(result):
    return [claim.claim for claim in network_exact.check(Config(), result) if not claim.holds]


def test_claims_hold_and_the_table_shows_where_the_error_is(result):
    assert failed(result) == []
    name = Case("kronecker", "independent", 1.0).name
    inside = result["regression/inside"]
    result[f"regression/{name}/sd"] = np.where(inside, 1.5, 0.8)
    row = next(r for r in network_exact.rows(Config(), result) if r["sampler"] == name)
    assert row["among the data (%)"] == 50 and row["beyond them (%)"] == -20


@pytest.mark.parametrize(
    ("key", "value", "failing"),
    [
        ("regression/exact/rhat", 1.1, "reference of the regression"),
        ("classification/exact/rhat", 1.1, "reference of the classification"),
        (
            f"regression/{Case('kronecker', 'all data', 1.0).name}/sd",
            1.05,
            "with exact gradients",
        ),
        (
            f"regression/{Case('kronecker', 'independent', 0.1).name}/sd",
            1.3,
            "less so with a shorter step",
        ),
        (f"regression/{PRIOR}/sd", 1.03, "settings of warm_start are right (warm prior)"),
        (f"regression/{KRONECKER}/sd", 0.97, "settings of warm_start are right (kronecker)"),
        (f"classification/{PRIOR}/thermostat", 1.2, "classification: balanced minibatches"),
        (f"regression/{KRONECKER}/ess", 10.0, "mix no slower"),
    ],
)
def test_every_claim_can_fail(result, key, value, failing):
    result[key] = np.full_like(result[key], value)
    (text,) = failed(result)
    assert failing in text


def test_figures_are_drawn(result):
    assert set(network_exact.plot(Config(), result)) == {"function", "errors"}

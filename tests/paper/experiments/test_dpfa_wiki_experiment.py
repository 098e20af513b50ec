"""The Wikipedia figure: it runs, goes on bit for bit after a cut, and its claims can fail."""

import jax
import numpy as np
import pytest

from isotherm.data.registry import locate
from isotherm.paper.experiments import dpfa_wiki
from isotherm.paper.experiments.dpfa_wiki import tables
from isotherm.paper.experiments.dpfa_wiki.methods import Method
from isotherm.paper.experiments.resume import Checkpoints

SMALL = dpfa_wiki.Config(
    layers=(6, 3, 2),
    num_documents=400,
    start_documents=100,
    num_test=20,
    step_sizes=(1e-4,),
    batch_size=50,
    mark_every=100,
    curve_draws=2,
    final_draws=4,
    late=100,
    num_seeds=2,
    seed_documents=200,
    choice_documents=200,
    sgrld_steps=(3e-3, 1e-2),
    scir_steps=(0.03,),
    tlasgr_steps=(0.03,),
    rounds=2,
    rounds_burn_in=1,
)


@pytest.fixture(scope="module", autouse=True)
def _data():
    try:
        locate("wiki", None, ["wiki_train.npz", "wiki_test.npz", "dictnostops.txt"])
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def result(_data):
    lines = []
    found = dpfa_wiki.run(SMALL, jax.random.key(0), lines.append, Checkpoints(None))
    assert any("documents per CPU-second, on 0." in line for line in lines)
    return found


def test_every_method_has_its_curves(result):
    for name in SMALL.methods():
        curve, late = result[f"curve {name}"], result[f"late {name}"]
        np.testing.assert_array_equal(curve[-3:, 0], [200, 300, 400])
        np.testing.assert_array_equal(late[:, 0], [300, 350, 400])
        assert np.isfinite(curve[:, 1]).all() and result[f"final {name}"][0] == late[-1, 1]
    assert result["seeds S, one layer"].shape == (2,) and result["tried SGRLD"].shape == (2, 2)
    found = dpfa_wiki.rows(SMALL, result)
    assert [row["table"] for row in found].count("Perplexity") == len(SMALL.methods()) == 12
    assert set(dpfa_wiki.plot(SMALL, result)) == {"curves", "alternatives", "layers"}


def test_claims_compare_documents_and_can_fail(result):
    """A method whose every token is 10 % less probable is 11 % above, without error."""
    worse = result | {"cells BCDF": result["cells S, one layer"] + np.log(0.9)}
    gap, error = tables.difference(worse, "BCDF", "S, one layer")
    assert gap == pytest.approx(result["final S, one layer"][0] * (1 / 0.9 - 1)) and error < 1e-6
    turned = {}
    for name in ("mSGNHT-E, h = 0.0001", "RBM", "BCDF", "NB-FTM, BCDF", "LDA, BCDF"):
        turned[f"cells {name}"] = result["cells mSGNHT-S, h = 0.0001"] + np.log(0.9)
    held = dpfa_wiki.check(SMALL, result | turned)
    assert [claim.holds for claim in held[:5]] == [True] * 5
    turned = {name: 2 * result["cells mSGNHT-S, h = 0.0001"] - x for name, x in turned.items()}
    assert not any(claim.holds for claim in dpfa_wiki.check(SMALL, result | turned)[:5])


@pytest.mark.parametrize(
    "method", [Method("chain"), Method("filter"), Method("boltzmann", "euler"), Method("lda")]
)
def test_a_cut_run_goes_on_bit_for_bit(method, tmp_path):
    class Cut(Exception):
        pass

    def cut(line):
        if "300 documents" in line:
            raise Cut

    def run(checkpoints, report):
        work = dpfa_wiki._Trainer(SMALL, 5, checkpoints, report)
        return work.run("a", method, dpfa_wiki.Steps(1e-2, 0.03, 0.03))

    whole = run(Checkpoints(None), lambda line: None)
    checkpoints = Checkpoints.open(tmp_path, {}, resume=True)
    with pytest.raises(Cut):
        run(checkpoints, cut)
    assert checkpoints.load("a, seed 0, to 400") is not None
    again = run(checkpoints, lambda line: None)
    for name in ("curve", "late", "cells"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(again, name))
    np.testing.assert_array_equal(whole.final[:3], again.final[:3])


def test_settings_are_checked():
    with pytest.raises(ValueError, match="multiple of `batch_size`"):
        dpfa_wiki.Config(num_documents=228_650)
    with pytest.raises(ValueError, match="go beyond"):
        dpfa_wiki.Config(seed_documents=10_000)

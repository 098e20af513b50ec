"""The Wikipedia experiment: all methods run and resume exactly, and claims can fail."""

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
    messages = []
    result = dpfa_wiki.run(SMALL, jax.random.key(0), messages.append, Checkpoints(None))
    assert any("documents per CPU-second, on 0." in message for message in messages)
    return result


@pytest.mark.slow
def test_every_method_has_its_curves(result):
    for name in SMALL.methods():
        curve, late = result[f"curve {name}"], result[f"late {name}"]
        np.testing.assert_array_equal(curve[-3:, 0], [200, 300, 400])
        np.testing.assert_array_equal(late[:, 0], [300, 350, 400])
        assert np.isfinite(curve[:, 1]).all() and result[f"final {name}"][0] == late[-1, 1]
    assert result["seeds S, one layer"].shape == (2,) and result["tried SGRLD"].shape == (2, 2)
    rows = dpfa_wiki.rows(SMALL, result)
    assert [row["table"] for row in rows].count("Perplexity") == len(SMALL.methods()) == 12
    assert set(dpfa_wiki.plot(SMALL, result)) == {"curves", "alternatives", "layers"}


@pytest.mark.slow
def test_claims_compare_documents_and_can_fail(result):
    """If every token is 10 % less probable, the perplexity is 11 % higher, without error."""
    worse = result | {"cells BCDF": result["cells S, one layer"] + np.log(0.9)}
    gap, error = tables.difference(worse, "BCDF", "S, one layer")
    assert gap == pytest.approx(result["final S, one layer"][0] * (1 / 0.9 - 1)) and error < 1e-6
    changed = {}
    for name in ("mSGNHT-E, h = 0.0001", "RBM", "BCDF", "NB-FTM, BCDF", "LDA, BCDF"):
        changed[f"cells {name}"] = result["cells mSGNHT-S, h = 0.0001"] + np.log(0.9)
    held = dpfa_wiki.check(SMALL, result | changed)
    assert [claim.holds for claim in held[:5]] == [True] * 5
    changed = {name: 2 * result["cells mSGNHT-S, h = 0.0001"] - x for name, x in changed.items()}
    assert not any(claim.holds for claim in dpfa_wiki.check(SMALL, result | changed)[:5])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [Method("chain"), Method("filter"), Method("boltzmann", "euler"), Method("lda")]
)
def test_an_interrupted_run_resumes_exactly(method, tmp_path):
    class Interrupted(Exception):
        pass

    def interrupt(message):
        if "300 documents" in message:
            raise Interrupted

    def run(checkpoints, report):
        trainer = dpfa_wiki._Trainer(SMALL, 5, checkpoints, report)
        return trainer.run("a", method, dpfa_wiki.Steps(1e-2, 0.03, 0.03))

    whole = run(Checkpoints(None), lambda message: None)
    checkpoints = Checkpoints.open(tmp_path, {}, resume=True)
    with pytest.raises(Interrupted):
        run(checkpoints, interrupt)
    assert checkpoints.load("a, seed 0, to 400") is not None
    resumed = run(checkpoints, lambda message: None)
    for name in ("curve", "late", "cells"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(resumed, name))
    np.testing.assert_array_equal(whole.final[:3], resumed.final[:3])


def test_bad_settings_raise():
    with pytest.raises(ValueError, match="multiple of `batch_size`"):
        dpfa_wiki.Config(num_documents=228_650)
    with pytest.raises(ValueError, match="must be longer than `start_documents`"):
        dpfa_wiki.Config(seed_documents=10_000)

"""The matrix of models: builders, one small cell, what counts as a silent failure, the table."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import isotherm
from marks import slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """Return the modules `models` and `models_zoo` of the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import models_zoo

    import models

    yield models, models_zoo
    for name in ("models", "models_zoo", "reporting"):
        sys.modules.pop(name, None)


def cell(outcome="sampled", nll=0.1, seed=0, **more):
    common = {"network": "MLP", "library": "NNX", "coordinates": "prior", "seed": seed}
    common |= {"mode accuracy": 98.0, "mode NLL": 0.07, "outcome": outcome, "message": ""}
    if outcome != "refused":
        common |= {"posterior accuracy": 97.0, "posterior NLL": nll}
        common |= {"T": 1.0, "T min": 0.95, "T max": 1.1}
        common |= {"R-hat": 1.2 + seed, "R-hat median": 1.1, "CPU seconds": 1.0}
    return common | more


def test_a_silent_failure_is_a_worse_prediction_without_a_word(modules):
    models, _ = modules
    assert not models.is_silent_failure(cell(nll=0.16))
    assert models.is_silent_failure(cell(nll=0.18))
    assert models.is_silent_failure(cell(nll=float("nan")))
    assert not models.is_silent_failure(cell("warned", nll=3.0))
    assert not models.is_silent_failure(cell("refused"))


def test_the_table_has_extremes_over_seeds(modules):
    models, _ = modules
    cells = [cell(seed=0), cell("warned", nll=0.5, seed=1), cell("refused", seed=2)]
    cells.append(cell("refused", coordinates="kronecker"))
    first, second = models.summary(cells)
    counts = [first[name] for name in ("seeds", "sampled", "warned", "refused")]
    assert counts == [3, 1, 1, 1] and first["silent failures"] == 0
    assert first["posterior NLL"] == pytest.approx(0.3) and first["worst NLL"] == 0.5
    assert first["R-hat"] == 2.2 and (first["T min"], first["T max"]) == (0.95, 1.1)
    assert second["refused"] == 1 and "posterior NLL" not in second
    for each in cells:
        assert "MLP / NNX" in models._line(each)


def test_a_cell_is_measured(modules, monkeypatch):
    """On few rows and draws: the program runs, and the numbers are those of the run."""
    models, _ = modules
    for name, value in {"TRAINING_ROWS": 100, "DRAWS": 8, "THIN": 1, "BATCH_SIZE": 20}.items():
        monkeypatch.setattr(models, name, value)
    train, test = models.digits(0)
    assert len(train[1]) == 100 and len(test[1]) == 1697
    network = isotherm.models.mlp((64, 4, 10))
    mode = network.init(jax.random.key(0))
    found = models.sample_from(jax.random.key(1), network, mode, train, test, "identity")
    assert found["outcome"] in ("sampled", "warned")
    start = models.scores("start", network.predict(mode, test[0]), test[1])
    assert {name: found[name] for name in start} == start  # plain coordinates stay at the mode
    assert 0 < found["posterior NLL"] < 5 and 0 < found["posterior accuracy"] < 100
    assert found["T min"] <= found["T max"] and np.isfinite(found["R-hat"])


def test_a_refusal_is_recorded(modules, monkeypatch):
    models, _ = modules
    train, test = models.digits(0)

    def refuse(*arguments, **settings):
        raise FloatingPointError("not in the typical set")

    monkeypatch.setattr(isotherm, "warm_start", refuse)
    network = isotherm.models.mlp((64, 4, 10))
    mode = network.init(jax.random.key(0))
    found = models.sample_from(jax.random.key(1), network, mode, train, test, "prior")
    assert found == {"outcome": "refused", "message": "not in the typical set"}


NAMES = ("MLP", "CNN, BatchNorm", "CNN, LayerNorm", "transformer", "scanned transformer", "LoRA")


@pytest.mark.parametrize("name", [slow(name) for name in NAMES])
def test_the_same_network_in_four_libraries(modules, monkeypatch, name):
    """All have ten outputs per row, and about as many parameters."""
    models, zoo = modules
    assert tuple(zoo.MODELS) == NAMES
    train, _ = models.digits(0)
    monkeypatch.setattr(zoo.train, "__defaults__", (3,))  # steps
    sizes = []
    for build in zoo.MODELS[name].values():
        with jax.numpy_rank_promotion("allow"):  # the networks are written as users write them
            position, apply = build(jax.random.key(0), train)
            outputs = jax.jit(apply)(position, train[0][:5])
        assert outputs.shape == (5, 10) and np.isfinite(outputs).all()
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(position)))
    assert max(sizes) < 2 * min(sizes)


@pytest.mark.parametrize("coordinates", ["auto", "kronecker"])
@pytest.mark.filterwarnings("ignore::isotherm.exceptions.ConvergenceWarning")
@pytest.mark.slow
def test_batch_normalisation_is_no_silent_failure(modules, coordinates):
    """It had 0.201 against 0.099 of its mode in Kronecker coordinates, without a word."""
    models, _ = modules
    found = next(models.measure("CNN, BatchNorm", "linen", 0, [coordinates]))
    assert found["chosen"] == ("prior" if coordinates == "auto" else coordinates)
    assert abs(found["T"] - 1) < 0.1
    assert not models.is_silent_failure(found)

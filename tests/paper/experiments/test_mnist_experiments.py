"""The MNIST experiments: runs resume exactly, claims can fail, and the smoke run."""

import numpy as np
import pytest
from jax import random as jax_random

from isotherm.data.idx import Images
from isotherm.data.registry import locate
from isotherm.paper.experiments import runner
from isotherm.paper.experiments.mnist import (
    curves,
    depth,
    lenet,
    natural,
    posterior,
    rivals,
    table,
)
from isotherm.paper.experiments.mnist.learning import Data, Learner, Recipe
from isotherm.paper.experiments.resume import Checkpoints

RECIPE = Recipe(
    hidden=(5,), step_size=5e-3, num_epochs=4, halve_every=2, batch_size=20, draws_per_epoch=2
)


def silent(message):
    del message


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 784))
    labels = rng.integers(0, 10, 500).astype(np.int32)
    pixels = (centres[labels] + rng.normal(size=(500, 784))).astype(np.float32) / 10
    return Data(Images(pixels[:400], labels[:400]), Images(pixels[400:], labels[400:]))


@pytest.fixture(scope="module")
def learner(data):
    return Learner(RECIPE, data)


class Interrupted(Exception):
    """Raised in the middle of a run."""


@pytest.mark.slow
def test_an_interrupted_run_resumes_exactly(learner, tmp_path):
    key = jax_random.key(0)
    whole = learner.learn(key, "one", Checkpoints(), silent)
    checkpoints = Checkpoints.open(tmp_path / "checkpoints", {"seed": 0}, resume=False)

    def interrupt(message):
        if "epoch 2" in message:
            raise Interrupted

    with pytest.raises(Interrupted):
        learner.learn(key, "one", checkpoints, interrupt)
    messages = []
    resumed = learner.learn(key, "one", checkpoints, messages.append)
    assert len(messages) == 2
    for name, values in whole.items():
        np.testing.assert_array_equal(resumed[name], values, err_msg=name)
    again = learner.learn(key, "one", checkpoints, interrupt)  # already finished
    np.testing.assert_array_equal(again["accuracy"], whole["accuracy"])


def test_measurements(learner):
    result = learner.learn(jax_random.key(1), "one", Checkpoints(), silent)
    assert result["accuracy"].shape == (4,) and result["accuracy"][-1] > 20
    np.testing.assert_allclose(result["probabilities"].sum(1), 1, atol=1e-5)
    assert result["averages"].shape == (3, 2, 2)
    # The average of all draws of the second half of the epochs is the last point of the curve.
    assert result["averages"][1, 1, 0] == pytest.approx(result["accuracy"][-1])
    assert result["averages"][1, 1, 1] == pytest.approx(result["nll"][-1])
    assert 0.3 < result["temperature"][-1] < 3 and result["thermostat"][-1] > 0


def test_a_warm_start_reduces_the_number_of_epochs():
    recipe = RECIPE.varied(coordinates="kronecker", rounds=1, steps_per_round=50)
    assert recipe.warm_gradients == 100 + 2 * 1224 and RECIPE.warm_gradients == 0
    config = natural.Config()
    assert config.natural(1.0).num_epochs < config.plain(1e-4).num_epochs


@pytest.mark.slow
def test_a_diverged_chain_is_reported(data):
    recipe = RECIPE.varied(sampler="mSGNHT-E", step_size=10.0)
    result = Learner(recipe, data).learn(jax_random.key(0), "one", Checkpoints(), silent)
    assert np.isnan(result["accuracy"]).all() and np.isnan(result["averages"]).all()
    assert curves.spread(np.array([np.nan, 97.0, 98.0])) == "97.50 ± 0.50 (1 of 3 diverged)"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SGHMC-S", "SGHMC-E", "SGNHT-S", "SGLD"])
def test_every_sampler_has_a_recipe(data, name):
    recipe = RECIPE.varied(sampler=name, num_epochs=1, halve_every=0)
    result = Learner(recipe, data).learn(jax_random.key(0), "one", Checkpoints(), silent)
    assert np.isfinite(result["draw accuracy"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("coordinates", ["plain", "kronecker"])
def test_balanced_recipes_take_their_noise_out(data, coordinates):
    recipe = RECIPE.varied(balanced=True, num_epochs=1, halve_every=0, coordinates=coordinates)
    if coordinates == "kronecker":
        recipe = recipe.varied(step_size=1.0, rounds=1, steps_per_round=50)
    assert recipe.label == "mSGNHT-S, balanced" and recipe.label in curves.LOOKS
    learner = Learner(recipe, data)
    result = learner.learn(jax_random.key(0), "one", Checkpoints(), silent)
    assert np.isfinite(result["draw accuracy"]).all()
    assert learner.sampler.traits.balanced


def test_claims_of_natural_coordinates_hold_and_fail():
    config = natural.Config()
    result = {}
    for name, recipe in config.recipes().items():
        result |= {f"{name}/{what}": np.ones((2, 40)) for what in ("temperature", "nll")}
        result[f"{name}/ess"] = np.full((2, 2), 2.0 if recipe.coordinates == "kronecker" else 1.0)
    assert all(claim.holds for claim in natural.check(config, result))
    hot = result | {"kronecker, step 1, balanced/temperature": np.full((2, 40), 1.1)}
    assert [claim.holds for claim in natural.check(config, hot)] == [True, True, False]
    worse = result | {"kronecker, step 1, balanced/nll": np.full((2, 40), 1.1)}
    assert [claim.holds for claim in natural.check(config, worse)] == [True, True, False]


def test_claims_of_lenet_hold_and_fail_and_need_their_schemes():
    config = lenet.Config()
    result = {f"{name}/accuracy": np.full((1, 40), 99.0) for name in config.recipes()}
    assert [claim.holds for claim in lenet.check(config, result)] == [True] * 4
    name = "mSGNHT-S, balanced, h = 0.0005/accuracy"
    for value, holds in ((98.8, [True, True, True, False]), (np.nan, [True, False, True, False])):
        worse = result | {name: np.full((1, 40), value)}
        assert [claim.holds for claim in lenet.check(config, worse)] == holds
    euler = result | {"mSGNHT-E, h = 0.0005/accuracy": np.full((1, 40), np.nan)}
    assert all(claim.holds for claim in lenet.check(config, euler))
    alone = lenet.Config(schemes=("balanced",))
    assert len(alone.recipes()) == 2 and len(lenet.check(alone, result)) == 1
    with pytest.raises(ValueError, match="`schemes` must be among S, E, balanced"):
        lenet.Config(schemes=("X",))


def test_claims_of_depth_hold_and_fail():
    config = depth.Config()
    result = {}
    for name, recipe in config.recipes().items():
        good = recipe.sampler == "mSGNHT-S"
        result |= {
            f"{name}/{what}": np.full((3, 40), 97.0 if good else 96.0) for what in curves.KEPT[:-2]
        }
    assert all(claim.holds for claim in depth.check(config, result))
    e = "mSGNHT-E, depth 4, h = 0.0001"
    better = result | {f"{e}/accuracy": np.full((3, 40), 97.5)}
    assert [claim.holds for claim in depth.check(config, better)] == [True, False]
    diverged = result | {f"{e}/accuracy": np.full((3, 40), np.nan)}
    assert all(claim.holds for claim in depth.check(config, diverged))
    s = "mSGNHT-S, depth 4, h = 0.0001"
    bad = result | {f"{s}/accuracy": np.full((3, 40), 50.0)}
    assert not depth.check(config, bad)[0].holds


def test_claims_of_the_table_hold_and_fail():
    config = table.Config()
    names = (*config.samplers(), *config.rivals)
    result = {f"{name}/scores": np.full((3, 5), 98.3) for name in names}
    result |= {f"{name}/together": np.full(5, 98.3) for name in names}
    assert all(claim.holds for claim in table.check(config, result))
    ahead = result | {"SGD/scores": np.full((3, 5), 98.6)}
    assert sum(not claim.holds for claim in table.check(config, ahead)) == 1
    short = result | {"mSGNHT-S, paper's setting/scores": np.full((3, 5), 97.6)}
    assert not table.check(config, short)[0].holds
    alone = result | {"mSGNHT-S, chosen/together": np.full(5, 98.2)}
    assert sum(not claim.holds for claim in table.check(config, alone)) == 1


def sharp(labels, confidence, count):
    """Return probabilities of `count` equal predictors."""
    others = (1 - confidence) / 9
    each = np.full((len(labels), 10), others) + (confidence - others) * np.eye(10)[labels]
    return np.repeat(each[None], count, axis=0)


@pytest.fixture(scope="module")
def finished_posterior():
    """A result in which chains are right and certain, and trained networks less certain."""
    config = posterior.Config()
    labels = np.arange(1000) % 10
    result = {"labels": labels}
    for problem in config.problems():
        number = config.equal_members if problem.equal else config.num_chains
        for what, confidence, count in (("members", 0.9, number), ("chains", 0.999, 5)):
            result[f"{problem.name}/{what}"] = sharp(labels, confidence, count)
            result[f"{problem.name}/{what}, rotated"] = sharp(labels, 0.2, count)
        result[f"{problem.name}/health"] = np.array([1.5, 3.0, 1.0, 1e-3, 5.0])
    return config, result


def test_claims_of_posteriors_hold_and_fail(finished_posterior):
    config, result = finished_posterior
    assert config.equal_members == 12
    assert all(claim.holds for claim in posterior.check(config, result))
    main = "labels as they are, S = 30/chains"
    unsure = result | {main: sharp(result["labels"], 0.8, 5)}
    assert [claim.holds for claim in posterior.check(config, unsure)] == [False] * 3 + [True] * 2
    lost = result | {main: np.full((5, 1000, 10), 0.1)}
    assert not posterior.check(config, lost)[0].holds
    with pytest.raises(ValueError, match="`num_chains` must be at least 2"):
        posterior.Config(num_chains=1)


def test_rows_and_figure_of_posteriors(finished_posterior):
    config, result = finished_posterior
    rows = posterior.rows(config, result)
    assert [row["method"] for row in rows].count(posterior.EQUAL) == 2
    chains = next(row for row in rows if row["method"] == posterior.CHAINS)
    assert chains["accuracy (%)"] == "100.00" and chains["R-hat, largest"] == 3.0
    assert chains["AUROC of rotated images"] == "1.0000"
    assert len({tuple(row) for row in rows}) == 1  # the same columns in all rows
    assert set(posterior.plot(config, result)) == {"methods"}


def test_labels_are_changed_to_other_classes(data):
    noisy = posterior._changed(data, jax_random.key(0))
    assert np.mean(noisy.train.y != data.train.y) == pytest.approx(posterior.SHARE_CHANGED)
    assert noisy.test is data.test and set(noisy.train.y) <= set(range(10))
    one = np.arange(9.0)[None]
    assert posterior._rotated(one).tolist() == [[2, 5, 8, 1, 4, 7, 0, 3, 6]]


def has_mnist() -> bool:
    try:
        return bool(locate("mnist"))
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not has_mnist(), reason="needs ../shared/data/mnist")
@pytest.mark.parametrize("name", ["mnist-depth", "mnist-posterior"])
def test_smoke_run(tmp_path, name):
    # The other experiments with curves use the same code as mnist-depth.
    document = runner.execute(name, smoke=True, out=tmp_path)
    assert document["rows"] and document["claims"] and document["figures"]
    assert (tmp_path / name / "result.json").exists()
    assert not (tmp_path / name / "checkpoints").exists()


def test_rows_and_figures_of_the_table():
    config = table.Config()
    result = {}
    for name in (*config.samplers(), *config.rivals):
        result[f"{name}/scores"] = np.full((3, 5), 98.0)
        result[f"{name}/together"] = np.full(5, 98.1)
        result[f"{name}/reliability"] = np.stack(
            [np.linspace(0, 0.9, 15), *np.full((2, 15), 0.9), np.full(15, 50.0)]
        )
    for name in config.factors():
        result |= {f"factor {name}/{what}": np.full((1, 40), 97.0) for what in curves.KEPT[:-2]}
        result[f"factor {name}/averages"] = np.full((1, 3, 2, 2), 97.0)
    rows = table.rows(config, result)
    assert {row["table"] for row in rows} == {
        "Table 3",
        "Several chains",
        "What matters",
        "Averaging",
    }
    assert rows[0]["paper (%)"] == 98.25 and rows[0]["T"] == "1"
    assert set(table.plot(config, result)) == {"methods", "factors", "reliability"}


@pytest.mark.slow
def test_a_rival_predicts(data):
    p = rivals.predict("SGD", RECIPE, data, jax_random.key(0))
    assert p.shape == (100, 10)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)

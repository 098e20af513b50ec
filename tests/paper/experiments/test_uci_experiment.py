"""The UCI experiment: scores in original units, order and resumption of units, claims."""

from typing import NamedTuple

import numpy as np
import pytest
from jax import random as jax_random
from scipy import stats

from isotherm.data import uci as loader
from isotherm.data.registry import present
from isotherm.data.uci import Rows
from isotherm.diagnostics.mixtures import gaussian_mixture
from isotherm.paper.experiments import runner, uci
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.experiments.uci import Config, methods, tables
from isotherm.paper.experiments.uci.problem import (
    SCORES,
    MixturePredictor,
    Units,
    held_out_rows,
    quantile_crps,
    scores,
)

NEEDS_DATA = pytest.mark.skipif(not present("uci"), reason="needs the files of the dataset uci")


class Line(NamedTuple):
    """A stand-in for the estimator: least squares with the names that the experiment uses."""

    coefficients: np.ndarray
    sd: float

    @classmethod
    def fit(cls, x, y):
        design = np.c_[x, np.ones(len(x))]
        coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
        return cls(coefficients, (y - design @ coefficients).std())

    def predict(self, X):
        return np.c_[X, np.ones(len(X))] @ self.coefficients

    def log_density(self, X, y):
        return stats.norm(self.predict(X), self.sd).logpdf(y)

    def predict_interval(self, X, level):
        return stats.norm(self.predict(X), self.sd).interval(level)


class Regressor:
    """A stand-in for `isotherm.BayesianMLPRegressor`."""

    def __init__(self, random_state=None):
        self.random_state = random_state

    def fit(self, X, y):
        return Line.fit(X, y)


def test_predictions_are_in_the_original_units():
    """A standard normal prediction of standardised targets is the Gaussian of the moments."""
    rng = np.random.default_rng(0)
    train = Rows(np.c_[rng.normal(5, 3, (50, 2)), np.ones(50)], rng.normal(100, 20, 50))
    units = Units.of(train)
    assert np.allclose(units.features(train.x).std(0), [1, 1, 0], atol=1e-5)
    predictor = MixturePredictor(
        units, lambda x: gaussian_mixture(np.zeros((3, len(x))), np.ones((3, len(x))))
    )
    truth = stats.norm(train.y.mean(), train.y.std())
    found = scores(predictor, train)
    assert found["log likelihood"] == pytest.approx(truth.logpdf(train.y).mean())
    assert found["RMSE"] == pytest.approx(train.y.std())
    inside = np.mean(np.abs(train.y - truth.mean()) <= 1.6449 * truth.std())
    assert found["coverage"] == pytest.approx(inside)
    z = (train.y - truth.mean()) / truth.std()
    exact = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5
    assert quantile_crps(predictor, train) == pytest.approx(truth.std() * exact.mean(), rel=0.01)


def test_held_out_rows():
    rows = held_out_rows(100, 0.15, seed=3)
    assert len(rows) == 15 and len(set(rows)) == 15 and rows.max() < 100
    assert not np.array_equal(rows, held_out_rows(100, 0.15, seed=4))


class Interrupted(Exception):
    """Raised in the middle of a run."""


def synthetic(name, data_dir=None):
    rng = np.random.default_rng(len(name))
    x = rng.normal(size=(60, 3))
    test = np.stack([np.sort(rng.permutation(60)[:10]) for _ in range(20)])
    return loader.UciSet(x, x @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=60), test)


def test_units_of_a_split_come_first_and_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(uci, "load_uci", synthetic)
    monkeypatch.setattr("isotherm.BayesianMLPRegressor", Regressor, raising=False)
    bad = {"SWAG": lambda job: (_ for _ in ()).throw(FloatingPointError())}
    monkeypatch.setattr(uci, "METHODS", methods.METHODS | bad)
    config = Config(sets=("boston", "wine"), splits=(0, 3), methods=("isotherm", "SWAG"))
    key, messages = jax_random.key(0), []
    whole = uci.run(config, key, messages.append, Checkpoints())
    assert messages[:4] == [
        "boston, split 0, isotherm",
        "boston, split 0, SWAG",
        "wine, split 0, isotherm",
        "wine, split 0, SWAG",
    ]
    assert messages[4] == "boston, split 3, isotherm" and len(messages) == 8
    saved = Checkpoints.open(tmp_path / "checkpoints", {"seed": 0}, resume=False)

    def interrupt(message):
        if message.startswith("wine, split 0"):
            raise Interrupted

    with pytest.raises(Interrupted):
        uci.run(config, key, interrupt, saved)
    messages = []
    again = uci.run(config, key, messages.append, saved)
    assert len(messages) == 6
    for name, values in whole.items():
        kept = values[..., :4] if values.ndim == 2 else values  # not the seconds
        np.testing.assert_array_equal(again[name][..., : kept.shape[-1]], kept)
    assert np.isfinite(whole["boston/isotherm"]).all() and np.isnan(whole["boston/SWAG"]).all()
    learned, *_ = uci.check(config, whole)
    assert not learned.holds and "SWAG on boston" in learned.measured


@pytest.fixture
def result():
    """Isotherm is ahead in likelihood, and equal in RMSE; HMC is a little better everywhere."""
    rng, config = np.random.default_rng(1), Config()
    arrays = {}
    for name in config.sets:
        arrays[f"{name}/constant"] = np.full(20, -5.0)
        common = rng.normal(size=20)
        for method in config.methods:
            level = {"isotherm": 0.0, "HMC": 0.001}.get(method, -0.5)
            each = np.zeros((20, len(SCORES)))
            each[:, 0] = common + level + 0.01 * rng.normal(size=20)
            each[:, 1] = 3 + common + 0.01 * rng.normal(size=20)
            each[:, 2:4], each[:, 4:] = 0.9, 30.0
            arrays[f"{name}/{method}"] = each
    arrays["power/HMC"][:] = np.nan
    return arrays


def failed(result):
    return [claim.claim for claim in uci.check(Config(), result) if not claim.holds]


def test_claims_hold_although_splits_differ_more_than_methods(result):
    assert failed(result) == []
    assert len(uci.check(Config(), result)) == 9
    gap = tables.difference(result, "wine", "isotherm", "SWAG", "log likelihood")
    assert gap.ahead and not gap.behind and gap.num_splits == 20
    assert tables.difference(result, "power", "isotherm", "HMC", "RMSE") is None


@pytest.mark.parametrize(
    ("keys", "column", "change", "failing"),
    [
        (["boston/isotherm"], 0, -10.0, "predicts better than a Gaussian"),
        (["wine/MC dropout", "power/MC dropout"], 0, 0.5, "than MC dropout"),
        (["wine/MAP ensemble", "boston/MAP ensemble"], 0, 0.7, "than MAP ensemble"),
        (["wine/deep ensemble", "boston/deep ensemble"], 0, 0.5, "than deep ensemble"),
        (["energy/HMC"], 0, 0.1, "log likelihood is on no set worse than that of HMC"),
        (["energy/isotherm"], 1, 0.1, "RMSE is on no set worse"),
        ([f"{name}/isotherm" for name in Config().sets], 5, 60.0, "at most a minute"),
    ],
)
def test_every_claim_can_fail(result, keys, column, change, failing):
    for key in keys:
        result[key][:, column] += change
    assert any(failing in text for text in failed(result))


def test_one_set_where_a_rival_is_equal_is_allowed(result):
    result["wine/MC dropout"][:, 0] = result["wine/isotherm"][:, 0]
    assert failed(result) == []


def test_table_and_figure(result):
    table = uci.rows(Config(), result)
    assert len({tuple(row) for row in table}) == 1  # the same columns everywhere
    power = [row["method"] for row in table if row["set"] == "power"]
    assert "HMC" not in power and "HMC (published)" in power
    row = next(r for r in table if (r["set"], r["method"]) == ("boston", "isotherm"))
    each = result["boston/isotherm"][:, 0]
    assert row["log likelihood"] == pytest.approx(each.mean())
    assert row["log likelihood se"] == pytest.approx(each.std(ddof=1) / 20**0.5)
    assert set(uci.plot(Config(), result)) == {"likelihood"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ("SWAGG",)}, "Unknown method `SWAGG`: did you mean `SWAG`"),
        ({"sets": ("wines",)}, "Unknown set `wines`: did you mean `wine`"),
        ({"splits": (20,)}, "`splits` must be numbers from 0 to 19"),
    ],
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        Config(**settings)


def test_dropout_diverges_only_if_all_of_its_rates_do():
    """Outputs that are not finite leave out one rate, not the method."""
    rng = np.random.default_rng(0)
    job = methods.Job(
        Rows(rng.normal(size=(20, 2)), rng.normal(size=20)), jax_random.key(0), Config().budget
    )

    class Constant(NamedTuple):
        rate: float
        worst: float

        def mixture(self, key, x):
            if self.rate > self.worst:
                raise FloatingPointError
            return gaussian_mixture(np.zeros((1, len(x))), np.ones((1, len(x))))

    chosen = methods._dropout_settings(job, lambda key, data, setting: Constant(setting[0], 0.01))
    assert [rate for rate, _ in chosen] == [0.005]
    with pytest.raises(FloatingPointError, match="All candidates diverged"):
        methods._dropout_settings(job, lambda key, data, setting: Constant(setting[0], 0.0))


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.slow
@NEEDS_DATA
def test_every_rival_predicts():
    """All rivals with a small budget, on part of the rows of one split."""
    train, test = loader.load_uci("energy").split(0)
    part = Rows(train.x[::3], train.y[::3])  # the rows are sorted
    job = methods.Job(part, jax_random.key(2), uci.SMOKE.budget)
    constant = stats.norm(part.y.mean(), part.y.std()).logpdf(test.y).mean()
    for name, fit in methods.METHODS.items():
        if name != "isotherm":
            found = scores(fit(job), test)
            assert found["log likelihood"] > constant, name


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.slow
@NEEDS_DATA
def test_smoke_run(tmp_path):
    document = runner.execute("uci", smoke=True, out=tmp_path)
    assert all(claim["holds"] for claim in document["claims"])

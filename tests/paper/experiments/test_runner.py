"""Tests of the runner, with an experiment of their own."""

import json
import os
from dataclasses import asdict, dataclass

import numpy as np
import pytest

from isotherm.io.files import atomically
from isotherm.paper.experiments import registry
from isotherm.paper.experiments.overrides import configured
from isotherm.paper.experiments.runner import execute
from isotherm.paper.report.document import FIELDS

FAKE = '''
"""Is a fake as good as the real thing?

It has *everything* a module needs.
"""
from dataclasses import dataclass
import jax
import numpy as np
from isotherm.paper.experiments.contract import Claim
from isotherm.paper.report.figures import panels

@dataclass(frozen=True)
class Config:
    num_draws: int = 8
    scale: float = 2.0

SMOKE = Config(num_draws=3)

def run(config, key, report):
    report("drawing")
    return {"draws": config.scale * jax.random.normal(key, (config.num_draws,))}

def rows(config, result):
    return [
        {"draw": index, "value": value, "spread": np.nan, "bound": np.inf, "paper": None}
        for index, value in enumerate(result["draws"])
    ]

def check(config, result):
    return [Claim("draws are finite", np.isfinite(result["draws"]).all(), "finite", "finite")]

def plot(config, result):
    figure, axes = panels()
    axes.plot(result["draws"])
    axes.set(xlabel="draw", ylabel="value")
    return {"draws": figure}
'''


@pytest.fixture(autouse=True)
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_for_runner.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.EXPERIMENTS, "fake", registry.Entry("fake_for_runner", "Figure 0"))


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def test_execute_writes_all_files(tmp_path):
    messages = []
    document = execute(
        "fake", seed=3, overrides=["scale=5"], out=tmp_path / "runs", report=messages.append
    )
    folder = tmp_path / "runs" / "fake"
    written = json.loads((folder / "result.json").read_text(), parse_constant=refuse)
    assert written == document
    assert set(document) == FIELDS
    assert document["title"] == "Is a fake as good as the real thing?"
    assert document["description"] == "It has *everything* a module needs."
    assert document["paper"] == "Figure 0"
    assert document["config"] == {"num_draws": 8, "scale": 5.0}
    assert document["command"] == "isotherm run fake --seed 3 --set scale=5"
    assert document["claims"] == [
        {"claim": "draws are finite", "holds": True, "measured": "finite", "expected": "finite"}
    ]
    assert document["figures"] == [
        {
            "name": "draws",
            "caption": "value against draw",
            "svg": "figures/draws.svg",
            "png": "figures/draws.png",
        }
    ]
    assert (folder / "figures/draws.png").read_bytes().startswith(b"\x89PNG")
    assert "Is a fake as good" in (folder / "fragment.html").read_text()
    assert "drawing" in messages
    names = {"result.json", "result.npz", "fragment.html", "figures"}
    assert set(os.listdir(folder)) == names  # no draft is left


def test_rows_are_strict_json_and_keep_their_digits(tmp_path):
    document = execute("fake", smoke=True, out=tmp_path)
    assert document["smoke"] and document["command"] == "isotherm run fake --smoke --seed 0"
    row = document["rows"][0]
    assert (row["spread"], row["bound"], row["paper"]) == (None, "inf", None)
    draws = np.load(tmp_path / "fake/result.npz")["draws"]
    assert draws.shape == (3,) and np.float32(row["value"]) == draws[0]


def test_same_seed_same_files(tmp_path):
    for out in ("one", "two"):
        execute("fake", smoke=True, seed=7, out=tmp_path / out)
    same = [(tmp_path / out / "fake/figures/draws.svg").read_text() for out in ("one", "two")]
    assert same[0] == same[1]


def test_unknown_experiment_suggests_a_name(tmp_path):
    with pytest.raises(ValueError, match=r"Unknown experiment `fakk`: did you mean `fake`\?"):
        execute("fakk", out=tmp_path)
    with pytest.raises(ValueError, match=r"Unknown experiment `zzz`\. Known are `double-well`"):
        registry.load("zzz")


def test_question_is_read_from_the_source():
    assert registry.question("fake") == "Is a fake as good as the real thing?"


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomically(path) as draft:
        draft.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path).count("file") == 1
    assert not list(tmp_path.glob(".draft-*"))


@dataclass(frozen=True)
class Config:
    count: int = 1
    rate: float = 1.0
    flag: bool = False
    word: str = "a"
    counts: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self):
        if not self.rate > 0:
            raise ValueError(f"`rate` must be positive, got {self.rate}.")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("count=10_000", 10_000),
        ("count=1e6", 1_000_000),
        ("rate=1e-3", 1e-3),
        ("rate = 2", 2.0),
        ("flag=true", True),
        ("flag=No", False),
        ("word=a=b", "a=b"),
        ("counts=1,2, 3", (1, 2, 3)),
        ("counts=", ()),
        ("rates=0.1,", (0.1,)),
        ("words=euler,ABOBA", ("euler", "ABOBA")),
    ],
)
def test_an_override_gets_the_type_of_its_field(override, value):
    got = asdict(configured(Config(), [override]))[override.partition("=")[0].strip()]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("count=1.5", "`count` must be an integer, got `1.5`."),
        ("count=inf", "`count` must be an integer, got `inf`."),
        ("rate=fast", "`rate` must be a number, got `fast`."),
        ("flag=maybe", "`flag` must be true or false, got `maybe`."),
        ("counts=1,x", "`counts` must be a comma-separated list, each an integer, got `1,x`."),
        ("rate=-1", "`rate` must be positive, got -1.0."),
        ("count", "`--set` must be given key=value, got `count`."),
        (
            "cuont=1",
            "Unknown setting `cuont`: did you mean `count`? Known are `count`, `rate`, `flag`, "
            "`word`, `counts`, `rates`, `words`.",
        ),
    ],
)
def test_message_of_a_bad_override(override, message):
    with pytest.raises(ValueError) as caught:
        configured(Config(), [override])
    assert str(caught.value) == message


RESUMABLE = """
def run(config, key, report, checkpoints):
    if checkpoints.load("unit") is None:
        checkpoints.save("unit", {"x": np.ones(1)})
        raise KeyboardInterrupt
    return {"draws": np.zeros(config.num_draws)}
"""


def test_an_experiment_does_not_resume_with_other_data(tmp_path, monkeypatch):
    """One bit of a file of its dataset has changed, and no size."""
    (tmp_path / "resumable.py").write_text(FAKE + RESUMABLE)
    entry = registry.Entry("resumable", "Figure 0", "a9a")
    monkeypatch.setitem(registry.EXPERIMENTS, "fake", entry)
    path = tmp_path / "data" / "a9a" / "a9a.t"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(9))
    settings = {"out": tmp_path / "runs", "data_dir": tmp_path / "data"}
    with pytest.raises(KeyboardInterrupt):
        execute("fake", **settings)
    path.write_bytes(bytes(8) + b"\x01")
    with pytest.raises(ValueError, match="belongs to a run with another data"):
        execute("fake", resume=True, **settings)
    path.write_bytes(bytes(9))
    assert execute("fake", resume=True, **settings)["claims"][0]["holds"]


def test_an_experiment_does_not_resume_from_units_of_an_unknown_run(tmp_path, monkeypatch):
    (tmp_path / "resumable.py").write_text(FAKE + RESUMABLE)
    monkeypatch.setitem(registry.EXPERIMENTS, "fake", registry.Entry("resumable", "Figure 0"))
    with pytest.raises(KeyboardInterrupt):
        execute("fake", out=tmp_path / "runs")
    (tmp_path / "runs" / "fake" / "checkpoints" / "belongs-to.json").unlink()
    with pytest.raises(ValueError, match="to which run they belong"):
        execute("fake", seed=1, resume=True, out=tmp_path / "runs")


def test_an_interrupted_run_leaves_no_empty_folder(tmp_path, monkeypatch):
    stop = FAKE.replace('report("drawing")', "raise KeyboardInterrupt")
    (tmp_path / "stopped.py").write_text(stop)
    monkeypatch.setitem(registry.EXPERIMENTS, "fake", registry.Entry("stopped", "Figure 0"))
    with pytest.raises(KeyboardInterrupt):
        execute("fake", out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()

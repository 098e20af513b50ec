"""What is written under faults, and how the folder that remains is judged.

A scenario has states 0, 1, 2, … of a folder. `prepare` brings it to a state, `act` writes the next
one. After a fault the folder must open to the state before or the state after, complete in every
bit; `load` returns the number of the state that it finds, or raises if it finds anything else.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import isotherm
from faults import ERRORS, Disk
from isotherm.data.shard_manifest import ShardManifest
from isotherm.data.word_counts import Counts
from isotherm.loop.checkpoint import Checkpoints
from isotherm.loop.run import Run
from isotherm.loop.state import RunState
from isotherm.paper.experiments import resume
from isotherm.paper.report import document
from isotherm.types import Traits


class Scenario(NamedTuple):
    """Something that is saved."""

    write: Callable[[Path, int], None]
    """Writes state `number` to a folder that has the state before."""
    load: Callable[[Path], int]
    """Returns the number of the state in a folder; -1 if there is none."""
    states: int = 3


def run_state(number: int) -> RunState:
    """Return the state of a run with `number` + 1 pages."""
    pages = [
        ({"draws": np.full((2, n + 1, 3), float(n))}, {"h": np.full((2, n + 1), 0.5)})
        for n in range(number + 1)
    ]
    kept = sum(n + 1 for n in range(number + 1))
    state = {"x": np.arange(6.0).reshape(2, 3) + number}
    return RunState(7, kept, np.array([False, True]), state, {}, tuple(pages), ())


def same(one: Any, other: Any) -> bool:
    """Return whether two trees have the same leaves, bit for bit."""
    a, b = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(a) == len(b) and all(map(np.array_equal, a, b))


def write_checkpoint(folder: Path, number: int) -> None:
    """Resume and save, as every process does."""
    checkpoints = Checkpoints(folder / "run", {"seed": 1})
    load_run_state(checkpoints)
    checkpoints.save(run_state(number))


def load_run_state(checkpoints: Checkpoints) -> Any:
    """Read the latest intact state."""
    like = run_state(0)
    page = jax.tree.map(lambda x: x[:, :0], like.pages[0])
    return checkpoints.load(like.state, like.accumulators, page)[0]


def load_checkpoint(folder: Path) -> int:
    """Return which state the checkpoint has."""
    found = load_run_state(Checkpoints(folder / "run", {"seed": 1}))
    if found is None:
        return -1
    number = len(found.pages) - 1
    assert same(tuple(found), tuple(run_state(number)))
    return number


def saved_run(number: int) -> Run:
    """Return a small run."""
    draws = {"w": np.arange(12.0).reshape(2, 3, 2) + number}
    stats = {"step_size": np.full((2, 3), 0.1)}
    traits = Traits("sgld")
    names = {"draws": draws}
    return Run(draws, names, stats, None, np.zeros(2, bool), traits, (), ("w",), 3, 1, number, 0.0)


def write_run(suffix: str) -> Callable[[Path, int], None]:
    """Return a function that saves a run in a format."""
    return lambda folder, number: isotherm.save_run(saved_run(number), folder / f"run{suffix}")


def load_run(suffix: str) -> Callable[[Path], int]:
    """Return a function that loads a run."""

    def load(folder: Path) -> int:
        path = folder / f"run{suffix}"
        if not path.exists():
            return -1
        run = isotherm.load_run(path)
        assert same(run.draws, saved_run(run.burn_in).draws)
        return run.burn_in

    return load


def counts(number: int) -> Counts:
    """Return two documents."""
    return Counts(np.array([0, 1, 2]), np.array([number, number + 1]), np.array([1, 2]), 9)


def write_shards(folder: Path, number: int) -> None:
    """Resume a build and add a shard."""
    manifest = ShardManifest.open(folder / "out", {"seed": 1})
    if manifest.position > number:  # it was written, and only a call after it failed
        return
    manifest.add(counts(number), np.array([number, number]))
    manifest.advance({"documents": 2}, position=number + 1, ended=number == 2)


def load_shards(folder: Path) -> int:
    """Return how many shards a resumed build starts from, minus one."""
    if not (folder / "out" / "ledger.json").exists():
        ShardManifest.open(folder / "out", {"seed": 1})  # must be able to start
        return -1
    manifest = ShardManifest.open(folder / "out", {"seed": 1})  # compares checksums
    assert len(manifest.paths) == manifest.position
    return manifest.position - 1


def write_units(folder: Path, number: int) -> None:
    """Save a unit of work of an experiment."""
    checkpoints = resume.Checkpoints.open(folder / "units", {"seed": 1}, resume=True)
    checkpoints.save("unit", {"x": np.arange(50.0) + number})


def load_units(folder: Path) -> int:
    """Return which unit is there."""
    found = resume.Checkpoints.open(folder / "units", {"seed": 1}, resume=True).load("unit")
    if found is None:
        assert not list((folder / "units").glob("*.npz")), "a file is there but cannot be read"
        return -1
    number = int(found["x"][0])
    assert np.array_equal(found["x"], np.arange(50.0) + number)
    return number


def result(number: int) -> dict[str, Any]:
    """Return the document of an experiment."""
    return {**dict.fromkeys(sorted(document.FIELDS), "text"), "seed": number}


def write_result(folder: Path, number: int) -> None:
    """Write the document of an experiment."""
    document.write_json(folder / "result.json", result(number))


def load_result(folder: Path) -> int:
    """Return which document is there."""
    path = folder / "result.json"
    if not path.exists():
        return -1
    found = document.read_json(path)
    assert found == result(found["seed"])
    return found["seed"]


SCENARIOS = {
    "checkpoint": Scenario(write_checkpoint, load_checkpoint, 4),
    "run.nc": Scenario(write_run(".nc"), load_run(".nc"), 2),
    "run.zarr": Scenario(write_run(".zarr"), load_run(".zarr"), 2),
    "run.safetensors": Scenario(write_run(".safetensors"), load_run(".safetensors"), 2),
    "shards": Scenario(write_shards, load_shards),
    "units of experiments": Scenario(write_units, load_units),
    "result.json": Scenario(write_result, load_result),
}


def inject(
    scenario: Scenario, stride: int = 1, first: int = 0, errors: Sequence[int] = ERRORS
) -> dict[str, int]:
    """Try all faults, or every `stride`-th; raise an error if one is silent. Return the counts.

    `first` from 0 to `stride - 1` gives disjoint sets of faults that together are all.

    After a failed call: the save raises an `OSError` (or succeeds, if only its clean-up failed),
    the folder opens to the state before or after, no draft remains, and the same save then
    succeeds. After a power cut: the folder opens to the state before or after, and if the save had
    returned, to the state after.
    """
    tried = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        where = (Path(scratch) / str(i) for i in range(10**9))
        before = next(where)
        before.mkdir()
        for number in range(scenario.states):
            folder = Path(shutil.copytree(before, next(where)))
            with Disk(folder) as disk:
                scenario.write(folder, number)
            assert scenario.load(folder) == number
            assert len(disk.writers) <= 1  # else a write may be under way when another one fails
            tried["calls"] += len(disk.kinds)
            skipped = (first + number) % stride
            for cut in range(skipped, len(disk.log) + 1, stride):
                for label, names, contents in disk.crashes(cut):
                    left = disk.restore(names, contents, next(where))
                    try:
                        found = scenario.load(left)
                    except Exception as error:
                        raise AssertionError(f"{label}, after entry {cut}: {error}") from error
                    allowed = {number} if cut == len(disk.log) else {number - 1, number}
                    assert found in allowed, (label, cut, disk.log[max(cut - 3, 0) : cut], found)
                    tried["power cuts"] += 1
                    shutil.rmtree(left)
            for place in range(skipped, len(disk.kinds), stride):
                for error in errors:
                    for how in ({}, {"torn": True}, {"stays": True}):
                        tried["failed calls"] += 1
                        broken = Path(shutil.copytree(before, next(where)))
                        _fail(scenario, broken, number, place, error, how)
            before = folder
    return dict(tried)


def _fail(scenario: Scenario, folder: Path, number: int, place: int, error: int, how: dict) -> None:
    """Make one call of a save fail, and judge the folder."""
    raised = False
    with Disk(folder, place, error, **how) as disk:
        try:
            scenario.write(folder, number)
        except OSError as problem:
            raised = True
            assert problem.errno == error
    about = (disk.kinds[place : place + 1], place, error, how)
    assert disk.failed, about
    found = scenario.load(folder)
    assert found in ({number - 1, number} if raised else {number}), (about, found)
    scenario.write(folder, number)
    assert scenario.load(folder) == number, about

"""Checkpoints return what was saved, to the run they belong to."""

import numpy as np
import pytest

from isotherm.paper.experiments.resume import Checkpoints


def test_arrays_are_saved_loaded_and_removed(tmp_path):
    folder = tmp_path / "checkpoints"
    first = Checkpoints.open(folder, {"seed": 1}, resume=False)
    assert first.load("a") is None
    first.save("a", {"x": np.arange(3.0)})
    first.save("ä/b: c", {"y": np.ones(())})
    resumed = Checkpoints.open(folder, {"seed": 1}, resume=True)
    np.testing.assert_array_equal(resumed.load("a")["x"], [0, 1, 2])
    assert resumed.load("ä/b: c")["y"] == 1 and resumed.load("ä/b; c") is None
    new = Checkpoints.open(folder, {"seed": 1}, resume=False)
    assert new.load("a") is None
    new.remove()
    assert not folder.exists()


def test_another_run_cannot_resume_and_damaged_files_are_ignored(tmp_path):
    folder, configuration = tmp_path / "checkpoints", {"n": (1, 2)}
    owner = {"seed": 1, "configuration": configuration}
    checkpoints = Checkpoints.open(folder, owner, resume=True)
    checkpoints.save("a", {"x": np.arange(1000.0)})
    with pytest.raises(ValueError, match="belongs to a run with another seed: use the same"):
        Checkpoints.open(folder, owner | {"seed": 2}, resume=True)
    (path,) = folder.glob("*.npz")
    path.write_bytes(path.read_bytes()[:-500])
    assert checkpoints.load("a") is None


def test_without_a_folder_nothing_is_saved():
    checkpoints = Checkpoints()
    checkpoints.save("a", {"x": np.arange(3)})
    assert checkpoints.load("a") is None

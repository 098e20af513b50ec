"""A shelf gives back what was put there, for the run it belongs to."""

import numpy as np
import pytest

from isotherm.paper.experiments.resume import Shelf


def test_it_gives_back_and_forgets(tmp_path):
    shelf = Shelf.open(tmp_path / "shelf", {"seed": 1}, resume=False)
    assert shelf.load("a") is None
    shelf.save("a", {"x": np.arange(3.0)})
    shelf.save("ä/b: c", {"y": np.ones(())})
    again = Shelf.open(tmp_path / "shelf", {"seed": 1}, resume=True)
    np.testing.assert_array_equal(again.load("a")["x"], [0, 1, 2])
    assert again.load("ä/b: c")["y"] == 1 and again.load("ä/b; c") is None
    afresh = Shelf.open(tmp_path / "shelf", {"seed": 1}, resume=False)
    assert afresh.load("a") is None
    afresh.remove()
    assert not (tmp_path / "shelf").exists()


def test_it_refuses_another_run_and_ignores_damage(tmp_path):
    shelf = Shelf.open(tmp_path / "shelf", {"seed": 1, "configuration": {"n": (1, 2)}}, resume=True)
    shelf.save("a", {"x": np.arange(1000.0)})
    with pytest.raises(ValueError, match="begun with another seed"):
        Shelf.open(tmp_path / "shelf", {"seed": 2, "configuration": {"n": (1, 2)}}, resume=True)
    (path,) = (tmp_path / "shelf").glob("*.npz")
    path.write_bytes(path.read_bytes()[:-500])
    assert shelf.load("a") is None


def test_without_a_folder_nothing_is_kept():
    shelf = Shelf()
    shelf.save("a", {"x": np.arange(3)})
    assert shelf.load("a") is None

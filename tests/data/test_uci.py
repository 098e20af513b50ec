"""The UCI sets: shapes, splits, and damaged files."""

from pathlib import Path

import numpy as np
import pytest

from isotherm.data.registry import DataNotFoundError
from isotherm.data.uci import load_uci, uci_names

SHARED = Path(__file__).parents[3] / "shared" / "data"
SIZES = {
    "boston": (506, 13, 51),
    "concrete": (1030, 8, 103),
    "energy": (768, 8, 77),
    "power": (9568, 4, 957),
    "wine": (1599, 11, 160),
}


def write(folder, **changes):
    (folder / "uci").mkdir(exist_ok=True)
    arrays = {"x": np.arange(10.0).reshape(5, 2), "y": np.arange(5.0), "test": [[0, 3], [1, 2]]}
    arrays = {name: np.asarray(value) for name, value in (arrays | changes).items()}
    np.savez(folder / "uci" / "wine.npz", **arrays)


def test_splits_of_a_small_file(tmp_path):
    write(tmp_path)
    train, test = load_uci("wine", tmp_path).split(1)
    np.testing.assert_array_equal(test.y, [1, 2])
    np.testing.assert_array_equal(train.y, [0, 3, 4])
    np.testing.assert_array_equal(train.x, [[0, 1], [6, 7], [8, 9]])
    with pytest.raises(ValueError, match="`number` must be 0 to 1, got 2"):
        load_uci("wine", tmp_path).split(2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": [1.0, 2.0]}, "must have finite `x`"),
        ({"x": np.full((5, 2), np.nan)}, "must have finite `x`"),
        ({"test": [[0, 5]]}, "must have row numbers in `test`"),
        ({"test": [[0.0, 1.0]]}, "must have row numbers in `test`"),
    ],
)
def test_wrong_contents_raise(tmp_path, changes, message):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_uci("wine", tmp_path)


def test_missing_and_damaged_files_raise(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"`uci/wine\.npz`"):
        load_uci("wine", tmp_path)
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "wine.npz").write_bytes(b"not an archive")
    with pytest.raises(ValueError, match="is damaged"):
        load_uci("wine", tmp_path)
    with pytest.raises(ValueError, match="`name` must be one of"):
        load_uci("iris", tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", uci_names())
def test_the_real_sets(name):
    data = load_uci(name, SHARED)
    rows, features, held_out = SIZES[name]
    assert data.x.shape == (rows, features) and data.test.shape == (20, held_out)
    train, test = data.split(19)
    assert len(train.y) + len(test.y) == rows

"""Every write may fail, and the power may be cut after it: nothing is lost or damaged in silence.

Here are some of the faults of every format; `make soak` tries all of them.
"""

import os

import numpy as np
import pytest

from fault_scenarios import SCENARIOS, Scenario, inject
from faults import ERRORS, Disk
from isotherm.io.files import write_json
from marks import slow

STRIDES = {"checkpoint": 9, "run.zarr": 150, "run.nc": 4, "run.safetensors": 3}
LONG = ("run.nc", "shards")


@pytest.mark.parametrize("name", [slow(name) if name in LONG else name for name in SCENARIOS])
def test_after_every_fault_the_folder_opens_to_a_good_state(name):
    pytest.importorskip("zarr")
    pytest.importorskip("h5netcdf")
    tried = inject(SCENARIOS[name], STRIDES.get(name, 2), errors=ERRORS[:1])
    assert min(tried["power cuts"], tried["failed calls"]) > 8


def careless(folder, number):
    """Replace a file without a draft, as a careless program does."""
    (folder / "x.npy").write_bytes(np.full(9, number).tobytes())


def without_flush(folder, number):
    """Rename a draft that was not flushed."""
    (folder / "draft").write_bytes(np.full(9, number).tobytes())
    os.replace(folder / "draft", folder / "x.npy")


def without_rename_flush(folder, number):
    """Flush the draft, but not the folder that has the new name."""
    with (folder / "draft").open("wb") as file:
        file.write(np.full(9, number).tobytes())
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "draft", folder / "x.npy")


def load_numbers(folder):
    path = folder / "x.npy"
    if not path.exists():
        return -1
    (only,) = set(np.frombuffer(path.read_bytes(), int).tolist())
    return only


@pytest.mark.parametrize("write", [careless, without_flush, without_rename_flush])
def test_programs_that_are_not_careful_are_found_out(write):
    """Mutants: the layer finds each of the classical mistakes."""
    with pytest.raises((AssertionError, ValueError)):
        inject(Scenario(write, load_numbers))


def test_calls_are_counted_and_fail_in_turn(tmp_path):
    with Disk(tmp_path) as disk:
        write_json(tmp_path / "a.json", {"x": 1})
    assert disk.kinds == ["mkdir", "open", "write", "fsync", "rename", "fsync", "rmdir"]
    for place, kind in enumerate(disk.kinds):
        with Disk(tmp_path, place) as again, pytest.raises(OSError, match="No space left"):
            write_json(tmp_path / "a.json", {"x": 2})
        assert again.kinds[place] == kind

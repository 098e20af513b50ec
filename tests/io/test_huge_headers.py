"""Files of some bytes that announce 10^12 numbers, for every reader of binary and text formats.

Checkpoints, netCDF and Zarr have theirs in `test_hostile_checkpoints.py`, `test_saved_runs.py` and
`test_zarr_store.py`, JSON documents in `test_forgeries.py`.
"""

import io
import json
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy

import isotherm
from isotherm.data.bag_of_words import read_ldac, read_matrix_market, read_npz
from isotherm.data.idx import read_idx
from isotherm.data.libsvm import read_libsvm
from isotherm.data.shards import Shards
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.topics.estimators.lda import BayesianLDA

HUGE = 10**12
MOST_BYTES = 10**8
"""As for forged documents; readers of npz read blocks of 64 MB."""


def npz_bytes(*names):
    """Return an npz archive whose arrays have a header of 10^12 numbers and 64 bytes."""
    header, archive = io.BytesIO(), io.BytesIO()
    shape = {"descr": "<i8", "fortran_order": False, "shape": (HUGE,)}
    npy.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(archive, "w") as file:
        for name in names:
            file.writestr(f"{name}.npy", header.getvalue() + bytes(64))
    return archive.getvalue()


def safetensors_bytes():
    """Return a safetensors file with one tensor of 10^12 numbers."""
    tensor = {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * HUGE]}
    header = json.dumps({"__metadata__": {"isotherm": "x"}, "w": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(64)


def long_safetensors_header():
    """Return a safetensors file whose header is said to have 10^12 bytes."""
    return struct.pack("<Q", HUGE) + b"{}"


CORPUS = npz_bytes("indices", "indptr", "data", "shape", "format")
MATRIX = b"%%MatrixMarket matrix coordinate integer general\n"
CASES = {
    "run.safetensors": (safetensors_bytes(), isotherm.load_run),
    "header.safetensors": (long_safetensors_header(), isotherm.load_run),
    "topics.safetensors": (safetensors_bytes(), BayesianLDA.load),
    "corpus.npz": (CORPUS, read_npz),
    "shard.npz": (CORPUS, lambda path: next(iter(Shards([path], 5).batches(2)))),
    "x.idx": (struct.pack(">HBBII", 0, 13, 2, 10**6, 10**6) + bytes(64), read_idx),
    "x.mtx": (MATRIX + b"5 5 %d\n1 1 1\n" % HUGE, read_matrix_market),
    "rows.mtx": (MATRIX + b"%d 5 1\n1 1 1\n" % HUGE, read_matrix_market),
    "x.ldac": (b"%d 0:1\n" % HUGE, lambda path: read_ldac(path, 5)),
    "shard.ldac": (b"%d 0:1\n" % HUGE, lambda path: next(iter(Shards([path], 5).batches(2)))),
    "x.libsvm": (b"1 %d:1\n" % HUGE, lambda path: read_libsvm(path, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_header_of_a_million_million_numbers_is_refused_before_memory_is_allocated(
    tmp_path, name
):
    pytest.importorskip("safetensors")
    content, read = CASES[name]
    path = tmp_path / name
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as caught:
            read(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < MOST_BYTES
    assert name in str(caught.value) and "Errno" not in str(caught.value)


def test_a_unit_of_work_with_such_a_header_is_not_used(tmp_path):
    """It is made again, as if it were not there."""
    made = Checkpoints.open(tmp_path, {"seed": 1}, resume=True)
    made.save("unit", {"x": np.arange(5)})
    (file,) = tmp_path.glob("*.npz")
    file.write_bytes(npz_bytes("x"))
    tracemalloc.start()
    try:
        try:
            found = Checkpoints.open(tmp_path, {"seed": 1}, resume=True).load("unit")
        except ValueError as error:
            found = None
            assert file.name in str(error)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is None and most < MOST_BYTES


@pytest.mark.parametrize("suffix", [".nc", ".zarr", ".safetensors"])
def test_a_missing_file_is_told_in_words(tmp_path, suffix):
    """Also below a name that is a file, where the system says `[Errno 20]`."""
    pytest.importorskip("h5py")
    (tmp_path / "file").write_text("x")
    for folder in ("nowhere", "file"):
        path = tmp_path / folder / f"run{suffix}"
        with pytest.raises(FileNotFoundError) as caught:
            isotherm.load_run(path)
        assert str(caught.value) == f"`{path}` does not exist."

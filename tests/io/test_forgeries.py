"""Every reader of documents, on documents of an attacker: read or refused, never anything else."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import isotherm
from fault_scenarios import saved_run
from forgeries import SCENARIOS, judge
from isotherm.data.bag_of_words import read_ldac, read_npz
from isotherm.data.idx import read_idx
from isotherm.data.libsvm import read_libsvm
from isotherm.data.shards import Shards
from isotherm.data.wikidump import kind_of
from isotherm.io.untrusted import Damaged, printable
from isotherm.topics.estimators.lda import BayesianLDA
from marks import slow

STRIDES = {
    "saved run": 19,
    "state of a checkpoint": 7,
    "identity of a checkpoint": 3,
    "manifest of shards": 3,
    "owner of units": 1,
    "result on a page": 53,
}
LONG = ("result on a page", "DPFA, stream")


@pytest.mark.parametrize("name", [slow(name) if name in LONG else name for name in SCENARIOS])
def test_every_forgery_is_read_or_refused(tmp_path, name):
    """Some of them; `soak/forge.py` tries all."""
    for library in ("safetensors", "zarr"):
        pytest.importorskip(library)
    counts = judge(*SCENARIOS[name](tmp_path), STRIDES.get(name, 31))
    assert counts["refused"] > 5


def test_messages_about_files_do_not_write_to_the_terminal():
    for text in ("\x1b[31mred", "a\nb", "\u202eright to left", "\x00", "\x9b2J", "\r"):
        assert printable(text).isprintable() and str(Damaged(text)).isprintable()
    assert printable("Größe 10 µm, 中文") == "Größe 10 µm, 中文"
    assert len(str(Damaged("x" * 10**6))) == 1000


def test_a_run_whose_arrays_were_changed_is_not_saved(tmp_path):
    """Saving it would make a file that cannot be loaded."""
    run = saved_run(1)
    for wrong in (
        replace(run, draws={"w": run.draws["w"][:, 1:]}),
        replace(run, stats={"step_size": run.stats["step_size"][:1]}),
        replace(run, num_draws=10**12),
    ):
        with pytest.raises(ValueError, match=r"has an array of shape .*, but the run has"):
            isotherm.save_run(wrong, tmp_path / "run.nc")
    assert list(tmp_path.iterdir()) == []


READERS = {
    "run.nc": isotherm.load_run,
    "run.safetensors": isotherm.load_run,
    "run.zarr": isotherm.load_run,
    "model.nc": BayesianLDA.load,
    "x.ldac": lambda path: read_ldac(path, 5),
    "x.npz": read_npz,
    "x.idx": read_idx,
    "x.gz": read_idx,
    "x.libsvm": lambda path: read_libsvm(path, 5),
    "shard.npz": lambda path: next(iter(Shards([path], 5).batches(2))),
    "shard.ldac": lambda path: next(iter(Shards([path], 5).batches(2))),
    "dump.xml": kind_of,
}


@pytest.fixture
def limited():
    """Stop a reader that waits for ever."""

    def stop(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path, limited, name, kind):
    for library in ("safetensors", "h5py"):
        pytest.importorskip(library)
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(Path("/dev/zero"))
    with pytest.raises(ValueError, match="is not a f"):  # not a file, or not a folder
        READERS[name](path)

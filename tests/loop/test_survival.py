"""Killed, starved or lied to, a run goes on to the same bits or says what is wrong; `make soak` does more of it for longer."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import full_disk

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def soak(*words, timeout=600):
    """Run a script of the soak as it is run there."""
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT / "soak", capture_output=True, text=True, timeout=timeout
    )


def test_killed_at_random_moments_it_ends_with_the_same_bits():
    done = soak("kills.py", "logistic", "--kills", "2", "--quick")
    assert done.returncode == 0, done.stderr
    assert "'kills': 2" in done.stdout and "'arrays_that_differ': []" in done.stdout


run = partial(full_disk.run, size=3000)


def test_where_files_may_not_grow_the_checkpoint_before_is_good(tmp_path):
    """Pages of the longer run are over the limit that the kernel sets, those of the shorter one are not."""
    run(tmp_path / "cut", 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"Cannot save in .*: file too large; .* is intact"):
            run(tmp_path / "cut", 40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in (tmp_path / "cut").rglob("*") if ".draft-" in str(path)]
    np.testing.assert_array_equal(run(tmp_path / "cut", 40).draws, run(None, 40).draws)


def test_a_device_that_is_full_is_told_of(tmp_path, monkeypatch):
    """Every write to /dev/full is answered with ENOSPC, by the kernel and not by a mock."""
    opened = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda self, mode="r", *more, **named: opened(
            Path("/dev/full") if "w" in mode and self.suffix == ".npz" else self,
            mode,
            *more,
            **named,
        ),
    )
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with pytest.raises(OSError, match="no space left on device"):
        run(tmp_path, 2)


def own_mounts(folder):
    """Find how to start a process that may mount a disk that nobody else sees."""
    for flags in ("-rm", "-m"):
        words = ["unshare", flags, "mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder]
        if shutil.which("unshare") and not subprocess.run(words, capture_output=True).returncode:
            return ["unshare", flags]
    return pytest.skip("mounting is not allowed here")


def test_a_disk_that_is_full_costs_nothing_that_was_saved(tmp_path):
    """The draws do not fit on a disk of 512 KiB; once it is bigger the same call goes on."""
    pytest.importorskip("zarr"), pytest.importorskip("h5netcdf"), pytest.importorskip("safetensors")
    words = [*own_mounts(tmp_path), sys.executable, "full_disk.py", tmp_path]
    done = subprocess.run(words, cwd=ROOT / "tests", capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    full = r"Cannot save .*: (.*: )?no space left on device.* is intact"
    for place in ("checkpoint", ".nc", ".zarr", ".safetensors"):
        assert re.match(full, told.pop(place))
    assert told == {"intact": True, "drafts": [], "went_on": True, "same_bits": True}


def test_no_source_executes_what_it_reads():
    """Neither code in text nor pickled objects, in any module."""
    bad = re.compile(
        r"(?<![\w.])(?:eval|exec|compile|__import__)\(|\bc?[pP]ickle\b\s*(?:\.|import)|import c?pickle"
        r"|\bmarshal\b|\bshelve\b|\bdill\b|joblib\.load|yaml\.load|allow_pickle=True"
        r"|os\.system|shell=True|weights_only=False"
    )
    assert len(SOURCES) > 100
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if bad.search(line)
    ]
    assert not found
    assert (
        bad.search("x = eval(text)")
        and bad.search("import pickle")
        and not bad.search("re.compile(")
    )


def test_every_array_file_is_opened_without_pickle():
    """NumPy's default is to refuse objects, and nobody changes it."""
    for path in SOURCES:
        for call in re.findall(r"np\.load\([^)]*\)", path.read_text(encoding="utf-8")):
            assert "allow_pickle=True" not in call, path


def test_no_archive_is_unpacked_to_paths_of_its_own_choice():
    """Arrays of an archive are read one by one, by names that we know; nothing is ever extracted."""
    bad = re.compile(r"\.extract(?:all)?\(|unpack_archive|tarfile|pooch\.(?:Unzip|Untar)|patoolib")
    assert not [path.name for path in SOURCES if bad.search(path.read_text(encoding="utf-8"))]


def test_every_download_is_checked_before_it_is_used():
    """There is one place that downloads, and it never does without a checksum."""
    net = re.compile(r"urlopen|urlretrieve|requests\.|httpx|pooch\.(?:retrieve|create)|socket\.")
    places = [path for path in SOURCES if net.search(path.read_text(encoding="utf-8"))]
    assert [path.name for path in places] == ["registry.py"]
    text = places[0].read_text(encoding="utf-8")
    assert len(net.findall(text)) == 1 and 'f"sha256:{' in text
    from isotherm.data.registry import datasets

    for dataset in datasets().values():
        for file in dataset.files:
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
            packed = any(url.endswith(".gz") for url in file.urls)
            assert not packed or re.fullmatch(r"[0-9a-f]{64}", file.sha256_gz)

"""Runs that are killed or run out of disk space resume bit for bit; `make soak` does more."""

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
    """Run a script of `soak/` from its folder."""
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT / "soak", capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.slow
def test_a_run_killed_at_random_moments_has_the_same_result():
    done = soak("kills.py", "logistic", "--kills", "2", "--quick")
    assert done.returncode == 0, done.stderr
    assert "'kills': 2" in done.stdout and "'arrays_that_differ': []" in done.stdout


run = partial(full_disk.run, size=3000)


def test_a_limit_on_file_sizes_leaves_the_previous_checkpoint_intact(tmp_path):
    """Pages of the longer run exceed the limit of the kernel, those of the shorter one do not."""
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


def test_a_full_device_is_reported(tmp_path, monkeypatch):
    """The kernel answers every write to /dev/full with ENOSPC."""
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


BUSY = """
import sys, time
import full_disk, isotherm, jax, jax.numpy as jnp

def wait(report):  # after the first chunk, with the lock held
    print("running", flush=True)
    time.sleep(600)

isotherm.sample(
    jax.random.key(0), full_disk.SAMPLER, jnp.zeros(100), isotherm.no_batches(), num_draws=40,
    checkpoint=sys.argv[1], checkpoint_seconds=0, progress=False, callback=wait,
)
"""


def test_two_processes_in_one_checkpoint_folder_and_the_second_takes_over(tmp_path):
    """The first is stopped in the middle of its run, then killed; the second goes on."""
    folder = tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen(
        [sys.executable, "-c", BUSY, folder], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert first.stdout.readline() == "running\n"
        with pytest.raises(ValueError, match=f"is in use by process {first.pid} on"):
            full_disk.run(folder, 40)
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
    assert (folder / ".lock").exists()
    resumed = full_disk.run(folder, 40)
    assert not (folder / ".lock").exists()
    np.testing.assert_array_equal(resumed.draws, full_disk.run(None, 40).draws)


def own_mounts(folder):
    """Return a command that starts a process with a private mount namespace."""
    for flags in ("-rm", "-m"):
        words = ["unshare", flags, "mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder]
        if shutil.which("unshare") and not subprocess.run(words, capture_output=True).returncode:
            return ["unshare", flags]
    return pytest.skip("mounting is not allowed here")


@pytest.mark.slow
def test_a_full_disk_loses_nothing_that_was_saved(tmp_path):
    """The draws do not fit on a disk of 512 KiB; on a larger one the same call resumes."""
    pytest.importorskip("zarr"), pytest.importorskip("h5netcdf"), pytest.importorskip("safetensors")
    words = [*own_mounts(tmp_path), sys.executable, "full_disk.py", tmp_path]
    done = subprocess.run(words, cwd=ROOT / "tests", capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    full = r"Cannot save .*: (.*: )?no space left on device.* is intact"
    for place in ("checkpoint", ".nc", ".zarr", ".safetensors"):
        assert re.match(full, report.pop(place))
    assert report == {"intact": True, "drafts": [], "resumed": True, "same_bits": True}


def test_no_source_executes_what_it_reads():
    """No module evaluates text or unpickles objects."""
    bad = re.compile(
        r"(?<![\w.])(?:eval|exec|compile|__import__)\(|\bc?[pP]ickle\b\s*(?:\.|import)"
        r"|import c?pickle"
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
    """NumPy refuses objects by default; no module changes that."""
    for path in SOURCES:
        for call in re.findall(r"np\.load\([^)]*\)", path.read_text(encoding="utf-8")):
            assert "allow_pickle=True" not in call, path


def test_no_archive_is_extracted():
    """Arrays of an archive are read one by one, by known names."""
    bad = re.compile(r"\.extract(?:all)?\(|unpack_archive|tarfile|pooch\.(?:Unzip|Untar)|patoolib")
    assert not [path.name for path in SOURCES if bad.search(path.read_text(encoding="utf-8"))]


def test_every_download_is_checked_before_it_is_used():
    """One module downloads, and always with a checksum."""
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

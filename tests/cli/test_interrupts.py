"""A stopped run can be resumed; a full disk is reported in one line and destroys no results."""

import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.app import app
from isotherm.cli.interrupts import Interrupts
from isotherm.paper.experiments import registry

LONG = '''
"""Does a long experiment survive?"""
import time
from dataclasses import dataclass
from pathlib import Path
from isotherm.paper.experiments.contract import Claim
import numpy as np

@dataclass(frozen=True)
class Config:
    pieces: int = 3
    seconds: float = 0.0
    numbers: int = 10

SMOKE = Config()

def run(config, key, report, checkpoints):
    total = 0.0
    for i in range(config.pieces):
        saved = checkpoints.load(f"piece {i}")
        if saved is None:
            with Path("log").open("a") as log:
                print("piece", i, file=log)
            time.sleep(config.seconds if i else 0)
            saved = {"x": np.full(config.numbers, float(i))}
            checkpoints.save(f"piece {i}", saved)
            report(f"piece {i}")
        total += saved["x"][0]
    return {"total": total, "x": saved["x"]}

def rows(config, result):
    return [{"total": result["total"]}]

def check(config, result):
    complete = bool(result["total"] == sum(range(config.pieces)))
    return [Claim("all pieces are present", complete, "", "")]

def plot(config, result):
    return {}
'''

START = """
import resource, sys
from isotherm.cli.app import app
from isotherm.paper.experiments import registry
registry.EXPERIMENTS["long one"] = registry.Entry("long_for_cli", "Figure 0")
if sys.argv[1] != "-":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
app(sys.argv[2:])
"""


@pytest.fixture(autouse=True)
def long_one(tmp_path, monkeypatch):
    (tmp_path / "long_for_cli.py").write_text(LONG)
    monkeypatch.syspath_prepend(tmp_path)
    entry = registry.Entry("long_for_cli", "Figure 0")
    monkeypatch.setitem(registry.EXPERIMENTS, "long one", entry)
    monkeypatch.chdir(tmp_path)


def isotherm(*words):
    return CliRunner().invoke(app, words)


def start(*words, limit="-"):
    """Start the command line in a separate process."""
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", START, limit, *words],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_piece(number):
    deadline = time.monotonic() + 60
    while not (Path("log").exists() and f"piece {number}" in Path("log").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_stopped_run_finishes_its_piece_of_work_and_can_be_resumed():
    words = ["run", "long one", "--seed", "3", "--set", "seconds=1", "--out", "my runs"]
    process = start(*words)
    wait_for_piece(1)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    assert "Traceback" not in error and "Stopping after this piece of work" in error
    assert Path("log").read_text().split() == ["piece", "0", "piece", "1"]
    command = error.split("Interrupted. Finished work is saved. Resume with: ")[1].strip()
    assert shlex.split(command) == ["isotherm", *words, "--resume"]
    done = isotherm(*shlex.split(command)[1:])
    assert done.exit_code == 0 and "✓ all pieces are present" in done.stdout
    assert Path("log").read_text().count("piece") == 3  # the third piece only


def test_a_second_signal_or_one_without_saved_work_stops_at_once(capfd):
    with Interrupts() as interrupts:
        interrupts.can_resume = True
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            interrupts.wrap(print)("next")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
    assert capfd.readouterr().err.count("again to stop at once") == 1
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def files():
    return {p.as_posix(): p.read_bytes() for p in Path("runs").rglob("*") if p.is_file()}


def test_a_file_size_limit_is_reported_in_one_line_and_old_results_are_kept():
    """The limit is large enough for small documents, but not for a piece of work."""
    assert isotherm("run", "long one").exit_code == 0
    before = files()
    process = start("run", "long one", "--set", "numbers=5000", limit="20000")
    out, error = process.communicate(timeout=60)
    assert process.returncode == 1 and out == ""
    (message,) = error.splitlines()
    assert message.startswith("Error: Cannot write: file too large. Files written before are")
    assert message.endswith(
        "isotherm run 'long one' --seed 0 --set numbers=5000 --out runs --resume"
    )
    after = files()
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if ".draft-" in name]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "Cannot write `full`: no space left on device."),
        (errno.EROFS, "Cannot write `full`: read-only file system."),
        (errno.EACCES, "Cannot use `full`: permission denied."),
    ],
)
def test_full_and_inaccessible_disks(monkeypatch, number, message):
    isotherm("run", "long one", "--set", "pieces=2")
    before = files()

    def replace(old, new):
        raise OSError(number, os.strerror(number), "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        done = isotherm("run", "long one")
    assert done.exit_code == 1 and f"Error: {message} Files written before" in done.stderr
    after = files()
    assert {name: after[name] for name in before} == before

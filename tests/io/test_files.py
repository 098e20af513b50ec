"""Writes are complete or absent, whenever the process is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isotherm.io import files

NAMES = ("one", "inner/two", "inner/deep/three")


def fill(folder, content):
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def content(folder):
    found = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert set(found) == set(NAMES)
    (only,) = set(found.values())
    return only


def replaced(path, new):
    with files.atomically(path) as draft:
        fill(draft, new)


def test_a_folder_is_written_and_replaced_atomically(tmp_path):
    for new in ("old", "new"):
        replaced(tmp_path / "folder", new)
        assert content(tmp_path / "folder") == new
        assert os.listdir(tmp_path) == ["folder"]


def test_an_unfinished_folder_changes_nothing(tmp_path):
    replaced(tmp_path / "folder", "old")
    with pytest.raises(ZeroDivisionError), files.atomically(tmp_path / "folder") as draft:
        fill(draft, "new")
        raise ZeroDivisionError
    assert content(tmp_path / "folder") == "old" and os.listdir(tmp_path) == ["folder"]


def test_a_folder_is_flushed_to_disk_before_it_is_renamed(tmp_path, monkeypatch):
    log, fsync, exchange = [], os.fsync, files._exchange
    monkeypatch.setattr(
        os, "fsync", lambda handle: (log.append(os.fstat(handle).st_ino), fsync(handle))
    )
    monkeypatch.setattr(files, "_exchange", lambda *names: (log.append("named"), exchange(*names)))
    replaced(tmp_path / "folder", "old")
    log.clear()
    replaced(tmp_path / "folder", "new")
    everything = {p.stat().st_ino for p in [tmp_path / "folder", *(tmp_path / "folder").rglob("*")]}
    assert len(everything) == 6 and log.index("named") == 6
    assert set(log[:6]) == everything and log[7:] == [tmp_path.stat().st_ino]


def no_exchange(monkeypatch):
    monkeypatch.setattr(files.ctypes, "CDLL", lambda name, use_errno: object())


def test_without_an_exchange_of_names_two_renames_are_used(tmp_path, monkeypatch):
    no_exchange(monkeypatch)
    for new in ("old", "new"):
        replaced(tmp_path / "folder", new)
        assert content(tmp_path / "folder") == new and os.listdir(tmp_path) == ["folder"]


def test_a_failed_rename_restores_the_old_folder(tmp_path, monkeypatch):
    replaced(tmp_path / "folder", "old")
    rename = os.rename

    def stubborn(source, target):
        if Path(source).name == "folder" and ".draft-" in str(source):
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    no_exchange(monkeypatch)
    monkeypatch.setattr(os, "rename", stubborn)
    with pytest.raises(PermissionError):
        replaced(tmp_path / "folder", "new")
    assert content(tmp_path / "folder") == "old" and os.listdir(tmp_path) == ["folder"]


KILLED = """
import os, shutil, sys
from pathlib import Path
from isotherm.io import files
sys.path.insert(0, sys.argv[1])
from test_files import content, replaced

folder, os.fsync = Path(sys.argv[2]), lambda handle: None  # slow, and only a power cut needs it
if sys.argv[3] == "without":
    files.ctypes.CDLL = lambda name, use_errno: object()
seen, moment, status = [], 0, 9
while status:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    replaced(folder / "it", "old")
    child = os.fork()
    if not child:
        left = moment
        def die(event, arguments):
            global left
            left -= 1
            if left < 0:
                os._exit(9)
        sys.addaudithook(die)
        replaced(folder / "it", "new")
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    there = folder / "it"
    seen.append(content(there) if there.exists() else "nothing")
    if seen[-1] == "nothing":
        both = [content(p) for draft in folder.iterdir() for p in sorted(draft.iterdir())]
        assert both == ["new", "old"], both
    moment += 1
print(*seen)
"""


@pytest.mark.parametrize("how", ["with", "without"])
def test_killed_at_any_moment_there_is_the_old_folder_or_the_new_one(tmp_path, how):
    """The process is killed before its first system call, before its second, and so on.

    Without an exchange of names there are moments with neither folder.
    """
    done = subprocess.run(
        [sys.executable, "-c", KILLED, Path(__file__).parent, tmp_path / "killed", how],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    seen = done.stdout.split()
    turn = seen.index("new")
    assert len(seen) > 30 and turn > 20 and set(seen[turn:]) == {"new"}
    assert set(seen[:turn]) == ({"old"} if how == "with" else {"old", "nothing"})

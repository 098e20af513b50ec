"""One process at a time works in a folder; a lock ends with its process, however that ends."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import pytest

from isotherm.io.locks import LOCK, InUse, locked
from isotherm.io.untrusted import Damaged

HOLDER = """
import signal, sys, time
from pathlib import Path
from isotherm.io.locks import locked
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def holder(folder):
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_second_is_refused_with_owner_and_age_until_the_first_ends(tmp_path, number):
    process = holder(tmp_path / "run")
    try:
        with pytest.raises(InUse, match=f"in use by process {process.pid} on .*, for [0-9]+ s"):
            locked(tmp_path / "run").__enter__()
    finally:
        process.send_signal(number)
        process.wait()
        process.stdout.close()
    left = list((tmp_path / "run").glob("*")) if number == signal.SIGKILL else None
    assert left is None or [path.name for path in left] == [LOCK]  # stale: taken over
    with locked(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()


def test_two_threads_exclude_each_other_and_the_age_is_told(tmp_path):
    with locked(tmp_path):
        content = json.loads((tmp_path / LOCK).read_text())
        (tmp_path / LOCK).write_text(json.dumps({**content, "since": time.time() - 600}))
        with pytest.raises(InUse, match=r"for 10 min\. Wait until it ends"):
            locked(tmp_path).__enter__()
        (tmp_path / LOCK).write_text("nonsense")
        with pytest.raises(InUse, match="in use by another process"):
            locked(tmp_path).__enter__()
    assert os.listdir(tmp_path) == []


def test_many_at_once_are_never_two(tmp_path):
    inside, most, held = [0], [0], [0]

    def work():
        for _ in range(200):
            try:
                with locked(tmp_path / "a" / "b"):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    held[0] += 1
                    inside[0] -= 1
            except InUse:
                continue

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and held[0] >= 4
    assert not list(tmp_path.rglob(LOCK))


def test_folders_that_stay_empty_are_removed_and_others_stay(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "a" / "b" / "c"):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    with locked(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").write_text("")
    assert os.listdir(tmp_path / "a") == ["file"]
    (tmp_path / "old").mkdir()
    with locked(tmp_path / "old"):
        pass
    assert (tmp_path / "old").is_dir()


def test_files_links_and_pipes_in_the_way_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="is a file, not a folder"):
            locked(folder).__enter__()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / LOCK).symlink_to(tmp_path / "file")
    with pytest.raises(Damaged, match="is a link"):
        locked(tmp_path / "link").__enter__()
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / LOCK)
    with pytest.raises(Damaged, match="is not a file"):
        locked(tmp_path / "pipe").__enter__()
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize(
    "owner",
    [
        {"pid": 2**22 + 1, "host": "here"},  # no such process
        {"pid": 1, "host": "here"},  # its number belongs to another process now
        {"pid": 7, "host": "another-host"},
        {"pid": "x", "host": None},
        {},
    ],
    ids=str,
)
def test_a_file_without_a_lock_is_taken_over_whoever_it_names(tmp_path, owner):
    if owner.get("host") == "here":
        owner = {**owner, "host": platform.node()}
    stale = {**owner, "since": time.time() - 10**6, "command": "train.py"}
    (tmp_path / LOCK).write_text(json.dumps(stale))
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_a_name_in_a_lock_cannot_write_to_the_terminal(tmp_path):
    with locked(tmp_path):
        forged = {"pid": 1, "host": "\x1b[2J\nAll is well", "since": 0, "command": "x" * 10**5}
        (tmp_path / LOCK).write_text(json.dumps(forged)[:4000] + '"}')
        with pytest.raises(InUse) as caught:
            locked(tmp_path).__enter__()
        assert str(caught.value).isprintable() and len(str(caught.value)) < 2000
        (tmp_path / LOCK).write_text(json.dumps(forged | {"command": "a"}))
        with pytest.raises(InUse, match=r"on \\x1b\[2J\\nAll is well"):
            locked(tmp_path).__enter__()
        (tmp_path / LOCK).write_text(json.dumps(forged | {"pid": 1e999}))
        with pytest.raises(InUse, match="in use by another process"):
            locked(tmp_path).__enter__()


WITH_A_CHILD = """
import os, sys, time
from pathlib import Path
from isotherm.io.locks import locked
read, write = os.pipe()
with locked(Path(sys.argv[1])):
    if os.fork() == 0:
        os.write(write, b"running")  # after fork() has returned, so the copy of the lock is closed
        time.sleep(60)
        os._exit(0)
    os.read(read, 7)
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_worker_that_survives_its_killed_parent_does_not_hold_the_lock(tmp_path):
    command = [sys.executable, "-c", WITH_A_CHILD, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(InUse, match=f"process {process.pid}"):  # the child closed only a copy
            locked(tmp_path).__enter__()
        process.kill()
        process.wait()
        with locked(tmp_path):
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


CHILD_LEAVES = """
import os, sys
from pathlib import Path
from isotherm.io.locks import LOCK, InUse, locked
folder = Path(sys.argv[1])
with locked(folder):
    child = os.fork()
    if child == 0:
        raise SystemExit  # leaves the context, in the child
    os.waitpid(child, 0)
    assert (folder / LOCK).exists()
    try:
        locked(folder).__enter__()
    except InUse:
        print("still locked")
"""


def test_a_forked_child_that_leaves_the_context_does_not_release_the_lock(tmp_path):
    command = [sys.executable, "-c", CHILD_LEAVES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "still locked\n" and os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_has_no_lock_and_no_error(tmp_path, monkeypatch):
    def refuse(path, *more):
        raise PermissionError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with locked(tmp_path):
        assert os.listdir(tmp_path) == []

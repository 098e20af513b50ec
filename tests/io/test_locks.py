"""One process at a time works in a folder; a lock ends with its process, however that ends."""

import json
import os
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

"""Locks of folders: one process at a time writes to a folder.

The lock is a file `.lock` in the folder with a lock of the operating system (`flock`) on it. The
kernel releases it when its process ends, however it ends, so a lock never outlives its owner: a
file that a killed process left behind is taken over at once. The content of the file (process,
host, start) is used only in the message to the process that is refused. It does not matter whether
the process named there is alive, on which host it ran, or whether its number is in use again. A
forked child closes its copy of the lock, so that a worker that survives its parent does not hold
it.

On file systems without `flock`, on full disks and in folders that cannot be written to, there is no
lock.
"""

import errno
import json
import os
import platform
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from isotherm.io.files import make_folders
from isotherm.io.untrusted import Damaged, printable

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

LOCK = ".lock"
"""Name of the file."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}


_held: set[int] = set()
"""Handles of the locks of this process."""


class InUse(ValueError):
    """Another process is using the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it does not exist.

    If the folder was made here and is still empty at the end, it is removed again.

    Raises
    ------
    InUse
        Another process, or another thread, holds the lock.
    ValueError
        The folder, or one above it, is a file.
    """
    made, owner = make_folders(folder), os.getpid()
    handle = None
    try:
        handle = _acquire(folder)
        if handle is not None:
            _held.add(handle)
        yield
    finally:
        if os.getpid() == owner:  # a forked child that gets here must not release it
            if handle is not None:
                with suppress(OSError):
                    os.unlink(os.path.join(folder, LOCK))
                _held.discard(handle)
                os.close(handle)
            remove_empty(made)


def _forget_locks() -> None:
    """Close the copies of locks in a forked child; the parent keeps its locks."""
    for handle in _held:
        with suppress(OSError):
            os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def remove_empty(folders: list[Path]) -> None:
    """Remove folders in this order, up to the first one that is not empty."""
    with suppress(OSError):
        for each in folders:
            os.rmdir(each)


def _acquire(folder: Path) -> int | None:
    """Return the handle of the lock; `None` if the folder cannot be locked."""
    if fcntl is None:
        return None
    path = os.path.join(folder, LOCK)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            handle = os.open(path, flags, 0o644)
        except FileNotFoundError:  # its last owner removed the folder
            make_folders(folder)
            continue
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Damaged(f"`{path}` is a link; links are not followed.") from None
            if error.errno in _READ_ONLY:
                return None
            raise
        try:
            if _lock(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, path: str) -> bool:
    """Lock an open file; return whether it is still the one with this name."""
    assert fcntl is not None
    opened = os.fstat(handle)
    if not stat.S_ISREG(opened.st_mode):
        raise Damaged(f"`{path}` is not a file.")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(_describe(handle, os.path.dirname(path))) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        status = os.stat(path)
    except FileNotFoundError:  # its last owner removed it between the two calls
        return False
    if not os.path.samestat(status, opened):
        return False
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]] if sys.argv else []
    owner = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
    content = json.dumps({**owner, "command": " ".join(words)[:200]}).encode()
    with suppress(OSError):  # the lock also holds if a full disk has no room for its content
        if status.st_size:
            os.ftruncate(handle, 0)
        os.pwrite(handle, content, 0)
    return True


def _describe(handle: int, folder: str) -> str:
    """Return a message that says which process holds a lock, and for how long."""
    try:
        owner = json.loads(os.pread(handle, 2**12, 0))
        seconds = max(0.0, time.time() - float(owner["since"]))
        age = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
        who = f"process {int(owner['pid'])} on {owner['host']} (`{owner['command']}`), for {age}"
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError):  # it is just being written
        who = "another process"
    return (
        f"`{folder}` is in use by {printable(who)}. Wait until it ends, stop it, or use another "
        "folder. The lock ends with its process."
    )

"""Atomic writes: a file or folder appears under its name only when it is complete."""

import ctypes
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

DRAFT = ".draft-"
"""Prefix of the temporary folder of an unfinished write; a killed process may leave one behind."""
NOT_A_NAME = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT, errno.EINVAL, errno.EILSEQ}
"""Errors of names that no folder can have: too long, links in a circle, below `/proc`."""


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield a draft path; what is written to it replaces `path` when the context ends.

    The draft may be a file or a folder. It is flushed to disk first, so that `path` is complete
    even after a power cut. If the context raises, `path` does not change. A folder replaces another
    in one system call on Linux and macOS; on a file system that cannot exchange names, a process
    killed between two renames leaves both folders in the temporary folder.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=DRAFT) as folder:
        draft = Path(folder) / path.name
        yield draft
        is_folder = draft.is_dir()
        for inside in draft.rglob("*") if is_folder else ():
            force_to_disk(inside)
        force_to_disk(draft)
        if is_folder and os.path.lexists(path):
            _exchange(draft, path)
        else:
            os.replace(draft, path)
        if os.name == "posix":
            force_to_disk(path.parent)  # flush the new name as well


def in_words(error: Exception) -> str:
    """Return the text of an error; that of the operating system without its number.

    >>> in_words(FileNotFoundError(2, "No such file or directory", "page-00000.npz"))
    'Cannot use `page-00000.npz`: no such file or directory.'
    """
    if isinstance(error, OSError) and error.errno is not None and str(error).startswith("[Errno"):
        reason = os.strerror(error.errno).lower()
        name = error.filename2 or error.filename  # the new name of a file that is renamed
        if isinstance(name, str | bytes):
            return f"Cannot use `{os.fsdecode(name)}`: {reason}."
        return f"The operating system reports: {reason}."
    return str(error)


@contextmanager
def explain_failure(where: str, remains: str) -> Iterator[None]:
    """Turn an `OSError` into one that says what could not be saved, why, and what remains."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        explained = type(error)(f"Cannot save {where}: {reason}; {remains}")
        explained.errno = error.errno
        raise explained from error


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document atomically, on one line: Python indents slowly."""
    with atomically(path) as draft:
        draft.write_text(json.dumps(document) + "\n", encoding="utf-8")


def checksum(path: Path) -> str:
    """Compute the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def force_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(folder: Path) -> list[Path]:
    """Make a folder and its missing parents, flushed to disk; return them, the innermost first.

    Another process may be making or removing them at the same time.

    Raises
    ------
    ValueError
        One of them is a file, or the name cannot be that of a folder.
    """
    if "\0" in str(folder):
        raise ValueError(f"{str(folder)!r} cannot be the name of a folder.")
    try:
        return _make_folders(folder)
    except OSError as error:
        if error.errno not in NOT_A_NAME:
            raise
        reason = os.strerror(error.errno).lower()
        raise ValueError(f"`{folder}` cannot be the name of a folder: {reason}.") from None


def _make_folders(folder: Path) -> list[Path]:
    missing = []
    for each in chain((folder,), folder.parents):
        try:  # one call, since another process may remove it between two
            if stat.S_ISDIR(os.stat(each).st_mode):
                break
        except (FileNotFoundError, NotADirectoryError):
            if not each.is_symlink():
                missing.append(each)
                continue
        raise ValueError(f"`{each}` is a file, not a folder: choose another name.")
    if not missing:
        return []
    for attempt in range(100):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.name == "posix":
                for each in missing:
                    force_to_disk(each.parent)
            break
        except (FileNotFoundError, FileExistsError):  # removed after it was found, or made
            if attempt == 99:
                raise
    return missing


def _exchange(draft: Path, path: Path) -> None:
    """Exchange two names, so that `path` exists at all times."""
    libc, names = ctypes.CDLL(None, use_errno=True), [os.fsencode(draft), os.fsencode(path)]
    here, swap = -100, 2  # AT_FDCWD; RENAME_EXCHANGE, which macOS calls RENAME_SWAP
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(here, names[0], here, names[1], swap)
    else:
        failed = libc.renamex_np(*names, swap) if hasattr(libc, "renamex_np") else True
    if failed:  # not supported here, or an error that the next lines raise again
        before = draft.with_name(f"{draft.name}.before")
        os.rename(path, before)
        try:
            os.rename(draft, path)
        except OSError:
            os.rename(before, path)
            raise

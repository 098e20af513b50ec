"""Files, and folders of files, that are there as a whole or not at all."""

import ctypes
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRAFT = ".draft-"
"""How the folder of a file in the making begins; a killed process leaves it behind, and nobody reads it."""


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Give a draft to write, which takes the place of `path` once it is complete, also after a power cut.

    The draft is a file or a folder, as its writer likes. A folder takes the place of another in one instant on Linux and
    macOS; on a disk that cannot exchange names, a process killed between two renames leaves both in the folder of the draft.
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
            force_to_disk(path.parent)  # the name, too, has to reach the disk


@contextmanager
def saving(where: str, comfort: str) -> Iterator[None]:
    """Say in one sentence why something cannot be saved, and what is left."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        told = type(error)(f"Cannot save {where}: {reason}; {comfort}")
        told.errno = error.errno
        raise told from error


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a small document as a whole."""
    with atomically(path) as draft:
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def checksum(path: Path) -> str:
    """Compute the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def force_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(draft: Path, path: Path) -> None:
    """Let two names change places, so that at no time there is nothing at `path`."""
    libc, names = ctypes.CDLL(None, use_errno=True), [os.fsencode(draft), os.fsencode(path)]
    here, swap = -100, 2  # AT_FDCWD; RENAME_EXCHANGE, which macOS calls RENAME_SWAP
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(here, names[0], here, names[1], swap)
    else:
        failed = libc.renamex_np(*names, swap) if hasattr(libc, "renamex_np") else True
    if failed:  # no such thing on this disk, or a trouble that the next lines have, too
        before = draft.with_name(f"{draft.name}.before")
        os.rename(path, before)
        try:
            os.rename(draft, path)
        except OSError:
            os.rename(before, path)
            raise

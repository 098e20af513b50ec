"""Files that are there as a whole or not at all."""

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
    """Give a draft to write, which takes the place of `path` once it is complete, also after a power cut."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=DRAFT) as folder:
        draft = Path(folder) / path.name
        yield draft
        _force_to_disk(draft)
        os.replace(draft, path)
        if os.name == "posix":
            _force_to_disk(path.parent)  # the name, too, has to reach the disk


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a small document as a whole."""
    with atomically(path) as draft:
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def checksum(path: Path) -> str:
    """Compute the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _force_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

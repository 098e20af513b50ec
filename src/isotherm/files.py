"""Files that are there as a whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _force_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Where a long experiment keeps what it has done so far, so that a cut run can go on.

A shelf is a folder of named arrays. It belongs to one configuration and one seed: with others it is
refused, because a result must not be half of one run and half of another.
"""

import json
import shutil
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from isotherm.io.files import atomically
from isotherm.paper.report.document import write_json

LABEL = "belongs-to.json"


class Shelf:
    """Named sets of arrays on disk; without a folder, a shelf that forgets everything."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path, belongs_to: Mapping[str, Any], resume: bool) -> "Shelf":
        """Take up the shelf in a folder, or clear it; refuse one that belongs to another run."""
        label = json.loads(json.dumps(belongs_to, default=str))
        if folder.exists() and not resume:
            shutil.rmtree(folder)
        if (folder / LABEL).exists():
            found = json.loads((folder / LABEL).read_text(encoding="utf-8"))
            if found != label:
                changed = sorted(k for k in {*label, *found} if label.get(k) != found.get(k))
                raise ValueError(
                    f"`{folder}` was begun with another {', '.join(changed)}: give the same, or "
                    "start afresh without --resume."
                )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / LABEL, label)
        return cls(folder)

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """Give what was saved under a name; nothing if there is nothing, or it is damaged."""
        path = self._path(name)
        if path is None or not path.exists():
            return None
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, zipfile.BadZipFile, EOFError):
            return None

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under a name, replacing what was there in one move."""
        path = self._path(name)
        if path is not None:
            with atomically(path) as draft:
                np.savez(draft, **arrays)  # pyright: ignore[reportArgumentType]

    def remove(self) -> None:
        """Throw everything away: the experiment is done."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path | None:
        """Name a file after the name: readable, and unique whatever characters are in it."""
        if self.folder is None:
            return None
        plain = "".join(c if c.isalnum() or c in "-." else "_" for c in name)[:80]
        return self.folder / f"{plain}-{sha256(name.encode()).hexdigest()[:8]}.npz"

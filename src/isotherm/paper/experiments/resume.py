"""Checkpoints of long experiments: finished parts on disk, so that an interrupted run can resume.

Checkpoints are a folder of named sets of arrays. The folder belongs to one configuration and one
seed. A run with others cannot resume from it, since its result would mix two runs.
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

OWNER = "belongs-to.json"
"""File that identifies the run to which a folder of checkpoints belongs."""


class Checkpoints:
    """Named sets of arrays on disk; without a folder nothing is saved."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path, belongs_to: Mapping[str, Any], resume: bool) -> "Checkpoints":
        """Open the checkpoints in a folder to resume from them, or delete them and start anew.

        Raises a `ValueError` if they belong to another run.
        """
        owner = json.loads(json.dumps(belongs_to, default=str))
        if folder.exists() and not resume:
            shutil.rmtree(folder)
        if (folder / OWNER).exists():
            previous = json.loads((folder / OWNER).read_text(encoding="utf-8"))
            if previous != owner:
                changed = sorted(k for k in {*owner, *previous} if owner.get(k) != previous.get(k))
                raise ValueError(
                    f"`{folder}` belongs to a run with another {', '.join(changed)}: "
                    "use the same, or start a new run without --resume."
                )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / OWNER, owner)
        return cls(folder)

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """Return the arrays saved under a name; `None` if there are none or the file is damaged."""
        path = self._path(name)
        if path is None or not path.exists():
            return None
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, zipfile.BadZipFile, EOFError):
            return None

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Save arrays under a name, atomically."""
        path = self._path(name)
        if path is not None:
            with atomically(path) as draft:
                np.savez(draft, **arrays)  # pyright: ignore[reportArgumentType]

    def remove(self) -> None:
        """Delete all checkpoints."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path | None:
        """Return a file name that is readable and unique, whatever characters are in `name`."""
        if self.folder is None:
            return None
        plain = "".join(c if c.isalnum() or c in "-." else "_" for c in name)[:80]
        return self.folder / f"{plain}-{sha256(name.encode()).hexdigest()[:8]}.npz"

"""Checkpoints of long experiments: finished parts on disk, so that an interrupted run can resume.

Checkpoints are a folder of named sets of arrays. The folder belongs to one configuration and one
seed. A run with others cannot resume from it, since its result would mix two runs.
"""

import json
import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from isotherm.io import npz
from isotherm.io.files import atomically, make_folders
from isotherm.io.untrusted import printable, read_json
from isotherm.paper.report.document import write_json

OWNER = "belongs-to.json"
"""File that identifies the run to which a folder of checkpoints belongs."""


class Checkpoints:
    """Named sets of arrays on disk; without a folder nothing is saved."""

    def __init__(self, folder: Path | None = None, owner: Mapping[str, Any] | None = None) -> None:
        self.folder, self.owner = folder, owner

    @classmethod
    def open(cls, folder: Path, belongs_to: Mapping[str, Any], resume: bool) -> "Checkpoints":
        """Open the checkpoints in a folder to resume from them, or delete them and start anew.

        The folder is made when the first arrays are saved. Raises a `ValueError` if the checkpoints
        belong to another run.
        """
        owner = json.loads(json.dumps(belongs_to, default=str))
        if folder.is_symlink():
            raise ValueError(f"`{folder}` is a link; links are not followed.")
        if folder.exists() and not resume:
            shutil.rmtree(folder)
        if os.path.lexists(folder / OWNER):
            previous = read_json(folder / OWNER)
            if previous != owner:
                found = previous if isinstance(previous, dict) else {}
                changed = sorted(k for k in {*owner, *found} if owner.get(k) != found.get(k))
                raise ValueError(
                    f"`{folder}` belongs to a run with another {printable(', '.join(changed))}: "
                    "use the same, or start a new run without --resume."
                )
        elif folder.is_dir() and any(folder.glob("*.npz")):
            raise ValueError(
                f"`{folder}` has results but no `{OWNER}`, which says to which run they belong: "
                "put it back, or start a new run without --resume."
            )
        return cls(folder, owner)

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """Return the arrays saved under a name; `None` if there are none or the file is damaged."""
        path = self._path(name)
        if path is None or not os.path.lexists(path):
            return None
        try:
            return npz.load(path)
        except (OSError, ValueError):
            return None

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Save arrays under a name, atomically."""
        path = self._path(name)
        if path is None:
            return
        make_folders(path.parent)
        if self.owner is not None and not (path.parent / OWNER).exists():
            write_json(path.parent / OWNER, dict(self.owner))
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

"""Write shards one by one, with a manifest of those that are complete.

Each file is written under another name, forced to disk and renamed, so it is either complete or
absent. A shard is written before the manifest that lists it: a build that is killed and resumed
from the manifest rewrites at most one shard, with the same content.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from isotherm.data.word_counts import Counts
from isotherm.io.files import DRAFT, atomically, checksum, make_folders, write_json
from isotherm.io.locks import LOCK
from isotherm.io.untrusted import Damaged, check_format, inside, printable, read_json

FILE_NAME = "ledger.json"
"""Name of the manifest."""
_FORMAT = 2


class ShardManifest:
    """The shards of a folder, the arguments of the build, and its progress."""

    def __init__(self, out: Path, entries: dict[str, Any]) -> None:
        self.out, self.entries = out, entries

    @classmethod
    def open(cls, out: Path, arguments: dict[str, Any]) -> "ShardManifest":
        """Start a build in a new or empty folder, or resume one with the same arguments."""
        path = out / FILE_NAME
        if os.path.lexists(path):
            manifest = cls(out, _load(path))
            manifest._check(arguments)
            return manifest
        ours = (DRAFT, LOCK)
        if out.is_dir() and any(not file.name.startswith(ours) for file in out.iterdir()):
            raise ValueError(
                f"`{out}` has files but no `{FILE_NAME}`: choose a new or empty folder."
            )
        make_folders(out)
        progress = {"position": 0, "tally": {}, "shards": [], "ended": False, "trouble": None}
        manifest = cls(out, {"format": _FORMAT, "made_from": arguments, **progress})
        manifest._save()
        return manifest

    def _check(self, arguments: dict[str, Any]) -> None:
        """Raise `ValueError` if an argument differs, or a shard is missing or was changed."""
        for name, value in arguments.items():
            if (begun := self.arguments.get(name)) != value:
                raise ValueError(
                    f"`{self.out}` was started with `{name}` {printable(begun)}, not {value}: "
                    "use the same value, or another folder."
                )
        for shard, path in zip(self.entries["shards"], self.paths, strict=True):
            same = path.is_file() and path.stat().st_size == shard["bytes"]
            if not same or checksum(path) != shard["sha256"]:
                raise ValueError(
                    f"`{printable(path)}` is missing or was changed since it was written: "
                    "build into another folder."
                )

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the build."""
        return self.entries["made_from"]

    @property
    def position(self) -> int:
        """Where the next chunk of the dump begins."""
        return self.entries["position"]

    @property
    def tally(self) -> dict[str, int]:
        """Number of pages before the position, by outcome."""
        return self.entries["tally"]

    @property
    def ended(self) -> bool:
        """Whether the build is finished."""
        return self.entries["ended"]

    @property
    def trouble(self) -> str | None:
        """Why the build ended before the end of the dump."""
        return self.entries["trouble"]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Paths of the shards, in order."""
        return tuple(inside(self.out, shard["name"]) for shard in self.entries["shards"])

    def add(self, counts: Counts, page_id: np.ndarray) -> None:
        """Write a shard; `advance` must follow to write the manifest that lists it."""
        path = self.out / f"wiki-{len(self.entries['shards']):05d}.npz"
        with atomically(path) as draft, draft.open("wb") as file:
            _save_shard(file, counts, page_id)
        entry = {"name": path.name, "documents": counts.num_documents}
        entry |= {"bytes": path.stat().st_size, "sha256": checksum(path)}
        self.entries["shards"].append(entry)

    def advance(
        self,
        tally: Mapping[str, int],
        position: int,
        *,
        ended: bool = False,
        trouble: str | None = None,
    ) -> None:
        """Add the outcomes of the pages up to `position`, and write the manifest to disk."""
        total = {name: self.tally.get(name, 0) + number for name, number in tally.items()}
        self.entries.update(tally={**self.tally, **total}, position=position)
        self.entries.update(ended=ended, trouble=trouble)
        self._save()

    def _save(self) -> None:
        write_json(self.out / FILE_NAME, self.entries)


def _load(path: Path) -> dict[str, Any]:
    entries = read_json(path)
    if not isinstance(entries, dict) or not {"format", "trouble"} <= set(entries):
        raise Damaged(f"`{path}` is not a manifest of shards.")
    check_format(path, entries["format"], _FORMAT)
    kinds = {"made_from": dict, "position": int, "tally": dict, "shards": list, "ended": bool}
    shard_kinds = {"name": str, "documents": int, "bytes": int, "sha256": str}
    shards = entries["shards"] if isinstance(entries.get("shards"), list) else ()
    for entry, wanted in [(entries, kinds), *((shard, shard_kinds) for shard in shards)]:
        if not isinstance(entry, dict) or any(
            not isinstance(entry.get(name), kind) for name, kind in wanted.items()
        ):
            raise Damaged(f"`{path}` is not a manifest of shards: an entry has another type.")
    return entries


def _save_shard(file: IO[bytes], counts: Counts, page_id: np.ndarray) -> None:
    """Write the arrays of `scipy.sparse.save_npz`, and the page ids."""
    np.savez_compressed(
        file,
        indices=counts.words,
        indptr=counts.indptr,
        format=np.array(b"csr"),
        shape=np.array([counts.num_documents, counts.num_words]),
        data=counts.counts,
        page_id=page_id,
    )

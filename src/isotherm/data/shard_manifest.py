"""Shards that are written one by one, and the ledger that says which of them are whole.

A file is written under another name, forced to the disk and renamed, so that it is there as a whole or not at all. A
shard comes first, then the ledger that tells of it: whoever goes on from the ledger loses a shard at most, and
writes the same one again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from isotherm.data.word_counts import Counts
from isotherm.io.files import DRAFT, atomically, write_json

_FORMAT = 1


class Ledger:
    """What a folder of shards was made from, and how far that went."""

    def __init__(self, out: Path, entries: dict[str, Any]) -> None:
        self.out, self.entries = out, entries

    @classmethod
    def open(cls, out: Path, made_from: dict[str, Any]) -> "Ledger":
        """Begin a folder, or go on with one that was begun with the same arguments."""
        if out.exists() and not out.is_dir():
            raise ValueError(f"`{out}` is a file, not a folder.")
        path = out / "ledger.json"
        if path.is_file():
            ledger = cls(out, _load(path))
            ledger._check(made_from)
            return ledger
        if out.is_dir() and any(not file.name.startswith(DRAFT) for file in out.iterdir()):
            raise ValueError(
                f"`{out}` has files but no ledger: give a folder that is new or empty."
            )
        out.mkdir(parents=True, exist_ok=True)
        entries = {"position": 0, "tally": {}, "shards": [], "ended": False, "trouble": None}
        ledger = cls(out, {"format": _FORMAT, "made_from": made_from, **entries})
        ledger._save()
        return ledger

    def _check(self, made_from: dict[str, Any]) -> None:
        """Refuse other arguments than those of the beginning, and shards that are gone."""
        for name, value in made_from.items():
            if (begun := self.made_from.get(name)) != value:
                raise ValueError(
                    f"`{self.out}` was begun with `{name}` {begun}, not {value}: "
                    "give the same, or another folder."
                )
        for shard in self.entries["shards"]:
            path = self.out / shard["name"]
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise ValueError(
                    f"`{path}` is gone or was changed since it was written: give another folder."
                )

    @property
    def made_from(self) -> dict[str, Any]:
        """The arguments of the beginning."""
        return self.entries["made_from"]

    @property
    def position(self) -> int:
        """Where the next chunk begins."""
        return self.entries["position"]

    @property
    def tally(self) -> dict[str, int]:
        """What became of all pages up to the position."""
        return self.entries["tally"]

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.entries["ended"]

    @property
    def trouble(self) -> str | None:
        """Why it ended early."""
        return self.entries["trouble"]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The shards, in order."""
        return tuple(self.out / shard["name"] for shard in self.entries["shards"])

    def add(self, counts: Counts, page_id: np.ndarray) -> None:
        """Write a shard; the ledger on the disk does not know of it before `advance`."""
        path = self.out / f"wiki-{len(self.entries['shards']):05d}.npz"
        with atomically(path) as draft, draft.open("wb") as file:
            _save_shard(file, counts, page_id)
        entry = {"name": path.name, "documents": counts.num_documents}
        self.entries["shards"].append({**entry, "bytes": path.stat().st_size})

    def advance(
        self,
        tally: Mapping[str, int],
        position: int,
        *,
        ended: bool = False,
        trouble: str | None = None,
    ) -> None:
        """Write down what became of further pages, up to where that was, and whether it is the end."""
        total = {name: self.tally.get(name, 0) + number for name, number in tally.items()}
        self.entries.update(tally={**self.tally, **total}, position=position)
        self.entries.update(ended=ended, trouble=trouble)
        self._save()

    def _save(self) -> None:
        write_json(self.out / "ledger.json", self.entries)


def _load(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"`{path}` is not a ledger of shards: {error}.") from error
    if not isinstance(entries, dict) or entries.get("format") != _FORMAT:
        raise ValueError(f"`{path}` is not a ledger of shards of format {_FORMAT}.")
    return entries


def _save_shard(file: IO[bytes], counts: Counts, page_id: np.ndarray) -> None:
    """Write what `scipy.sparse.save_npz` would, and the pages' numbers."""
    np.savez_compressed(
        file,
        indices=counts.words,
        indptr=counts.indptr,
        format=np.array(b"csr"),
        shape=np.array([counts.num_documents, counts.num_words]),
        data=counts.counts,
        page_id=page_id,
    )

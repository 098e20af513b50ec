"""Checkpoints of a run: all that determines its future, in files that hold no code.

A folder belongs to one run. It has

- `run.json`: which run that is (keys, counts, sampler, data, shapes, and a fingerprint of the traced step, in which model, step size and
  every other constant are); another one is refused, and told why;
- `page-00000.npz`, …: kept draws and statistics, each page written once;
- `state-00000.npz`: state and running collectors, and `state-00000.json`: how far that is, which pages belong to
  it, and the sha256 of all of them and of itself. The last two are kept, or as many as asked for. In parts, the first of these is a folder
  `state-00000`, which the processes of a run write together (`stored_trees.py`).

Every file is written under another name, forced to the disk and renamed; the small one that tells of the others comes
last. A file that is cut or changed is found by its checksum, and the checkpoint before it is taken.
"""

import json
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.exceptions import CheckpointWarning
from isotherm.io.files import saving, write_json
from isotherm.io.pytrees import read_tree, remove, write_parts, write_tree
from isotherm.loop.signals import signals_go_to
from isotherm.tree import leaf_names

FORMAT = 3


class Progressed(NamedTuple):
    """How far a run is, and all that it needs to go on."""

    done: int
    """Steps of burn-in."""
    kept: int
    """Draws."""
    diverged: np.ndarray
    state: Any
    memory: Any
    pages: list[Any]
    rollbacks: Sequence[Sequence[Any]] = ()
    """Where the step size was made smaller, and why (`isotherm.loop.run.Rollback`)."""


class Checkpoints:
    """The checkpoints of one run in a folder."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        run: Mapping[str, Any],
        *,
        writes: bool = True,
        in_parts: bool = False,
        keep: int = 2,
    ) -> None:
        self.folder, self.pages, self.writes = Path(folder), [], writes
        self.in_parts, self.keep = in_parts, keep
        if writes:
            self.folder.mkdir(parents=True, exist_ok=True)
        label = json.loads(json.dumps({"format": FORMAT, **run}))
        path = self.folder / "run.json"
        if path.exists():
            _refuse_another(path, label)
        elif writes:
            write_json(path, label)
        self.number = max(self._numbers(), default=-1)

    def load(self, state: Any, memory: Any, page: Any) -> Progressed | None:
        """Give the latest checkpoint that is whole, in trees like these; nothing if there is none."""
        trouble = None
        for path in sorted(self.folder.glob("state-*.json"), reverse=True):
            try:
                found = self._read(path, state, memory, page)
            except (OSError, ValueError, KeyError) as error:
                trouble = f"{path.stem}: {error}"
                continue
            if trouble:
                warnings.warn(
                    f"`{self.folder}`, {trouble} Going on from {path.stem}, {found.kept} draws.",
                    CheckpointWarning,
                    stacklevel=3,
                )
            return found
        if trouble:
            raise ValueError(f"No checkpoint in `{self.folder}` is whole. {trouble}")
        return None

    def save(self, progressed: Progressed) -> None:
        """Write new pages and the state; forget all but the last two states."""
        self.number += 1  # not looked up: other processes may see the folder a moment later
        comfort = "the checkpoint before is intact, and the same call goes on from there."
        with saving(f"in `{self.folder}`", comfort):
            state = self._write_state(progressed)
            if self.writes:
                self._write(progressed, state)
            else:  # another process does, and only the number of pages matters here
                self.pages += [None] * (len(progressed.pages) - len(self.pages))

    def _write_state(self, progressed: Progressed) -> dict[str, Any]:
        arrays = (progressed.state, progressed.memory, progressed.diverged)
        path = self.folder / f"state-{self.number:05d}"
        if self.in_parts:
            return write_parts(path, arrays, first=self.writes)
        return write_tree(path.with_suffix(".npz"), arrays) if self.writes else {}

    def _write(self, progressed: Progressed, state: dict[str, Any]) -> None:
        for number in range(len(self.pages), len(progressed.pages)):
            page = self.folder / f"page-{number:05d}.npz"
            self.pages.append(write_tree(page, progressed.pages[number]))
        told = {
            "done": progressed.done,
            "kept": progressed.kept,
            "state": state,
            "pages": self.pages,
            "rollbacks": progressed.rollbacks,
        }
        path = self.folder / f"state-{self.number:05d}.json"
        write_json(path, {**told, "sha256": _seal(told)})
        for old in sorted(self._numbers())[: -self.keep]:
            for suffix in (".json", ".npz", ""):
                remove(self.folder / f"state-{old:05d}{suffix}")

    def _numbers(self) -> list[int]:
        return [int(path.stem.split("-")[1]) for path in self.folder.glob("state-*.json")]

    def _read(self, path: Path, state: Any, memory: Any, page: Any) -> Progressed:
        told = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(told, dict) or told.pop("sha256", None) != _seal(told):
            raise ValueError(f"{path.name} was changed: its sha256 is not the one written down.")
        pages = [read_tree(self.folder, one, page, rows=True) for one in told["pages"]]
        diverged = np.zeros(jax.tree.leaves(state)[0].shape[0], bool)
        state, memory, diverged = read_tree(self.folder, told["state"], (state, memory, diverged))
        self.pages = list(told["pages"])
        return Progressed(
            told["done"], told["kept"], diverged, state, memory, pages, told["rollbacks"]
        )


def describe(tree: Any) -> dict[str, str]:
    """Name the leaves of a tree, with their shapes and types."""
    leaves = jax.tree.leaves(tree)
    return {
        name: f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
        for name, leaf in zip(leaf_names(tree), leaves, strict=True)
    }


def digest(data: Any) -> str:
    """Tell data apart by their shapes and a thousand of their rows."""
    total = sha256()
    for leaf in jax.tree.leaves(data):
        rows = np.asarray(leaf[:: max(1, len(leaf) // 1000)]) if np.ndim(leaf) else np.asarray(leaf)
        total.update(f"{leaf.dtype}{np.shape(leaf)}".encode() + rows.tobytes())
    return total.hexdigest()[:16]


def fingerprint(function: Callable[..., Any], *arguments: Any) -> str:
    """Tell programs apart by what JAX traces of them: the operations, and every constant in them."""
    traced = jax.make_jaxpr(function)(*arguments)
    text = re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr))  # where functions are in memory
    constants = [
        _raw(leaf) for leaf in traced.consts if getattr(leaf, "is_fully_addressable", True)
    ]
    return sha256((text + digest(constants)).encode()).hexdigest()[:16]


def _raw(leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _seal(told: Mapping[str, Any]) -> str:
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _refuse_another(path: Path, label: dict[str, Any]) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"`{path}` is damaged: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"`{path}` is damaged: it is no JSON object.")
    for name in dict.fromkeys([*label, *found]):
        ours, theirs = label.get(name), found.get(name)
        if ours != theirs:
            if isinstance(ours, dict) and isinstance(theirs, dict):
                name, ours, theirs = next(
                    (f"{name}, {leaf}", ours.get(leaf), theirs.get(leaf))
                    for leaf in sorted({*ours, *theirs})
                    if ours.get(leaf) != theirs.get(leaf)
                )
            raise ValueError(
                f"`{path.parent}` is the checkpoint of another run: {name} was {theirs}, now it is "
                f"{ours}. Give the same, or another folder."
            )


class Keeper:
    """Saves a run now and then, at its end, and before it obeys Ctrl-C or SIGTERM.

    While it is entered, a signal is not obeyed at once but after the chunk that runs: then the run is saved,
    and `KeyboardInterrupt` says how to go on. A second signal stops at once.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        seconds: float,
        agree: Callable[..., Sequence[int]] = lambda *values: values,
    ) -> None:
        self.checkpoints, self.seconds, self.asked, self.agree = checkpoints, seconds, False, agree
        self.saved = time.monotonic()
        self.listening = nullcontext() if checkpoints is None else signals_go_to(self._ask)

    def __enter__(self) -> "Keeper":
        self.listening.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.listening.__exit__(*exception)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def after_chunk(self, progressed: Callable[..., Progressed], *, last: bool = False) -> None:
        """Save if it is time; `progressed` is told how many pages are saved already, and whether the state may be in parts."""
        if self.checkpoints is None:
            return
        due = time.monotonic() - self.saved > self.seconds
        asked, due = self.agree(self.asked, due)  # all processes of a run save, and stop, together
        if last or asked or due:
            num_saved, in_parts = len(self.checkpoints.pages), self.checkpoints.in_parts
            self.checkpoints.save(progressed(num_saved, in_parts=in_parts))
            self.saved = time.monotonic()
        if asked and not last:
            raise KeyboardInterrupt(
                f"Stopped and saved in `{self.checkpoints.folder}`; the same call goes on from there."
            )

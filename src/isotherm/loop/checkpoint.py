"""Checkpoints of a run: all that determines its future, in files that hold no code.

A folder belongs to one run and has

- `run.json`: the identity of the run (key, counts, sampler, data, shapes, and a fingerprint of the
  traced step, which covers the model, the step size and every other constant). A different run is
  refused, and the error names the difference.
- `page-00000.npz`, …: kept draws and statistics. Each page is written once.
- `state-00000.npz`: states and accumulators; `state-00000.json`: how far the run is, which run and
  pages belong to it, and the sha256 of all of them and of itself. The last two checkpoints are
  kept, or as many as asked for. With `checkpoint_in_parts` the npz file is a folder `state-00000`,
  to which all processes of a run write (`isotherm.io.pytrees`).

Every file is written under another name, flushed to disk and renamed; the small JSON file that
refers to the others comes last. A file that was cut or changed is detected by its checksum, and the
checkpoint before it is used.
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np

from isotherm.exceptions import CheckpointWarning
from isotherm.io.files import explain_failure, in_words, make_folders, write_json
from isotherm.io.pytrees import read_tree, remove, write_parts, write_tree
from isotherm.io.untrusted import Damaged, check_format, printable, read_json
from isotherm.loop import pages
from isotherm.loop.run import read_rollbacks
from isotherm.loop.signals import handle_signals
from isotherm.loop.state import RunState
from isotherm.loop.user_warnings import Message
from isotherm.tree import leaf_names

FORMAT = 4
STATE_NAME = re.compile(r"state-(\d{5,9})\.json")
PAGE_NAME = re.compile(r"page-\d{5,9}\.npz")


class Checkpoints:
    """The checkpoints of one run in a folder.

    Parameters
    ----------
    folder
        Where they are.
    identity
        What makes this run different from others, in JSON terms.
    writes
        Whether this process writes files.
    in_parts
        Whether every process writes its own part of the state.
    keep
        How many states to keep.

    Raises
    ------
    ValueError
        If the folder belongs to a different run.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        identity: Mapping[str, Any],
        *,
        writes: bool = True,
        in_parts: bool = False,
        keep: int = 2,
    ) -> None:
        self.folder, self.writes, self.in_parts, self.keep = Path(folder), writes, in_parts, keep
        self.pages, self.num_saved = [], 0
        text = json.dumps({"format": FORMAT, **identity})
        self.document = json.loads(text)
        self.is_new = not os.path.lexists(self.folder / "run.json")
        if not self.is_new:
            text = _refuse_another(self.folder / "run.json", self.document)
        elif self._numbers():
            raise Damaged(
                f"`{self.folder}` has checkpoints but no `run.json`, which says to which run they "
                "belong: put it back, or use another folder."
            )
        self.owner = sha256(text.encode()).hexdigest()
        self.number = max(self._numbers(), default=-1)

    def load(
        self, state: Any, accumulators: Any, page: Any
    ) -> tuple[RunState | None, Message | None]:
        """Read the latest intact checkpoint.

        Parameters
        ----------
        state, accumulators, page
            Trees like those to read.

        Returns
        -------
        The checkpoint, `None` if there is none; and a warning if a later one is damaged.

        Raises
        ------
        ValueError
            If there are checkpoints, and all of them are damaged.
        """
        problem = None
        for number in sorted(self._numbers(), reverse=True):
            path = self.folder / f"state-{number:05d}.json"
            try:
                run = self._read(path, state, accumulators, page)
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                reason = in_words(error) if isinstance(error, OSError | ValueError) else repr(error)
                problem = f"{path.stem}: {printable(reason)}"
                continue
            if not problem:
                return run, None
            text = (
                f"`{self.folder}`, {problem} Resuming from {path.stem} instead, which has "
                f"{run.num_kept} draws."
            )
            return run, Message(text, CheckpointWarning)
        if problem:
            raise ValueError(f"No checkpoint in `{self.folder}` is intact. {problem}")
        return None, None

    def save(self, run: RunState) -> None:
        """Write the state and the draws that are not saved yet; remove states that are too old."""
        self.number += 1  # counted, not looked up: other processes may see the folder later
        remains = "the previous checkpoint is intact; the same call resumes from it."
        with explain_failure(f"in `{self.folder}`", remains):
            if self.writes and self.is_new:
                make_folders(self.folder)
                write_json(self.folder / "run.json", self.document)
                self.is_new = False
            state = self._write_state(run)
            if self.writes:
                self._write(run, state)
        self.num_saved = run.num_kept

    def _write_state(self, run: RunState) -> dict[str, Any]:
        arrays = (run.state, run.accumulators, run.diverged)
        path = self.folder / f"state-{self.number:05d}"
        if self.in_parts:
            return write_parts(path, arrays, first=self.writes)
        return write_tree(path.with_suffix(".npz"), arrays) if self.writes else {}

    def _write(self, run: RunState, state: dict[str, Any]) -> None:
        unsaved = pages.after(run.pages, self.num_saved)
        if unsaved:
            path = self.folder / f"page-{len(self.pages):05d}.npz"
            self.pages.append(write_tree(path, pages.join(unsaved)))
            self.num_saved = run.num_kept
        content = {
            "done": run.burn_in_done,
            "kept": run.num_kept,
            "state": state,
            "pages": self.pages,
            "rollbacks": run.rollbacks,
            "steps into draw": run.steps_into_draw,
            "source": run.source,
            "run": self.owner,
        }
        path = self.folder / f"state-{self.number:05d}.json"
        write_json(path, {**content, "sha256": _seal(content)})
        for old in sorted(self._numbers())[: -self.keep]:
            for suffix in (".json", ".npz", ""):
                remove(self.folder / f"state-{old:05d}{suffix}")

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return [int(found[1]) for found in map(STATE_NAME.fullmatch, names) if found]

    def _read(self, path: Path, state: Any, accumulators: Any, page: Any) -> RunState:
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("sha256", None) != _seal(content):
            raise Damaged(f"{path.name} was changed: its sha256 does not match.")
        if content.get("run", self.owner) != self.owner:
            raise Damaged(f"{path.name} belongs to another run than run.json.")
        entries, done, num_kept = content["pages"], content["done"], content["kept"]
        if any(not PAGE_NAME.fullmatch(str(entry["name"])) for entry in entries):
            raise Damaged(f"{path.name} refers to a file that is not a page of draws.")
        if Path(str(content["state"]["name"])).stem != path.stem:
            raise Damaged(f"{path.name} refers to the state of another checkpoint.")
        kept = tuple(read_tree(self.folder, entry, page, any_rows=True) for entry in entries)
        into_draw = content.get("steps into draw", 0)
        if any(type(number) is not int or number < 0 for number in (done, num_kept, into_draw)):
            raise Damaged(f"{path.name} has numbers of steps or draws that are not counts.")
        if num_kept != sum(map(pages.num_draws, kept)):
            raise Damaged(f"{path.name} does not have the number of draws that it announces.")
        like = (state, accumulators, np.zeros(jax.tree.leaves(state)[0].shape[0], bool))
        state, accumulators, diverged = read_tree(self.folder, content["state"], like)
        rollbacks = read_rollbacks(content["rollbacks"])
        self.pages, self.num_saved = list(entries), num_kept
        return RunState(
            done,
            num_kept,
            diverged,
            state,
            accumulators,
            kept,
            rollbacks,
            into_draw,
            content.get("source"),
        )


@lru_cache(maxsize=16)
def describe(structure: Any, leaves: tuple) -> Mapping[str, str]:
    """Return the shape and type of every leaf of a tree, by name; from its `tree.signature`."""
    names = leaf_names(jax.tree.unflatten(structure, range(len(leaves))))
    texts = [f"{np.dtype(dtype).name}{list(shape)}" for shape, dtype in leaves]
    return dict(zip(names, texts, strict=True))


def _seal(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _refuse_another(path: Path, identity: dict[str, Any]) -> str:
    """Raise an error that names the first difference if a folder belongs to a different run.

    Otherwise return the text of the identity as it was written.
    """
    written = read_json(path)
    if not isinstance(written, dict):
        raise Damaged(f"`{path}` is damaged: it is not a JSON object.")
    check_format(path, written.get("format"), FORMAT)
    for name in dict.fromkeys([*identity, *written]):
        ours, theirs = identity.get(name), written.get(name)
        if ours != theirs:
            if isinstance(ours, dict) and isinstance(theirs, dict):
                name, ours, theirs = next(
                    (f"{name}, {leaf}", ours.get(leaf), theirs.get(leaf))
                    for leaf in sorted({*ours, *theirs})
                    if ours.get(leaf) != theirs.get(leaf)
                )
            raise ValueError(
                f"`{path.parent}` is the checkpoint of another run: {printable(name)} was "
                f"{printable(theirs)}, now it is {ours}. Use the same settings, or another folder."
            )
    return json.dumps(written)


class PeriodicSaver:
    """Saves a run periodically, at its end, and before it stops for Ctrl-C or SIGTERM.

    Inside its context a signal does not stop the run at once: after the current chunk the run is
    saved, and `KeyboardInterrupt` says how to resume. A second signal stops at once.

    Parameters
    ----------
    checkpoints
        Where to save; `None` saves nothing and leaves signals alone.
    seconds
        Time between saves.
    agree
        Makes all processes of a run save and stop together.
    gather, gather_json
        Collect the arrays, and values in JSON terms, of all processes in each of them.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        seconds: float,
        agree: Callable[..., Sequence[int]] = lambda *values: values,
        gather: Callable[[Any], Any] = lambda tree: tree,
        gather_json: Callable[[Any], list[Any]] = lambda value: [value],
    ) -> None:
        self.checkpoints, self.seconds = checkpoints, seconds
        self.agree, self.gather, self.gather_json = agree, gather, gather_json
        self.is_asked_to_stop, self.last_saved = False, time.monotonic()
        self.signals = nullcontext() if checkpoints is None else handle_signals(self._on_signal)

    def __enter__(self) -> "PeriodicSaver":
        self.signals.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.signals.__exit__(*exception)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.is_asked_to_stop:
            raise KeyboardInterrupt
        self.is_asked_to_stop = True

    def after_chunk(self, run: RunState, *, last: bool = False) -> None:
        """Save if it is time, and stop if a signal has asked for it."""
        if self.checkpoints is None:
            return
        due = time.monotonic() - self.last_saved > self.seconds
        stop, due = self.agree(self.is_asked_to_stop, due)
        if last or stop or due:
            if not self.checkpoints.in_parts:
                state, accumulators = self.gather((run.state, run.accumulators))
                run = run._replace(state=state, accumulators=accumulators)
            self.checkpoints.save(run._replace(source=self.gather_json(run.source)))
            self.last_saved = time.monotonic()
        if stop and not last:
            raise KeyboardInterrupt(
                f"Stopped and saved in `{self.checkpoints.folder}`; the same call resumes the run."
            )

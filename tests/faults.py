"""A file layer for tests: it records what a program writes, makes calls fail, and cuts the power.

`Disk(root)` is a context in which every system call that changes something below `root` (open for
writing, write, truncate, fsync, rename, exchange, mkdir, unlink, rmdir) is counted and recorded.
With `fail_at` the call of that number raises an `OSError`. `crashes` returns the folders that a
power cut after some call may leave behind, under a model that is weaker than that of common file
systems:

- The content of a file is certain only up to its last fsync. Later writes may be complete, missing,
  cut in half, or zeros.
- A name (of a new, renamed or removed file) is certain only after an fsync of its folder. Later
  changes of names may be present or not, each for itself and in any order; a rename is one change.
"""

import builtins
import errno
import io
import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from isotherm.io import files

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)


class Names(NamedTuple):
    """A change of names: `(folder, name) -> node`, or `None` if the name disappears."""

    changes: dict[tuple[int, str], int | None]


class Content(NamedTuple):
    """A write to a file, or a truncation if there are no bytes."""

    node: int
    offset: int
    data: bytes | None


class Flush(NamedTuple):
    """An fsync of a file or a folder."""

    node: int


class Disk:
    """Record and disturb the calls of a program below a folder.

    Parameters
    ----------
    root
        The folder; what is in it when the context begins counts as safe on disk.
    fail_at
        Number of the call that fails, counted from 0; by default none.
    error
        Its `errno`.
    torn
        Whether a write that fails has written half of its bytes.
    stays
        Whether all later writes fail as well, as on a full disk.
    """

    def __init__(
        self, root: Path, fail_at: int | None = None, error: int = 28, *, torn=False, stays=False
    ) -> None:
        self.root, self.fail_at, self.error = Path(os.path.realpath(root)), fail_at, error
        self.torn, self.stays, self.failed = torn, stays, False
        self.log: list[Names | Content | Flush] = []
        self.kinds: list[str] = []
        self.writers: set[int] = set()
        self.names: dict[tuple[int, str], int] = {}
        self.nodes = iter(range(1, 10**9))
        self.folders, self.initial = {0}, {}
        self._scan(self.root, 0)
        self.first_names = dict(self.names)
        self.first_folders = set(self.folders)
        self.patches = ExitStack()

    # What the model knows.

    def _scan(self, path: Path, node: int) -> None:
        for entry in sorted(os.scandir(path), key=lambda e: e.name):
            child = self.names[node, entry.name] = next(self.nodes)
            if entry.is_dir(follow_symlinks=False):
                self.folders.add(child)
                self._scan(Path(entry.path), child)
            else:
                self.initial[child] = Path(entry.path).read_bytes()

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """Return folder and name of a path below the root; adopt what was made behind our back."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fspath(path))
        path = Path(os.path.abspath(os.fspath(path)))
        path = Path(os.path.realpath(path.parent)) / path.name
        if self.root not in path.parents:
            return None
        node, here = 0, self.root
        *above, name = path.relative_to(self.root).parts
        for part in above:
            here = here / part
            if (node, part) not in self.names:
                self._adopt(here, node, part)
            node = self.names[node, part]
        return node, name

    def _adopt(self, path: Path, node: int, name: str) -> None:
        """Record a file or folder that other code than Python's wrote."""
        child = self._make(node, name, path.is_dir())
        if path.is_dir():
            for entry in sorted(os.listdir(path)):
                self._adopt(path / entry, child, entry)
        else:
            self.log.append(Content(child, 0, path.read_bytes()))

    def _make(self, node: int, name: str, folder: bool) -> int:
        child = next(self.nodes)
        if folder:
            self.folders.add(child)
        self._change({(node, name): child})
        return child

    def _change(self, changes: dict[tuple[int, str], int | None]) -> None:
        for place, child in changes.items():
            if child is None:
                self.names.pop(place, None)
            else:
                self.names[place] = child
        self.log.append(Names(changes))

    def _node(self, place: tuple[int, str], path: Path | None = None) -> int | None:
        if place not in self.names and path is not None and os.path.lexists(path):
            self._adopt(path, *place)
        return self.names.get(place)

    # Calls.

    def step(self, kind: str) -> None:
        """Count a call, and fail if it is its turn."""
        number = len(self.kinds)
        self.kinds.append(kind)
        if kind == "write":
            self.writers.add(threading.get_ident())
        again = self.stays and self.failed and kind in ("write", "open", "mkdir")
        if number == self.fail_at or again:
            self.failed = True
            raise OSError(self.error, os.strerror(self.error))

    def __enter__(self) -> "Disk":
        real = {name: getattr(os, name) for name in ("open", "fsync", "mkdir", "rmdir", "unlink")}
        real |= {"rename": os.rename, "open_file": io.open, "exchange": files._exchange}

        def open_file(
            file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *more
        ):
            place = None
            if isinstance(file, str | os.PathLike) and set(mode) & set("wax+"):
                place = self._place(file)
            if place is None:
                return real["open_file"](file, mode, buffering, encoding, errors, newline, *more)
            self.step("open")
            node = self._node(place, Path(file))
            if node is None:
                node = self._make(*place, folder=False)
            elif "w" in mode:
                self.log.append(Content(node, 0, None))
            binary = mode.replace("b", "").replace("t", "")
            raw = RecordedFile(self, node, os.fspath(file), binary)
            kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
            buffered = kind(raw) if buffering != 0 else raw
            return (
                buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)
            )

        def fsync(handle):
            handle = handle if isinstance(handle, int) else handle.fileno()
            path = os.readlink(f"/proc/self/fd/{handle}")
            inside = Path(path) == self.root or self._place(path)
            if inside:
                self.step("fsync")
                node = 0 if Path(path) == self.root else self._node(inside, Path(path))
                if node is not None:
                    self.log.append(Flush(node))
            return real["fsync"](handle)

        def rename(source, target, **more):
            places = self._place(source), self._place(target)
            if None in places:
                return real["rename"](source, target, **more)
            node = self._node(places[0], Path(source))
            self.step("rename")
            real["rename"](source, target, **more)
            self._change({places[0]: None, places[1]: node})

        def exchange(draft, path):
            places = self._place(draft), self._place(path)
            nodes = self._node(places[0], draft), self._node(places[1], path)
            self.step("exchange")
            real["exchange"](draft, path)
            self._change({places[0]: nodes[1], places[1]: nodes[0]})

        def mkdir(path, mode=0o777, *, dir_fd=None):
            place = self._place(path, dir_fd)
            if place is not None:
                self.step("mkdir")
            real["mkdir"](path, mode, dir_fd=dir_fd)
            if place is not None:
                self._make(*place, folder=True)

        def remove(kind):
            def call(path, *, dir_fd=None):
                place = self._place(path, dir_fd)
                if place is not None:
                    self.step(kind)
                real[kind](path, dir_fd=dir_fd)
                if place is not None and place in self.names:
                    self._change({place: None})

            return call

        for target, name, new in (
            (builtins, "open", open_file),
            (io, "open", open_file),
            (os, "fsync", fsync),
            (os, "rename", rename),
            (os, "replace", rename),
            (os, "mkdir", mkdir),
            (os, "rmdir", remove("rmdir")),
            (os, "unlink", remove("unlink")),
            (os, "remove", remove("unlink")),
            (files, "_exchange", exchange),
        ):
            self.patches.enter_context(mock.patch.object(target, name, new))
        return self

    def __exit__(self, *exception: object) -> None:
        self.patches.close()

    # Power cuts.

    def crashes(self, number: int, seeds: int = 3) -> Iterator[tuple[str, dict, dict]]:
        """Yield what a power cut after `number` entries of the log may leave: names and contents.

        Each is a label, the names (with folders as nodes) and the content of every file.
        """
        past = self.log[:number]
        flushed = {}
        for i, entry in enumerate(past):
            if isinstance(entry, Flush):
                flushed[entry.node] = i

        def is_safe(i: int, entry: Names | Content) -> bool:
            nodes = [entry.node] if isinstance(entry, Content) else [n for n, _ in entry.changes]
            return any(flushed.get(node, -1) > i for node in nodes)

        choices = {
            "killed": (lambda rng: True, "all"),
            "only what was flushed": (lambda rng: False, "none"),
            "names before contents": (lambda rng: True, "none"),
            "half of each write": (lambda rng: True, "half"),
            "zeros": (lambda rng: True, "zeros"),
            "contents before names": (lambda rng: False, "all"),
        }
        for seed in range(seeds):
            choices[f"some names, seed {seed}"] = (lambda rng: rng.random() < 0.5, "half")
        for label, (takes_name, how) in choices.items():
            rng = random.Random(f"{label} {number}")
            names, contents = dict(self.first_names), dict(self.initial)
            for i, entry in enumerate(past):
                if isinstance(entry, Names) and (is_safe(i, entry) or takes_name(rng)):
                    for place, node in entry.changes.items():
                        names.pop(place, None)
                        if node is not None:
                            names[place] = node
                elif isinstance(entry, Content):
                    mode = "all" if is_safe(i, entry) else how
                    contents[entry.node] = _written(contents.get(entry.node, b""), entry, mode)
            yield label, names, contents

    def restore(self, names: dict, contents: dict, target: Path) -> Path:
        """Write what a power cut left to a new folder."""
        target.mkdir()
        todo = [(0, target)]
        while todo:
            node, path = todo.pop()
            for (folder, name), child in names.items():
                if folder != node:
                    continue
                if child in self.folders:
                    (path / name).mkdir()
                    todo.append((child, path / name))
                else:
                    (path / name).write_bytes(contents.get(child, b""))
        return target


def _written(before: bytes, entry: Content, mode: str) -> bytes:
    """Return the content of a file after a write that is complete, missing, cut or zeros."""
    if entry.data is None:  # truncated
        return before if mode == "none" else before[: entry.offset]
    if mode == "none":
        return before
    data = entry.data
    data = (
        data[: len(data) // 2] if mode == "half" else bytes(len(data)) if mode == "zeros" else data
    )
    padded = before.ljust(entry.offset, b"\0")
    return padded[: entry.offset] + data + padded[entry.offset + len(data) :]


class RecordedFile(io.FileIO):
    """A file whose writes are counted and recorded."""

    def __init__(self, disk: Disk, node: int, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self.disk, self.node = disk, node

    def write(self, data: Any, /) -> int:
        """Write, unless it is the turn of this call to fail."""
        data, offset = bytes(data), self.tell()
        try:
            self.disk.step("write")
        except OSError:
            if self.disk.torn:
                super().write(data[: len(data) // 2])
            raise
        self.disk.log.append(Content(self.node, offset, data))
        return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        """Truncate, and record it."""
        self.disk.step("truncate")
        self.disk.log.append(Content(self.node, self.tell() if size is None else size, None))
        return super().truncate(size)

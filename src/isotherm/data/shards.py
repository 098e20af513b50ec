"""Corpora larger than memory: counts from many files, a batch at a time.

A shard is a file of documents, LDA-C text (`.ldac`, `.dat`, plain or `.gz`) or a CSR matrix as
`scipy.sparse.save_npz` writes it. Neither is ever loaded as a whole: text is read line by line,
an npz through three windows on its arrays. Memory is that of one batch.

Batches do not see where shards end. After each of them the *position* says where the next one
begins: five numbers that fit into JSON. A stream opened there gives exactly the batches that would have
followed. If a document is bad, those before it come first, as a short batch; then a `StreamError`
says which file, which line or document, and at which position.
"""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy

from isotherm.data import bag_of_words, npz
from isotherm.data.registry import PathLike
from isotherm.data.truncation import Unchanged, brief, check_end
from isotherm.data.word_counts import CountError, Counts, check_rows, stack


class Position(NamedTuple):
    """Where a stream is: what the next batch begins with.

    `Position(**numbers)` makes one again of what `position._asdict()` gave.
    """

    epoch: int = 0
    """Passes over all shards before this one."""
    shard: int = 0
    row: int = 0
    """Document within the shard."""
    document: int = 0
    """Document within the pass: its number."""

    def skip(self, documents: int = 1) -> "Position":
        """Go over some documents of the same shard."""
        return self._replace(row=self.row + documents, document=self.document + documents)


class StreamError(ValueError):
    """A document that cannot be read; `position` is where it stands."""

    def __init__(self, message: str, position: Position) -> None:
        super().__init__(message)
        self.position = position


class Batch(NamedTuple):
    """Documents in the order of the stream."""

    counts: Counts
    first: Position
    """Position of the first document."""
    next: Position
    """Position of the document after the last: where to go on."""


class _Reader(Protocol):
    def skip(self, rows: int) -> None: ...

    def read(self, rows: int) -> tuple[Counts, str | None]:
        """Read up to so many documents; fewer at the end, or before one that a message tells of."""
        ...

    def close(self) -> None: ...


class _LDAC:
    def __init__(self, path: Path, num_words: int) -> None:
        self.path, self.num_words = path, num_words
        self.stream, self.unchanged = bag_of_words.open_bytes(path), Unchanged(path)
        self.skipped = 0

    def skip(self, rows: int) -> None:
        for _ in range(rows):
            self.stream.readline()
        self.skipped += rows

    def read(self, rows: int) -> tuple[Counts, str | None]:
        lines, message = [], None
        while len(lines) < rows and message is None:
            where = f"`{self.path}`, line {self.skipped + len(lines) + 1}"
            try:
                line = self.stream.readline()
                if not line:
                    self.unchanged.check()
                    break
                parsed = bag_of_words.parse_ldac(line)
                check_end(line)
                bag_of_words.assemble([parsed], self.num_words)
                lines.append(parsed)
            except bag_of_words.DAMAGE as error:
                message = f"{where}: damaged or cut short: {error}"
            except CountError as error:
                message = f"{where}: {str(error).removeprefix('`counts`: document 0 ')}"
            except ValueError as error:
                message = f"{where}: {brief(error)}."
        self.skipped += len(lines)
        return bag_of_words.assemble(lines, self.num_words), message

    def close(self) -> None:
        self.stream.close()


class _Window:
    """One array of an npz, read from front to back."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self.stream = stream
        self.dtype = npz.read_header(name, stream).dtype

    def skip(self, count: int) -> None:
        self.stream.seek(count * self.dtype.itemsize, 1)

    def read(self, count: int) -> np.ndarray:
        data = self.stream.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise EOFError("unexpected end of an array")
        return np.frombuffer(data, self.dtype)


class _NPZ:
    def __init__(self, path: Path, num_words: int) -> None:
        self.path, self.num_words, self.row = path, num_words, 0
        with ExitStack() as opened:
            archive = opened.enter_context(zipfile.ZipFile(path))
            self._look(archive)
            self.pointers, self.indices, self.data = (
                _Window(opened.enter_context(archive.open(f"{name}.npy")), name)
                for name in ("indptr", "indices", "data")
            )
            self.last = int(self.pointers.read(1)[0])
            if self.last != 0:
                raise ValueError(f"its row pointers begin with {self.last}, not 0")
            self.opened = opened.pop_all()

    def _look(self, archive: zipfile.ZipFile) -> None:
        """Check the kind of matrix, its shape and its arrays."""
        names = ("format", "shape", "indptr", "indices", "data")
        found = npz.look(archive, names)
        if missing := [name for name in names if name not in found]:
            raise ValueError(f"it has no array {missing[0]}")
        bag_of_words.check_whole(found)
        if found["shape"].shape != (2,) or found["format"].shape != ():
            raise ValueError("it does not say which format and shape it has")
        with archive.open("format.npy") as kinds, archive.open("shape.npy") as shapes:
            kind = str(npy.read_array(kinds).astype("U"))
            shape = npy.read_array(shapes).tolist()
        if kind != "csr":
            raise ValueError(f"it has format {kind}, not csr")
        if shape[1] != self.num_words:
            raise ValueError(f"it has {shape[1]} words, not {self.num_words}")
        self.num_rows, size = int(shape[0]), found["data"].shape
        if len(size) != 1 or found["indices"].shape != size or found["data"].dtype.kind in "SU":
            raise ValueError("it has words and counts that do not fit together")
        if found["indptr"].shape != (self.num_rows + 1,):
            raise ValueError(f"it has {self.num_rows} documents, but other row pointers")

    def skip(self, rows: int) -> None:
        if self.row + rows > self.num_rows:
            raise ValueError(f"it has {self.num_rows} documents, there is no {self.row + rows}")
        if rows:
            self.pointers.skip(rows - 1)
            last = int(self.pointers.read(1)[0])
            self.indices.skip(last - self.last)
            self.data.skip(last - self.last)
            self.row, self.last = self.row + rows, last

    def read(self, rows: int) -> tuple[Counts, str | None]:
        rows = min(rows, self.num_rows - self.row)
        try:
            pointers = np.concatenate([[self.last], self.pointers.read(rows).astype(np.int64)])
            size = int(pointers[-1] - self.last)
            words, data = self.indices.read(size).astype(np.int64), self.data.read(size)
        except (*bag_of_words.DAMAGE, ValueError) as error:
            last = self.row + rows - 1
            trouble = (
                f"`{self.path}` is damaged or cut short in documents {self.row} to {last}: {error}"
            )
            return bag_of_words.assemble([], self.num_words), trouble
        counts, message = self._check(pointers - self.last, words, data)
        self.row, self.last = self.row + rows, int(pointers[-1])
        return counts, message

    def _check(
        self, indptr: np.ndarray, words: np.ndarray, counts: np.ndarray
    ) -> tuple[Counts, str | None]:
        """Check documents; if one is bad, give those before it and what is wrong."""
        what = f"`{self.path}`"
        try:
            return check_rows(
                indptr, words, counts, self.num_words, what=what, first=self.row
            ), None
        except CountError as error:
            size = indptr[error.row]
            indptr = indptr[: error.row + 1]
            return check_rows(indptr, words[:size], counts[:size], self.num_words), str(error)

    def close(self) -> None:
        self.opened.close()


class Shards:
    """Files of documents that make one stream.

    Parameters
    ----------
    paths
        The files, in order.
    num_words
        Size of the vocabulary.
    """

    def __init__(self, paths: Sequence[PathLike], num_words: int) -> None:
        self.paths = [Path(path) for path in paths]
        if not self.paths:
            raise ValueError("`paths` must name at least one file.")
        if num_words < 1:
            raise ValueError(f"`num_words` must be at least 1, got {num_words}.")
        self.num_words = num_words
        for path in self.paths:
            if bag_of_words.kind(path) in (".mtx", ".mm"):
                raise ValueError(f"`{path}`: Matrix Market cannot be streamed; save it as npz.")

    def batches(
        self, batch_size: int, position: Position | None = None, *, num_epochs: int | None = 1
    ) -> Iterator[Batch]:
        """Go through the documents in order.

        Parameters
        ----------
        batch_size
            Documents per batch; the last of an epoch may have fewer.
        position
            Where to begin, as `Batch.next` said.
        num_epochs
            Stop after so many passes, counted from the very beginning; None never stops.

        Raises
        ------
        StreamError
            A document is bad. All before it have come.
        """
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")
        position = Position() if position is None else position
        while num_epochs is None or position.epoch < num_epochs:
            start = position
            for batch in self._epoch(batch_size, position):
                yield batch
                position = batch.next
            if position == start and start.document == 0:
                return  # no documents at all
            position = Position(epoch=position.epoch + 1)

    def _epoch(self, batch_size: int, position: Position) -> Iterator[Batch]:
        first, parts, missing = position, [], batch_size
        for shard in range(position.shard, len(self.paths)):
            if shard != position.shard:
                position = position._replace(shard=shard, row=0)
            reader = self._open(position)
            try:
                while True:
                    part, message = reader.read(missing)
                    rows = part.num_documents
                    parts, missing = [*parts, part], missing - rows
                    position = position.skip(rows)
                    if missing == 0 or (message is not None and missing < batch_size):
                        yield Batch(stack(parts), first, position)
                        first, parts, missing = position, [], batch_size
                    if message is not None:
                        raise StreamError(message, position)
                    if rows == 0 and missing > 0:
                        break
            finally:
                reader.close()
        if missing < batch_size:
            yield Batch(stack(parts), first, position)

    def _open(self, position: Position) -> _Reader:
        path = self.paths[position.shard]
        reader = None
        try:
            reader = (_NPZ if bag_of_words.kind(path) == ".npz" else _LDAC)(path, self.num_words)
            reader.skip(position.row)
        except FileNotFoundError:
            raise
        except (*bag_of_words.DAMAGE, ValueError, KeyError) as error:
            if reader is not None:
                reader.close()
            message = f"`{path}` is not a shard of counts, or is cut short: {brief(error)}."
            raise StreamError(message, position) from error
        return reader

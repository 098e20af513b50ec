"""Corpora larger than memory: word counts read from many files, a batch at a time.

A shard is a file of documents: LDA-C text (`.ldac`, `.dat`, plain or `.gz`), or a CSR matrix as
`scipy.sparse.save_npz` writes it. No shard is loaded as a whole: text is read line by line, and the
three arrays of an npz are read in parallel from front to back. Memory is that of one batch.

A batch may span several shards. Each batch has the *position* of the next one: four integers that
can be stored as JSON. A stream opened at a position returns exactly the batches that would have
followed. If a document is invalid, the documents before it are returned first, as a short batch;
then a `StreamError` names the file, the line or document, and the position.
"""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy

from isotherm.data import bag_of_words
from isotherm.data.registry import PathLike, open_bytes
from isotherm.data.truncation import SizeCheck, shorten
from isotherm.data.word_counts import CountError, Counts, check_rows, stack
from isotherm.io import npz
from isotherm.io.untrusted import check_regular


class Position(NamedTuple):
    """Position of a document in a stream.

    `Position(**numbers)` restores a position from `numbers = position._asdict()`.
    """

    epoch: int = 0
    """Number of complete passes over all shards."""
    shard: int = 0
    """Index of the shard."""
    row: int = 0
    """Index of the document within the shard."""
    document: int = 0
    """Index of the document within the pass."""

    def skip(self, documents: int = 1) -> "Position":
        """Return the position this many documents further on in the same shard."""
        return self._replace(row=self.row + documents, document=self.document + documents)


class StreamError(ValueError):
    """A document cannot be read; `position` is its position."""

    def __init__(self, message: str, position: Position) -> None:
        super().__init__(message)
        self.position = position


class Batch(NamedTuple):
    """Documents in the order of the stream."""

    counts: Counts
    first: Position
    """Position of the first document."""
    next: Position
    """Position of the document after the last one: where to resume."""


class _Reader(Protocol):
    def skip(self, rows: int) -> None: ...

    def read(self, rows: int) -> tuple[Counts, str | None]:
        """Read up to `rows` documents.

        Fewer are returned at the end of the shard, or before an invalid document, which the message
        describes.
        """
        ...

    def close(self) -> None: ...


class _LDAC:
    def __init__(self, path: Path, num_words: int) -> None:
        self.num_words = num_words
        self.stream, self.size = open_bytes(path), SizeCheck(path)
        self.skip(0)

    def skip(self, rows: int) -> None:
        for _ in range(rows):
            self.stream.readline()
        self.lines = bag_of_words.ldac_lines(self.stream, self.size, self.num_words, rows + 1)

    def read(self, rows: int) -> tuple[Counts, str | None]:
        lines, message = [], None
        try:
            for line in islice(self.lines, rows):
                lines.append(line)
        except ValueError as error:
            message = str(error)
        return bag_of_words.assemble(lines, self.num_words), message

    def close(self) -> None:
        self.stream.close()


class _ArrayStream:
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
            check_regular(path)
            archive = opened.enter_context(zipfile.ZipFile(path))
            self._read_headers(archive)
            self.pointers, self.indices, self.data = (
                _ArrayStream(opened.enter_context(archive.open(f"{name}.npy")), name)
                for name in ("indptr", "indices", "data")
            )
            self.last = int(self.pointers.read(1)[0])
            if self.last != 0:
                raise ValueError(f"its row pointers must begin with 0, got {self.last}")
            self.opened = opened.pop_all()

    def _read_headers(self, archive: zipfile.ZipFile) -> None:
        """Check the format of the matrix, its shape and the headers of its arrays."""
        names = ("format", "shape", "indptr", "indices", "data")
        headers = npz.read_headers(archive, names)
        if missing := [name for name in names if name not in headers]:
            raise ValueError(f"it has no array {missing[0]}")
        bag_of_words.check_integer_arrays(headers)
        if headers["shape"].shape != (2,) or headers["format"].shape != ():
            raise ValueError("its arrays format and shape are not those of a matrix")
        with archive.open("format.npy") as formats, archive.open("shape.npy") as shapes:
            matrix_format = str(npy.read_array(formats).astype("U"))
            shape = npy.read_array(shapes).tolist()
        if matrix_format != "csr":
            raise ValueError(f"its format must be csr, got {matrix_format}")
        if shape[1] != self.num_words:
            raise ValueError(f"it must have {self.num_words} words, got {shape[1]}")
        self.num_rows, size = int(shape[0]), headers["data"].shape
        if len(size) != 1 or headers["indices"].shape != size or headers["data"].dtype.kind in "SU":
            raise ValueError("its arrays indices and data do not match")
        if headers["indptr"].shape != (self.num_rows + 1,):
            raise ValueError(
                f"its row pointers must have shape ({self.num_rows + 1},), "
                f"got {headers['indptr'].shape}"
            )

    def skip(self, rows: int) -> None:
        if self.row + rows > self.num_rows:
            raise ValueError(f"position {self.row + rows} is beyond its {self.num_rows} documents")
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
            message = (
                f"`{self.path}` is damaged or truncated in documents {self.row} to {last}: {error}"
            )
            return bag_of_words.assemble([], self.num_words), message
        counts, message = self._check(pointers - self.last, words, data)
        self.row, self.last = self.row + rows, int(pointers[-1])
        return counts, message

    def _check(
        self, indptr: np.ndarray, words: np.ndarray, counts: np.ndarray
    ) -> tuple[Counts, str | None]:
        """Return the documents before the first invalid one, and what is wrong with that one."""
        names = {"what": f"`{self.path}`", "first": self.row}
        try:
            return check_rows(indptr, words, counts, self.num_words, **names), None
        except CountError as error:
            size = indptr[error.row]
            indptr = indptr[: error.row + 1]
            return check_rows(indptr, words[:size], counts[:size], self.num_words), str(error)

    def close(self) -> None:
        self.opened.close()


class Shards:
    """A stream of documents from several files.

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
                raise ValueError(
                    f"`{path}`: Matrix Market cannot be streamed. "
                    "Convert it to npz with `scipy.sparse.save_npz`."
                )

    def batches(
        self, batch_size: int, position: Position | None = None, *, num_epochs: int | None = 1
    ) -> Iterator[Batch]:
        """Iterate over the documents in order.

        Parameters
        ----------
        batch_size
            Documents per batch; the last batch of an epoch may have fewer.
        position
            Where to begin: `Batch.next` of the last batch seen. By default the beginning.
        num_epochs
            Total number of passes, those before `position` included; None for no limit.

        Raises
        ------
        StreamError
            A document is invalid. All documents before it have been returned.
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
            message = f"`{path}` is not a shard of counts, or is truncated: {shorten(error)}."
            raise StreamError(message, position) from error
        return reader

"""Bags of words in files: LDA-C, SciPy's npz, Matrix Market, and vocabularies.

Every reader gives counts in one form (`isotherm.data.word_counts`), documents by words, or a `ValueError` that
says in which file and on which line or in which document the trouble is.
"""

import gzip
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy import sparse

from isotherm.data import npz
from isotherm.data.matrix_market import read_matrix
from isotherm.data.registry import PathLike
from isotherm.data.truncation import Unchanged, brief, check_end
from isotherm.data.word_counts import LARGEST, CountError, Counts, check_counts, check_rows

_LINE = re.compile(rb"\s*\d+(?:\s+\d+:\d+)*\s*")
_FIELD = re.compile(rb"\d+:\d+")
DAMAGE = (EOFError, OSError, zlib.error, zipfile.BadZipFile, struct.error, NotImplementedError)
"""What comes of files that are cut short or damaged."""
_ARRAYS = "format shape _is_array data indices indptr row col coords offsets".split()
_MISFITS = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    NotImplementedError,
)
"""What SciPy raises for arrays that do not fit together."""
_EMPTIEST = 100
"""Documents per count, beyond a million, that a file may say it has."""


def open_bytes(path: PathLike) -> IO[bytes]:
    """Open a file, unpacked if its name ends in `.gz`."""
    return gzip.open(path) if str(path).endswith(".gz") else open(path, "rb")  # type: ignore[return-value]


def read_vocabulary(path: PathLike) -> tuple[str, ...]:
    """Read words, one per line: line n is word n - 1."""
    with open_bytes(path) as stream:
        try:
            words = stream.read().decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"`{path}` is not text in UTF-8: {error}") from error
        except DAMAGE as error:
            raise ValueError(f"`{path}` is damaged or cut short: {error}") from error
    words = [word.strip() for word in words]
    if not words:
        raise ValueError(f"`{path}` is an empty vocabulary.")
    seen: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        if not word:
            raise ValueError(f"`{path}`, line {number}: a word is missing.")
        if word in seen:
            shown = brief(repr(word))
            raise ValueError(f"`{path}`, line {number}: {shown} is on line {seen[word]} already.")
        seen[word] = number
    return tuple(words)


def parse_ldac(line: bytes) -> list[int]:
    """Take one line of LDA-C apart: the words, then the counts; a `ValueError` says what is wrong."""
    if not _LINE.fullmatch(line):
        raise ValueError(_trouble(line))
    numbers = list(map(int, line.replace(b":", b" ").split()))
    if max(numbers) > LARGEST:
        raise ValueError(f"{max(numbers)} is too large")
    promised, found = numbers[0], len(numbers) // 2
    if promised != found:
        short = ": cut short?" if found < promised else ""
        raise ValueError(f"it says {promised} words, but has {found}{short}")
    return numbers[1::2] + numbers[2::2]


def _trouble(line: bytes) -> str:
    """Say why a line is not LDA-C."""
    fields = line.split()
    if not fields:
        return "it is blank (an empty document is `0`)"
    if not fields[0].isdigit():
        return f"it must begin with a number of words, got `{_text(fields[0])}`"
    field = next(field for field in fields[1:] if not _FIELD.fullmatch(field))
    return f"`{_text(field)}` is not `word:count` in whole numbers that are not negative"


def _text(field: bytes) -> str:
    return field[:40].decode("utf-8", "replace")


def assemble(lines: list[list[int]], num_words: int) -> Counts:
    """Make counts of parsed lines."""
    sizes = np.array([len(line) // 2 for line in lines], np.int64)
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    words = [word for line in lines for word in line[: len(line) // 2]]
    counts = [count for line in lines for count in line[len(line) // 2 :]]
    return check_rows(indptr, np.array(words, np.int64), np.array(counts, np.int64), num_words)


def ldac_lines(path: PathLike, stream: IO[bytes], num_words: int | None) -> Iterator[list[int]]:
    """Parse a stream of LDA-C line by line; an error names the line."""
    number, lines, unchanged = 0, iter(stream), Unchanged(path)
    while True:
        number += 1
        try:
            line = next(lines, None)
            if line is None:
                unchanged.check()
                return
            parsed = parse_ldac(line)
            check_end(line)
            outside = max(parsed[: len(parsed) // 2], default=-1)
            if num_words is not None and outside >= num_words:
                raise ValueError(f"word {outside}, but the vocabulary has {num_words} words")
        except DAMAGE as error:
            raise ValueError(
                f"`{path}` is damaged or cut short at line {number}: {error}"
            ) from error
        except ValueError as error:
            raise ValueError(f"`{path}`, line {number}: {brief(error)}.") from error
        yield parsed


def read_ldac(path: PathLike, num_words: int | None = None) -> Counts:
    """Read LDA-C, plain or `.gz`: per document a line `M word:count word:count …`, words from 0.

    Parameters
    ----------
    path
        The file.
    num_words
        Size of the vocabulary; by default one more than the largest word.
    """
    with open_bytes(path) as stream:
        lines = list(ldac_lines(path, stream, num_words))
    if not lines:
        raise ValueError(f"`{path}` is empty.")
    if num_words is None:
        num_words = 1 + max((max(line[: len(line) // 2], default=-1) for line in lines), default=-1)
    try:
        return assemble(lines, num_words)
    except CountError as error:
        raise CountError(f"`{path}`, line {error.row + 1}: {error}", error.row) from error


def read_npz(path: PathLike) -> Counts:
    """Read what `scipy.sparse.save_npz` has written; other arrays in the file are left alone."""
    try:
        with open(path, "rb") as stream:  # NumPy leaves a damaged file open
            with zipfile.ZipFile(stream) as archive:
                found = npz.look(archive, _ARRAYS)
            check_whole(found)
            stream.seek(0)
            x = _whole(sparse.load_npz(stream))
    except FileNotFoundError:
        raise
    except (*DAMAGE, *_MISFITS) as error:
        raise ValueError(
            f"`{path}` is not a sparse npz, or is cut short: {brief(error)}"
        ) from error
    return check_counts(x, what=f"`{path}`")


def check_whole(arrays: dict[str, npz.Header]) -> None:
    """Refuse arrays of numbers where places must be whole: SciPy would round them."""
    for name in ("shape", "indices", "indptr", "row", "col", "coords", "offsets"):
        if name in arrays and arrays[name].dtype.kind not in "iu":
            raise ValueError(f"array {name} must be of whole numbers, it is {arrays[name].dtype}")


def _whole(x: Any) -> Any:
    """Check what SciPy, which goes on to put the rows in order, takes for granted."""
    if x.format in ("csc", "bsr"):
        x.check_format(full_check=True)
    if x.shape[0] > 10**6 + _EMPTIEST * x.nnz:
        raise ValueError(f"it says {x.shape[0]} documents, but has {x.nnz} counts")
    return x


def read_matrix_market(path: PathLike) -> Counts:
    """Read a Matrix Market file (`.mtx`, `.mm`, or either with `.gz`), documents by words.

    gensim's `MmCorpus.serialize` writes it so.
    """
    try:
        with open_bytes(path) as stream:
            x = read_matrix(stream)
        x = _whole(x) if sparse.issparse(x) else x
    except FileNotFoundError:
        raise
    except (*DAMAGE, ValueError) as error:
        raise ValueError(
            f"`{path}` is not Matrix Market, or is cut short: {brief(error)}."
        ) from error
    return check_counts(x, what=f"`{path}`")


READERS = {
    ".npz": read_npz,
    ".mtx": read_matrix_market,
    ".mm": read_matrix_market,
    ".ldac": read_ldac,
    ".dat": read_ldac,
}


def kind(path: PathLike) -> str:
    """Tell a file's format by its name."""
    suffix = Path(str(path).removesuffix(".gz")).suffix
    if suffix not in READERS:
        raise ValueError(f"`{path}` must end in one of {', '.join(READERS)} (or .gz).")
    return suffix

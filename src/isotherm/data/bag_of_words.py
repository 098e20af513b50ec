"""Readers of bags of words (LDA-C, SciPy's npz, Matrix Market) and of vocabularies.

Every reader returns counts, documents by words, in one form (`isotherm.data.word_counts`), or
raises a `ValueError` that names the file and the line or document at fault.
"""

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy import sparse

from isotherm.data.matrix_market import read_matrix
from isotherm.data.registry import PathLike, open_bytes
from isotherm.data.truncation import SizeCheck, check_final_newline, shorten
from isotherm.data.word_counts import (
    LARGEST,
    MAX_TOKENS,
    CountError,
    Counts,
    check_counts,
    check_rows,
    describe_long,
)
from isotherm.io import npz
from isotherm.io.untrusted import check_regular

_LINE = re.compile(rb"\s*\d+(?:\s+\d+:\d+)*\s*")
_FIELD = re.compile(rb"\d+:\d+")
DAMAGE = (EOFError, OSError, zlib.error, zipfile.BadZipFile, struct.error, NotImplementedError)
"""Exceptions raised while reading damaged or truncated files."""
_ARRAYS = "format shape _is_array data indices indptr row col coords offsets".split()
_SCIPY_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    NotImplementedError,
)
"""Exceptions that SciPy raises for inconsistent arrays."""
_MAX_DOCUMENTS_PER_COUNT = 100
"""A file may declare a million documents, and this many more per count that it has."""


def read_vocabulary(path: PathLike) -> tuple[str, ...]:
    """Read a vocabulary, one word per line: line n is word n - 1."""
    with open_bytes(path) as stream:
        try:
            words = stream.read().decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"`{path}` is not UTF-8 text: {error}") from error
        except DAMAGE as error:
            raise ValueError(f"`{path}` is damaged or truncated: {error}") from error
    words = [word.strip() for word in words]
    if not words:
        raise ValueError(f"`{path}` is empty: a vocabulary needs at least one word.")
    first_line: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        if not word:
            raise ValueError(f"`{path}`, line {number}: the line is blank; it must be a word.")
        if word in first_line:
            raise ValueError(
                f"`{path}`, line {number}: duplicate word {shorten(repr(word))}, "
                f"first on line {first_line[word]}."
            )
        first_line[word] = number
    return tuple(words)


def parse_ldac(line: bytes) -> list[int]:
    """Parse one line of LDA-C: return its words, followed by their counts.

    Raises
    ------
    ValueError
        The message says what is wrong with the line.
    """
    if not _LINE.fullmatch(line):
        raise ValueError(_describe_bad_line(line))
    numbers = list(map(int, line.replace(b":", b" ").split()))
    if max(numbers) > LARGEST:
        raise ValueError(f"{max(numbers)} is too large")
    declared, actual = numbers[0], len(numbers) // 2
    if declared != actual:
        hint = ", so it may be truncated" if actual < declared else ""
        raise ValueError(f"it declares {declared} words but has {actual}{hint}")
    return numbers[1::2] + numbers[2::2]


def _describe_bad_line(line: bytes) -> str:
    """Return why a line is not LDA-C."""
    fields = line.split()
    if not fields:
        return "it is blank (an empty document is `0`)"
    if not fields[0].isdigit():
        return f"it must begin with the number of words, got `{_decode(fields[0])}`"
    field = next(field for field in fields[1:] if not _FIELD.fullmatch(field))
    return f"`{_decode(field)}` is not `word:count` with two non-negative integers"


def _decode(field: bytes) -> str:
    return field[:40].decode("utf-8", "replace")


def assemble(lines: list[list[int]], num_words: int) -> Counts:
    """Build counts from parsed lines."""
    sizes = np.array([len(line) // 2 for line in lines], np.int64)
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    words = [word for line in lines for word in line[: len(line) // 2]]
    counts = [count for line in lines for count in line[len(line) // 2 :]]
    return check_rows(indptr, np.array(words, np.int64), np.array(counts, np.int64), num_words)


def ldac_lines(
    stream: IO[bytes], size: SizeCheck, num_words: int | None, first_line: int = 1
) -> Iterator[list[int]]:
    """Parse a stream of LDA-C line by line.

    Parameters
    ----------
    stream
        At the beginning of line `first_line`.
    size
        Path and size of the file that `stream` reads.
    num_words
        Size of the vocabulary, if it is known.
    first_line
        Number of the first line, for error messages.
    """
    number, path = first_line, size.path
    while True:
        try:
            line = stream.readline()
            if not line:
                size.check()
                return
            parsed = parse_ldac(line)
            check_final_newline(line)
            _check_document(parsed, num_words)
        except DAMAGE as error:
            raise ValueError(
                f"`{path}` is damaged or truncated at line {number}: {error}"
            ) from error
        except ValueError as error:
            raise ValueError(f"`{path}`, line {number}: {shorten(error)}.") from error
        yield parsed
        number += 1


def _check_document(parsed: list[int], num_words: int | None) -> None:
    """Check the words of a parsed line, and the number of its words."""
    words, counts = parsed[: len(parsed) // 2], parsed[len(parsed) // 2 :]
    largest = max(words, default=-1)
    if num_words is not None and largest >= num_words:
        raise ValueError(
            f"word {largest} is outside the vocabulary of {num_words} words (0 to {num_words - 1})"
        )
    if sum(counts) > MAX_TOKENS:
        raise ValueError(f"it {describe_long(sum(counts))}")


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
        lines = list(ldac_lines(stream, SizeCheck(path), num_words))
    if not lines:
        raise ValueError(f"`{path}` is empty.")
    if num_words is None:
        num_words = 1 + max((max(line[: len(line) // 2], default=-1) for line in lines), default=-1)
    try:
        return assemble(lines, num_words)
    except CountError as error:
        raise CountError(f"`{path}`: {error}", error.row) from error


def read_npz(path: PathLike) -> Counts:
    """Read a matrix written by `scipy.sparse.save_npz`; other arrays in the file are ignored."""
    check_regular(path)
    try:
        with open(path, "rb") as stream:  # NumPy does not close a damaged file
            with zipfile.ZipFile(stream) as archive:
                check_integer_arrays(npz.read_headers(archive, _ARRAYS))
            stream.seek(0)
            x = _check_matrix(sparse.load_npz(stream))
    except FileNotFoundError:
        raise
    except (*DAMAGE, *_SCIPY_ERRORS) as error:
        raise ValueError(
            f"`{path}` is not a sparse npz, or is truncated: {shorten(error)}"
        ) from error
    return check_counts(x, what=f"`{path}`")


def check_integer_arrays(headers: dict[str, npz.Header]) -> None:
    """Raise `ValueError` if an array of indices has another type; SciPy would round it."""
    for name in ("shape", "indices", "indptr", "row", "col", "coords", "offsets"):
        if name in headers and headers[name].dtype.kind not in "iu":
            raise ValueError(f"array {name} must have integers, got {headers[name].dtype}")


def _check_matrix(x: Any) -> Any:
    """Check what SciPy assumes when it converts to rows, and return the matrix."""
    if x.format in ("csc", "bsr"):
        x.check_format(full_check=True)
    if x.shape[0] > 10**6 + _MAX_DOCUMENTS_PER_COUNT * x.nnz:
        raise ValueError(f"it declares {x.shape[0]} documents but has {x.nnz} counts")
    return x


def read_matrix_market(path: PathLike) -> Counts:
    """Read a Matrix Market file (`.mtx`, `.mm`, or either with `.gz`), documents by words.

    This is the layout that gensim's `MmCorpus.serialize` writes.
    """
    try:
        with open_bytes(path) as stream:
            x = read_matrix(stream)
        x = _check_matrix(x) if sparse.issparse(x) else x
    except FileNotFoundError:
        raise
    except (*DAMAGE, ValueError) as error:
        raise ValueError(
            f"`{path}` is not Matrix Market, or is truncated: {shorten(error)}."
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
    """Return the format of a file as a key of `READERS`, by the end of its name."""
    suffix = Path(str(path).removesuffix(".gz")).suffix
    if suffix not in READERS:
        raise ValueError(f"`{path}` must end in one of {', '.join(READERS)} (or .gz).")
    return suffix

"""Reader of Matrix Market files: a header, the sizes, then `row column value` lines, from 1.

SciPy's reader is not used: a file that ends in a blank crashes it (SciPy 1.17), and it allocates
whatever sizes the header declares.
"""

import re
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from scipy import sparse

from isotherm.data.truncation import check_final_newline

_HEAD = re.compile(
    rb"%%MatrixMarket\s+matrix\s+(coordinate|array)\s+"
    rb"(integer|unsigned-integer|real|double|pattern)"
    rb"\s+(general|symmetric)\s*",
    re.IGNORECASE,
)
_INTEGER = rb"[ \t]*+\d{1,18}+"
_VALUE = rb"[ \t]*+[+-]?\d{1,40}+(?:\.\d{0,40}+)?(?:[eE][+-]?\d{1,3}+)?"
_BLOCK = 1 << 20
"""Bytes read at a time."""


def read_matrix(stream: IO[bytes]) -> Any:
    """Read a matrix, sparse or dense.

    Raises
    ------
    ValueError
        The message says what is wrong, and on which line.
    """
    head = _HEAD.fullmatch(stream.readline(1000))
    if head is None:
        raise ValueError("its first line is not the header of a real or integer matrix")
    layout, field, symmetry = (word.decode().lower() for word in head.groups())
    number, line = 2, stream.readline()
    while line.lstrip()[:1] == b"%" or (line and not line.strip()):
        number, line = number + 1, stream.readline()
    columns = 2 if layout == "array" else 3
    if not re.fullmatch(rb"(?:%b(?=\s)){%d}\s*" % (_INTEGER, columns), line):
        raise ValueError(f"line {number} must have {columns} sizes")
    sizes = [int(word) for word in line.split()]
    if layout == "array":
        if symmetry == "symmetric" or field == "pattern":
            raise ValueError("a dense matrix must be general and have values")
        values = _numbers(stream, number, [_VALUE], sizes[0] * sizes[1])
        return values.reshape(sizes[1], sizes[0]).T
    pattern = [_INTEGER, _INTEGER] + [_VALUE] * (field != "pattern")
    return _sparse(_numbers(stream, number, pattern, sizes[2]), sizes, symmetry == "symmetric")


def _sparse(entries: np.ndarray, sizes: list[int], symmetric: bool) -> Any:
    row, column = entries[:, 0].astype(np.int64) - 1, entries[:, 1].astype(np.int64) - 1
    value = entries[:, 2] if entries.shape[1] == 3 else np.ones(len(entries))
    outside = (row < 0) | (row >= sizes[0]) | (column < 0) | (column >= sizes[1])
    if outside.any():
        i = int(outside.argmax())
        raise ValueError(
            f"entry {i + 1} is at row {row[i] + 1}, column {column[i] + 1}, outside the matrix"
        )
    if symmetric:
        mirrored = row != column
        row, column = np.append(row, column[mirrored]), np.append(column, row[mirrored])
        value = np.append(value, value[mirrored])
    return sparse.coo_array((value, (row, column)), shape=(sizes[0], sizes[1]))


def _numbers(stream: IO[bytes], number: int, pattern: list[bytes], declared: int) -> np.ndarray:
    """Read the lines after line `number` as an array with one row per line."""
    blocks = list(_blocks(stream, number, rb"(?=[ \t])".join(pattern) + rb"[ \t\r]*+\n"))
    entries = np.concatenate([np.empty(0), *blocks]).reshape(-1, len(pattern))
    if len(entries) != declared:
        hint = ", so it may be truncated" if len(entries) < declared else ""
        raise ValueError(f"it declares {declared} entries but has {len(entries)}{hint}")
    return entries


def _blocks(stream: IO[bytes], number: int, line: bytes) -> Iterator[np.ndarray]:
    """Parse about a mebibyte of lines at a time; an error names the first invalid line."""
    one, many = re.compile(line), re.compile(rb"(?:%b)*+" % line)
    while lines := stream.readlines(_BLOCK):
        try:
            check_final_newline(lines[-1])
        except ValueError as error:
            raise ValueError(f"line {number + len(lines)}: {error}") from None
        text = b"".join(lines)
        if not many.fullmatch(text):
            for at, each in enumerate(lines, number + 1):
                if each.strip() and not one.fullmatch(each):
                    shown = each[:40].decode("utf-8", "replace").strip()
                    raise ValueError(f"line {at}: `{shown}` is not an entry")
        yield np.fromstring(text, np.float64, sep=" ")
        number += len(lines)

"""Matrix Market: a line that says what it is, one with the sizes, then `row column value` per entry, counted from 1.

SciPy's reader is not used: a file that ends in a blank makes it crash (1.17), and a header that lies makes it reserve memory.
"""

import re
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from scipy import sparse

from isotherm.data.truncation import check_end

_HEAD = re.compile(
    rb"%%MatrixMarket\s+matrix\s+(coordinate|array)\s+(integer|unsigned-integer|real|double|pattern)"
    rb"\s+(general|symmetric)\s*",
    re.IGNORECASE,
)
_WHOLE = rb"[ \t]*+\d{1,18}+"
_VALUE = rb"[ \t]*+[+-]?\d{1,40}+(?:\.\d{0,40}+)?(?:[eE][+-]?\d{1,3}+)?"
_BLOCK = 1 << 20


def read_matrix(stream: IO[bytes]) -> Any:
    """Read a matrix, sparse or dense; a `ValueError` says what is wrong, and on which line."""
    head = _HEAD.fullmatch(stream.readline(1000))
    if head is None:
        raise ValueError("it does not begin as a matrix of real numbers does")
    layout, field, symmetry = (word.decode().lower() for word in head.groups())
    at, line = 2, stream.readline()
    while line.lstrip()[:1] == b"%" or (line and not line.strip()):
        at, line = at + 1, stream.readline()
    columns = 2 if layout == "array" else 3
    if not re.fullmatch(rb"(?:%b(?=\s)){%d}\s*" % (_WHOLE, columns), line):
        raise ValueError(f"line {at}: {columns} sizes must be there")
    sizes = [int(word) for word in line.split()]
    if layout == "array":
        if symmetry == "symmetric" or field == "pattern":
            raise ValueError("a dense matrix must be general, and have values")
        values = _numbers(stream, at, [_VALUE], sizes[0] * sizes[1])
        return values.reshape(sizes[1], sizes[0]).T
    pattern = [_WHOLE, _WHOLE] + [_VALUE] * (field != "pattern")
    return _sparse(_numbers(stream, at, pattern, sizes[2]), sizes, symmetry == "symmetric")


def _sparse(entries: np.ndarray, sizes: list[int], symmetric: bool) -> Any:
    row, column = entries[:, 0].astype(np.int64) - 1, entries[:, 1].astype(np.int64) - 1
    value = entries[:, 2] if entries.shape[1] == 3 else np.ones(len(entries))
    outside = (row < 0) | (row >= sizes[0]) | (column < 0) | (column >= sizes[1])
    if outside.any():
        i = int(outside.argmax())
        raise ValueError(f"entry {i + 1} is at row {row[i] + 1}, column {column[i] + 1}, outside")
    if symmetric:
        other = row != column
        row, column = np.append(row, column[other]), np.append(column, row[other])
        value = np.append(value, value[other])
    return sparse.coo_array((value, (row, column)), shape=(sizes[0], sizes[1]))


def _numbers(stream: IO[bytes], at: int, pattern: list[bytes], promised: int) -> np.ndarray:
    """Read lines of so many numbers each, as rows."""
    blocks = list(_blocks(stream, at, rb"(?=[ \t])".join(pattern) + rb"[ \t\r]*+\n"))
    found = np.concatenate([np.empty(0), *blocks]).reshape(-1, len(pattern))
    if len(found) != promised:
        short = ": cut short?" if len(found) < promised else ""
        raise ValueError(f"it says {promised} entries, but has {len(found)}{short}")
    return found


def _blocks(stream: IO[bytes], at: int, line: bytes) -> Iterator[np.ndarray]:
    """Read about a mebibyte of lines at a time; an error names the first that is wrong."""
    one, many = re.compile(line), re.compile(rb"(?:%b)*+" % line)
    while lines := stream.readlines(_BLOCK):
        try:
            check_end(lines[-1])
        except ValueError as error:
            raise ValueError(f"line {at + len(lines)}: {error}") from None
        text = b"".join(lines)
        if not many.fullmatch(text):
            for number, each in enumerate(lines, at + 1):
                if each.strip() and not one.fullmatch(each):
                    told = each[:40].decode("utf-8", "replace").strip()
                    raise ValueError(f"line {number}: `{told}` is not an entry")
        yield np.fromstring(text, np.float64, sep=" ")
        at += len(lines)

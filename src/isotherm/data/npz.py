"""The arrays of an npz, looked at before they are read: a file that lies costs a sentence, and no memory.

NumPy's reader reserves what a header promises, and what it raises for a damaged one can be anything.
"""

import math
import zipfile
from collections.abc import Iterable
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

_MOST_PACKED = 1032
"""Deflate makes a byte of at most so many."""


class Header(NamedTuple):
    """What an array is said to be."""

    shape: tuple[int, ...]
    dtype: np.dtype


def look(archive: zipfile.ZipFile, names: Iterable[str]) -> dict[str, Header]:
    """Check the headers of those of some arrays that are there; a `ValueError` says what is wrong."""
    present = set(archive.namelist())
    found = {}
    for name in names:
        if f"{name}.npy" in present:
            info = archive.getinfo(f"{name}.npy")
            _check_packing(name, info)
            with archive.open(info) as stream:
                found[name] = read_header(name, stream)
                left = info.file_size - stream.tell()
            _check_size(name, found[name], left)
    return found


def read_header(name: str, stream: IO[bytes]) -> Header:
    """Read the header of an array; the stream then stands before its numbers."""
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, in_columns, dtype = read(stream)
    except Exception as error:
        raise ValueError(f"array {name} has a header that cannot be read ({error})") from error
    if dtype.kind not in "biufSU" or min(shape, default=0) < 0 or (in_columns and len(shape) > 1):
        raise ValueError(f"array {name} is {dtype}{list(shape)}, which no counts are made of")
    return Header(shape, dtype)


def _check_packing(name: str, info: zipfile.ZipInfo) -> None:
    most = {
        zipfile.ZIP_STORED: info.compress_size,
        zipfile.ZIP_DEFLATED: _MOST_PACKED * info.compress_size,
    }
    if info.flag_bits & 1 or info.compress_type not in most:
        raise ValueError(f"array {name} is packed in a way that NumPy does not use")
    if info.file_size > most[info.compress_type]:
        raise ValueError(f"array {name} cannot have the {info.file_size} bytes it is said to have")


def _check_size(name: str, header: Header, left: int) -> None:
    wanted = math.prod(header.shape) * header.dtype.itemsize
    if wanted != left:
        raise ValueError(f"array {name} must have {wanted} bytes, it has {left}")

"""Check the headers of the arrays in an npz file before any array is read.

NumPy's reader allocates whatever size a header declares, and may raise any exception for a damaged
header. These checks turn both into a `ValueError` and allocate nothing.
"""

import math
import zipfile
from collections.abc import Iterable
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

_MAX_DEFLATE_RATIO = 1032
"""Largest ratio of uncompressed to compressed size that deflate can reach."""


class Header(NamedTuple):
    """Shape and type that the header of an array declares."""

    shape: tuple[int, ...]
    dtype: np.dtype


def read_headers(archive: zipfile.ZipFile, names: Iterable[str]) -> dict[str, Header]:
    """Read and check the headers of those of the named arrays that are in the archive.

    Raises
    ------
    ValueError
        A header cannot be read, or declares more data than the archive has.
    """
    present = set(archive.namelist())
    headers = {}
    for name in names:
        if f"{name}.npy" in present:
            info = archive.getinfo(f"{name}.npy")
            _check_compression(name, info)
            with archive.open(info) as stream:
                headers[name] = read_header(name, stream)
                size = info.file_size - stream.tell()
            _check_size(name, headers[name], size)
    return headers


def read_header(name: str, stream: IO[bytes]) -> Header:
    """Read the header of an array and leave the stream at its first number."""
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = read(stream)
    except Exception as error:
        raise ValueError(f"the header of array {name} cannot be read ({error})") from error
    if (
        dtype.kind not in "biufSU"
        or min(shape, default=0) < 0
        or (fortran_order and len(shape) > 1)
    ):
        raise ValueError(f"array {name} has an unsupported type or shape, {dtype}{list(shape)}")
    return Header(shape, dtype)


def _check_compression(name: str, info: zipfile.ZipInfo) -> None:
    max_size = {
        zipfile.ZIP_STORED: info.compress_size,
        zipfile.ZIP_DEFLATED: _MAX_DEFLATE_RATIO * info.compress_size,
    }
    if info.flag_bits & 1 or info.compress_type not in max_size:
        raise ValueError(f"array {name} is encrypted or uses a compression that NumPy does not use")
    if info.file_size > max_size[info.compress_type]:
        raise ValueError(
            f"array {name} declares {info.file_size} bytes, more than its compressed data can hold"
        )


def _check_size(name: str, header: Header, size: int) -> None:
    expected = math.prod(header.shape) * header.dtype.itemsize
    if expected != size:
        raise ValueError(f"array {name} must have {expected} bytes, got {size}")

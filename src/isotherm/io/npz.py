"""Check the headers of the arrays in an npz file before any array is read.

NumPy's reader allocates whatever size a header declares, and may raise any exception for a damaged
header. These checks turn both into a `ValueError` and allocate nothing.
"""

import math
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from isotherm.io.untrusted import Damaged, open_regular

_MAX_DEFLATE_RATIO = 1032
"""Largest ratio of uncompressed to compressed size that deflate can reach."""


class Header(NamedTuple):
    """Shape and type that the header of an array declares."""

    shape: tuple[int, ...]
    dtype: np.dtype


def load(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of a file that `numpy.savez` wrote, without compression.

    What the headers declare is compared with the size of the file before memory is allocated.

    Raises
    ------
    Damaged
        The file is a link, truncated, changed, or not an npz file without compression.
    OSError
        It does not exist or cannot be read.
    """
    with open_regular(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                entries = archive.infolist()
                names = [entry.filename.removesuffix(".npy") for entry in entries]
                headers = read_headers(archive, names, any_order=True)
                declared = sum(entry.file_size for entry in entries)
            if len(set(names)) < len(names) or len(headers) < len(names):
                raise ValueError("its entries are not arrays with different names")
            if declared > os.fstat(stream.fileno()).st_size:
                raise ValueError(f"its arrays have {declared:,} bytes, more than the file")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as arrays:
                return dict(arrays)
        except Exception as error:  # a damaged archive raises almost anything
            raise Damaged(f"`{path}` is damaged: {error}.") from error


def read_headers(
    archive: zipfile.ZipFile, names: Iterable[str], *, any_order: bool = False
) -> dict[str, Header]:
    """Read and check the headers of the named arrays; names not in the archive are skipped.

    Arrays in Fortran order are refused unless `any_order`.

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
                headers[name] = read_header(name, stream, any_order=any_order)
                size = info.file_size - stream.tell()
            _check_size(name, headers[name], size)
    return headers


def read_header(name: str, stream: IO[bytes], *, any_order: bool = False) -> Header:
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
        or (fortran_order and len(shape) > 1 and not any_order)
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

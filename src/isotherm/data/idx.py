"""Reader of the IDX format of MNIST: two zero bytes, type, rank, sizes, then the numbers."""

import math
import struct
from typing import IO, NamedTuple

import numpy as np

from isotherm.data.registry import GZIP_ERRORS, PathLike, locate, open_bytes

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""NumPy type of each type code."""


class Images(NamedTuple):
    """Pixels in [0, 1], one flat row per image, and labels."""

    x: np.ndarray
    y: np.ndarray


class TrainTestImages(NamedTuple):
    """Training images and test images."""

    train: Images
    test: Images


def read_idx(path: PathLike) -> np.ndarray:
    """Read an IDX file, plain or gzipped.

    Parameters
    ----------
    path
        The file; it is decompressed if its name ends in `.gz`.

    Returns
    -------
    The array, in native byte order.

    Raises
    ------
    ValueError
        The file is not IDX, or its size does not match its header.
    """
    try:
        with open_bytes(path) as stream:
            head = stream.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in DTYPES or head[3] == 0:
                raise ValueError(f"`{path}` is not an IDX file: it begins with {head!r}.")
            rank = head[3]
            sizes = stream.read(4 * rank)
            if len(sizes) < 4 * rank:
                raise ValueError(f"`{path}` is truncated in its header.")
            shape = struct.unpack(f">{rank}I", sizes)
            dtype = np.dtype(DTYPES[head[2]])
            size = math.prod(shape) * dtype.itemsize
            content = _read(stream, size)
    except GZIP_ERRORS as error:
        raise ValueError(f"`{path}` is damaged or truncated: {error}") from error
    if len(content) != size:
        actual = "more" if len(content) > size else f"only {len(content)}"
        raise ValueError(f"`{path}` must have {size} bytes for shape {shape}, it has {actual}.")
    try:
        array = np.frombuffer(content, dtype).reshape(shape)
    except ValueError as error:
        raise ValueError(f"`{path}` has an impossible shape, {shape}.") from error
    return array.astype(dtype.newbyteorder("="))


def _read(stream: IO[bytes], size: int) -> bytes:
    """Read up to `size + 1` bytes, in pieces: a wrong size in the header allocates no memory."""
    pieces, left = [], size + 1
    while left and (piece := stream.read(min(left, 2**24))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def load_mnist(data_dir: PathLike | None = None) -> TrainTestImages:
    """Load MNIST: 60 000 training and 10 000 test images of handwritten digits, 28 x 28 pixels.

    Parameters
    ----------
    data_dir
        As in `isotherm.data.registry.locate`.

    Returns
    -------
    Pixels in [0, 1] as float32 of shape (images, 784), labels 0 to 9 as int32.
    """
    paths = locate("mnist", data_dir)
    splits = []
    for part in ("train", "t10k"):
        x = read_idx(paths[f"{part}-images-idx3-ubyte"])
        y = read_idx(paths[f"{part}-labels-idx1-ubyte"])
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise ValueError(
                f"`mnist`: images of shape {x.shape} do not match labels of shape {y.shape}."
            )
        splits.append(Images(x.reshape(len(x), -1).astype(np.float32) / 255, y.astype(np.int32)))
    return TrainTestImages(*splits)

"""Arrays in the IDX format of MNIST: two zero bytes, a type, a rank, the sizes, the numbers."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from isotherm.data.registry import PathLike, locate

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class Images(NamedTuple):
    """Pixels in [0, 1], one flat row per image, and labels."""

    x: np.ndarray
    y: np.ndarray


class TrainTestImages(NamedTuple):
    """Images to learn from, and images to be judged by."""

    train: Images
    test: Images


def read_idx(path: PathLike) -> np.ndarray:
    """Read an IDX file, plain or gzipped.

    Parameters
    ----------
    path
        The file; packed if its name ends in `.gz`.

    Returns
    -------
    The array, in the machine's byte order.

    Raises
    ------
    ValueError
        The file is not IDX, or is not as long as its header says.
    """
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            head = stream.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in DTYPES or head[3] == 0:
                raise ValueError(f"`{path}` is not an IDX file: it begins with {head!r}.")
            rank = head[3]
            sizes = stream.read(4 * rank)
            if len(sizes) < 4 * rank:
                raise ValueError(f"`{path}` is cut short in its header.")
            shape = struct.unpack(f">{rank}I", sizes)
            dtype = np.dtype(DTYPES[head[2]])
            wanted = math.prod(shape) * dtype.itemsize
            content = _read(stream, wanted)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"`{path}` is damaged or cut short: {error}") from error
    if len(content) != wanted:
        more = "more" if len(content) > wanted else f"only {len(content)}"
        raise ValueError(
            f"`{path}` must hold {wanted} bytes for its shape {shape}, it holds {more}."
        )
    try:
        array = np.frombuffer(content, dtype).reshape(shape)
    except ValueError as error:
        raise ValueError(f"`{path}` has a shape that no array has, {shape}.") from error
    return array.astype(dtype.newbyteorder("="))


def _read(stream: gzip.GzipFile | object, wanted: int) -> bytes:
    """Read what the header promises and at most one byte more; a lying header allocates nothing."""
    pieces, left = [], wanted + 1
    while left and (piece := stream.read(min(left, 2**24))):  # pyright: ignore[reportAttributeAccessIssue]
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def load_mnist(data_dir: PathLike | None = None) -> TrainTestImages:
    """Load MNIST: 60 000 handwritten digits to train, 10 000 to test, 28 x 28 pixels each.

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
                f"`mnist` has images of shape {x.shape} for labels of shape {y.shape}."
            )
        splits.append(Images(x.reshape(len(x), -1).astype(np.float32) / 255, y.astype(np.int32)))
    return TrainTestImages(*splits)

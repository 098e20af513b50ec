"""Named arrays with a text beside them in a folder of Zarr, as `isotherm.io.formats` has them in one file.

Every array is cut into chunks, and every chunk is a file of plain numbers: nothing is packed, so nothing can become more than it is.
"""

import itertools
import json
import os
import stat
import warnings
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from isotherm.io.formats import HEADER, MOST_TEXT, Damaged, datatree, library

MOST_CHUNK = 2**24
"""Bytes of a chunk of Zarr, unless one row has more."""
MOST_METADATA = 2**16
"""Bytes; what Zarr says about one of our arrays has fewer than a thousand."""


def write_zarr(
    path: Path, text: str, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]
) -> None:
    """Write a folder of Zarr, format 3, with the groups of netCDF: every chunk a file of plain numbers, also where all are zero."""
    library("zarr")
    tree = datatree(text, arrays, attributes, {"bfloat16": np.float32})
    plain = {"compressors": None, "filters": None}
    encoding = {
        node.path: {
            k: plain | {"chunks": _chunks(v)} for k, v in node.to_dataset().variables.items()
        }
        for node in tree.subtree
    }
    with warnings.catch_warnings():  # one copy of all metadata is xarray's custom, not yet Zarr's
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        tree.to_zarr(path, encoding=encoding, zarr_format=3, write_empty_chunks=True)


def _chunks(array: Any) -> tuple[int, ...]:
    """Cut the first axes, so that one who wants a few draws need not read all."""
    chunks = [max(1, length) for length in array.shape]
    for axis, length in enumerate(chunks):
        fit = MOST_CHUNK // (array.dtype.itemsize * prod(chunks[axis + 1 :]))
        chunks[axis] = max(1, min(length, fit))
        if fit:
            break
    return tuple(chunks)


class Zarr:
    """A folder of Zarr, read without its library: JSON, and files of plain numbers whose sizes are known beforehand."""

    def __init__(self, path: Path) -> None:
        self.path, self.sizes = path, dict[str, int]()
        if not stat.S_ISDIR(path.stat().st_mode):
            raise Damaged(f"`{path}` cannot be opened as Zarr: it is no folder.")
        inodes = {}
        for folder, names, files in os.walk(path):
            for file in (Path(folder) / name for name in [*names, *files]):
                found, place = file.lstat(), file.relative_to(path).as_posix()
                if stat.S_ISREG(found.st_mode):
                    self.sizes[place] = inodes[found.st_dev, found.st_ino] = found.st_size
                elif not stat.S_ISDIR(found.st_mode):
                    raise Damaged(
                        f"`{place}` is neither file nor folder; links may not point outside."
                    )
        self.left = sum(inodes.values())

    def __enter__(self) -> "Zarr":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def text(self) -> str:
        """Read the text."""
        shape = self._metadata(HEADER).get("shape")
        if not _are_counts(shape) or len(shape) != 1 or shape[0] > MOST_TEXT:
            raise Damaged(f"`{self.path}` is no run of isotherm.")
        return self.array(HEADER, np.dtype(np.uint8), tuple(shape)).tobytes().decode()

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Read an array of known type and shape."""
        stored = np.dtype(np.float32) if dtype.name == "bfloat16" else dtype
        chunks = self._chunk_shape(name, stored, shape)
        counts = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
        size, number = stored.itemsize * prod(chunks), prod(counts)
        self.left -= size * number
        if self.left < 0 or number > len(self.sizes):
            raise Damaged(
                f"`{name}` claims {size * number:,} bytes, more than the folder has left."
            )
        places = list(itertools.product(*map(range, counts))) if number else []
        files = ["/".join([name, "c", *map(str, place)]) for place in places]
        for file in files:
            if self.sizes.get(file) != size:
                raise Damaged(f"`{file}` has {self.sizes.get(file, 'no')} bytes, not {size}.")
        array = np.empty(shape, stored)
        for place, file in zip(places, files, strict=True):
            part = np.fromfile(self.path / file, stored.newbyteorder("<"), prod(chunks))
            starts = [i * chunk for i, chunk in zip(place, chunks, strict=True)]
            stops = [min(i + c, n) for i, c, n in zip(starts, chunks, shape, strict=True)]
            inside = tuple(slice(j - i) for i, j in zip(starts, stops, strict=True))
            array[tuple(map(slice, starts, stops))] = part.reshape(chunks)[inside]
        return array.astype(dtype, copy=False)

    def _chunk_shape(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> list[int]:
        """Compare what is said about an array with what we write, and tell how it is cut."""
        found = {"storage_transformers": [], **self._metadata(name)}  # which may be left out
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        wanted = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": dtype.name,
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes"}] if dtype.itemsize == 1 else [little],
            "storage_transformers": [],
        }
        for key, value in wanted.items():
            if found.get(key) != value:
                raise Damaged(f"The {key} of `{name}` must be {value}, got {found.get(key)}.")
        match found.get("chunk_grid"):
            case {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}:
                if _are_counts([*shape, *chunks]) and 0 not in chunks and len(chunks) == len(shape):
                    return chunks
        raise Damaged(f"The chunk_grid of `{name}` does not cut {list(shape)}.")

    def _metadata(self, name: str) -> dict[str, Any]:
        place = f"{name}/zarr.json"
        if place not in self.sizes:
            raise Damaged(f"`{self.path}` has no `{name}`.")
        if self.sizes[place] > MOST_METADATA:
            raise Damaged(f"`{place}` has {self.sizes[place]:,} bytes, too many to be ours.")
        try:
            return json.loads((self.path / place).read_text(encoding="utf-8"))
        except ValueError as error:
            raise Damaged(f"`{place}` is damaged: {error}.") from error


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    """Tell whether this is a list of whole numbers, and truth values are none."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)

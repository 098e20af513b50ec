"""Named arrays with a header in a Zarr folder; `isotherm.io.formats` has those in one file.

Every array is cut into chunks, and every chunk is a file of plain numbers. Nothing is compressed,
so no file can expand to more than its size.
"""

import itertools
import os
import stat
import warnings
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from isotherm.io.formats import HEADER, MAX_HEADER_BYTES, headed_tree, library
from isotherm.io.untrusted import Damaged, inside, read_json

MAX_CHUNK_BYTES = 2**24
"""Largest size of a chunk, unless a single number is larger."""
MAX_METADATA_BYTES = 2**16
"""Largest metadata file that is read; those of isotherm have fewer than a thousand bytes."""


def write_zarr(
    path: Path, header: str, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]
) -> None:
    """Write a Zarr folder, format 3, with the same groups as netCDF.

    Chunks of zeros, which Zarr leaves out by default, are written: a missing chunk is an error.
    """
    tree = headed_tree(header, arrays, attributes, {"bfloat16": np.float32})
    plain = {"compressors": None, "filters": None}
    encoding = {
        node.path: {
            k: plain | {"chunks": _chunks(v)} for k, v in node.to_dataset().variables.items()
        }
        for node in tree.subtree
    }
    with warnings.catch_warnings():  # about metadata that xarray adds to the format
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        tree.to_zarr(_store(path), encoding=encoding, zarr_format=3, write_empty_chunks=True)


def _store(path: Path) -> Any:
    """Return a Zarr store that writes one file at a time, and none after a failure.

    Zarr's own store writes in several threads. If one of them failed, the others could write into
    a folder that is being removed.
    """
    local = library("zarr").storage.LocalStore

    class OneByOne(local):
        failed = False

        async def set(self, key: str, value: Any) -> None:
            if self.failed:
                raise OSError("An earlier write failed.")
            try:
                file = self.root / key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(value.as_buffer_like())
            except BaseException:
                self.failed = True
                raise

        async def set_if_not_exists(self, key: str, value: Any) -> None:
            if not (self.root / key).exists():
                await self.set(key, value)

    return OneByOne(path)


def _chunks(array: Any) -> tuple[int, ...]:
    """Return the shape of chunks: the first axes are split, so that few draws can be read alone."""
    chunks = [max(1, length) for length in array.shape]
    for axis, length in enumerate(chunks):
        fit = MAX_CHUNK_BYTES // (array.dtype.itemsize * prod(chunks[axis + 1 :]))
        chunks[axis] = max(1, min(length, fit))
        if fit:
            break
    return tuple(chunks)


class Zarr:
    """A Zarr folder, read without the library: JSON, and files of plain numbers of known sizes."""

    def __init__(self, path: Path) -> None:
        self.path, self.sizes = path, dict[str, int]()
        if not stat.S_ISDIR(path.stat().st_mode):
            raise Damaged(f"`{path}` cannot be opened as Zarr: it is not a folder.")
        inodes = {}
        for folder, names, files in os.walk(path):
            for file in (Path(folder) / name for name in [*names, *files]):
                status, name = file.lstat(), file.relative_to(path).as_posix()
                if stat.S_ISREG(status.st_mode):
                    self.sizes[name] = inodes[status.st_dev, status.st_ino] = status.st_size
                elif not stat.S_ISDIR(status.st_mode):
                    raise Damaged(f"`{name}` is neither a file nor a folder; links are not read.")
        self.bytes_left = sum(inodes.values())

    def __enter__(self) -> "Zarr":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def header(self) -> str:
        """Read the header."""
        shape = self._metadata(HEADER).get("shape")
        if not _are_counts(shape) or len(shape) != 1 or shape[0] > MAX_HEADER_BYTES:
            raise Damaged(f"`{self.path}` is not a file of isotherm.")
        return self.array(HEADER, np.dtype(np.uint8), tuple(shape)).tobytes().decode()

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Read an array of known type and shape."""
        stored = np.dtype(np.float32) if dtype.name == "bfloat16" else dtype
        chunks = self._chunk_shape(name, stored, shape)
        counts = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
        size, number = stored.itemsize * prod(chunks), prod(counts)
        self.bytes_left -= size * number
        if self.bytes_left < 0 or number > len(self.sizes):
            raise Damaged(
                f"`{name}` claims {size * number:,} bytes, more than the folder has left."
            )
        indices = list(itertools.product(*map(range, counts))) if number else []
        files = ["/".join([name, "c", *map(str, index)]) for index in indices]
        for file in files:
            if self.sizes.get(file) != size:
                raise Damaged(f"`{file}` has {self.sizes.get(file, 'no')} bytes, not {size}.")
        array = np.empty(shape, stored)
        for index, file in zip(indices, files, strict=True):
            part = np.fromfile(self.path / file, stored.newbyteorder("<"), prod(chunks))
            starts = [i * chunk for i, chunk in zip(index, chunks, strict=True)]
            stops = [min(i + c, n) for i, c, n in zip(starts, chunks, shape, strict=True)]
            inside = tuple(slice(j - i) for i, j in zip(starts, stops, strict=True))
            array[tuple(map(slice, starts, stops))] = part.reshape(chunks)[inside]
        return array.astype(dtype, copy=False)

    def _chunk_shape(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> list[int]:
        """Return the shape of an array's chunks; raise an error if its metadata are not ours."""
        found = {"storage_transformers": [], **self._metadata(name)}  # an optional field
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
        raise Damaged(f"The chunk_grid of `{name}` does not fit the shape {list(shape)}.")

    def _metadata(self, name: str) -> dict[str, Any]:
        file = f"{name}/zarr.json"
        if file not in self.sizes:
            raise Damaged(f"`{self.path}` has no `{name}`.")
        if self.sizes[file] > MAX_METADATA_BYTES:
            raise Damaged(f"`{file}` has {self.sizes[file]:,} bytes, more than isotherm writes.")
        found = read_json(inside(self.path, file))
        if not isinstance(found, dict):
            raise Damaged(f"`{file}` is damaged: it is not a JSON object.")
        return found


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    """Return whether this is a list of non-negative integers; booleans do not count."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)

"""Named arrays with a header, in netCDF or safetensors; `isotherm.io.zarr_store` has Zarr.

Other programs can read these formats, and files contain no code. The name of an array is
`group/variable`. What a file declares is checked before memory is allocated: its arrays must not
have more bytes than the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isotherm.imports import require
from isotherm.io.datatree import to_datatree
from isotherm.io.untrusted import Damaged, check_regular

if TYPE_CHECKING:
    import xarray

HEADER = "isotherm"
"""Name of the variable that contains the header."""
MAX_HEADER_BYTES = 2**26
WIDER = {"bfloat16": np.float32, "float16": np.float32, "bool": np.uint8}
"""Types that netCDF does not have, and what it stores instead, without loss."""


def library(name: str) -> Any:
    """Import a library of the extra `files`."""
    return require(name, "files", "This file format")


def write_netcdf(
    path: Path, header: str, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]
) -> None:
    """Write groups that ArviZ reads: `posterior` and `sample_stats` have axes (chain, draw, …)."""
    library("h5netcdf")
    # Build the file in memory: on a full disk HDF5 crashes with a segmentation fault.
    path.write_bytes(headed_tree(header, arrays, attributes, WIDER).to_netcdf(engine="h5netcdf"))


def headed_tree(
    header: str,
    arrays: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    wider: Mapping[str, Any],
) -> "xarray.DataTree":
    """Build a `DataTree` with a header; `wider` maps types that the format lacks to wider ones."""
    stored = {
        name: array.astype(wider.get(array.dtype.name, array.dtype), copy=False)
        for name, array in arrays.items()
    }
    tree = to_datatree(stored, attributes)
    letters = np.frombuffer(header.encode(), np.uint8)
    tree.dataset = tree.to_dataset().assign({HEADER: (["letter"], letters)})
    return tree


class NetCDF:
    """A netCDF file, read with h5py, which allocates memory for one array at a time."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        self.path, self.bytes_left = path, path.stat().st_size
        try:
            self.file = library("h5py").File(path, "r")
        except OSError as error:
            raise Damaged(f"`{path}` cannot be opened as netCDF: {error}.") from error

    def __enter__(self) -> "NetCDF":
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

    def header(self) -> str:
        """Read the header."""
        letters = self._dataset(HEADER)
        if letters.dtype != np.uint8 or letters.ndim != 1 or letters.size > MAX_HEADER_BYTES:
            raise Damaged(f"`{self.path}` is not a file of isotherm.")
        return letters[()].tobytes().decode()

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Read an array of known type and shape."""
        dataset, stored = self._dataset(name), np.dtype(WIDER.get(dtype.name, dtype))
        if dataset.dtype != stored or dataset.shape != shape:
            raise Damaged(
                f"`{name}` is {dataset.dtype}{list(dataset.shape)}, not {stored}{list(shape)}."
            )
        return dataset[()].astype(dtype, copy=False)

    def _dataset(self, name: str) -> Any:
        h5py = library("h5py")
        node: Any = self.file
        for part in name.split("/"):
            if not isinstance(node, h5py.Group) or part not in node:
                raise Damaged(f"`{self.path}` has no `{name}`.")
            if not isinstance(node.get(part, getlink=True), h5py.HardLink):
                raise Damaged(f"`{name}` is a link; links are not followed.")
            node = node[part]
        if not isinstance(node, h5py.Dataset) or node.is_virtual or node.external:
            raise Damaged(f"`{name}` is not an array in this file.")
        self.bytes_left -= node.nbytes
        if self.bytes_left < 0:
            raise Damaged(f"`{name}` claims {node.nbytes:,} bytes, more than the file has left.")
        return node


def write_safetensors(
    path: Path, header: str, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]
) -> None:
    """Write tensors, with the header in the metadata."""
    metadata = {HEADER: header, **{name: str(value) for name, value in attributes.items()}}
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file = library("safetensors.numpy").save_file
    try:
        save_file(tensors, path, metadata=metadata)
    except library("safetensors").SafetensorError as error:  # among others, a full disk
        raise OSError(str(error)) from error


class SafeTensors:
    """A safetensors file; the library checks that all tensors lie inside it before reading one."""

    def __init__(self, path: Path) -> None:
        module = library("safetensors")
        self.path = path
        check_regular(path)  # a missing file raises FileNotFoundError, not `Damaged`
        try:
            self.file = module.safe_open(path, framework="numpy")
        except (OSError, module.SafetensorError) as error:
            raise Damaged(f"`{path}` cannot be opened as safetensors: {error}.") from error

    def __enter__(self) -> "SafeTensors":
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.__exit__(*exception)

    def header(self) -> str:
        """Read the header."""
        metadata = self.file.metadata() or {}
        if HEADER not in metadata:
            raise Damaged(f"`{self.path}` is not a file of isotherm.")
        return metadata[HEADER]

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Read an array of known type and shape."""
        if name not in self.file.keys():
            raise Damaged(f"`{self.path}` has no `{name}`.")
        tensor = self.file.get_slice(name)
        if tuple(tensor.get_shape()) != shape:
            raise Damaged(f"`{name}` has shape {tensor.get_shape()}, not {list(shape)}.")
        array = self.file.get_tensor(name)
        if array.dtype != dtype:
            raise Damaged(f"`{name}` is {array.dtype}, not {dtype}.")
        return array

"""Named arrays with a text beside them, in netCDF or safetensors (`isotherm.io.zarr_store`: or Zarr): formats that others read and that hold no code.

A name is `group/variable`. What a file says about itself is checked before memory is asked for: a shape may not need
more bytes than the file has.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

HEADER = "isotherm"
"""What the text is called."""
MOST_TEXT = 2**26
"""Bytes; a longer text is no text of ours."""
WIDER = {"bfloat16": np.float32, "float16": np.float32, "bool": np.uint8}
"""What netCDF stores instead of types it does not have; both ways without loss."""


class Damaged(ValueError):
    """A file is cut, changed, or not one of ours."""


def library(name: str, extra: str = "files") -> Any:
    """Import a library of an extra, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(f"This file needs {name}: pip install 'isotherm[{extra}]'.") from error


def write_netcdf(
    path: Path, text: str, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]
) -> None:
    """Write groups that ArviZ reads: the first axes of `posterior` and `sample_stats` are `chain` and `draw`."""
    library("h5netcdf")
    # By way of memory: where a disk is full, HDF5 ends the process with a segmentation fault.
    path.write_bytes(datatree(text, arrays, attributes, WIDER).to_netcdf(engine="h5netcdf"))


def datatree(
    text: str,
    arrays: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    wider: Mapping[str, Any],
) -> Any:
    """Make groups as ArviZ has them, with the text beside; types that the format does not have become wider ones."""
    import xarray

    groups: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        group, variable = name.split("/")
        lead = ["chain", "draw"] if group != "collected" else []
        extra = [f"{variable}_dim_{i}" for i in range(array.ndim - len(lead))]
        stored = array.astype(wider.get(array.dtype.name, array.dtype), copy=False)
        groups.setdefault(group, {})[variable] = ([*lead, *extra], stored)
    letters = np.frombuffer(text.encode(), np.uint8)
    tree = {"/": xarray.Dataset({HEADER: (["letter"], letters)}, attrs=dict(attributes))}
    for group, variables in groups.items():
        axes = {} if group == "collected" else _axes(next(iter(variables.values()))[1])
        tree[group] = xarray.Dataset(variables, axes, dict(attributes))
    return xarray.DataTree.from_dict(tree)


def _axes(array: np.ndarray) -> dict[str, np.ndarray]:
    return {"chain": np.arange(array.shape[0]), "draw": np.arange(array.shape[1])}


class NetCDF:
    """A netCDF file, read by h5py alone, which allocates nothing before it is asked to."""

    def __init__(self, path: Path) -> None:
        self.path, self.left = path, path.stat().st_size
        try:
            self.file = library("h5py").File(path, "r")
        except OSError as error:
            raise Damaged(f"`{path}` cannot be opened as netCDF: {error}.") from error

    def __enter__(self) -> "NetCDF":
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

    def text(self) -> str:
        """Read the text."""
        letters = self._dataset(HEADER)
        if letters.dtype != np.uint8 or letters.ndim != 1 or letters.size > MOST_TEXT:
            raise Damaged(f"`{self.path}` is no run of isotherm.")
        return letters[()].tobytes().decode()

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Read an array of known type and shape."""
        found, stored = self._dataset(name), np.dtype(WIDER.get(dtype.name, dtype))
        if found.dtype != stored or found.shape != shape:
            raise Damaged(
                f"`{name}` is {found.dtype}{list(found.shape)}, not {stored}{list(shape)}."
            )
        return found[()].astype(dtype, copy=False)

    def _dataset(self, name: str) -> Any:
        h5py = library("h5py")
        place: Any = self.file
        for part in name.split("/"):
            if not isinstance(place, h5py.Group) or part not in place:
                raise Damaged(f"`{self.path}` has no `{name}`.")
            if not isinstance(place.get(part, getlink=True), h5py.HardLink):
                raise Damaged(f"`{name}` is somewhere else, and files may not point outside.")
            place = place[part]
        if not isinstance(place, h5py.Dataset) or place.is_virtual or place.external:
            raise Damaged(f"`{name}` is no array in this file.")
        self.left -= place.nbytes
        if self.left < 0:
            raise Damaged(f"`{name}` claims {place.nbytes:,} bytes, more than the file has left.")
        return place


def write_safetensors(
    path: Path, text: str, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]
) -> None:
    """Write tensors as networks' libraries read them, with the text in the metadata."""
    metadata = {HEADER: text, **{name: str(value) for name, value in attributes.items()}}
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file = library("safetensors.numpy").save_file
    try:
        save_file(whole, path, metadata=metadata)
    except library("safetensors").SafetensorError as error:  # a full disk, too, is one
        raise OSError(str(error)) from error


class SafeTensors:
    """A safetensors file; the library checks that all tensors lie in the file before it reads one."""

    def __init__(self, path: Path) -> None:
        module = library("safetensors")
        self.path = path
        path.stat()  # a file that is not there is not damaged
        try:
            self.file = module.safe_open(path, framework="numpy")
        except (OSError, module.SafetensorError) as error:
            raise Damaged(f"`{path}` cannot be opened as safetensors: {error}.") from error

    def __enter__(self) -> "SafeTensors":
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.__exit__(*exception)

    def text(self) -> str:
        """Read the text."""
        metadata = self.file.metadata() or {}
        if HEADER not in metadata:
            raise Damaged(f"`{self.path}` is no run of isotherm.")
        return metadata[HEADER]

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Read an array of known type and shape."""
        if name not in self.file.keys():
            raise Damaged(f"`{self.path}` has no `{name}`.")
        found = self.file.get_slice(name)
        if tuple(found.get_shape()) != shape:
            raise Damaged(f"`{name}` has shape {found.get_shape()}, not {list(shape)}.")
        array = self.file.get_tensor(name)
        if array.dtype != dtype:
            raise Damaged(f"`{name}` is {array.dtype}, not {dtype}.")
        return array

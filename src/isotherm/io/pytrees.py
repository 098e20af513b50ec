"""Pytrees of arrays on disk: in one file, or in a folder to which every process writes its part.

The file is npz. The folder has the format of orbax (`pip install 'isotherm[sharded]'`): arrays that
are distributed over the devices of several processes are never gathered, neither to write nor to
read them, and can be restored on another number of devices. A file or folder has an *identity*, a
dictionary for JSON with name, sizes and checksums. What does not match its identity is refused
before it is read.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from isotherm.imports import require
from isotherm.io import npz
from isotherm.io.files import atomically, checksum, force_to_disk
from isotherm.io.untrusted import Damaged, inside, open_regular
from isotherm.tree import leaf_names

Identity = Mapping[str, Any]


def write_tree(path: Path, tree: Any) -> dict[str, Any]:
    """Write the leaves of a tree and return the identity of the file.

    Leaves of a type that NumPy's format does not know are written as bytes.
    """
    arrays = {}
    for name, leaf in _numbered(tree).items():
        array = np.asarray(leaf)
        is_known = array.dtype.kind != "V"
        arrays[name] = array if is_known else np.ascontiguousarray(array).view(np.uint8)
    with atomically(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays)
    return {"name": path.name, **_signature(path)}


def read_tree(folder: Path, identity: Identity, like: Any, *, any_rows: bool = False) -> Any:
    """Read a tree with the structure, shapes and types of `like`.

    With `any_rows` the second axis, that of draws, may have any length.
    """
    path = inside(folder, identity["name"])
    if "files" in identity:
        return _read_parts(path, identity["files"], like)
    _check(path, identity)
    leaves, structure = jax.tree.flatten(like)
    arrays = npz.load(path)
    if list(arrays) != list(_numbered(like)):
        raise Damaged(f"{path.name} has {len(arrays)} arrays, not {len(leaves)}.")
    read = list(arrays.values())
    return jax.tree.unflatten(structure, list(_fitted(read, leaves, leaf_names(like), any_rows)))


def write_parts(path: Path, tree: Any, *, first: bool) -> dict[str, Any]:
    """Write the leaves of a tree to a folder, every process its own part.

    All processes call it, and it returns when all parts are written. In the process that is `first`
    it returns the identity of the folder, in the others an empty dictionary.
    """
    path = path.absolute()
    with _orbax().StandardCheckpointer() as writer:
        writer.save(path, _numbered(tree), force=True)
    if not first:
        return {}
    files = sorted(part for part in path.rglob("*") if part.is_file())
    for part in files:
        force_to_disk(part)
    return {
        "name": path.name,
        "files": {part.relative_to(path).as_posix(): _signature(part) for part in files},
    }


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _read_parts(path: Path, files: Mapping[str, Identity], like: Any) -> Any:
    for name, identity in files.items():
        _check(inside(path, name), identity, f"{path.name}/{name}")
    for part in path.rglob("*"):
        if part.is_symlink() or (part.is_file() and part.relative_to(path).as_posix() not in files):
            raise Damaged(f"`{part}` does not belong to this checkpoint.")

    def template(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        return leaf

    with _orbax().StandardCheckpointer() as reader:
        templates = {name: template(leaf) for name, leaf in _numbered(like).items()}
        arrays = reader.restore(path.absolute(), templates, strict=True)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in templates])


def _orbax() -> Any:
    return require("orbax.checkpoint", "sharded", "A checkpoint in parts")


def _numbered(tree: Any) -> dict[str, Any]:
    return {f"leaf{i}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def _signature(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": checksum(path)}


def _check(path: Path, identity: Identity, name: str = "") -> None:
    """Raise an error if the size or checksum of a file is not that of its identity."""
    with open_regular(path) as file:
        same_size = os.fstat(file.fileno()).st_size == identity["bytes"]
        found = file_digest(cast(Any, file), "sha256") if same_size else None
        if found is None or found.hexdigest() != identity["sha256"]:
            raise Damaged(f"{name or path.name} was cut or changed: its sha256 does not match.")


def _fitted(
    read: Sequence[np.ndarray], leaves: Sequence[Any], names: Sequence[str], any_rows: bool
) -> Iterator[np.ndarray]:
    """Yield arrays with the types of leaves; raise an error if a type or shape differs."""
    for array, leaf, name in zip(read, leaves, names, strict=True):
        dtype = np.dtype(leaf.dtype)
        if dtype.kind == "V" and array.dtype == np.uint8 and array.ndim == len(leaf.shape):
            array = array.view(dtype)
        cut = (lambda shape: (shape[:1], shape[2:])) if any_rows else (lambda shape: shape)
        if array.dtype != dtype or cut(array.shape) != cut(tuple(leaf.shape)):
            raise Damaged(
                f"`{name}` is {array.dtype}{list(array.shape)}, expected {dtype}{list(leaf.shape)}."
            )
        yield array

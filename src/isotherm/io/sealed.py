"""Named arrays in a file, with a JSON header and checksums: reading executes no code.

The header has a version of the format, versions of libraries, whatever the caller stores in it, and
a sha256 of every array. Its first line is a sha256 of the rest. Files are not trusted: types,
shapes and sizes are checked before an array is read, checksums afterwards.
"""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from isotherm.io.files import atomically, explain_failure
from isotherm.io.formats import NetCDF, SafeTensors, write_netcdf, write_safetensors
from isotherm.io.untrusted import Damaged, check_format, parse_json, printable
from isotherm.io.zarr_store import Zarr, write_zarr

KINDS = "fiub"
"""Floating point, integers, booleans."""
DAMAGE = (
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    MemoryError,
    OSError,
    ValueError,
    ArithmeticError,
)
"""Exceptions that reading a header can raise if isotherm did not write it."""
WRITERS = {".nc": write_netcdf, ".zarr": write_zarr, ".safetensors": write_safetensors}
READERS = {".nc": NetCDF, ".zarr": Zarr, ".safetensors": SafeTensors}


def write_sealed(
    path: Path,
    document: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    attributes: Mapping[str, str],
) -> None:
    """Write arrays and a document atomically.

    Parameters
    ----------
    path
        A name that ends in `.nc`, `.zarr` or `.safetensors`.
    document
        What the header contains, as a dictionary for JSON, with the version of its format as
        `"format"`.
    arrays
        Arrays by name, `group/variable`.
    attributes
        Attributes for other programs that read the file.
    """
    write = _by_suffix(path, WRITERS)
    saved = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps(
        {
            **document,
            "versions": {
                "python": platform.python_version(),
                **{package: version(package) for package in ("isotherm", "jax", "numpy")},
            },
            "saved": saved,
            "arrays": {
                name: {"dtype": a.dtype.name, "shape": a.shape, "sha256": _digest(a)}
                for name, a in arrays.items()
            },
        }
    )
    more = {
        "inference_library": "isotherm",
        "inference_library_version": version("isotherm"),
        "created_at": saved,
        **attributes,
    }
    sealed = f"{sha256(text.encode()).hexdigest()}\n{text}"
    with (
        explain_failure(f"`{path}`", "the previous content is intact."),
        atomically(path) as draft,
    ):
        write(draft, sealed, arrays, more)


def read_sealed(path: Path, kind: str, number: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read and return the document and the arrays.

    Parameters
    ----------
    path
        The file or folder.
    kind
        What it must contain: `"run"`, or the class of a saved model.
    number
        The expected version of its format.
    """
    reader = _by_suffix(path, READERS)
    if not os.path.lexists(path):
        raise FileNotFoundError(f"`{path}` does not exist.")
    with reader(path) as file:
        document = _parse_header(path, file.header(), kind, number)
        arrays = {name: _array(file, name, about) for name, about in document["arrays"].items()}
    return document, arrays


@contextmanager
def damaged_if_wrong(path: Path) -> Iterator[None]:
    """Turn errors about content that is not as expected into `Damaged`."""
    try:
        yield
    except (Damaged, FileNotFoundError):
        raise
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise Damaged(f"`{path}` is damaged: {reason}.") from error


def check_suffix(path: Path) -> None:
    """Raise an error unless the name of a file ends in `.nc`, `.zarr` or `.safetensors`."""
    _by_suffix(path, WRITERS)


def _by_suffix(path: Path, table: dict[str, Callable]) -> Callable:
    if path.suffix not in table:
        raise ValueError(f"`path` must end in {' or '.join(table)}, got `{path.name}`.")
    return table[path.suffix]


def _digest(array: np.ndarray) -> str:
    return sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _parse_header(path: Path, header: str, kind: str, number: int) -> dict[str, Any]:
    seal, _, body = header.partition("\n")
    if sha256(body.encode()).hexdigest() != seal:
        raise Damaged(f"`{path}` was cut or changed: the sha256 of its header does not match.")
    document = parse_json(body, f"`{path}` is not a file of isotherm")
    found = printable(document.get("model", "run"))
    if found != kind:  # formats of different things have versions of their own
        raise Damaged(f"`{path}` has a {found}, not a {kind}.")
    check_format(path, document["format"], number)
    return document


def _array(file: Any, name: str, about: dict[str, Any]) -> np.ndarray:
    dtype, shape = _dtype(about["dtype"]), tuple(about["shape"])
    array = file.array(name, dtype, shape)
    if _digest(array) != about["sha256"]:
        raise Damaged(f"`{name}` was changed: its sha256 does not match.")
    return array


def _dtype(name: str) -> np.dtype:
    dtype = jax.numpy.dtype(name)
    if dtype.kind not in KINDS and dtype.name != "bfloat16":
        raise Damaged(f"{name} is not a type that draws can have.")
    return dtype

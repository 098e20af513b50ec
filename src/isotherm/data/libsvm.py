"""Reader of LIBSVM's text format: `label index:value index:value ...`, indices from 1."""

import os
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from isotherm.data.registry import GZIP_ERRORS, PathLike, locate
from isotherm.data.truncation import SizeCheck, check_final_newline, shorten


class Split(NamedTuple):
    """Rows and their labels."""

    x: sparse.csr_array
    y: np.ndarray


class TrainTest(NamedTuple):
    """Training data and test data."""

    train: Split
    test: Split


def read_libsvm(path: PathLike, num_features: int) -> Split:
    """Read a LIBSVM file, plain or compressed (`.gz`, `.bz2`).

    Parameters
    ----------
    path
        The file.
    num_features
        Number of columns. It cannot be inferred: a test file may not use the last columns.

    Returns
    -------
    The rows as a CSR array of float32, and the labels of the file as float64.

    Raises
    ------
    ValueError
        The file is empty, truncated, not in this format, or has more columns.
    """
    from sklearn.datasets import load_svmlight_file  # imported here: it takes a second

    if num_features < 1:
        raise ValueError(f"`num_features` must be at least 1, got {num_features}.")
    options: dict[str, Any] = {"dtype": np.float32, "zero_based": False}
    size = SizeCheck(path)
    try:
        x, y, *_ = load_svmlight_file(os.fspath(path), **options)
        size.check()
        _check_end(path)
    except GZIP_ERRORS as error:
        raise ValueError(f"`{path}` is damaged or truncated: {error}") from error
    except (ValueError, OverflowError) as error:  # the latter: a column beyond 32 bits
        raise ValueError(f"`{path}` is not a LIBSVM file: {shorten(error)}") from error
    rows, columns = x.shape
    if rows == 0:
        raise ValueError(f"`{path}` is empty.")
    if columns > num_features:
        raise ValueError(f"`{path}` has {columns} columns, but `num_features` is {num_features}.")
    if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
        raise ValueError(f"`{path}` has values or labels that are not finite.")
    return Split(
        sparse.csr_array((x.data, x.indices, x.indptr), shape=(rows, num_features)),
        np.asarray(y, np.float64),
    )


def _check_end(path: PathLike) -> None:
    """Check that uncompressed text ends with a line break; compressed files have a checksum."""
    with open(path, "rb") as stream:
        compressed = str(path).endswith((".gz", ".bz2"))
        if not compressed and stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            check_final_newline(stream.read(1))


def load_a9a(data_dir: PathLike | None = None) -> TrainTest:
    """Load a9a: which persons of the 1994 census earn more than 50 000 dollars a year.

    32 561 training rows, 16 281 test rows, 123 binary columns with 11 to 14 ones per row; labels
    are 0 and 1 (a quarter of the rows), int32.

    Parameters
    ----------
    data_dir
        As in `isotherm.data.registry.locate`.
    """
    paths = locate("a9a", data_dir)
    splits = []
    for name in ("a9a", "a9a.t"):
        x, y = read_libsvm(paths[name], num_features=123)
        if not np.isin(y, (-1, 1)).all():
            raise ValueError(f"`{paths[name]}` must have labels -1 and 1, got {np.unique(y)}.")
        splits.append(Split(x, (y > 0).astype(np.int32)))
    return TrainTest(*splits)

"""Sparse rows in LIBSVM's text format: `label index:value index:value ...`, indices from 1."""

import gzip
import os
import zlib
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from isotherm.data.registry import PathLike, locate
from isotherm.data.truncation import Unchanged, brief, check_end


class Split(NamedTuple):
    """Rows and their labels."""

    x: sparse.csr_array
    y: np.ndarray


class TrainTest(NamedTuple):
    """Data to learn from, and data to be judged by."""

    train: Split
    test: Split


def read_libsvm(path: PathLike, num_features: int) -> Split:
    """Read a LIBSVM file, plain or compressed (`.gz`, `.bz2`).

    Parameters
    ----------
    path
        The file.
    num_features
        Number of columns. It is not guessed: a test file need not reach the last one.

    Returns
    -------
    The rows as CSR of float32, and the labels as they stand in the file, in float64.

    Raises
    ------
    ValueError
        The file is empty, cut short or not in this format, or has more columns.
    """
    from sklearn.datasets import load_svmlight_file  # Here, because it takes a second.

    if num_features < 1:
        raise ValueError(f"`num_features` must be at least 1, got {num_features}.")
    options: dict[str, Any] = {"dtype": np.float32, "zero_based": False}
    unchanged = Unchanged(path)
    try:
        x, y, *_ = load_svmlight_file(os.fspath(path), **options)
        unchanged.check()
        _check_end(path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"`{path}` is damaged or cut short: {error}") from error
    except ValueError as error:
        raise ValueError(f"`{path}` is not a LIBSVM file: {brief(error)}") from error
    rows, columns = x.shape
    if rows == 0:
        raise ValueError(f"`{path}` is empty.")
    if columns > num_features:
        raise ValueError(f"`{path}` has a column {columns}, but `num_features` is {num_features}.")
    if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
        raise ValueError(f"`{path}` has values or labels that are not finite.")
    return Split(
        sparse.csr_array((x.data, x.indices, x.indptr), shape=(rows, num_features)),
        np.asarray(y, np.float64),
    )


def _check_end(path: PathLike) -> None:
    """Refuse text whose last line may have lost its last digit; what is packed has a checksum."""
    with open(path, "rb") as stream:
        packed = str(path).endswith((".gz", ".bz2"))
        if not packed and stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            check_end(stream.read(1))


def load_a9a(data_dir: PathLike | None = None) -> TrainTest:
    """Load a9a: who of the 1994 census earns more than 50 000 dollars a year.

    32 561 rows to train, 16 281 to test, 123 binary columns with 11 to 14 ones per row; labels are
    0 and 1 (a quarter), in int32.

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

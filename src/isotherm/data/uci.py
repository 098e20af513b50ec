"""The UCI regression sets with the 20 splits that the literature uses.

Every file has the rows `x` and `y` and the row numbers `test` of the test part of each split; the
other rows are its training part. The splits are those of Hernández-Lobato & Adams (2015) and of Gal
& Ghahramani (2016).
"""

import zipfile
from typing import NamedTuple

import numpy as np

from isotherm.data.registry import PathLike, find, locate


class Rows(NamedTuple):
    """Features and targets, in their original units."""

    x: np.ndarray
    """(rows, features), float64."""
    y: np.ndarray
    """(rows,), float64."""


class UciSet(NamedTuple):
    """A regression set and its splits."""

    x: np.ndarray
    """(rows, features), float64."""
    y: np.ndarray
    """(rows,), float64."""
    test: np.ndarray
    """Row numbers of the test part of each split, (splits, test rows)."""

    def split(self, number: int) -> tuple[Rows, Rows]:
        """Return the training rows and the test rows of a split."""
        if not 0 <= number < len(self.test):
            raise ValueError(f"`number` must be 0 to {len(self.test) - 1}, got {number}.")
        training = np.ones(len(self.y), bool)
        training[self.test[number]] = False
        return Rows(self.x[training], self.y[training]), Rows(self.x[~training], self.y[~training])


def uci_names() -> tuple[str, ...]:
    """Return the names of the sets.

    >>> uci_names()
    ('boston', 'concrete', 'energy', 'power', 'wine')
    """
    return tuple(file.name.removesuffix(".npz") for file in find("uci").files)


def load_uci(name: str, data_dir: PathLike | None = None) -> UciSet:
    """Load a regression set with its splits.

    Parameters
    ----------
    name
        `"boston"` (506 rows), `"concrete"` (1030), `"energy"` (768), `"power"` (9568) or `"wine"`
        (1599).
    data_dir
        As in `isotherm.data.registry.locate`.

    Raises
    ------
    DataNotFoundError
        The file is in none of the data folders.
    ValueError
        There is no set of this name, or its file is damaged.
    """
    if name not in uci_names():
        raise ValueError(f"`name` must be one of {uci_names()}, got {name!r}.")
    path = locate("uci", data_dir, [f"{name}.npz"])[f"{name}.npz"]
    try:
        with np.load(path) as file:
            x, y, test = (file[part] for part in ("x", "y", "test"))
    except (KeyError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"`{path}` is damaged: {error}") from error
    shapes = x.ndim == 2 and y.shape == (len(x),) and test.ndim == 2
    if not (shapes and np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(f"`{path}` must have finite `x` (rows, features) and `y` (rows,).")
    if not (np.issubdtype(test.dtype, np.integer) and 0 <= test.min() <= test.max() < len(x)):
        raise ValueError(f"`{path}` must have row numbers in `test`.")
    return UciSet(x.astype(np.float64), y.astype(np.float64), test)

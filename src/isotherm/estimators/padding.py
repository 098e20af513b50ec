"""Zero padding of arrays, so that data of similar sizes share a compiled program."""

import numpy as np

COLUMN_MULTIPLE = 8
"""Positions of linear models are padded to a multiple of this."""
ROW_MULTIPLE = 64
"""If every batch is all rows, they are padded to a multiple of this."""


def pad_to_multiples(array: np.ndarray, *multiples: int) -> np.ndarray:
    """Append zeros to each axis until its length is a multiple of a number.

    Examples
    --------
    >>> pad_to_multiples(np.ones((3, 5)), 1, 8).shape
    (3, 8)
    """
    return np.pad(array, [(0, -n % m) for n, m in zip(array.shape, multiples, strict=True)])

"""Scales of the features of a network: one per column, or one for all columns in the same units.

The scale of a column is its standard deviation, or more if a value is far from the mean, so that
columns that are rarely different from zero have no extreme values. Columns in the same units, such
as the pixels of an image, share one scale, the root mean square of their standard deviations: a
pixel at the edge that hardly varies should not become as large as the others.

A column beside them that cannot have these units keeps a scale of its own: one with a range below
the smallest step of the others, or with another smallest value and a small range. And no column is
divided by much more than its own scale, so that no column is lost.
"""

import numpy as np

MIN_SHARED_COLUMNS, SHARE_OF_COLUMNS, NEAR_THE_TOP = 8, 0.5, 0.9
"""Columns have the same units if at least half of those that vary, and eight of them, have the same
smallest value, and half have a range of at least nine tenths of the largest range."""
NOT_SMALL = 0.25
"""A column with another smallest value shares their scale if it has this share of their range."""
LARGEST_SHARED = 5.0
"""Largest absolute value of features that share a scale."""
MOST_SHRUNK = 16.0
"""A shared scale is at most this many times the scale that a column would have of its own."""


def feature_scales(X: np.ndarray, weight: np.ndarray, largest: float) -> np.ndarray:
    """Return the scale of each column, (columns,).

    Parameters
    ----------
    X, weight
        Rows and their weights.
    largest
        No row is more than this many scales from the mean in a column with a scale of its own.

    Examples
    --------
    >>> pixels = np.random.default_rng(0).integers(0, 17, (50, 9)).astype(float)
    >>> pixels[:, 0] = pixels[:, 0] > 15  # hardly ever on
    >>> scales = feature_scales(pixels, np.ones(50), 2.5)
    >>> bool(scales[0] == scales[1] > 4)
    True
    """
    farthest = np.abs(X - np.average(X, axis=0, weights=weight)).max(0)
    sds = positive_sds(X, weight)
    own = np.maximum(sds, farthest / largest)
    if not have_same_units(X):
        return own
    members, varies = _columns_in_same_units(X), np.ptp(X, axis=0) > 0
    shared = max(np.sqrt(np.mean(sds[members] ** 2)), farthest[members].max() / LARGEST_SHARED)
    scales = np.where(members, np.minimum(shared, MOST_SHRUNK * own), own)
    return np.where(varies, scales, shared)


def _columns_in_same_units(X: np.ndarray) -> np.ndarray:
    """Return which columns can have the units of most others, if `have_same_units`."""
    lowest, ranges = X.min(0), np.ptp(X, axis=0)
    starts, counts = np.unique(lowest[ranges > 0], return_counts=True)
    same_start = lowest == starts[counts.argmax()]
    wide = same_start & (ranges >= NEAR_THE_TOP * ranges.max())
    above = np.where(X[:, wide] > lowest[wide], X[:, wide] - lowest[wide], np.inf)
    step = above.min(initial=ranges.max())
    return (ranges >= step) & (same_start | (ranges >= NOT_SMALL * ranges.max()))


def have_same_units(X: np.ndarray) -> bool:
    """Return whether most columns have the same smallest value and about the same range.

    Parameters
    ----------
    X
        (rows, columns).
    """
    lowest, ranges = X.min(0), np.ptp(X, axis=0)
    lowest, ranges = lowest[ranges > 0], ranges[ranges > 0]
    if len(ranges) < MIN_SHARED_COLUMNS:
        return False
    same_start = np.unique(lowest, return_counts=True)[1].max() / len(lowest)
    same_range = np.mean(ranges >= NEAR_THE_TOP * ranges.max())
    return bool(min(same_start, same_range) >= SHARE_OF_COLUMNS)


def positive_sds(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each column of weighted rows, or 1 where it is 0.

    Parameters
    ----------
    values, weight
        Rows, or one number per row, and their weights.
    """
    mean = np.average(values, axis=0, weights=weight)
    sd = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
    return np.where(sd > 1e-12 * np.abs(values).max(0, initial=1e-300), sd, 1.0)

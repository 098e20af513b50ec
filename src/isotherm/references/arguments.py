"""Argument checks shared by the reference posteriors."""

from typing import Any

import numpy as np
from scipy import sparse


def check_data(x: Any, y: Any) -> tuple[Any, np.ndarray]:
    """Return `x` as float64 (CSR in canonical form, if sparse) and `y` as a float64 vector."""
    y = np.asarray(y, np.float64)
    if sparse.issparse(x):
        x = sparse.csr_array(x, dtype=np.float64, copy=True)
        x.sum_duplicates()
        x.eliminate_zeros()
    else:
        x = np.ascontiguousarray(x, np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(
            f"`x` must have shape (rows, features) and `y` (rows,), got {x.shape} and {y.shape}."
        )
    if not (np.isfinite(x.data if sparse.issparse(x) else x).all() and np.isfinite(y).all()):
        raise ValueError("`x` and `y` must be finite.")
    return x, y


def prior_variances(variance: Any, x: Any) -> np.ndarray:
    """Return the prior variance of each feature."""
    variance = np.asarray(variance, np.float64)
    if not np.all(variance > 0):
        raise ValueError(f"`prior_variance` must be positive, got {variance}.")
    if variance.shape not in ((), x.shape[1:]):
        raise ValueError(
            f"`prior_variance` must be a number or one per feature, shape {x.shape[1:]}, got shape "
            f"{variance.shape}."
        )
    return np.broadcast_to(variance, x.shape[1:])


def as_dense(matrix: Any) -> np.ndarray:
    """Convert a SciPy sparse matrix to an array; return an array unchanged."""
    return matrix.toarray() if sparse.issparse(matrix) else matrix

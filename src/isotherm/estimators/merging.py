"""Merging of equal rows, so that repeated rows and weighted rows are the same data."""

import numpy as np


def merge_equal_rows(
    X: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Replace rows that are equal, target included, by one with the sum of their weights.

    A log likelihood is a sum over rows, so the posterior is the same; and a row and its copy are
    never on different sides of a division into rows to learn from and rows held out. The result
    does not depend on the order of the rows, so that repeated rows and weights give the same data,
    bit for bit. Only if no rows are equal and all weights are 1, rows stay in their order.

    Examples
    --------
    >>> X, y, weight = merge_equal_rows(np.array([[2.0], [1.0], [2.0]]), np.ones(3), np.ones(3))
    >>> sorted(zip(X[:, 0].tolist(), weight.tolist()))
    [(1.0, 1.0), (2.0, 2.0)]
    """
    table = np.column_stack([X, y]) + 0.0  # -0.0 is equal to 0.0
    keys = table.view(np.dtype((np.void, table.itemsize * table.shape[1])))[:, 0]
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(y) and np.all(weight == 1):
        return X, y, weight
    return X[first], y[first], np.bincount(number, weights=weight)

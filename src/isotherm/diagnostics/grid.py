r"""Divergences between densities on an even grid, for targets of one dimension.

A density on a grid of spacing $\Delta$ is one number per cell, the cells centred on the grid
points and the two outer cells open to infinity; $\sum_i p_i\Delta = 1$. The symmetric
Kullback-Leibler divergence is

$$
\tfrac12\mathrm{KL}(p, q) + \tfrac12\mathrm{KL}(q, p)
= \tfrac\Delta2\sum_i (p_i - q_i)\,\log\frac{p_i + \epsilon}{q_i + \epsilon},
\qquad \epsilon = 10^{-60}.
$$

Without $\epsilon$ an empty cell of a histogram would make it infinite; with $\epsilon$ it adds
about $69\,\Delta\,q_i$. This is a convention of the authors of the thermostat paper, who also omit
$\Delta$ in their figure (`authors_kl`): on their grid -5:0.01:5 this gives 100 times the usual
value. Total variation needs no convention. All computations use NumPy in double precision.

References
----------
Li, Chen, Fan & Carin (2016), *High-order stochastic gradient thermostats for Bayesian
learning of deep models*, AAAI, figure of the double well.
"""

from typing import Any

import numpy as np

_EPSILON = 1e-60


def grid_density(draws: Any, grid: Any) -> np.ndarray:
    """Return the histogram density of draws on cells centred on the points of a grid.

    Parameters
    ----------
    draws
        Finite numbers, of any shape.
    grid
        Evenly spaced, increasing centres of the cells.

    Examples
    --------
    >>> grid_density([-7.0, 0.1, 0.2, 1.0], grid=[-1.0, 0.0, 1.0])
    array([0.25, 0.5 , 0.25])
    """
    draws, grid = np.asarray(draws, np.float64), np.asarray(grid, np.float64)
    if grid.ndim != 1 or len(grid) < 2:
        raise ValueError(f"`grid` must be a vector of two points or more, got shape {grid.shape}.")
    cell = (grid[-1] - grid[0]) / (len(grid) - 1)
    if not (cell > 0 and np.allclose(np.diff(grid), cell, rtol=1e-6, atol=0)):
        raise ValueError(f"`grid` must be increasing and evenly spaced, got {grid}.")
    if draws.size == 0:
        raise ValueError("`draws` must not be empty.")
    broken = draws.size - np.count_nonzero(np.isfinite(draws))
    if broken:
        raise ValueError(f"`draws` must be finite, got {broken} of {draws.size} that are not.")
    index = np.clip(np.rint((draws.ravel() - grid[0]) / cell), 0, len(grid) - 1)
    return np.bincount(index.astype(np.intp), minlength=len(grid)) / (draws.size * cell)


def symmetric_kl(p: Any, q: Any, cell: float) -> float:
    """Return half the sum of the two Kullback-Leibler divergences, in nats.

    Parameters
    ----------
    p, q
        Densities on one grid.
    cell
        Spacing of the grid.
    """
    p, q = _densities(p, q, cell)
    return float(0.5 * cell * np.sum((p - q) * np.log((p + _EPSILON) / (q + _EPSILON))))


def authors_kl(p: Any, q: Any) -> float:
    """Return the symmetric divergence as in the authors' figure: without the factor `cell`.

    Examples
    --------
    >>> p, q = [0.5, 0.5], [0.25, 0.75]
    >>> round(authors_kl(p, q) / symmetric_kl(p, q, cell=0.01))
    100
    """
    return symmetric_kl(p, q, cell=1.0)


def total_variation(p: Any, q: Any, cell: float) -> float:
    """Return the largest difference between the probabilities of an event, from 0 to 1."""
    p, q = _densities(p, q, cell)
    return float(0.5 * cell * np.sum(np.abs(p - q)))


def _densities(p: Any, q: Any, cell: float) -> tuple[np.ndarray, np.ndarray]:
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    if p.shape != q.shape:
        raise ValueError(f"`p` and `q` must be on one grid, got shapes {p.shape} and {q.shape}.")
    for name, density in (("p", p), ("q", q)):
        if not np.all((density >= 0) & np.isfinite(density)):
            raise ValueError(f"`{name}` must be finite and not negative, got {density}.")
    if not cell > 0:
        raise ValueError(f"`cell` must be positive, got {cell}.")
    return p, q

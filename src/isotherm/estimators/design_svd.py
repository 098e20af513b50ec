r"""Principal axes of a design matrix, seen by a Gaussian prior.

A regression with predictor $\alpha + x^\top\beta$ has the prior

$$ \beta_j = \frac{\sqrt v}{s_j}\gamma_j, \qquad \alpha + \bar x^\top\beta = \sqrt v\,\gamma_0,
   \qquad \gamma \sim \mathcal N(0, I), $$

where $\bar x_j$ is the mean of column $j$ and $s_j$ its *unit* (*standardised*: the prior does not depend on how things are measured), or
0 and 1 (*raw*: the prior of the coefficients as they are). The unit of a column is

- its standard deviation; but
- the distance of its values, if it has only two (a switch is measured by what switching does, not by how often it is on), and
- the root mean square of the others, if most of its values are 0 (a rare word is measured by the texts that have it);
- 1, if it is constant.

A standard deviation would give rare switches and words an arbitrarily wide prior, and so say that they matter most.

In the singular vectors of the design in these units, $A = UDV^\top$, the likelihood sees axis $j$ of $\zeta = V^\top\gamma$ with
strength $d_j^2$, and the prior is still $\mathcal N(0, I)$: columns that are constant, repeated, all zero,
collinear, or a million times larger than the others are nothing special. Singular values reach from 0
to what double precision holds; the products $A^\top A$ would show their squares only, with half of the digits.

All of it follows from the triangular factor $R$ of $(1, X)$ and a few facts about each column, which are gathered in
one pass and taken along as rows are added.

References
----------
Gelman, Jakulin, Pittau & Su (2008), *A weakly informative default prior distribution for logistic and other
regression models*; and rstanarm's default priors, which have the first two units.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

BLOCK = 2**22
"""Numbers of a dense block of rows."""
CONSTANT = 1e-12
"""A column with a smaller standard deviation, in units of its mean, is constant up to rounding."""


class Columns(NamedTuple):
    """All that a prior and a linear model want to know about columns; the first is all ones."""

    factor: np.ndarray
    """$R$."""
    size: int
    """How many rows."""
    nonzero: np.ndarray
    """How many are not 0."""
    low: np.ndarray
    high: np.ndarray
    two_valued: np.ndarray
    """Whether there is nothing between the lowest and the highest value."""

    @property
    def features(self) -> "Columns":
        """All but the last, if that is a target."""
        each = (self.nonzero, self.low, self.high, self.two_valued)
        return Columns(self.factor[:, :-1], self.size, *(x[:-1] for x in each))


def gather(matrix: Any, before: Columns | None = None) -> Columns:
    """Learn about the columns of $(1, X)$.

    Parameters
    ----------
    matrix
        $X$, (rows, columns), dense or SciPy sparse.
    before
        What is known from other rows.
    """
    width = matrix.shape[1] + 1
    size = max(1, BLOCK // width)
    for start in range(0, matrix.shape[0], size):
        block = matrix[start : start + size]
        block = block.toarray() if sparse.issparse(block) else block
        rows = np.column_stack([np.ones(len(block)), block])
        low, high = rows.min(0), rows.max(0)
        two_valued = np.all((rows == low) | (rows == high), axis=0)
        here = Columns(rows, len(rows), np.count_nonzero(rows, axis=0), low, high, two_valued)
        before = here if before is None else _together(before, here)
        before = before._replace(factor=np.asarray(np.linalg.qr(before.factor, mode="r")))
    assert before is not None
    return before


def _together(a: Columns, b: Columns) -> Columns:
    low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
    ends = [(x == low) | (x == high) for x in (a.low, a.high, b.low, b.high)]
    return Columns(
        np.vstack([a.factor, b.factor]),
        a.size + b.size,
        a.nonzero + b.nonzero,
        low,
        high,
        a.two_valued & b.two_valued & np.all(ends, axis=0),
    )


def moments(columns: Columns, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Find the mean and the standard deviation of each column but the first; 1 for constants.

    Not centred, means are 0, and roots of mean squares stand for standard deviations.
    """
    factor, size = columns.factor, columns.size
    mean = factor[0, 0] * factor[0, 1:] / size
    rest = factor[1:, 1:] if centred else factor[:, 1:]
    deviation = np.sqrt(np.sum(rest**2, axis=0) / size)
    deviation[deviation <= CONSTANT * np.abs(mean)] = 1.0
    return (mean if centred else np.zeros_like(mean)), deviation


def units(columns: Columns, centred: bool) -> np.ndarray:
    """Find the unit of each column but the first; not centred, a switch must be 0 when off."""
    _, deviation = moments(columns, centred)
    nonzero, low, high = columns.nonzero[1:], columns.low[1:], columns.high[1:]
    others = np.sqrt(np.sum(columns.factor[:, 1:] ** 2, axis=0) / np.maximum(nonzero, 1))
    unit = np.where((0 < nonzero) & (2 * nonzero < columns.size), others, deviation)
    switch = columns.two_valued[1:] & (high > low) & (centred | (low == 0) | (high == 0))
    switch &= high - low > CONSTANT * np.abs(high)
    return np.where(switch, high - low, unit)


@dataclass(frozen=True)
class Axes:
    """The principal axes, and the way from them to coefficients and back."""

    mean: np.ndarray
    """What is subtracted of each column."""
    unit: np.ndarray
    """What it is divided by."""
    prior_sd: float
    vectors: np.ndarray
    r"""$V$; row 0 is the intercept, if there is one."""
    strengths: np.ndarray
    """The singular values, one per axis."""
    left: np.ndarray
    """$U$, in the rows of $R$."""
    fit_intercept: bool

    @property
    def loadings(self) -> np.ndarray:
        """The matrix from the axes to the coefficients, the intercept first."""
        slopes = self.vectors[int(self.fit_intercept) :] / self.unit[:, None]
        intercept = -self.mean @ slopes
        if self.fit_intercept:
            intercept = intercept + self.vectors[0]
        return self.prior_sd * np.vstack([intercept, slopes])

    def locate(self, coefficients: np.ndarray) -> np.ndarray:
        """Find the place on the axes of coefficients (…, intercept and slopes)."""
        intercept, slopes = coefficients[..., :1], coefficients[..., 1:]
        gamma = slopes * self.unit
        if self.fit_intercept:
            gamma = np.concatenate([intercept + slopes @ self.mean[:, None], gamma], axis=-1)
        return gamma / self.prior_sd @ self.vectors


def principal_axes(
    columns: Columns, *, prior_variance: float, standardize: bool, fit_intercept: bool
) -> Axes:
    """Find the principal axes of a design.

    Parameters
    ----------
    columns
        `gather(x)`.
    prior_variance
        $v$.
    standardize
        Whether the prior is that of standardised columns.
    fit_intercept
        Whether there is an intercept; without one, columns are not centred.
    """
    factor = columns.factor
    mean, _ = moments(columns, centred=fit_intercept)
    unit = units(columns, centred=fit_intercept)
    if not standardize:
        mean, unit = np.zeros_like(mean), np.ones_like(unit)
    scaled = (factor[:, 1:] - np.outer(factor[:, 0], mean)) / unit
    if fit_intercept:
        scaled = np.column_stack([factor[:, 0], scaled])
    prior_sd = float(np.sqrt(prior_variance))
    left, strengths, vectors = np.linalg.svd(prior_sd * scaled, full_matrices=True)
    size = len(vectors)
    strengths = np.concatenate([strengths, np.zeros(size - len(strengths))])
    return Axes(mean, unit, prior_sd, vectors.T, strengths, left, fit_intercept)


def times(matrix: Any, loadings: np.ndarray) -> np.ndarray:
    """Multiply $(1, X)$ by loadings, $X$ dense or sparse."""
    return np.asarray(matrix @ loadings[1:]) + loadings[0]

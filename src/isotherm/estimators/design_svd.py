r"""Singular value decomposition of a design matrix, scaled by a Gaussian prior.

A regression with predictor $\alpha + x^\top\beta$ has the prior

$$ \beta_j = \frac{\sqrt v}{s_j}\gamma_j, \qquad \alpha + \bar x^\top\beta = \sqrt v\,\gamma_0,
   \qquad \gamma \sim \mathcal N(0, I), $$

where $\bar x_j$ is the mean of column $j$ and $s_j$ its *scale* (*standardised*: the prior does not
depend on units of measurement), or 0 and 1 (*raw*: the prior is that of the coefficients as they
are). The scale of a column is

- its standard deviation; but
- the distance of its two values, if it has only two, so that the coefficient of a binary feature is
  its effect and does not depend on how often the feature is on; and
- the root mean square of its other values, if most of its values are 0, so that the coefficient of
  a rare word is its effect in the texts that contain it;
- 1, if the column is constant.

With the standard deviation instead, rare binary features and rare words would have an arbitrarily
wide prior.

Let $A = UDV^\top$ be the design in these scales. The coordinates $\zeta = V^\top\gamma$ still have
the prior $\mathcal N(0, I)$, and the likelihood has information $d_j^2$ about $\zeta_j$. Columns
that are constant, repeated, all zero, collinear, or a million times larger than the others need no
special treatment. Singular values are accurate over the whole range of double precision; those of
$A^\top A$ would be their squares, with half of the digits.

Everything is computed from the triangular factor $R$ of $(1, X)$ and from a few statistics of each
column, which need one pass over the rows and can be updated with further rows.

References
----------
Gelman, Jakulin, Pittau & Su (2008), *A weakly informative default prior distribution for logistic
and other regression models*; and the default priors of rstanarm, which use the first two scales.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

BLOCK_SIZE = 2**22
"""Entries of a dense block of rows."""
MIN_RELATIVE_SD = 1e-12
"""A column whose standard deviation is below this times its mean is constant up to rounding."""


class ColumnStatistics(NamedTuple):
    """Statistics of the columns of $(1, X)$; the first column is all ones."""

    factor: np.ndarray
    """$R$ of the QR decomposition."""
    num_rows: float
    """Number of rows, or the sum of their weights."""
    num_nonzero: np.ndarray
    """Number of entries that are not 0, per column; or the sum of their weights."""
    minimum: np.ndarray
    maximum: np.ndarray
    two_valued: np.ndarray
    """Whether all entries of a column equal its minimum or its maximum."""

    @property
    def features(self) -> "ColumnStatistics":
        """Statistics of all columns but the last, for data whose last column is the target."""
        each = (self.num_nonzero, self.minimum, self.maximum, self.two_valued)
        return ColumnStatistics(self.factor[:, :-1], self.num_rows, *(x[:-1] for x in each))


def column_statistics(
    matrix: Any, previous: ColumnStatistics | None = None, weights: np.ndarray | None = None
) -> ColumnStatistics:
    """Compute statistics of the columns of $(1, X)$ in one pass over the rows.

    Parameters
    ----------
    matrix
        $X$, (rows, columns), dense or SciPy sparse.
    previous
        Statistics of other rows, to be updated.
    weights
        Positive weights, (rows,): a row of weight 2 counts as two rows.
    """
    width = matrix.shape[1] + 1
    size = max(1, BLOCK_SIZE // width)
    for start in range(0, matrix.shape[0], size):
        block = matrix[start : start + size]
        block = block.toarray() if sparse.issparse(block) else block
        rows = np.column_stack([np.ones(len(block)), block])
        minimum, maximum = rows.min(0), rows.max(0)
        two_valued = np.all((rows == minimum) | (rows == maximum), axis=0)
        counts, number = np.count_nonzero(rows, axis=0), len(rows)
        if weights is not None:
            weight = weights[start : start + size]
            counts, number = weight @ (rows != 0), float(weight.sum())
            rows = np.sqrt(weight)[:, None] * rows
        new = ColumnStatistics(rows, number, counts, minimum, maximum, two_valued)
        previous = new if previous is None else _merge(previous, new)
        previous = previous._replace(factor=np.asarray(np.linalg.qr(previous.factor, mode="r")))
    assert previous is not None
    return previous


def _merge(a: ColumnStatistics, b: ColumnStatistics) -> ColumnStatistics:
    """Merge the statistics of two sets of rows; factors are stacked and not yet triangular."""
    minimum, maximum = np.minimum(a.minimum, b.minimum), np.maximum(a.maximum, b.maximum)
    extremes = (a.minimum, a.maximum, b.minimum, b.maximum)
    return ColumnStatistics(
        np.vstack([a.factor, b.factor]),
        a.num_rows + b.num_rows,
        a.num_nonzero + b.num_nonzero,
        minimum,
        maximum,
        a.two_valued
        & b.two_valued
        & np.all([(x == minimum) | (x == maximum) for x in extremes], axis=0),
    )


def means_and_sds(columns: ColumnStatistics, centered: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of all columns but the first; an sd of 0 becomes 1.

    If `centered` is false, means are 0 and root mean squares replace standard deviations.
    """
    factor, num_rows = columns.factor, columns.num_rows
    mean = factor[0, 0] * factor[0, 1:] / num_rows
    rest = factor[1:, 1:] if centered else factor[:, 1:]
    sd = np.sqrt(np.sum(rest**2, axis=0) / num_rows)
    sd[sd <= MIN_RELATIVE_SD * np.abs(mean)] = 1.0
    return (mean if centered else np.zeros_like(mean)), sd


def column_scales(columns: ColumnStatistics, centered: bool) -> np.ndarray:
    """Return the scale of all columns but the first.

    If `centered` is false, a column counts as binary only if one of its two values is 0.
    """
    _, sd = means_and_sds(columns, centered)
    nonzero, low, high = columns.num_nonzero[1:], columns.minimum[1:], columns.maximum[1:]
    rms_nonzero = np.sqrt(np.sum(columns.factor[:, 1:] ** 2, axis=0) / np.maximum(nonzero, 1))
    mostly_zero = (0 < nonzero) & (2 * nonzero < columns.num_rows)
    binary = columns.two_valued[1:] & (high > low) & (centered | (low == 0) | (high == 0))
    binary &= high - low > MIN_RELATIVE_SD * np.abs(high)
    return np.where(binary, high - low, np.where(mostly_zero, rms_nonzero, sd))


@dataclass(frozen=True)
class DesignSVD:
    r"""The decomposition $A = UDV^\top$, and the map between $\zeta$ and coefficients."""

    mean: np.ndarray
    """Subtracted from each column."""
    scale: np.ndarray
    """Each column is divided by this."""
    prior_sd: float
    right_vectors: np.ndarray
    r"""$V$; row 0 is the intercept, if there is one."""
    singular_values: np.ndarray
    """$d$, padded with zeros to the number of columns of $V$."""
    left_vectors: np.ndarray
    """$U$, in the rows of $R$."""
    fit_intercept: bool

    @property
    def loadings(self) -> np.ndarray:
        r"""The matrix that maps $\zeta$ to coefficients, the intercept first."""
        slopes = self.right_vectors[int(self.fit_intercept) :] / self.scale[:, None]
        intercept = -self.mean @ slopes
        if self.fit_intercept:
            intercept = intercept + self.right_vectors[0]
        return self.prior_sd * np.vstack([intercept, slopes])

    def from_coefficients(self, coefficients: np.ndarray) -> np.ndarray:
        r"""Return $\zeta$ of coefficients (…, intercept and slopes)."""
        intercept, slopes = coefficients[..., :1], coefficients[..., 1:]
        gamma = slopes * self.scale
        if self.fit_intercept:
            gamma = np.concatenate([intercept + slopes @ self.mean[:, None], gamma], axis=-1)
        return gamma / self.prior_sd @ self.right_vectors


def design_svd(
    columns: ColumnStatistics, *, prior_variance: float, standardize: bool, fit_intercept: bool
) -> DesignSVD:
    """Decompose a design matrix, given the statistics of its columns.

    Parameters
    ----------
    columns
        `column_statistics(x)`.
    prior_variance
        $v$.
    standardize
        Whether the prior is that of standardised columns.
    fit_intercept
        Whether there is an intercept; without one, columns are not centred.
    """
    factor = columns.factor
    mean, _ = means_and_sds(columns, centered=fit_intercept)
    scale = column_scales(columns, centered=fit_intercept)
    if not standardize:
        mean, scale = np.zeros_like(mean), np.ones_like(scale)
    scaled = (factor[:, 1:] - np.outer(factor[:, 0], mean)) / scale
    if fit_intercept:
        scaled = np.column_stack([factor[:, 0], scaled])
    prior_sd = float(np.sqrt(prior_variance))
    left, values, right = np.linalg.svd(prior_sd * scaled, full_matrices=True)
    values = np.concatenate([values, np.zeros(len(right) - len(values))])
    return DesignSVD(mean, scale, prior_sd, right.T, values, left, fit_intercept)


def design_matrix(x: Any, loadings: np.ndarray) -> np.ndarray:
    """Return $(1, X)$ times the loadings, for dense or sparse $X$."""
    return np.asarray(x @ loadings[1:]) + loadings[0]

r"""The posterior of a logistic regression with a linear surrogate of the mean as control variate.

Let $m$ be the sigmoid (or the softmax), $\theta = c + Mq$, $\tilde x_i = M^\top x_i$ and $\hat z_i$
the logits at the centre $c$. For each row take a linear surrogate $a_i + b_i\,\delta$ of
$m(\hat z_i + \delta)$, and choose $M$ such that $M^\top H M = I$ for the curvature
$H = \sum_i b_i x_i x_i^\top + \text{prior}$ of the surrogate. Then

$$ \nabla_q \log\pi = t - q - \sum_i \tilde x_i\, r_i(q), \qquad
   r_i = m(\hat z_i + \tilde x_i^\top q) - a_i - b_i\,\tilde x_i^\top q , $$

where the constant $t$ is the gradient at the centre with $a_i$ in place of $m$. The labels enter
only through $c$ and $t$. The residuals $r_i$ of the surrogate measure how far the posterior is from
a Gaussian, and only their sum is estimated from a batch: a control variate of second order at the
cost of one elementwise function. The gradient is unbiased for every surrogate; its variance is
small for a good one. The surrogates are tangents at the mode or, where the posterior is much
stiffer at typical points than there (separable classes), averages of $m$ and $m'$ over draws of
pilot chains.

Rows are drawn with probabilities in proportion to their typical contribution to the gradient,
$\lVert\tilde x_i\rVert\,(\mathbb E\,r_i^2)^{1/2}$, rounded to whole multiplicities
(`isotherm.batches.importance`), and importance weights keep the gradient unbiased. So a row that
alone has information about a rare feature is drawn often enough.

$M$ is made of the eigenvectors of the curvature (`isotherm.coordinates.eigenbasis` says why), in
coordinates where the prior is spherical (`isotherm.estimators.design_svd`). All of this is computed
in double precision on the host; the device gets $\tilde x$, $\hat z$, $a$ and $b$ in single
precision.

References
----------
Baker, Fearnhead, Fox & Nemeth (2019), *Control variates for stochastic gradient MCMC*: first order.
Quiroz, Kohn, Villani & Tran (2019), *Speeding up MCMC by efficient data subsampling*: second order,
by Taylor expansion.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit, softmax

from isotherm.batches.importance import ImportanceBatches
from isotherm.estimators.padding import COLUMN_MULTIPLE, ROW_MULTIPLE, pad_to_multiples
from isotherm.models.logistic_mode import weighted_block_gram

MAX_FULL_BATCH = 1024
"""Up to this many rows every batch is all rows, by default."""


class SurrogateRows(NamedTuple):
    """Rows of the data on the device."""

    design: Any
    r"""$\tilde x$, (rows, d) for two classes; otherwise $x$, (rows, columns)."""
    logits: Any
    r"""$\hat z$, (rows,) or (rows, classes)."""
    value: Any
    """$a$, (rows,) or (rows, classes)."""
    slope: Any
    """$b$, (rows,) or (rows, classes, classes)."""
    weight: Any
    """Weight of the row times its importance weight times the number of rows, (rows,)."""


class SharedTerms(NamedTuple):
    """Arrays that every batch needs."""

    center_gradient: Any
    """$t$."""
    basis: Any
    """$M$; `None` for two classes, where the rows are already multiplied by it."""


def surrogate_residuals(rows: SurrogateRows, shared: SharedTerms, position: jax.Array) -> jax.Array:
    """Return $r$ of each row: (rows,) or (rows, classes)."""
    if shared.basis is None:
        delta = rows.design @ position
        return jax.nn.sigmoid(rows.logits + delta) - rows.value - rows.slope * delta
    delta = rows.design @ (shared.basis @ position).reshape(rows.design.shape[1], -1)
    surrogate = rows.value + jnp.einsum("nkl,nl->nk", rows.slope, delta)
    return jax.nn.softmax(rows.logits + delta) - surrogate


def gradient(position: jax.Array, batch: tuple[SurrogateRows, SharedTerms]) -> jax.Array:
    r"""Estimate $\nabla_q\log\pi$ from a batch of `ImportanceBatches`."""
    rows, shared = batch
    design, weight = rows.design, rows.weight
    residuals = surrogate_residuals(rows, shared, position)
    if shared.basis is None:
        total = (weight * residuals) @ design
    else:
        total = (design.T @ (weight[:, None] * residuals)).ravel() @ shared.basis
    return shared.center_gradient - position - total / len(weight)


class LinearSurrogate(NamedTuple):
    """Linear surrogates of the mean of each row, and the coordinates that they define."""

    center: np.ndarray
    """$c$, (columns, outputs)."""
    value: np.ndarray
    slope: np.ndarray
    """$a$ and $b$: (rows,), or (rows, classes) and (rows, classes, classes)."""
    basis: np.ndarray
    """$M$."""
    center_gradient: np.ndarray
    """$t$."""


def fit_surrogate(
    design: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    precision: np.ndarray,
    points: np.ndarray,
) -> LinearSurrogate:
    """Average the mean of each row and its derivative over points.

    Parameters
    ----------
    design
        (rows, columns).
    labels
        0, 1, …
    weights
        By which the log likelihoods of the rows are multiplied, (rows,).
    precision
        Prior precision of each column's coefficients.
    points
        Coefficients, (points, columns, outputs); a single point gives tangents.
    """
    center = points.mean(0)
    num_outputs = center.shape[1]
    if num_outputs == 1:
        means = [expit(design @ point[:, 0]) for point in points]
        value, slope = np.mean(means, axis=0), np.mean([p * (1 - p) for p in means], axis=0)
        curvature = (design.T * (weights * slope)) @ design
        misfit = (labels - value)[:, None]
    else:
        value = np.zeros((len(design), num_outputs))
        slope = np.zeros((len(design), num_outputs, num_outputs))
        for point in points:
            p = softmax(design @ point, axis=1)
            value += p / len(points)
            slope -= p[:, :, None] * p[:, None, :] / len(points)
        slope[:, range(num_outputs), range(num_outputs)] += value
        curvature = weighted_block_gram(design, weights[:, None, None] * slope)
        misfit = np.eye(num_outputs)[labels] - value
    values, vectors = np.linalg.eigh(curvature + np.diag(np.repeat(precision, num_outputs)))
    basis = vectors * values**-0.5
    center_gradient = design.T @ (weights[:, None] * misfit) - precision[:, None] * center
    return LinearSurrogate(center, value, slope, basis, center_gradient.ravel() @ basis)


def full_batches(
    design: np.ndarray, weights: np.ndarray, surrogate: LinearSurrogate
) -> ImportanceBatches:
    """Return the data in single precision on the device, with all rows in every batch."""
    logits, num_outputs = design @ surrogate.center, surrogate.center.shape[1]
    basis = None
    if num_outputs == 1:  # multiply the rows by the basis once, instead of at every step
        design, logits = design @ surrogate.basis, logits[:, 0]
    multiple = ROW_MULTIPLE if len(design) <= MAX_FULL_BATCH else 1
    design = pad_to_multiples(design, multiple, COLUMN_MULTIPLE)
    size = design.shape[1] * num_outputs
    if num_outputs > 1:
        basis = pad_to_multiples(surrogate.basis, size, size)
    logits, value, slope, weights = (
        pad_to_multiples(x, multiple, *x.shape[1:])
        for x in (logits, surrogate.value, surrogate.slope, weights)
    )
    rows = SurrogateRows(design, logits, value, slope, len(design) * weights)
    shared = SharedTerms(pad_to_multiples(surrogate.center_gradient, size), basis)
    rows, shared = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (rows, shared))
    return ImportanceBatches(rows, shared, None, len(design))

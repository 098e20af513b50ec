r"""The posterior of a logistic regression in natural coordinates, its Gaussian part exact.

Let $m$ be the sigmoid (or the softmax), $\theta = c + Mq$, $\tilde x_i = M^\top x_i$ and $\hat z_i$ the logits at the centre $c$. With a
straight line $a_i + b_i\,\delta$ for each row in place of $m(\hat z_i + \delta)$, and with $M^\top H M = I$ for the curvature
$H = \sum_i b_i x_i x_i^\top + \text{prior}$ that the lines stand for,

$$ \nabla_q \log\pi = t - q - \sum_i \tilde x_i\, r_i(q), \qquad
   r_i = m(\hat z_i + \tilde x_i^\top q) - a_i - b_i\,\tilde x_i^\top q , $$

where the constant $t$ is the gradient at the centre with $a_i$ for $m$. The labels have done their work: they are in $c$
and $t$. All that is left to sum over rows is how much the posterior is *not* Gaussian, and only that is
estimated from a batch: a control variate of second order, for the price of an elementwise function. Any
lines are right; good ones leave little. They are tangents at the mode, or, where the posterior is much stiffer
at typical places than there (classes that can be separated), averages of $m$ and $m'$ over draws of pilot chains.

Rows are drawn with probabilities in proportion to what they typically add, $\lVert\tilde x_i\rVert\,(\mathbb E\,r_i^2)^{1/2}$, from an urn
with a whole number of tickets for each: a row that alone knows about a rare feature comes up as often as it
must, and weights undo the preference exactly.

$M$ is made of the principal axes of the curvature (`isotherm.coordinates.eigenbasis` says why), in coordinates where the prior is
a ball (`estimators/design_svd.py`). Up to here everything is double precision on the host; the device gets
$\tilde x$, $\hat z$, $a$ and $b$ in single.

References
----------
Baker, Fearnhead, Fox & Nemeth (2019), *Control variates for stochastic gradient MCMC*: first order.
Quiroz, Kohn, Villani & Tran (2019), *Speeding up MCMC by efficient data subsampling*: second order, by Taylor.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit, softmax

from isotherm.batches.importance import COLUMNS, UrnBatches, padded

SMALL, FILL = 1024, 64
"""Up to so many rows are used all at once, and filled up to a multiple of the second number."""


class Shared(NamedTuple):
    """What every batch needs."""

    tilt: Any
    """$t$."""
    basis: Any
    """$M$; nothing if it is in the rows already."""


def remainder(rows: tuple, shared: Shared, position: jax.Array) -> jax.Array:
    """Compute $r$ of each row: (rows,) or (rows, classes)."""
    design, center, value, slope, _ = rows
    if shared.basis is None:
        shift = design @ position
        return jax.nn.sigmoid(center + shift) - value - slope * shift
    shift = design @ (shared.basis @ position).reshape(design.shape[1], -1)
    line = value + jnp.einsum("nkl,nl->nk", slope, shift)
    return jax.nn.softmax(center + shift) - line


def gradient(position: jax.Array, batch: Any) -> jax.Array:
    r"""Estimate $\nabla_q\log\pi$ from a batch of `UrnBatches`."""
    rows, shared = batch
    design, weight = rows[0], rows[-1]
    missing = remainder(rows, shared, position)
    if shared.basis is None:
        total = (weight * missing) @ design
    else:
        total = (design.T @ (weight[:, None] * missing)).ravel() @ shared.basis
    return shared.tilt - position - total / len(weight)


class Lines(NamedTuple):
    """Straight lines for the mean of each row, and the coordinates they make."""

    center: np.ndarray
    """$c$, (axes, columns)."""
    value: np.ndarray
    slope: np.ndarray
    """$a$ and $b$: (rows,), or (rows, classes) and (rows, classes, classes)."""
    basis: np.ndarray
    """$M$."""
    tilt: np.ndarray
    """$t$."""


def draw_lines(
    design: np.ndarray, labels: np.ndarray, precision: np.ndarray, places: np.ndarray
) -> Lines:
    """Average the mean of each row and its derivative over places.

    Parameters
    ----------
    design
        (rows, axes).
    labels
        0, 1, …
    precision
        Of the prior, one per axis.
    places
        (places, axes, columns); one alone gives tangents.
    """
    center = places.mean(0)
    columns = center.shape[1]
    if columns == 1:
        each = [expit(design @ place[:, 0]) for place in places]
        value, slope = np.mean(each, axis=0), np.mean([p * (1 - p) for p in each], axis=0)
        curvature = (design.T * slope) @ design
        misfit = (labels - value)[:, None]
    else:
        value, slope = np.zeros((len(design), columns)), np.zeros((len(design), columns, columns))
        for place in places:
            p = softmax(design @ place, axis=1)
            value += p / len(places)
            slope -= p[:, :, None] * p[:, None, :] / len(places)
        slope[:, range(columns), range(columns)] += value
        blocks = np.zeros((len(precision), columns, len(precision), columns))
        for k in range(columns):
            for j in range(k + 1):
                blocks[:, k, :, j] = blocks[:, j, :, k] = (design.T * slope[:, k, j]) @ design
        curvature = blocks.reshape(center.size, center.size)
        misfit = np.eye(columns)[labels] - value
    values, vectors = np.linalg.eigh(curvature + np.diag(np.repeat(precision, columns)))
    basis = vectors * values**-0.5
    slope_there = design.T @ misfit - precision[:, None] * center
    return Lines(center, value, slope, basis, slope_there.ravel() @ basis)


def on_device(design: np.ndarray, lines: Lines) -> UrnBatches:
    """Put the target into single precision, with all rows in every batch."""
    center, columns, basis = design @ lines.center, lines.center.shape[1], None
    if columns == 1:  # the last change of variables is folded into the rows
        design, center = design @ lines.basis, center[:, 0]
    fill = FILL if len(design) <= SMALL else 1
    design = padded(design, fill, COLUMNS)
    size = design.shape[1] * columns
    if columns > 1:
        basis = padded(lines.basis, size, size)
    rows = [padded(x, fill, *x.shape[1:]) for x in (center, lines.value, lines.slope)]
    rows = (design, *rows, np.full(len(design), len(design)))
    shared = Shared(padded(lines.tilt, size), basis)
    rows, shared = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (rows, shared))
    return UrnBatches(rows, shared, None, len(design))

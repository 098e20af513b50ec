r"""Bayesian logistic regression, binary and multinomial.

Binary, labels $y \in \{0, 1\}$ and weights $\theta$ with one number per feature:

$$ \log p(y \mid x, \theta) = -\log(1 + e^{-s z}), \qquad z = x^\top\theta, \quad s = 2y - 1 . $$

Multinomial, labels $y \in \{0, \dots, K - 1\}$ and one column of weights per class:

$$ \log p(y \mid x, \theta) = z_y - \log\sum_k e^{z_k}, \qquad z = \theta^\top x . $$

The prior is $\theta \sim \mathcal N(0, v)$, independently. Adding the same vector to every column
of multinomial weights changes no probability: their mean over classes is distributed as a priori,
$\mathcal N(0, v/K)$, whatever the data say.

There is no separate intercept: `with_intercept` appends a feature that is always 1. Convert
features with `as_rows`, dense or sparse; the first axis is the rows, so that batch policies can
select rows:

    rows = as_rows(with_intercept(x))
    batches = isotherm.independent_batches((rows, y), batch_size=100)
    grad_fn = isotherm.minibatch_gradient(log_likelihood, lambda w: log_prior(w, 10.0), len(y))
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

MIN_SPARSE_RATIO = 16
"""Sparse rows are faster if there are more columns than this times the entries of the longest row.
Measured on a CPU."""


class SparseRows(NamedTuple):
    """Non-zero entries of each row, padded to the longest row with zeros in column 0."""

    columns: jax.Array
    """Column of each entry, (rows, longest), int32."""
    values: jax.Array
    """Value of each entry, (rows, longest)."""


Rows = jax.Array | SparseRows


def as_rows(x: Any, dtype: Any = np.float32) -> Rows:
    """Convert features to arrays on the device whose first axis is the rows.

    Dense features stay dense. A SciPy sparse matrix becomes `SparseRows`, unless it has so few
    columns that dense rows are faster (a9a, with 15 non-zero entries of 124 per row: by a tenth to
    a third).

    Parameters
    ----------
    x
        (rows, features), dense or SciPy sparse.
    dtype
        Data type of the values.

    Examples
    --------
    >>> as_rows(np.eye(3)).shape
    (3, 3)
    >>> as_rows(sparse.eye_array(100, format="csr")).values.shape
    (100, 1)
    """
    if not sparse.issparse(x):
        x = np.asarray(x, dtype)
        if x.ndim != 2:
            raise ValueError(f"`x` must have shape (rows, features), got {x.shape}.")
        return jnp.asarray(x)
    x = sparse.csr_array(x, dtype=dtype, copy=True)
    x.sum_duplicates()
    counts = np.diff(x.indptr)
    longest = max(1, int(counts.max(initial=0)))
    if x.shape[1] <= MIN_SPARSE_RATIO * longest:
        return jnp.asarray(x.toarray())
    row = np.repeat(np.arange(x.shape[0]), counts)
    rank = np.arange(x.nnz) - x.indptr[row]
    columns = np.zeros((x.shape[0], longest), np.int32)
    values = np.zeros((x.shape[0], longest), dtype)
    columns[row, rank], values[row, rank] = x.indices, x.data
    return SparseRows(jnp.asarray(columns), jnp.asarray(values))


def with_intercept(x: Any) -> Any:
    """Append a column of ones; a sparse matrix stays sparse.

    Examples
    --------
    >>> with_intercept(np.zeros((2, 1)))
    array([[0., 1.],
           [0., 1.]])
    """
    ones = np.ones((x.shape[0], 1), x.dtype)
    return sparse.hstack([x, ones], format="csr") if sparse.issparse(x) else np.hstack([x, ones])


def logits(weights: jax.Array, rows: Rows) -> jax.Array:
    r"""Return the logits $z$, of shape (rows,) or (rows, classes)."""
    if not isinstance(rows, SparseRows):
        return rows @ weights
    return jnp.einsum("nk,nk...->n...", rows.values, weights[rows.columns])


def log_prior(weights: jax.Array, variance: float | jax.Array) -> jax.Array:
    r"""Return the normalised log prior density $\log\mathcal N(\theta; 0, v)$.

    Parameters
    ----------
    weights
        (features,) or (features, classes).
    variance
        $v$: a number, or one per weight.
    """
    variance = jnp.asarray(variance, weights.dtype)
    terms = weights**2 / variance + jnp.log(2 * jnp.pi * variance)
    return -0.5 * jnp.sum(terms)


def log_likelihood(weights: jax.Array, batch: tuple[Rows, jax.Array]) -> jax.Array:
    r"""Return $\log p(y \mid x, \theta)$ of each row.

    Parameters
    ----------
    weights
        (features,) for labels 0 and 1, (features, classes) for labels 0, 1, …, classes - 1.
    batch
        `(rows, labels)`.
    """
    rows, labels = batch
    z = logits(weights, rows)
    if weights.ndim == 1:
        sign = 2 * labels.astype(z.dtype) - 1
        return -jax.nn.softplus(-sign * z)
    return categorical_log_likelihood(z, labels)


def categorical_log_likelihood(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the log probability of each row's label, given logits (rows, classes)."""
    scores = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(scores, labels.astype(jnp.int32)[:, None], axis=1)[:, 0]


def predict_proba(weights: jax.Array, rows: Rows) -> jax.Array:
    """Return the probability of each class, (rows, classes), also for binary weights.

    The mean over draws of the weights is the posterior predictive probability.

    Examples
    --------
    >>> predict_proba(jnp.zeros(2), jnp.ones((1, 2)))
    Array([[0.5, 0.5]], dtype=float32)
    """
    z = logits(weights, rows)
    if weights.ndim == 1:
        return jax.nn.sigmoid(jnp.stack([-z, z], axis=-1))
    return jax.nn.softmax(z)

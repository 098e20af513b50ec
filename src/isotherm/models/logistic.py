r"""Bayesian logistic regression, binary and multinomial.

Binary, labels $y \in \{0, 1\}$ and weights $\theta$ with one number per feature:

$$ \log p(y \mid x, \theta) = -\log(1 + e^{-s z}), \qquad z = x^\top\theta, \quad s = 2y - 1 . $$

Multinomial, labels $y \in \{0, \dots, K - 1\}$ and one column of weights per class:

$$ \log p(y \mid x, \theta) = z_y - \log\sum_k e^{z_k}, \qquad z = \theta^\top x . $$

The prior is $\theta \sim \mathcal N(0, v)$, independently. Adding the same vector to every column of
multinomial weights changes no probability: their mean over classes is distributed as a priori,
$\mathcal N(0, v/K)$, whatever the data say.

There is no separate intercept: `with_intercept` appends a feature that is always 1. Features come
as `as_rows` makes them, dense or sparse, with the row axis first, so that batch policies can pick rows:

    rows = as_rows(with_intercept(x))
    batches = isotherm.independent_batches((rows, y), batch_size=100)
    grad_fn = isotherm.minibatch_gradient(log_likelihood, lambda w: log_prior(w, 10.0), len(y))
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

SPARSE_PAYS = 16
"""Columns per number in the longest row, above which sparse rows are faster. Measured on a CPU."""


class SparseRows(NamedTuple):
    """The non-zero numbers of each row, padded to the longest row with zeros in column 0."""

    columns: jax.Array
    """Their columns, (rows, longest), int32."""
    values: jax.Array
    """(rows, longest)."""


Rows = jax.Array | SparseRows


def as_rows(x: Any, dtype: Any = np.float32) -> Rows:
    """Put features on the device: a pytree of arrays whose first axis is the rows.

    Dense stays dense. A SciPy sparse matrix becomes `SparseRows`, unless it has so few columns that
    dense rows are faster (a9a: 15 of 124 numbers per row, dense is ahead by a tenth to a third).

    Parameters
    ----------
    x
        (rows, features), dense or SciPy sparse.
    dtype
        Of the numbers.

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
    if x.shape[1] <= SPARSE_PAYS * longest:
        return jnp.asarray(x.toarray())
    row = np.repeat(np.arange(x.shape[0]), counts)
    place = np.arange(x.nnz) - x.indptr[row]
    columns, values = (
        np.zeros((x.shape[0], longest), np.int32),
        np.zeros((x.shape[0], longest), dtype),
    )
    columns[row, place], values[row, place] = x.indices, x.data
    return SparseRows(jnp.asarray(columns), jnp.asarray(values))


def with_intercept(x: Any) -> Any:
    """Append a column of ones; sparse stays sparse.

    Examples
    --------
    >>> with_intercept(np.zeros((2, 1)))
    array([[0., 1.],
           [0., 1.]])
    """
    ones = np.ones((x.shape[0], 1), x.dtype)
    return sparse.hstack([x, ones], format="csr") if sparse.issparse(x) else np.hstack([x, ones])


def logits(weights: jax.Array, rows: Rows) -> jax.Array:
    r"""Compute $z$, of shape (rows,) or (rows, classes)."""
    if not isinstance(rows, SparseRows):
        return rows @ weights
    return jnp.einsum("nk,nk...->n...", rows.values, weights[rows.columns])


def log_prior(weights: jax.Array, variance: float | jax.Array) -> jax.Array:
    r"""Evaluate $\log\mathcal N(\theta; 0, v)$, normalised.

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
    r"""Evaluate $\log p(y \mid x, \theta)$ of each row.

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
    scores = jax.nn.log_softmax(z)
    return jnp.take_along_axis(scores, labels.astype(jnp.int32)[:, None], axis=1)[:, 0]


def predict_proba(weights: jax.Array, rows: Rows) -> jax.Array:
    """Compute the probability of each class, (rows, classes); binary weights give two columns.

    A posterior predictive probability is the mean of this over draws of the weights.

    Examples
    --------
    >>> predict_proba(jnp.zeros(2), jnp.ones((1, 2)))
    Array([[0.5, 0.5]], dtype=float32)
    """
    z = logits(weights, rows)
    if weights.ndim == 1:
        return jax.nn.sigmoid(jnp.stack([-z, z], axis=-1))
    return jax.nn.softmax(z)

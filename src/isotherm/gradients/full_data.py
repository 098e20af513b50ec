"""Sums over all rows of the data, in chunks of rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.types import ArrayTree, Batch


def full_gradient(
    grad_fn: MinibatchGradient, position: ArrayTree, data: Batch, *, chunk_size: int = 10_000
) -> ArrayTree:
    """Return the gradient of the log posterior over all data, computed in chunks of rows."""
    likelihood = sum_over_rows(
        jax.jit(jax.grad(grad_fn.log_likelihood_sum)), position, data, grad_fn.data_size, chunk_size
    )
    return jax.tree.map(jnp.add, jax.grad(grad_fn.log_prior)(position), likelihood)


def sum_over_rows(
    fn: Callable[[ArrayTree, Batch], ArrayTree],
    position: ArrayTree,
    data: Batch,
    data_size: int,
    chunk_size: int = 10_000,
) -> ArrayTree:
    """Return the sum of a compiled `fn(position, rows)` over chunks of the rows of `data`."""
    rows = jax.tree.leaves(data)[0].shape[0]
    if rows != data_size:
        raise ValueError(f"`data` has {rows} rows, but `data_size` is {data_size}.")
    total = None
    for start in range(0, rows, chunk_size):
        piece = jax.tree.map(lambda leaf, a=start: leaf[a : a + chunk_size], data)
        part = fn(position, piece)
        total = part if total is None else jax.tree.map(jnp.add, total, part)
    return total

"""Sums over all rows of the data, in chunks of rows."""

from collections.abc import Callable, Iterator

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
    """Return the sum of a compiled `fn(position, rows)` over chunks of the rows of `data`.

    Streamed batches are read once, in pieces of their own.
    """
    total, rows = None, 0
    for piece in _pieces(data, data_size, chunk_size):
        rows += jax.tree.leaves(piece)[0].shape[0]
        part = fn(position, piece)
        total = part if total is None else jax.tree.map(jnp.add, total, part)
    _check_size(rows, data_size)
    return total


def _pieces(data: Batch, data_size: int, chunk_size: int) -> Iterator[Batch]:
    if hasattr(data, "one_pass"):  # isotherm.streamed_batches
        yield from data.one_pass(chunk_size)
        return
    rows = jax.tree.leaves(data)[0].shape[0]
    _check_size(rows, data_size)
    for start in range(0, rows, chunk_size):
        yield jax.tree.map(lambda leaf, a=start: leaf[a : a + chunk_size], data)


def _check_size(rows: int, data_size: int) -> None:
    if rows != data_size:
        raise ValueError(f"`data` has {rows} rows, but `data_size` is {data_size}.")

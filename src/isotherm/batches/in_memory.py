"""Rows of data in the memory of the device, picked by a batch policy."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.types import Batch, Key


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class InMemoryBatches:
    """Rows of data on the device, picked by a policy."""

    data: Any
    batch_size: int = field(metadata={"static": True})
    policy: str = field(metadata={"static": True})

    @property
    def data_size(self) -> int:
        """Number of rows."""
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def epoch_length(self) -> int:
        """Steps per epoch; rows left over sit out, other ones each epoch."""
        return self.data_size // self.batch_size

    def indices(self, key: Key, step_index: jax.Array) -> jax.Array:
        """Give the row numbers of the batch of a step."""
        if self.policy == "independent":
            return random.indices(random.fold(key, step_index), (self.batch_size,), self.data_size)
        length = self.epoch_length
        epoch, place = step_index // length, step_index % length
        if self.policy == "symmetric":  # there and back again through the same partition
            place = jnp.where(epoch % 2 == 1, length - 1 - place, place)
            epoch = epoch // 2
        slots = place * self.batch_size + jnp.arange(self.batch_size)
        return random.permuted(random.fold(key, epoch), slots, self.data_size)

    def batch(self, key: Key, step_index: jax.Array) -> Batch:
        """Gather the rows of the batch of a step."""
        if self.policy == "full":
            return self.data
        rows = self.indices(key, step_index)
        return jax.tree.map(lambda leaf: leaf[rows], self.data)


def independent_batches(data: Any, batch_size: int) -> InMemoryBatches:
    """Draw every batch afresh, with replacement: what thermostats assume. The default choice.

    Parameters
    ----------
    data
        A pytree of arrays with the same first axis, for example `(x, y)`.
    batch_size
        Rows per batch, at most as many as there are.

    Examples
    --------
    >>> import jax, numpy as np
    >>> batches = independent_batches((np.arange(10.0), np.arange(10)), batch_size=3)
    >>> x, y = batches.batch(jax.random.key(0), 0)
    >>> x.shape, y.shape
    ((3,), (3,))
    """
    return _in_memory(data, batch_size, "independent")


def shuffled_batches(data: Any, batch_size: int) -> InMemoryBatches:
    """Go through the data in a new random order each epoch, as training loops do.

    Right for optimisers and, with short epochs, for fixed friction. Biased with thermostats:
    `isotherm.sample` warns.
    """
    return _in_memory(data, batch_size, "shuffled")


def symmetric_batches(data: Any, batch_size: int) -> InMemoryBatches:
    """Sweep a random partition forwards and then backwards, then draw a new one.

    With fixed friction the gradient noise cancels to second order over the double sweep (Paulin
    et al. 2024, *Sampling from Bayesian neural network posteriors with symmetric minibatch
    splitting Langevin dynamics*). Biased with thermostats, like all sweeps.
    """
    return _in_memory(data, batch_size, "symmetric")


def full_batch(data: Any) -> InMemoryBatches:
    """Use all data at every step: exact gradients."""
    rows = _check_rows(data)
    return _in_memory(data, rows, "full")


def _check_rows(data: Any) -> int:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(data)]
    rows = {shape[0] if shape else 1 for shape in shapes}
    if not shapes or rows == {0}:
        raise ValueError("`data` is empty: there is nothing to draw batches from.")
    if len(rows) > 1 or () in shapes:
        raise ValueError(f"`data` must have leaves with the same first axis, got shapes {shapes}.")
    return rows.pop()


def _in_memory(data: Any, batch_size: int, policy: str) -> InMemoryBatches:
    rows = _check_rows(data)
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")
    if batch_size > rows:
        raise ValueError(f"`batch_size` is {batch_size}, but `data` has only {rows} rows.")
    return InMemoryBatches(jax.tree.map(jnp.asarray, data), int(batch_size), policy)

"""Batches of rows of data that are in the memory of the device."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.tree import as_arrays, count, leaf_names
from isotherm.types import Batch, Key


def describe_batches(policy: str, batch_size: int, data: Any) -> str:
    """Return a line: the policy, the size of batches, and the shapes of the data."""
    names, leaves = leaf_names(data), jax.tree.leaves(data)
    shown = [
        f"{name} {getattr(leaf, 'dtype', '')}{list(jnp.shape(leaf))}".removeprefix("position ")
        for name, leaf in zip(names, leaves, strict=True)
    ]
    more = f", … {len(shown) - 4} more" if len(shown) > 4 else ""
    return f"{policy} batches of {batch_size} rows of {', '.join(shown[:4])}{more}"


def row_numbers(
    policy: str, batch_size: int, data_size: int, key: Key, step_index: jax.Array
) -> jax.Array:
    """Return the row numbers of the batch of a step: independent, shuffled or symmetric."""
    if policy == "independent":
        return random.indices(random.fold(key, step_index), (batch_size,), data_size)
    length = data_size // batch_size
    epoch, number = step_index // length, step_index % length
    if policy == "symmetric":  # odd epochs: the same partition backwards
        number = jnp.where(epoch % 2 == 1, length - 1 - number, number)
        epoch = epoch // 2
    slots = number * batch_size + jnp.arange(batch_size)
    return random.permuted(random.fold(key, epoch), slots, data_size)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class InMemoryBatches:
    """Rows of data on the device, selected by a batch policy."""

    data: Any
    batch_size: int = field(metadata={"static": True})
    policy: str = field(metadata={"static": True})

    def __repr__(self) -> str:
        """Describe the policy and the shapes of the data in one line."""
        return describe_batches(self.policy, self.batch_size, self.data)

    @property
    def data_size(self) -> int:
        """Number of rows."""
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def epoch_length(self) -> int:
        """Steps per epoch; rows that do not fill a batch are left out, others in every epoch."""
        return self.data_size // self.batch_size

    def indices(self, key: Key, step_index: jax.Array) -> jax.Array:
        """Return the row numbers of the batch of a step."""
        return row_numbers(self.policy, self.batch_size, self.data_size, key, step_index)

    def batch(self, key: Key, step_index: jax.Array) -> Batch:
        """Return the rows of the batch of a step."""
        if self.policy == "full":
            return self.data
        rows = self.indices(key, step_index)
        return jax.tree.map(lambda leaf: leaf[rows], self.data)


def independent_batches(data: Any, batch_size: int) -> InMemoryBatches:
    """Return a policy that draws every batch independently, with replacement.

    Thermostats assume this policy. It is the default choice.

    Parameters
    ----------
    data
        A pytree of arrays with the same first axis, for example `(x, y)`.
    batch_size
        Rows per batch, at most the number of rows.

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
    """Return a policy that goes through the data in a new random order each epoch.

    Suited to optimisers and, with short epochs, to fixed friction. Biased with thermostats:
    `isotherm.sample` warns.
    """
    return _in_memory(data, batch_size, "shuffled")


def symmetric_batches(data: Any, batch_size: int) -> InMemoryBatches:
    """Return a policy that goes through a random partition forwards and backwards, then a new one.

    With fixed friction the gradient noise cancels to second order over the double sweep (Paulin
    et al. 2024, *Sampling from Bayesian neural network posteriors with symmetric minibatch
    splitting Langevin dynamics*). Biased with thermostats, as shuffled epochs are.
    """
    return _in_memory(data, batch_size, "symmetric")


def full_batch(data: Any) -> InMemoryBatches:
    """Return a policy that uses all data at every step: exact gradients."""
    rows = _check_rows(data)
    return _in_memory(data, rows, "full")


def _check_rows(data: Any) -> int:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(data)]
    rows = {shape[0] if shape else 1 for shape in shapes}
    if not shapes or rows == {0}:
        raise ValueError("`data` is empty: it must have at least one row.")
    if len(rows) > 1 or () in shapes:
        raise ValueError(f"`data` must have leaves with the same first axis, got shapes {shapes}.")
    return rows.pop()


def _in_memory(data: Any, batch_size: int, policy: str) -> InMemoryBatches:
    rows = _check_rows(data)
    batch_size = count("batch_size", batch_size, 1)
    if batch_size > rows:
        raise ValueError(f"`batch_size` is {batch_size}, but `data` has only {rows} rows.")
    # JAX copies large arrays in another thread. Wait: the caller may change them afterwards.
    arrays = jax.block_until_ready(as_arrays("data", data))
    return InMemoryBatches(arrays, batch_size, policy)

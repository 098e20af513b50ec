"""Batches from an urn in which important rows have several tickets."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from isotherm import random
from isotherm.types import Key

COLUMNS = 8
"""Coordinates are filled up to a multiple of this."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UrnBatches:
    """Batches of rows drawn from an urn of tickets, each with what all rows share."""

    rows: Any
    """Arrays whose first axis is the rows."""
    shared: Any
    tickets: jax.Array | None
    """Row numbers, each as often as the row has tickets; nothing if every batch is all rows."""
    batch_size: int = field(metadata={"static": True})
    policy: str = field(default="independent", metadata={"static": True})

    def batch(self, key: Key, step_index: jax.Array) -> Any:
        """Draw the rows of a step, with replacement."""
        if self.tickets is None:
            return self.rows, self.shared
        step_key = random.fold(key, step_index)
        drawn = self.tickets[random.indices(step_key, (self.batch_size,), self.tickets.size)]
        return jax.tree.map(lambda leaf: leaf[drawn], self.rows), self.shared


def padded(array: np.ndarray, *multiples: int) -> np.ndarray:
    """Fill each axis up with zeros to a multiple of a number: similar sizes share a program.

    Examples
    --------
    >>> padded(np.ones((3, 5)), 1, 8).shape
    (3, 8)
    """
    return np.pad(array, [(0, -n % m) for n, m in zip(array.shape, multiples, strict=True)])

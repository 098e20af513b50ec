r"""Batches of rows drawn with unequal probabilities, for importance sampling.

Row $i$ is drawn with probability $m_i/\sum_j m_j$, where $m_i \ge 1$ is its multiplicity, a whole
number. A gradient that weights row $i$ by $\sum_j m_j/m_i$ is unbiased.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from isotherm import random
from isotherm.types import Key


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ImportanceBatches:
    """Rows drawn in proportion to their multiplicities, and arrays that every batch contains."""

    rows: Any
    """A pytree of arrays whose first axis is the rows; importance weights are one of them."""
    shared: Any
    """A pytree of arrays that is part of every batch."""
    repeated_rows: jax.Array | None
    """Row numbers, each repeated as often as its multiplicity; `None`: every batch is all rows."""
    batch_size: int = field(metadata={"static": True})
    policy: str = field(default="independent", metadata={"static": True})

    def batch(self, key: Key, step_index: jax.Array) -> Any:
        """Return `(rows, shared)` of a step; rows are drawn with replacement."""
        if self.repeated_rows is None:
            return self.rows, self.shared
        step_key = random.fold(key, step_index)
        size = self.repeated_rows.size
        drawn = self.repeated_rows[random.indices(step_key, (self.batch_size,), size)]
        return jax.tree.map(lambda leaf: leaf[drawn], self.rows), self.shared


def multiplicities(contribution: np.ndarray, mean: int) -> np.ndarray:
    """Return multiplicities of at least 1 that grow with the contributions of rows.

    Their mean is `mean`, or a little less, since they are rounded down.
    """
    extra = (mean - 1) * len(contribution) * contribution / contribution.sum()
    return 1 + np.floor(extra).astype(np.int64)

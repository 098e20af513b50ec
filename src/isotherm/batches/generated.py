"""Batches returned by a function of a key and the step: simulated noise, or no data."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax

from isotherm import random
from isotherm.types import Batch, Key


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GeneratedBatches:
    """Batches returned by a function `(key, step_index) -> batch`, with a new key at each step."""

    make: Callable[[Key, jax.Array], Batch] = field(metadata={"static": True})
    policy: str = field(default="generated", metadata={"static": True})

    def batch(self, key: Key, step_index: jax.Array) -> Batch:
        """Call the function with the key of this step."""
        return self.make(random.fold(key, step_index), step_index)


def generated_batches(make: Callable[[Key, jax.Array], Batch]) -> GeneratedBatches:
    """Return a policy whose batches are `make(key, step_index)`, with a new key at each step.

    For simulated gradient noise or data augmentation.

    Examples
    --------
    >>> import jax
    >>> noise = generated_batches(lambda key, step_index: key)
    >>> noise.batch(jax.random.key(0), 3).shape
    ()
    """
    return GeneratedBatches(make)


def no_batches() -> GeneratedBatches:
    """Return a policy whose batches are `None`, for log densities without data."""
    return GeneratedBatches(_nothing, "none")


def _nothing(key: Key, step_index: jax.Array) -> None:
    del key, step_index

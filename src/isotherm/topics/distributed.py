"""Batches that several processes share: each sweeps its own documents, and all add up what they found.

Every process of `jax.distributed` has the same chain and the same random numbers; a document draws from the stream of its number, whoever sweeps it.
Counts are whole numbers and documents are put in the order of processes, so a chain is the same, bit for bit, on any number of them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from isotherm.loop.devices import others_answer
from isotherm.topics.corpus import Corpus


def own_part(batch: Corpus) -> Corpus:
    """Cut a batch that all processes have into as many runs of documents, and give this process its own.

    Examples
    --------
    >>> from isotherm.topics.corpus import as_corpus
    >>> own_part(as_corpus([[1, 0], [0, 2], [3, 0]])).documents  # alone
    array([0, 1, 2])
    """
    cuts = np.linspace(0, len(batch), jax.process_count() + 1).astype(int)
    i = jax.process_index()
    return batch[cuts[i] : cuts[i + 1]]


def count(batch: Corpus) -> int:
    """Count the documents of all processes; each must have some, or all refuse."""
    sizes = _gathered(np.array(len(batch)))
    if not sizes.all():
        raise ValueError(f"`batch` has no documents in process {int(np.argmin(sizes))}.")
    return int(sizes.sum())


def add(numbers: Sequence[float]) -> np.ndarray:
    """Add up numbers, each with its like."""
    return _gathered(np.array(numbers, np.float64)).sum(0)


def add_counts(counts: np.ndarray, num_kept: int) -> np.ndarray:
    """Add up counts, each an average over sweeps, as if one process had counted them all."""
    total = np.rint(_gathered(counts) * np.float32(num_kept)).sum(0)
    return (total / np.float32(num_kept)).astype(np.float32)


def join(rows: np.ndarray, axis: int) -> np.ndarray:
    """Put the rows of all processes behind one another; they may have different numbers of them."""
    sizes = _gathered(np.array(rows.shape[axis]))
    missing = [(0, 0)] * rows.ndim
    missing[axis] = (0, int(sizes.max()) - rows.shape[axis])
    parts = _gathered(np.pad(rows, missing))
    return np.concatenate(
        [part.take(np.arange(size), axis) for part, size in zip(parts, sizes, strict=True)], axis
    )


def _gathered(array: np.ndarray) -> np.ndarray:
    """Give the arrays of all processes, with a new first axis; as bytes, since JAX would round doubles."""
    whole = np.frombuffer(array.tobytes(), np.uint8)
    with others_answer():
        found: Any = multihost_utils.process_allgather(whole)
    return np.ascontiguousarray(found).view(array.dtype).reshape(-1, *array.shape)

"""Batches shared by several processes: each sweeps its own documents, then the results are reduced.

Every process of `jax.distributed` has the same chain and the same random numbers; a document uses
the random stream of its number, whichever process sweeps it. Counts are whole numbers, whose sum
does not depend on the order, and documents are concatenated in the order of processes. So a chain
is the same, bit for bit, on any number of processes.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from isotherm.loop.devices import lost_process_errors
from isotherm.topics.corpus import Corpus


def local_documents(batch: Corpus) -> Corpus:
    """Return this process's part of a batch that all processes have: a run of adjacent documents.

    Examples
    --------
    >>> from isotherm.topics.corpus import as_corpus
    >>> local_documents(as_corpus([[1, 0], [0, 2], [3, 0]])).documents  # with one process
    array([0, 1, 2])
    """
    cuts = np.linspace(0, len(batch), jax.process_count() + 1).astype(int)
    i = jax.process_index()
    return batch[cuts[i] : cuts[i + 1]]


def count_documents(batch: Corpus) -> int:
    """Count the documents of all processes; all raise if one of them has none."""
    sizes = _all_gather(np.array(len(batch)))
    if not sizes.all():
        raise ValueError(f"`batch` has no documents in process {int(np.argmin(sizes))}.")
    return int(sizes.sum())


def all_reduce(numbers: Sequence[float] | np.ndarray) -> np.ndarray:
    """Sum numbers elementwise over processes, in float64."""
    return _all_gather(np.array(numbers, np.float64)).sum(0)


def all_reduce_counts(counts: np.ndarray, num_kept: int) -> np.ndarray:
    """Sum counts over processes, each an average over `num_kept` sweeps, without rounding error."""
    total = np.rint(_all_gather(counts) * np.float32(num_kept)).sum(0)
    return (total / np.float32(num_kept)).astype(np.float32)


def all_concatenate(rows: np.ndarray, axis: int) -> np.ndarray:
    """Concatenate the arrays of all processes along an axis, which may differ in length."""
    sizes = _all_gather(np.array(rows.shape[axis]))
    padding = [(0, 0)] * rows.ndim
    padding[axis] = (0, int(sizes.max()) - rows.shape[axis])
    parts = _all_gather(np.pad(rows, padding))
    return np.concatenate(
        [part.take(np.arange(size), axis) for part, size in zip(parts, sizes, strict=True)], axis
    )


def _all_gather(array: np.ndarray) -> np.ndarray:
    """Stack the arrays of all processes; sent as bytes, since JAX would round float64."""
    data = np.frombuffer(array.tobytes(), np.uint8)
    with lost_process_errors():
        gathered: Any = multihost_utils.process_allgather(data)
    return np.ascontiguousarray(gathered).view(array.dtype).reshape(-1, *array.shape)

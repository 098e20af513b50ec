r"""Batches from anywhere: loaders, iterators, files larger than memory.

The host reads batches in *stacks* of many steps, and a thread reads the next stack and copies it to
the device while the chains use the current one. A compiled chunk gets the stack as an argument
(`StackedBatches`) and looks up the batch of its step in it, so nothing calls Python from inside a
compiled program.

A stack ends where its memory ends, not where a draw is made: chains stop between two draws and
continue with the next stack, and no bit of the result depends on it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.batches.in_memory import InMemoryBatches, describe_batches
from isotherm.batches.sources import (
    Iterated,
    Numbered,
    Request,
    Rows,
    Source,
    as_numpy,
    detect_policy,
    take_from_arrays,
    take_from_dataset,
)
from isotherm.io.digest import digest
from isotherm.tree import count
from isotherm.types import Batch, Key

POLICIES = ("independent", "shuffled", "symmetric", "sequential")
MOST_STEPS = 256
"""Steps of a stack, however small the batches are: a chain should not wait long for the first."""

DIGEST_BYTES = 2**25
"""Bytes of rows that are read and hashed at once; fixed, since the digest depends on it."""
MOST_BYTES = 2**29
"""Memory for batches that stand for the data (`StreamedBatches.in_memory`)."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class StackedBatches:
    """Batches of consecutive steps on the device."""

    stack: Any
    """A pytree with leading axes `(step, row)`, in a chunk of several chains `(chain, step, row)`.
    """
    first: jax.Array
    """The step of the first batch; with an axis over chains if the stack has one."""
    policy: str = field(default="streamed", metadata={"static": True})

    def batch(self, key: Key, step_index: jax.Array) -> Batch:
        """Return the batch of a step of the stack."""
        return jax.tree.map(
            partial(jax.lax.dynamic_index_in_dim, index=step_index - self.first, keepdims=False),
            self.stack,
        )


class StreamedBatches:
    """Batches that the host reads while the chains run; see `streamed_batches`."""

    def __init__(
        self,
        source: Source,
        *,
        shared: bool,
        buffer_bytes: int,
        own_digest: Callable[[], str] | None = None,
    ) -> None:
        self.source, self.shared, self.buffer_bytes = source, shared, buffer_bytes
        self.own_digest = own_digest
        self.example = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)
            ),
            source.example(),
        )
        sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.example)]
        self.bytes_per_batch = max(1, sum(sizes))

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self.source.policy

    @property
    def batch_size(self) -> int:
        """Rows of a batch; with several processes, of the part that this process reads."""
        return self.source.batch_size

    @property
    def data_size(self) -> int | None:
        """Number of rows of the data, if it is known."""
        return self.source.data_size

    @property
    def data(self) -> "StreamedBatches":
        """The data for sums over all rows, which read them once per sum (`one_pass`)."""
        return self

    def __repr__(self) -> str:
        """Describe the policy and the shapes of a batch in one line."""
        rows = "" if self.data_size is None else f"; {self.data_size:,} rows in all"
        return f"streamed {describe_batches(self.policy, self.batch_size, self.example)}{rows}"

    def batch(self, key: Key, step_index: jax.Array) -> Batch:
        """Raise an error: a compiled program cannot read from the host."""
        raise ValueError(
            "Streamed batches are read by the host between compiled chunks: use isotherm.sample, "
            "find_mode or warm_start; run_chain and other compiled programs need batches on the "
            "device (isotherm.independent_batches)."
        )

    def steps_per_stack(self, num_chains: int) -> int:
        """Return the steps of a stack, as many as fit in `buffer_bytes`."""
        chains = 1 if self.shared else num_chains
        return max(1, min(MOST_STEPS, self.buffer_bytes // (chains * self.bytes_per_batch)))

    def one_pass(self, chunk_size: int) -> Iterator[Batch]:
        """Yield all rows of the data once, in pieces of at most `chunk_size` rows or in batches."""
        return self.source.one_pass(chunk_size)

    def data_digest(self) -> str:
        """Return a digest of all data: how a checkpoint knows them.

        A source with a method `data_digest`, for example of the checksums of its files, is asked.
        Of any other, all rows are read once. A function `index -> batch` has no end, so that only
        its first batch counts; of a loader, which may return other rows each time, only the number
        of rows does.
        """
        size = np.asarray(self.data_size or 0)
        if self.own_digest is not None:
            return digest((size, np.frombuffer(str(self.own_digest()).encode(), np.uint8)))
        if isinstance(self.source, Iterated):
            return digest(size)
        if isinstance(self.source, Numbered) and self.source.length is None:
            return digest((size, self.source.example()))
        rows = max(1, DIGEST_BYTES * self.batch_size // self.bytes_per_batch)
        pieces = [digest(piece) for piece in self.one_pass(rows)]
        return digest((size, np.frombuffer("".join(pieces).encode(), np.uint8)))

    def in_memory(self, key: Key, num_batches: int) -> InMemoryBatches:
        """Read some batches, and return their rows as independent batches of the same size.

        At least two are read, and no more than `MOST_BYTES`. They stand for the data where a
        program must choose its own batches, for measurements of gradient noise and curvature.
        """
        batch_keys = jax.random.wrap_key_data(
            jax.random.key_data(key)[None], impl=jax.random.key_impl(key)
        )
        if not self.source.can_start_anywhere:
            self.source.begin()
        number = max(2, min(num_batches, MOST_BYTES // self.bytes_per_batch))
        stack = self.source.stack(Request(batch_keys, (0,), 1, 0, number))
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[3:])), stack)
        return InMemoryBatches(rows, self.batch_size, "independent")


def streamed_batches(
    source: Any,
    batch_size: int | None = None,
    *,
    policy: str | None = None,
    data_size: int | None = None,
    transform: Callable[[Any], Any] | None = None,
    shared: bool = False,
    buffer_bytes: int = 2**24,
) -> StreamedBatches:
    """Return batches that are read while the chains run, from a loader, an iterator or files.

    Batches are pytrees of arrays with the same shapes at every step, rows along the first axis. A
    batch with fewer rows, as loaders return at the end of an epoch, is left out.

    Parameters
    ----------
    source
        With `batch_size`, *rows*: a pytree of arrays such as `(x, y)`, in memory, `np.memmap`,
        HDF5 or Zarr; or a data set with `len(source)` and `source[i]` (Hugging Face, PyTorch,
        grain). isotherm chooses the rows, as `independent_batches` does. A run with checkpoints
        reads all rows once at its start, to know the data again; a source with a method
        `data_digest` that returns a text, such as the checksums of its files, is asked instead.

        Without it, *batches*: a loader or any iterable (PyTorch's `DataLoader`, `tf.data`, grain,
        a generator), which is iterated again when it ends; a list of batches; or a function
        `index -> batch`. With several processes each passes a loader of its own share.
    batch_size
        Rows per batch.
    policy
        Of rows: `"independent"` (default), `"shuffled"` or `"symmetric"`. Of batches: what the
        source does, one of these or `"sequential"`; by default it is detected, where a source
        shows it. Thermostats assume `"independent"`, for a `DataLoader`
        `sampler=RandomSampler(dataset, replacement=True)`.
    data_size
        Number of rows of the data, if the source does not know it; it is compared with what a
        pass over the source returns.
    transform
        `batch -> batch` on the host, for batches that are not pytrees of arrays, or to prepare
        them. With `batch_size` it gets the rows of several batches at once.
    shared
        Whether all chains use the same batches. This reads less, but the errors of the chains are
        no longer independent. By default every chain has its own.
    buffer_bytes
        Memory for one stack of batches; two are in use, one of which is being read. More than
        32 MB is slower on a CPU, where the memory of every stack is then new.

    Examples
    --------
    >>> import jax, numpy as np, isotherm
    >>> x = np.arange(1000, dtype=np.float32)            # or np.memmap(...)
    >>> batches = streamed_batches(x, batch_size=10)
    >>> batches
    streamed independent batches of 10 rows of float32[10]; 1,000 rows in all
    >>> grad_fn = isotherm.minibatch_gradient(
    ...     lambda m, x: -0.5 * (x - m) ** 2, lambda m: -0.5 * m**2, data_size=1000)
    >>> sampler = isotherm.msgnht(grad_fn, step_size=1e-3)
    >>> isotherm.sample(jax.random.key(0), sampler, 500.0, batches, num_draws=20).draws.shape
    (1, 20)
    """
    if policy is not None and policy not in POLICIES:
        raise ValueError(f"`policy` must be one of {POLICIES}, got {policy!r}.")
    data_size = None if data_size is None else count("data_size", data_size, 1)
    buffer_bytes = count("buffer_bytes", buffer_bytes, 1)
    if transform is not None and not callable(transform):
        raise ValueError(f"`transform` must be a function of a batch, got {transform!r}.")

    def prepare(batch: Any) -> Any:
        return as_numpy(batch if transform is None else transform(batch))

    if batch_size is None:
        made = _batches(source, policy, data_size, prepare)
    else:
        made = _rows(source, count("batch_size", batch_size, 1), policy or "independent", prepare)
    if data_size is not None and made.data_size not in (None, data_size):
        raise ValueError(f"`data_size` is {data_size}, but `source` has {made.data_size} rows.")
    own_digest = getattr(source, "data_digest", None)
    return StreamedBatches(
        made, shared=bool(shared), buffer_bytes=buffer_bytes, own_digest=own_digest
    )


def _is_leaf(node: Any) -> bool:
    return not isinstance(node, list | tuple | Mapping)


def _frame_to_numpy(leaf: Any) -> Any:
    """Convert frames and series of pandas and polars, which are not read by the number of a row."""
    is_frame = type(leaf).__module__.split(".")[0] in ("pandas", "polars")
    return leaf.to_numpy() if is_frame and hasattr(leaf, "to_numpy") else leaf


def _rows(source: Any, batch_size: int, policy: str, prepare: Callable[[Any], Any]) -> Rows:
    if policy == "sequential":
        raise ValueError(
            "`policy` of rows must be 'independent', 'shuffled' or 'symmetric', got 'sequential'."
        )
    leaves = [_frame_to_numpy(leaf) for leaf in jax.tree.leaves(source, is_leaf=_is_leaf)]
    shapes: list[Any] = [getattr(leaf, "shape", ()) for leaf in leaves]
    if leaves and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        lengths = {tuple(shape)[:1] for shape in shapes}
        if len(lengths) > 1 or () in lengths:
            raise ValueError(
                f"`source` must have leaves with the same first axis, got shapes {shapes}."
            )
        rows, take = lengths.pop()[0], take_from_arrays
        source = jax.tree.map(_frame_to_numpy, source, is_leaf=_is_leaf)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        rows, take = len(source), take_from_dataset
    else:
        raise ValueError(
            "With `batch_size`, `source` must have rows that can be read by their number: arrays, "
            f"or a data set with source[i] and len(source), got {type(source).__name__}. A source "
            "of batches needs no `batch_size`."
        )
    if batch_size > rows:
        raise ValueError(f"`batch_size` is {batch_size}, but `source` has only {rows} rows.")

    def take_rows(numbers: np.ndarray) -> Any:
        return prepare(take(source, numbers))

    return Rows(take_rows, rows, batch_size, policy)


def _batches(
    source: Any, policy: str | None, data_size: int | None, prepare: Callable[[Any], Any]
) -> Source:
    if hasattr(source, "shape") or isinstance(source, tuple | Mapping):
        raise ValueError(
            "`source` has arrays: pass `batch_size` too, and batches of their rows are drawn."
        )
    policy = detect_policy(source) if policy is None else policy
    data: Any = getattr(source, "dataset", None)  # of a DataLoader
    if hasattr(data, "__len__"):
        data_size = len(data)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return Numbered(source.__getitem__, len(source), prepare, policy, data_size)
    if hasattr(source, "__iter__"):
        return Iterated(source, prepare, policy, data_size)
    if callable(source):
        return Numbered(source, None, prepare, policy, data_size)
    raise ValueError(
        "`source` must be arrays, a data set, an iterable of batches or a function "
        f"`index -> batch`, got {type(source).__name__}."
    )

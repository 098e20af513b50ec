r"""Where streamed batches come from: rows on disk, numbered batches, and iterators.

Every source reads a *stack* of batches, arrays with leading axes `(chain, step)`, in NumPy:

- `Rows`: an array, a memory map, a data set with `source[i]`. The rows of chain $c$ at step $t$ are
  chosen by the policies of `isotherm.batches.in_memory`, so a run on a memory map has the batches
  of a run in memory.
- `Numbered`: a function or sequence of batches. Of $C$ chains, chain $c$ has batch $tC + c$.
- `Iterated`: a loader or iterator, which gives its batches to chain after chain, step after step.

The first two can start anywhere. An iterator can if it has a state: `get_state` and `set_state`
(grain), or `state_dict` and `load_state_dict` (`StatefulDataLoader`, Hugging Face).
"""

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from isotherm.batches.in_memory import row_numbers
from isotherm.tree import refuse_masked
from isotherm.types import Key


class Request(NamedTuple):
    """Which batches a process reads."""

    keys: Key
    """For the batches of the chains of this process, shape (chain,)."""
    chains: tuple[int, ...]
    """Their numbers."""
    num_chains: int
    """Number of chains of all processes."""
    first: int
    """The first step."""
    number: int
    """How many steps."""
    rows: slice = slice(None)
    """Which rows of every batch, if processes share them."""


class Source(Protocol):
    """A source of batches."""

    policy: str
    batch_size: int
    """Rows of a batch, or of this process's share of it."""
    reads_share: bool
    """Whether every process is expected to get its own share of the rows of a batch."""

    @property
    def data_size(self) -> int | None:
        """Number of rows of the data, if it is known."""
        ...

    @property
    def can_start_anywhere(self) -> bool:
        """Whether `stack` may be called with any first step."""
        ...

    def example(self) -> Any:
        """Return one batch, for its shapes."""
        ...

    def begin(self, position: Any = None) -> None:
        """Start at the beginning, or where `position` was returned."""
        ...

    def position(self) -> Any:
        """Return in JSON terms where the next batch is; `None` if that is not known."""
        ...

    def stack(self, request: Request) -> Any:
        """Read batches; leading axes (chain, step)."""
        ...

    def one_pass(self, chunk_size: int) -> Iterator[Any]:
        """Yield all rows once, in pieces."""
        ...


def as_numpy(batch: Any) -> Any:
    """Convert the arrays of a batch (of NumPy, JAX, PyTorch, TensorFlow; lists) to NumPy."""
    if isinstance(batch, Mapping):
        return {name: as_numpy(value) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(as_numpy, batch))
    if isinstance(batch, list | tuple):
        if batch and all(isinstance(value, int | float | np.generic) for value in batch):
            return np.asarray(batch)  # a column of numbers
        return type(batch)(map(as_numpy, batch))
    if hasattr(batch, "detach"):  # a tensor of PyTorch, which may require gradients
        batch = batch.detach().cpu()
    refuse_masked(source=batch)
    array = np.asarray(batch)
    if array.dtype.kind not in "fiubc" and array.dtype.name != "bfloat16":
        raise ValueError(
            f"A batch of `source` has an array of type {array.dtype}: batches must be pytrees of "
            "arrays of numbers. Convert them with `transform`."
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def num_rows(batch: Any) -> int:
    """Return the rows of a batch; raise an error if its leaves differ."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(batch)]
    if not shapes or () in shapes or len({shape[0] for shape in shapes}) > 1:
        raise ValueError(
            "The batches of `source` must have leaves with the same first axis, the rows, got "
            f"shapes {shapes}. For a source of single rows, pass `batch_size`."
        )
    return shapes[0][0]


def _empty(example: Any, *leading: int) -> Any:
    """Return room for batches, in the precision of JAX."""
    return jax.tree.map(
        lambda leaf: np.empty((*leading, *leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype)),
        example,
    )


@partial(jax.jit, static_argnames=("policy", "batch_size", "data_size", "number"))
def _all_row_numbers(
    keys: Key, first: int, number: int, policy: str, batch_size: int, data_size: int
) -> jax.Array:
    """Return the row numbers of all chains and steps, shape (chain, step, row)."""
    one = partial(row_numbers, policy, batch_size, data_size)
    steps = first + jax.numpy.arange(number)
    return jax.vmap(lambda key: jax.vmap(lambda t: one(key, t))(steps))(keys)


class Rows:
    """Rows that can be read by their number."""

    reads_share = False
    can_start_anywhere = True

    def __init__(
        self, take: Callable[[np.ndarray], Any], data_size: int, batch_size: int, policy: str
    ) -> None:
        self.take, self.data_size = take, data_size
        self.batch_size, self.policy = batch_size, policy

    def example(self) -> Any:
        """Return the first rows."""
        return self.take(np.arange(self.batch_size))

    def begin(self, position: Any = None) -> None:
        """Do nothing: rows depend on nothing but key and step."""

    def position(self) -> None:
        """Return nothing: rows depend on nothing but key and step."""

    def stack(self, request: Request) -> Any:
        """Read the rows of all batches at once."""
        host = jax.local_devices(backend="cpu")[0]  # so as not to wait for the chunk
        number = -(-request.number // 64) * 64  # few numbers, so that few programs are compiled
        with jax.default_device(host):
            keys = jax.device_put(request.keys, host)
            size = (self.policy, self.batch_size, self.data_size)
            chosen = np.asarray(_all_row_numbers(keys, request.first, number, *size))
        chosen = chosen[:, : request.number, request.rows]
        rows = self.take(chosen.ravel())
        return jax.tree.map(
            lambda leaf: leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False).reshape(
                *chosen.shape, *leaf.shape[1:]
            ),
            rows,
        )

    def one_pass(self, chunk_size: int) -> Iterator[Any]:
        """Yield all rows in order."""
        for start in range(0, self.data_size, chunk_size):
            yield self.take(np.arange(start, min(start + chunk_size, self.data_size)))


def take_from_arrays(arrays: Any, numbers: np.ndarray) -> Any:
    """Read rows of arrays, in memory or on disk."""

    def take(leaf: Any) -> np.ndarray:
        if isinstance(leaf, np.ndarray):  # a memory map is one
            return leaf[numbers]
        unique, where = np.unique(numbers, return_inverse=True)  # HDF5 needs increasing numbers
        if len(unique) and unique[-1] - unique[0] == len(unique) - 1:  # faster than by number
            return np.asarray(leaf[int(unique[0]) : int(unique[-1]) + 1])[where]
        return np.asarray(leaf[unique])[where]

    return as_numpy(jax.tree.map(take, arrays))


def take_from_dataset(dataset: Any, numbers: np.ndarray) -> Any:
    """Read rows of a data set with `dataset[i]`; those of Hugging Face are read as columns."""
    if hasattr(dataset, "with_format") and hasattr(dataset, "features"):
        return as_numpy(dataset.with_format("numpy")[numbers])
    numbers = numbers.tolist()
    if hasattr(dataset, "__getitems__"):  # PyTorch's protocol for several rows
        rows = dataset.__getitems__(numbers)
    else:
        rows = [dataset[i] for i in numbers]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(as_numpy, rows))


class _Batches:
    """What `Numbered` and `Iterated` share: batches that are written into a stack one by one."""

    reads_share = False
    batch_size: int

    def __init__(self, transform: Callable[[Any], Any], policy: str, data_size: int | None) -> None:
        self.transform, self.policy, self.data_size = transform, policy, data_size
        self._example = None

    def example(self) -> Any:
        """Return one batch."""
        if self._example is None:
            self._example = self._first()
            self.batch_size = num_rows(self._example)
        return self._example

    def _first(self) -> Any:
        raise NotImplementedError

    def _next(self, step: int, chain: int, request: Request) -> Any:
        raise NotImplementedError

    def stack(self, request: Request) -> Any:
        """Read batch after batch."""
        example = jax.tree.map(lambda leaf: leaf[request.rows], self.example())
        stack = _empty(example, len(request.chains), request.number)
        for i in range(request.number):
            for c, chain in enumerate(request.chains):
                batch = self._next(request.first + i, chain, request)
                jax.tree.map(
                    lambda room, leaf, at=(c, i): room.__setitem__(at, leaf[request.rows]),
                    stack,
                    batch,
                )
        return stack

    def _fits(self, batch: Any) -> bool:
        """Return whether a batch has the shapes of the first; smaller ones do not."""
        first = self.example()
        if jax.tree.structure(batch) == jax.tree.structure(first):
            pairs = list(zip(jax.tree.leaves(batch), jax.tree.leaves(first), strict=True))
            if all(a.shape == b.shape for a, b in pairs):
                return True
            if num_rows(batch) < self.batch_size and all(
                a.shape[1:] == b.shape[1:] for a, b in pairs
            ):
                return False
        shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (first, batch)]
        raise ValueError(
            f"All batches of `source` must have the same shapes: the first has {shapes[0]}, "
            f"another {shapes[1]}."
        )


class Numbered(_Batches):
    """A function `index -> batch`, or a sequence of batches, which is repeated."""

    can_start_anywhere = True

    def __init__(
        self,
        get: Callable[[int], Any],
        length: int | None,
        transform: Callable[[Any], Any],
        policy: str,
        data_size: int | None,
    ) -> None:
        super().__init__(transform, policy, data_size)
        self.get, self.length = get, length
        if length == 0:
            raise ValueError("`source` is empty: it has no batches.")
        if length is not None and not self._fits(self._at(length - 1)):
            self.length = length - 1  # the last batch is smaller than the others
            if self.length == 0:
                self.length, self._example = 1, None

    def begin(self, position: Any = None) -> None:
        """Do nothing: batches depend on their number."""

    def position(self) -> None:
        """Return nothing: batches depend on their number."""

    def _at(self, index: int) -> Any:
        return self.transform(self.get(index))

    def _first(self) -> Any:
        return self._at(0)

    def _next(self, step: int, chain: int, request: Request) -> Any:
        index = step * request.num_chains + chain
        batch = self._at(index if self.length is None else index % self.length)
        if not self._fits(batch):
            raise ValueError(f"Batch {index} of `source` has fewer rows than the first.")
        return batch

    def one_pass(self, chunk_size: int) -> Iterator[Any]:
        """Yield all batches of a sequence."""
        if self.length is None:
            raise ValueError(
                "A function of the number of a batch has no end, so that no sum over all data can "
                "be computed from it: pass the data themselves, as `(x, y)` or a data set."
            )
        for index in range(self.length):
            yield self._at(index)


class Iterated(_Batches):
    """An iterable of batches, which is iterated again when it ends, or an iterator."""

    can_start_anywhere = False
    reads_share = True

    def __init__(
        self, source: Any, transform: Callable[[Any], Any], policy: str, data_size: int | None
    ) -> None:
        super().__init__(transform, policy, data_size)
        self.source = source
        self.is_once = hasattr(source, "__next__")
        self.iterator, self.pending, self.before_pending = (
            source if self.is_once else None,
            [],
            None,
        )
        self.num_read, self.rows_of_pass = 0, 0.0

    def begin(self, position: Any = None) -> None:
        """Iterate again, if possible, or continue where `position` was returned."""
        if position is not None:
            state, self.pending = decode(position), []
            self.rows_of_pass = math.nan  # part of this pass was read before
            owner = self._owner("load_state_dict", "set_state")
            if hasattr(owner, "set_state"):
                owner.set_state(state)
            else:
                owner.load_state_dict(state)
                if owner is self.source and not self.is_once:
                    self.iterator = iter(self.source)
        elif not self.is_once:
            self.iterator, self.rows_of_pass = iter(self.source), 0.0

    def _owner(self, *methods: str) -> Any:
        """Return the iterator or the iterable, whichever has one of these methods."""
        if self.iterator is None:
            self.iterator = iter(self.source)
        for owner in (self.iterator, self.source):
            if any(hasattr(owner, method) for method in methods):
                return owner
        return None

    def position(self) -> Any:
        """Return the state of the source, if it has one that can be written."""
        if self.pending:
            return self.before_pending
        owner = self._owner("state_dict", "get_state")
        if owner is None:
            return None
        return encode(owner.get_state() if hasattr(owner, "get_state") else owner.state_dict())

    def _first(self) -> Any:
        if self.is_once:  # what was read is the first batch of the next stack
            self.before_pending = self.position()
            self.pending = [self._read(iter(self.source))]
            return self.pending[0]
        return self._read(iter(self.source))

    def _read(self, iterator: Iterator[Any]) -> Any:
        try:
            return self.transform(next(iterator))
        except StopIteration:
            raise ValueError("`source` is empty: it has no batches.") from None

    def _next(self, step: int, chain: int, request: Request) -> Any:
        while True:
            batch = self.pending.pop() if self.pending else self._advance()
            if self._fits(batch):
                self.num_read += 1
                return batch

    def skip(self, number: int) -> None:
        """Leave out batches that were read before."""
        self.example()
        for _ in range(number):
            self._next(0, 0, None)  # pyright: ignore[reportArgumentType]

    def _advance(self) -> Any:
        if self.iterator is None:
            self.iterator = iter(self.source)
        for batch in self.iterator:
            batch = self.transform(batch)
            self.rows_of_pass += num_rows(batch)
            return batch
        if self.is_once:
            raise ValueError(
                f"`source` ended after {self.num_read} batches, but the run needs more. Pass a "
                "source that can be iterated again (a loader, a list, a data set), or one without "
                "an end."
            )
        self._check_pass()
        self.iterator = iter(self.source)
        batch = self._read(self.iterator)
        self.rows_of_pass = num_rows(batch)
        return batch

    def _check_pass(self) -> None:
        """Raise an error if a pass had another number of rows than `data_size`."""
        rows, size = self.rows_of_pass, self.data_size
        if size is None or self.policy == "independent" or math.isnan(rows):
            return
        if jax.process_count() > 1:  # this process reads a share
            return
        if not size - self.batch_size < rows <= size:
            raise ValueError(
                f"`data_size` is {size}, but a pass over `source` has {rows:.0f} rows."
            )

    def one_pass(self, chunk_size: int) -> Iterator[Any]:
        """Yield all batches of a pass."""
        if self.is_once or self.policy == "independent":
            raise ValueError(
                "A sum over all data needs a source that gives every row once and can be iterated "
                "again; pass another one for it, as "
                "isotherm.streamed_batches(loader_without_replacement)."
            )
        yield from map(self.transform, iter(self.source))


def encode(state: Any) -> Any:
    """Return the state of an iterator in JSON terms; `None` if it has other objects in it."""
    try:
        return {"state": _encode(state)}
    except TypeError:
        return None


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_encode(v) for v in value]}
    if isinstance(value, Mapping) and all(isinstance(k, str | int) for k in value):
        return {"dict": [[k, _encode(v)] for k, v in value.items()]}
    if hasattr(value, "detach") or isinstance(value, np.ndarray | np.generic):
        array = as_numpy(value)
        kind = "tensor" if hasattr(value, "detach") else "array"
        raw = base64.b64encode(array.tobytes()).decode()
        return {kind: [array.dtype.name, list(array.shape), raw]}
    raise TypeError(f"{type(value).__name__} cannot be written in JSON.")


def decode(state: Any) -> Any:
    """Return the state of an iterator that `encode` has written."""
    return _decode(state["state"])


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](map(_decode, content))
    if kind == "dict":
        return {k: _decode(v) for k, v in content}
    dtype, shape, raw = content
    array = np.frombuffer(base64.b64decode(raw), dtype)
    array = array[: math.prod(shape)].reshape(shape).copy()
    if kind == "tensor":
        import torch  # pyright: ignore[reportMissingImports]

        return torch.from_numpy(array)
    return array


def detect_policy(source: Any) -> str:
    """Return the order in which a loader reads its rows, as far as it can be seen."""
    sampler = getattr(source, "sampler", None)  # of a DataLoader of PyTorch
    if sampler is not None:
        if hasattr(sampler, "weights"):  # rows with unequal probabilities
            return "unknown"
        if hasattr(sampler, "replacement"):
            return "independent" if sampler.replacement else "shuffled"
        if type(sampler).__name__ == "SequentialSampler":
            return "sequential"
        if hasattr(sampler, "shuffle"):
            return "shuffled" if sampler.shuffle else "sequential"
        return "unknown"
    shuffles = getattr(getattr(source, "_sampler", None), "_shuffle", None)  # grain.DataLoader
    if shuffles is not None:
        return "shuffled" if shuffles else "sequential"
    if hasattr(source, "parents"):  # a data set of grain
        return "shuffled" if _is_shuffled(source) else "sequential"
    return "sequential" if isinstance(source, list) else "unknown"


def _is_shuffled(dataset: Any) -> bool:
    return "Shuffle" in type(dataset).__name__ or any(map(_is_shuffled, dataset.parents))

"""Feed a run with streamed batches: a thread reads the next stack while chains use the current one.

Stacks end at multiples of their length, counted from the start of the run, so that an interrupted
run has the same chunks. `Feed.position` is what a checkpoint needs to continue: the state of the
source at the start of the current stack, and the steps of the stack that are done.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.batches.sources import Iterated, Request
from isotherm.batches.streamed import StackedBatches, StreamedBatches
from isotherm.loop.devices import Devices
from isotherm.types import Key


class _Stack(NamedTuple):
    batches: StackedBatches
    first: int
    """Steps of the run before the first batch."""
    end: int
    position: Any
    """State of the source before the first batch."""


class Feed:
    """Stacks of batches for a run.

    Parameters
    ----------
    batches
        From `isotherm.streamed_batches`.
    keys
        Of the chains.
    devices
        Of the run.
    num_steps
        Steps of the whole run; no more is read.
    step_index
        Steps that the chains had taken before the run.
    own_key
        Whether `keys` are those of the batches, and not of chains that derive them.
    """

    def __init__(
        self,
        batches: StreamedBatches,
        keys: Key,
        devices: Devices,
        num_steps: int,
        step_index: int = 0,
        *,
        own_key: bool = False,
    ) -> None:
        self.source, self.shared = batches.source, batches.shared
        self.num_steps, self.step_index = num_steps, step_index
        self.share = devices.share(keys.shape[0], batches.batch_size, self.source.reads_share)
        self.devices = devices
        self.length = min(num_steps, batches.steps_per_stack(keys.shape[0]))
        self.keys = keys if own_key else jax.vmap(lambda key: random.fold(key, 1))(keys)
        chains = (0,) if batches.shared else self.share.chains
        self.request = Request(
            self.keys[np.array(chains)],
            chains,
            1 if batches.shared else keys.shape[0],
            0,
            0,
            slice(None) if self.source.reads_share else self.share.rows,
        )
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="isotherm-batches")
        self.current: _Stack | None = None
        self.next: Future[_Stack] | None = None
        self.next_first, self.has_begun = 0, False

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the thread to end."""
        self.thread.shutdown(wait=True, cancel_futures=True)

    @property
    def can_return(self) -> bool:
        """Whether the source can start anywhere, or where it has been before."""
        return self.source.can_start_anywhere or self.source.position() is not None

    def stack(self, step: int, position: Any = None) -> tuple[StackedBatches, int]:
        """Return a stack with the batch of a step of the run, and the step where it ends.

        `position` is what `Feed.position` returned for this step, if the run goes back to it.
        """
        if self.current is not None and self.current.first <= step < self.current.end:
            return self.current.batches, self.current.end
        if self.next is None or self.next_first != step:
            self._begin(step, position)
        assert self.next is not None
        self.current = None  # frees its memory
        self.current = self.next.result()
        self.next = None
        if self.current.end < self.num_steps:
            self._submit(self.current.end)
        return self.current.batches, self.current.end

    def position(self, step: int) -> Any:
        """Return in JSON terms how to continue at a step of the current stack or right after it."""
        if self.current is None or self.current.position is None:
            return None
        return [self.current.position, step - self.current.first]

    def _begin(self, step: int, position: Any) -> None:
        """Move the source to a step."""
        if self.next is not None:
            self.next.result()  # what it has read is read again
        if isinstance(self.source, Iterated):
            if position is not None:
                state, steps = position
                self.source.begin(state)
                self.source.skip(steps * len(self.request.chains))
            elif not self.has_begun:
                self.source.begin()
        self.has_begun = True
        self._submit(step)

    def _submit(self, first: int) -> None:
        self.next_first = first
        self.next = self.thread.submit(self._read, first)

    def _read(self, first: int) -> _Stack:
        """Read a stack and copy it to the devices; runs in the thread."""
        end = min(first - first % self.length + self.length, self.num_steps)
        position = self.source.position()
        at = self.step_index + first
        host = self.source.stack(self.request._replace(first=at, number=end - first))
        missing = self.length - (end - first)
        if missing:  # all stacks have the same shape, so that one program fits all
            host = jax.tree.map(
                lambda leaf: np.pad(leaf, [(0, 0), (0, missing)] + [(0, 0)] * (leaf.ndim - 2)), host
            )
        stack = self.devices.put_stack(host, self.share, shared=self.shared)
        steps: Any = np.int32(at)
        if not self.shared:
            steps = self.devices.put_chains(np.full(self.keys.shape[0], at, np.int32))
        return _Stack(StackedBatches(stack, steps), first, end, position)

    def placeholder(self) -> StackedBatches:
        """Return a stack of one batch of zeros, for programs that need only its shape."""
        example = self.source.example()
        zeros = jax.tree.map(
            lambda leaf: np.zeros(
                (1, self.share.batch_size, *leaf.shape[1:]),
                jax.dtypes.canonicalize_dtype(leaf.dtype),
            ),
            example,
        )
        return StackedBatches(jax.tree.map(jnp.asarray, zeros), jnp.zeros((), jnp.int32))

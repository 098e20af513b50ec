"""Compiled programs: many steps of all chains in one call, and how many steps to take per call."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.diagnostics.temperature import kinetic_temperature
from isotherm.loop.collect import Draws, Running
from isotherm.types import BatchPolicy, Key, Sampler, StepInfo

CHUNK_SECONDS = 0.25
"""Target duration of a chunk: short enough for a smooth progress bar and a prompt Ctrl-C."""
CHUNK_BYTES = 2**25
"""Memory for draws on the device; a chunk ends when it is full."""
SMALLEST_PAGE = 64
"""Draws for which every page has room, if they fit in `CHUNK_BYTES`."""
MOST_STEPS = 10**7
"""Upper bound on the steps of a chunk; the fastest loop takes half as many in `CHUNK_SECONDS`."""
CHUNK_STEPS = 500
"""Steps per chunk if the result depends on the chunks (`on_divergence="rollback"`)."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["parameters"],
    meta_fields=["source", "running", "stacked", "thin"],
)
@dataclass(frozen=True)
class Program:
    """Sampler, collectors and thinning: what a chunk is compiled for, and arrays of the sampler."""

    source: Sampler | Callable[[Any], Sampler]
    """The sampler, or what builds it from `parameters`."""
    running: tuple[tuple[str, Running], ...]
    stacked: tuple[tuple[str, Draws], ...]
    thin: int
    parameters: Any = None
    """Of a family of samplers (`isotherm.types.Family`): arguments of the compiled chunk."""

    @property
    def sampler(self) -> Sampler:
        """The sampler."""
        if self.parameters is None:
            return cast(Sampler, self.source)
        return cast(Callable[[Any], Sampler], self.source)(self.parameters)

    @property
    def fixed(self) -> "Program":
        """The part that is compiled in, which is hashable."""
        return self if self.parameters is None else replace(self, parameters=None)

    def open(self, state: Any, key: Key) -> Any:
        """Begin step t: move to the point at which its gradient is evaluated."""
        halves = self.sampler.halves
        if halves is None:
            return state
        return halves.open(random.fold(random.fold(key, 0), state.step_index), state)

    def close(self, state: Any, key: Key, batches: BatchPolicy) -> tuple[Any, StepInfo]:
        """Finish step t; all randomness is a function of the chain's key and t."""
        t, halves = state.step_index, self.sampler.halves
        batch = batches.batch(random.fold(key, 1), t)
        noise_key = random.fold(random.fold(key, 0), t)
        if halves is None:
            return self.sampler.step(noise_key, state, batch)
        return halves.close(noise_key, state, halves.gradient(noise_key, state, batch))

    def steps(
        self, state: Any, key: Key, batches: BatchPolicy, number: int | jax.Array
    ) -> tuple[Any, StepInfo]:
        """Take at least one step; return the state and the info of the last step."""

        def next_step(_: int, state: Any) -> Any:
            return self.open(self.close(state, key, batches)[0], key)

        state = self.open(state, key)
        if not (isinstance(number, int) and number == 1):
            state = jax.lax.fori_loop(0, number - 1, next_step, state)
        return self.close(state, key, batches)

    def observe(self, state: Any, info: StepInfo) -> tuple[dict, dict]:
        """Return what is kept of a draw: the values of collectors, and statistics of the chain."""
        stats = {"step_size": info.step_size, "configurational_temperature": info.virial}
        if info.kinetic is not None:
            stats["kinetic_temperature"] = info.kinetic
        elif hasattr(state, "momentum"):
            stats["kinetic_temperature"] = kinetic_temperature(state.momentum)
        return {name: c.value(state) for name, c in self.stacked}, stats

    def observed(self, state: Any) -> Any:
        """Return the shapes of what `observe` returns for one chain."""
        num_leaves = len(jax.tree.leaves(state.position))
        info = StepInfo(jnp.zeros(()), jnp.zeros(num_leaves))
        return jax.eval_shape(self.observe, state, info)

    def empty_page(self, state: Any, num_chains: int) -> Any:
        """Return the shapes of a page without draws."""
        return jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((num_chains, 0, *s.shape), s.dtype), self.observed(state)
        )

    def capacity(self, state: Any, num_chains: int, num_draws: int) -> int:
        """Return how many draws a page should have room for.

        No more than fit in `CHUNK_BYTES`, and no more than a chunk can make.
        """
        kept = jax.tree.leaves(self.observed(state))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in kept) * num_chains
        return max(1, min(page_room(num_draws, size), MOST_STEPS // self.thin))


def page_room(num_draws: int, size: int) -> int:
    """Return for how many draws of some bytes a page has room.

    A power of two, at least 64, that is enough for `num_draws`, so that runs of other lengths share
    a program; no more than fit in `CHUNK_BYTES`.
    """
    enough = max(SMALLEST_PAGE, 1 << (num_draws - 1).bit_length())
    return max(1, min(enough, CHUNK_BYTES // max(1, size)))


def advance(
    state: Any, keys: Key, batches: BatchPolicy, num_blocks: int, size: int, *, program: Program
):
    """Take steps in blocks; return the states, and which leaves are finite."""

    def chain(state: Any, key: Key) -> tuple[Any, jax.Array]:
        state = jax.lax.fori_loop(
            0, num_blocks, lambda _, s: program.steps(s, key, batches, size)[0], state
        )
        return state, _finite(state)

    return jax.vmap(chain)(state, keys)


def collect(
    state: Any,
    accumulators: Any,
    keys: Key,
    batches: BatchPolicy,
    num_draws: int,
    *,
    program: Program,
    capacity: int,
):
    """Take steps and keep draws.

    Returns states, accumulators, a page of draws, and which leaves of the states are finite.
    """

    def draw(state: Any, accumulators: dict, key: Key) -> tuple[Any, dict, Any]:
        state, info = program.steps(state, key, batches, program.thin)
        accumulators = {name: c.update(accumulators[name], state) for name, c in program.running}
        return state, accumulators, program.observe(state, info)

    alone = keys.shape[0] == 1
    if alone:  # without a batch axis XLA makes a tighter loop
        state, accumulators, keys = jax.tree.map(lambda x: x[0], (state, accumulators, keys))
    all_chains = draw if alone else jax.vmap(draw)

    def keep(i: jax.Array, carry: tuple) -> tuple:
        state, accumulators, pages = carry
        state, accumulators, seen = all_chains(state, accumulators, keys)
        pages = jax.tree.map(
            lambda page, x: jax.lax.dynamic_update_index_in_dim(page, x, i, 0), pages, seen
        )
        return state, accumulators, pages

    shapes = jax.eval_shape(all_chains, state, accumulators, keys)[2]
    pages = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    state, accumulators, pages = jax.lax.fori_loop(0, num_draws, keep, (state, accumulators, pages))
    if alone:
        state, accumulators = jax.tree.map(lambda x: x[None], (state, accumulators))
        pages = jax.tree.map(lambda page: page[:, None], pages)
    return state, accumulators, pages, jax.vmap(_finite)(state)


class Cuts(NamedTuple):
    """Which steps a chunk takes, between any two steps of a run."""

    is_open: int
    """1 if the chunk before has ended inside a block, so that the state is open."""
    first: int
    """Steps to the end of the first block."""
    size: int
    """Steps of the other blocks: those of a draw, or of a part of the burn-in."""
    number: int
    """Blocks that end in the chunk."""
    rest: int
    """Steps after the last end of a block."""


def stream(
    state: Any,
    accumulators: Any,
    keys: Key,
    batches: BatchPolicy,
    cuts: Cuts,
    *,
    program: Program,
    capacity: int,
    axis: int | None = 0,
):
    """Take steps with a stack of batches per chain, and keep the draws at the ends of blocks.

    A chunk may begin and end anywhere. Each block is `open`, then `close` and `open` again and
    again, then `close`, as in `Program.steps`, and a state inside of a block is open; which
    of these a step executes depends on its number only, so cuts do not change a bit. Without
    `capacity` it is burn-in, and nothing is kept. Returns what `collect` returns.
    """
    alone = keys.shape[0] == 1
    if alone:
        state, accumulators, keys = jax.tree.map(lambda x: x[0], (state, accumulators, keys))
        batches = batches if axis is None else jax.tree.map(lambda x: x[0], batches)

    def per_chain(function: Callable, *axes: int | None) -> Callable:
        return function if alone else jax.vmap(function, axes)

    opened = per_chain(program.open, 0, 0)
    closed = per_chain(program.close, 0, 0, axis)
    seen = per_chain(program.observe, 0, 0)
    updated = {name: per_chain(c.update, 0, 0) for name, c in program.running}

    def inside(state: Any, number: int | jax.Array) -> Any:
        return jax.lax.fori_loop(
            0, number, lambda _, s: opened(closed(s, keys, batches)[0], keys), state
        )

    def begin(state: Any, number: int | jax.Array) -> Any:
        return jax.lax.fori_loop(0, number, lambda _, s: opened(s, keys), state)

    def block(i: jax.Array, carry: tuple) -> tuple:
        state, accumulators, pages = carry
        state = begin(state, jnp.where(i > 0, 1, 1 - cuts.is_open))
        state = inside(state, jnp.where(i > 0, cuts.size, cuts.first) - 1)
        state, info = closed(state, keys, batches)
        if capacity:
            accumulators = {name: updated[name](accumulators[name], state) for name in updated}
            pages = jax.tree.map(
                lambda page, x: jax.lax.dynamic_update_index_in_dim(page, x, i, 0),
                pages,
                seen(state, info),
            )
        return state, accumulators, pages

    pages = None
    if capacity:
        shapes = jax.eval_shape(lambda s: seen(*closed(s, keys, batches)), state)
        pages = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    carry = (state, accumulators, pages)
    state, accumulators, pages = jax.lax.fori_loop(0, cuts.number, block, carry)
    begins = (cuts.rest > 0) & ((cuts.number > 0) | (cuts.is_open == 0))
    state = inside(begin(state, jnp.where(begins, 1, 0)), cuts.rest)
    if alone:
        state, accumulators = jax.tree.map(lambda x: x[None], (state, accumulators))
        pages = jax.tree.map(lambda page: page[:, None], pages)
    return state, accumulators, pages, jax.vmap(_finite)(state)


def stream_shared(*arguments: Any, program: Program, capacity: int):
    """Take steps as `stream` does, with a stack of batches that all chains share."""
    return stream(*arguments, program=program, capacity=capacity, axis=None)


def step_size(state: Any, keys: Key, batches: BatchPolicy, *, program: Program) -> tuple[jax.Array]:
    """Return the step size of the next step; XLA removes the unused step itself."""
    return (jax.vmap(lambda s, k: program.steps(s, k, batches, 1)[1].step_size)(state, keys),)


def _finite(state: Any) -> jax.Array:
    """Return for each leaf of one chain's state whether it is finite."""
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(state)])


def compiler_options() -> dict[str, int]:
    """Return compiler options that speed up a chain: on a CPU, the widest vectors.

    For `jax.jit(..., compiler_options=...)` around `run_chain`; `sample` uses them by itself. They
    help where noise and thermostat are a large part of a step (`benchmarks/networks.py` compiles
    SGD both ways).
    """
    return {"xla_cpu_prefer_vector_width": 512} if jax.default_backend() == "cpu" else {}


@cache
def compiled(function: Callable, *static: str, donate: bool = True) -> Callable:
    """Compile a chunk on first use; the memory of its first argument, the state, is donated."""
    return jax.jit(
        function,
        static_argnames=static,
        donate_argnums=0 if donate else (),
        compiler_options=compiler_options(),
    )


class Pace(Protocol):
    """Chooses how much work the next chunk does."""

    def next(self, done: int, left: int) -> int:
        """Return how much of what is left comes next."""
        ...

    def took(self, amount: int) -> None:
        """Note that a chunk of this size has ended."""
        ...


class TimedPace:
    """Adapt the size of chunks to `CHUNK_SECONDS`."""

    def __init__(self) -> None:
        self.size, self.is_compiled, self.started = 8, False, 0.0

    def next(self, done: int, left: int) -> int:
        """Return how much of what is left comes next, and start the clock."""
        self.started = time.perf_counter()
        return min(self.size, left)

    def took(self, amount: int) -> None:
        """Choose the next size from the time that this chunk took."""
        if not self.is_compiled:  # the time of the first chunk includes compilation
            self.is_compiled = True
            return
        seconds = max(time.perf_counter() - self.started, 1e-6)
        wanted = amount * CHUNK_SECONDS / seconds
        self.size = int(min(max(wanted, 1), 16 * amount))


@dataclass(frozen=True)
class FixedPace:
    """End chunks at multiples of a size: the same on every machine and after an interruption."""

    size: int

    def next(self, done: int, left: int) -> int:
        """Return how much of what is left comes next."""
        size = max(1, self.size)
        return min(size - done % size, left)

    def took(self, amount: int) -> None:
        """Do nothing: the size does not depend on time."""

"""What is compiled: many steps of all chains as one program, and how much of it at once."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.diagnostics.temperature import kinetic_temperature
from isotherm.loop.collect import Draws, Running
from isotherm.types import BatchPolicy, Key, Sampler, StepInfo

CHUNK_SECONDS = 0.25
"""How long a chunk should take: short enough for a living progress bar and a quick Ctrl-C."""
CHUNK_BYTES = 2**25
"""How much a chunk may hold on the device before its draws move to the host."""
MOST_STEPS = 10**7
"""More steps than any chunk takes: the fastest loop there is makes half as many in that time."""
CHUNK_STEPS = 500
"""How long a chunk is where the result depends on it (`on_divergence="rollback"`)."""


@dataclass(frozen=True)
class Program:
    """What is compiled, in one hashable object: sampler, collectors and thinning."""

    sampler: Sampler
    running: tuple[tuple[str, Running], ...]
    stacked: tuple[tuple[str, Draws], ...]
    thin: int

    def open(self, state: Any, key: Key) -> Any:
        """Begin step t: go to where its gradient is wanted."""
        halves = self.sampler.halves
        if halves is None:
            return state
        return halves.open(random.fold(random.fold(key, 0), state.step_index), state)

    def close(self, state: Any, key: Key, batches: BatchPolicy) -> tuple[Any, StepInfo]:
        """Finish step t: all randomness comes from the chain's key and t."""
        t, halves = state.step_index, self.sampler.halves
        batch = batches.batch(random.fold(key, 1), t)
        noise_key = random.fold(random.fold(key, 0), t)
        if halves is None:
            return self.sampler.step(noise_key, state, batch)
        return halves.close(noise_key, state, halves.gradient(state.position, batch))

    def steps(
        self, state: Any, key: Key, batches: BatchPolicy, number: int | jax.Array
    ) -> tuple[Any, StepInfo]:
        """Take at least one step; only the last one says how it went."""

        def next_step(_: int, state: Any) -> Any:
            return self.open(self.close(state, key, batches)[0], key)

        state = self.open(state, key)
        if not (isinstance(number, int) and number == 1):
            state = jax.lax.fori_loop(0, number - 1, next_step, state)
        return self.close(state, key, batches)

    def observe(self, state: Any, info: StepInfo) -> tuple[dict, dict]:
        """Pick what is kept of a draw: the collectors' share, and statistics of the chain."""
        stats = {"step_size": info.step_size, "configurational_temperature": info.virial}
        if hasattr(state, "momentum"):
            stats["kinetic_temperature"] = kinetic_temperature(state.momentum)
        return {name: c.look(state) for name, c in self.stacked}, stats

    def observed(self, state: Any) -> Any:
        """Give the shapes of what is kept of a draw of one chain."""
        num_leaves = len(jax.tree.leaves(state.position))
        info = StepInfo(jnp.zeros(()), jnp.zeros(num_leaves))
        return jax.eval_shape(self.observe, state, info)

    def empty_page(self, state: Any, num_chains: int) -> Any:
        """Give the shapes of a page without draws."""
        return jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((num_chains, 0, *s.shape), s.dtype), self.observed(state)
        )

    def capacity(self, state: Any, num_chains: int, num_draws: int) -> int:
        """Tell how many draws a page should have room for: no more than fit on the device, or than a chunk can make."""
        kept = jax.tree.leaves(self.observed(state))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in kept) * num_chains
        return max(1, min(num_draws, CHUNK_BYTES // size, MOST_STEPS // self.thin))


def advance(
    state: Any, keys: Key, batches: BatchPolicy, num_blocks: int, size: int, *, program: Program
):
    """Take steps, in blocks, and tell what is still finite."""

    def chain(state: Any, key: Key) -> tuple[Any, jax.Array]:
        state = jax.lax.fori_loop(
            0, num_blocks, lambda _, s: program.steps(s, key, batches, size)[0], state
        )
        return state, _finite(state)

    return jax.vmap(chain)(state, keys)


def collect(
    state: Any,
    memory: Any,
    keys: Key,
    batches: BatchPolicy,
    num_draws: int,
    *,
    program: Program,
    capacity: int,
):
    """Take steps and keep draws on a page, and tell what is still finite."""

    def draw(state: Any, memory: dict, key: Key) -> tuple[Any, dict, Any]:
        state, info = program.steps(state, key, batches, program.thin)
        memory = {name: c.update(memory[name], state) for name, c in program.running}
        return state, memory, program.observe(state, info)

    alone = keys.shape[0] == 1
    if alone:  # without a batch axis XLA makes a tighter loop
        state, memory, keys = jax.tree.map(lambda x: x[0], (state, memory, keys))
    all_chains = draw if alone else jax.vmap(draw)

    def keep(i: jax.Array, carry: tuple) -> tuple:
        state, memory, pages = carry
        state, memory, seen = all_chains(state, memory, keys)
        pages = jax.tree.map(
            lambda page, x: jax.lax.dynamic_update_index_in_dim(page, x, i, 0), pages, seen
        )
        return state, memory, pages

    shapes = jax.eval_shape(all_chains, state, memory, keys)[2]
    pages = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    state, memory, pages = jax.lax.fori_loop(0, num_draws, keep, (state, memory, pages))
    if alone:
        state, memory = jax.tree.map(lambda x: x[None], (state, memory))
        pages = jax.tree.map(lambda page: page[:, None], pages)
    return state, memory, pages, jax.vmap(_finite)(state)


def step_size(state: Any, keys: Key, batches: BatchPolicy, *, program: Program) -> tuple[jax.Array]:
    """Give the step size of the next step; XLA leaves out the step itself."""
    return (jax.vmap(lambda s, k: program.steps(s, k, batches, 1)[1].step_size)(state, keys),)


def _finite(state: Any) -> jax.Array:
    """Tell for each leaf of one chain's state whether it is finite."""
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(state)])


def compiler_options() -> dict[str, int]:
    """Say what XLA should know when it compiles a chain: on a CPU, to use the widest vectors there are.

    For `jax.jit(..., compiler_options=...)` around `chain`; `sample` does it by itself. It pays where noise and
    thermostat are a good part of a step (`benchmarks/networks.py` has SGD compiled both ways).
    """
    return {"xla_cpu_prefer_vector_width": 512} if jax.default_backend() == "cpu" else {}


@cache
def compiled(function: Callable, *static: str, donate: bool = True) -> Callable:
    """Compile a chunk, which takes over the memory of its state; only when the first one runs is it known on what."""
    return jax.jit(
        function,
        static_argnames=static,
        donate_argnums=0 if donate else (),
        compiler_options=compiler_options(),
    )


class Pace:
    """Choose how much to do per chunk from how long the last one took."""

    def __init__(self) -> None:
        self.size, self.compiled, self.since = 8, False, 0.0

    def next(self, left: int) -> int:
        """Say how much of what is left comes next."""
        self.since = time.perf_counter()
        return min(self.size, left)

    def took(self, num: int) -> None:
        """Look at the clock after a chunk."""
        if not self.compiled:  # the first chunk includes compilation and says nothing
            self.compiled = True
            return
        seconds = max(time.perf_counter() - self.since, 1e-6)
        wanted = num * CHUNK_SECONDS / seconds
        self.size = int(min(max(wanted, 1), 16 * num))


class SteadyPace:
    """Cut at multiples of a size, on every machine and after every interruption alike."""

    def __init__(self, size: int, done: int) -> None:
        self.size, self.done = max(1, size), done

    def next(self, left: int) -> int:
        """Say how much of what is left comes next."""
        return min(self.size - self.done % self.size, left)

    def took(self, num: int) -> None:
        """Note how far it is."""
        self.done += num

r"""The only loop: compiled chunks of steps, with Python in between.

Inside a chunk everything is one XLA program over all chains; between chunks the host moves
draws off the device, looks for divergence (NaN is absorbing in every recursion here, so one look per
chunk finds it), and moves the progress bar. Step $t$ of a chain depends on nothing but the chain's
key, its state and $t$, so how a run is cut into chunks does not change a single bit of it.

From one kept draw to the next the loop carries *opened* steps (`Halves`): the end of a step and the start of
the next become one pass over memory.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.batches import BatchPolicy
from isotherm.checkpoint import Checkpoints, Keeper, Progressed, describe, digest
from isotherm.collect import Collector, Draws, Running
from isotherm.diagnostics.temperature import kinetic_temperature
from isotherm.progress import make_progress
from isotherm.runs import DivergedError, Run
from isotherm.tree import as_position, leaf_names, leaf_sizes
from isotherm.types import ArrayTree, Key, Sampler, StepInfo

CHUNK_SECONDS = 0.25
"""How long a chunk should take: short enough for a living progress bar and a quick Ctrl-C."""
CHUNK_BYTES = 2**25
"""How much a chunk may hold on the device before its draws move to the host."""
BURN_IN_BLOCK = 100
"""Steps of the burn-in that are run as one; always the same, so that rounding does not depend on the pace."""


class PolicyWarning(UserWarning):
    """The batch policy contradicts what the sampler assumes about gradient noise."""


def sample(
    key: Key,
    sampler: Sampler,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_draws: int,
    thin: int = 1,
    burn_in: int = 0,
    num_chains: int = 1,
    collect: Mapping[str, Collector] | None = None,
    state: Any = None,
    position_per_chain: bool = False,
    on_divergence: str = "raise",
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
) -> Run:
    """Run chains of a sampler and keep what they find.

    Parameters
    ----------
    key
        Determines everything: chains, batches and noise.
    sampler
        From `isotherm.msgnht` and its relatives, or any `Sampler(init, step)`.
    position
        Where the chains start, a pytree of floating-point arrays.
    batches
        A batch policy: `isotherm.independent_batches(data, batch_size)`, …
    num_draws
        Draws to keep per chain.
    thin
        Steps from one kept draw to the next.
    burn_in
        Steps before the first of these.
    num_chains
        Independent chains, run at once, each with its own noise and batches.
    collect
        What to keep, by name (`isotherm.draws`, `moments`, `average`); all draws if not given.
    state
        Go on from here (`run.state`) instead of `position`.
    position_per_chain
        Whether `position` has a leading axis with one start per chain.
    on_divergence
        `"raise"` stops with `DivergedError`, which keeps the draws made so far; `"continue"` lets
        the other chains go on and marks the lost ones in `run.diverged`.
    progress
        Show a progress bar; by default if stderr is a terminal.
    checkpoint
        A folder to save the run in, now and then, at its end, and before Ctrl-C or SIGTERM is obeyed. The same
        call goes on from what is there, and its result is that of a run never cut, bit for bit; with more
        `num_draws` it goes further. A folder of another run is refused.
    checkpoint_seconds
        Time from one save to the next.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> sampler = isotherm.msgnht(lambda x, batch: -x, step_size=0.2)
    >>> run = isotherm.sample(jax.random.key(0), sampler, jnp.zeros(2), isotherm.no_batches(),
    ...                       num_draws=100, thin=5, num_chains=4)
    >>> run.draws.shape
    (4, 100, 2)
    """
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ValueError(f"`key` must be a typed key, as jax.random.key(0) makes it, got {key!r}.")
    _check_counts(num_draws, thin, burn_in, num_chains)
    if on_divergence not in ("raise", "continue"):
        raise ValueError(f"`on_divergence` must be 'raise' or 'continue', got {on_divergence!r}.")
    if not hasattr(batches, "batch"):
        raise ValueError(
            "`batches` must be a batch policy such as isotherm.independent_batches((x, y), 100) or "
            f"isotherm.no_batches(), got {type(batches).__name__}."
        )
    _warn_about_policy(sampler, batches)
    if collect is not None and not isinstance(collect, Mapping):
        raise ValueError("`collect` must map names to isotherm.draws, moments or average objects.")
    collectors = {"draws": Draws()} if collect is None else dict(collect)
    running = {n: c for n, c in collectors.items() if isinstance(c, Running)}
    stacked = {n: c for n, c in collectors.items() if isinstance(c, Draws)}
    if len(running) + len(stacked) < len(collectors):
        raise ValueError("`collect` must map names to isotherm.draws, moments or average objects.")

    chain_keys = jax.vmap(lambda i: random.fold(key, i))(jnp.arange(num_chains))
    if state is None:
        state = _start(sampler, position, chain_keys, position_per_chain)
    elif state.step_index.shape != (num_chains,):
        raise ValueError(
            f"`state` has {state.step_index.size} chains, but `num_chains` is {num_chains}."
        )
    state = jax.tree.map(jnp.copy, state)  # chunks reuse its memory; the caller's stays as it is
    memory = jax.vmap(lambda s: {n: c.start(s) for n, c in running.items()})(state)
    one = jax.tree.map(lambda leaf: leaf[0], state)
    program = _Program(sampler, tuple(running.items()), tuple(stacked.items()), thin)
    capacity = _capacity(program, one, num_chains, num_draws)
    host = _HostSide(sampler, state, thin, burn_in, num_chains, on_divergence)
    done, kept, saved = 0, 0, None
    if checkpoint is not None:
        belongs_to = _which_run(key, sampler, batches, state, memory, thin, burn_in)
        saved = Checkpoints(checkpoint, belongs_to)
        if (found := saved.load(state, memory, _page_like(program, one, num_chains))) is not None:
            done, kept = found.done, found.kept
            state, memory = jax.tree.map(jnp.asarray, (found.state, found.memory))
            host.pages, host.diverged = found.pages, found.diverged
            if kept > num_draws:
                raise ValueError(
                    f"`{checkpoint}` has {kept} draws already, more than `num_draws` {num_draws}."
                )

    def progressed(num_saved: int) -> Progressed:
        return host.progressed(done, kept, state, memory, num_saved)

    label = f"{sampler.traits.name} x {num_chains}"
    with (
        make_progress(progress, burn_in + num_draws * thin, label) as bar,
        Keeper(saved, checkpoint_seconds) as keeper,
    ):
        bar.advance(done + kept * thin, None, None)
        advance = _compiled(_advance, "program")
        collect_chunk = _compiled(_collect, "program", "capacity")
        pace = _Pace()
        block = BURN_IN_BLOCK if done else burn_in % BURN_IN_BLOCK or BURN_IN_BLOCK
        while done < burn_in:  # what is left over of whole blocks goes first
            n = pace.next((burn_in - done) // block) if done else 1
            state, finite = advance(state, chain_keys, batches, n, block, program=program)
            host.check(state, finite, done, done + n * block)
            pace.took(n)
            done += n * block
            bar.advance(n * block, host.temperature(state), None)
            block = BURN_IN_BLOCK
            keeper.after_chunk(progressed)
        pace = _Pace()
        while kept < num_draws:
            n = min(pace.next(num_draws - kept), capacity)
            before = memory  # still good if this chunk is not
            state, memory, pieces, finite = collect_chunk(
                state, memory, chain_keys, batches, n, program=program, capacity=capacity
            )
            # A copy, so that the page, which has room for many more, can go.
            pieces = jax.tree.map(lambda page, n=n: np.asarray(page)[:n].copy(), pieces)
            pieces = jax.tree.map(lambda page: np.swapaxes(page, 0, 1), pieces)
            host.keep(pieces)
            first = burn_in + kept * thin
            host.check(state, finite, first, first + n * thin, before, running)
            pace.took(n)
            kept += n
            bar.advance(n * thin, host.temperature(state), float(pieces[1]["step_size"][0, -1]))
            keeper.after_chunk(progressed, last=kept == num_draws)
    return host.run(state, memory, running)


def chain(
    key: Key,
    sampler: Sampler,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_draws: int,
    thin: int = 1,
    burn_in: int = 0,
) -> tuple[ArrayTree, Any]:
    """Run one chain as a pure function: for `jax.jit`, and for `jax.vmap` over settings.

    `sample` runs many chains of *one* sampler, with progress, a look for divergence and draws
    moved to the host. This runs one chain of a sampler whose step size or diffusion may be
    traced, so that a whole grid of settings becomes one program. A chain that diverges ends in
    NaN. Draws are those of `sample`, which gives chain `i` the key `isotherm.random.fold(key, i)`.

    Parameters
    ----------
    key, sampler, position, batches, num_draws, thin, burn_in
        As in `sample`.

    Returns
    -------
    The draws, with a leading axis, and the last state.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> def spread(step_size, key):
    ...     sampler = isotherm.msgnht(lambda x, batch: -x, step_size)
    ...     draws, _ = isotherm.chain(key, sampler, jnp.zeros(2), isotherm.no_batches(),
    ...                               num_draws=200, thin=10)
    ...     return draws.std()
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> jax.jit(jax.vmap(spread))(jnp.array([0.1, 0.2, 0.4]), keys).shape
    (3,)
    """
    _check_counts(num_draws, thin, burn_in, num_chains=1)
    program = _Program(sampler, (), (), thin)
    state = sampler.init(as_position(position), random.fold(key, 2))
    if burn_in:
        state = program.steps(state, key, batches, burn_in)[0]

    def draw(state: Any, _: None) -> tuple[Any, ArrayTree]:
        state = program.steps(state, key, batches, thin)[0]
        return state, state.position

    state, draws = jax.lax.scan(draw, state, length=num_draws)
    return draws, state


def _check_counts(num_draws: int, thin: int, burn_in: int, num_chains: int) -> None:
    least = {"num_draws": (num_draws, 1), "thin": (thin, 1), "burn_in": (burn_in, 0)}
    for name, (value, bound) in {**least, "num_chains": (num_chains, 1)}.items():
        if value != int(value) or value < bound:
            raise ValueError(f"`{name}` must be a whole number of at least {bound}, got {value}.")
    if burn_in + num_draws * thin >= 2**31:
        raise ValueError(
            "A chain may take at most 2**31 - 1 steps; go on from `run.state` with a new key."
        )


def _warn_about_policy(sampler: Sampler, batches: BatchPolicy) -> None:
    if sampler.traits.adaptive and batches.policy in ("shuffled", "symmetric"):
        warnings.warn(
            f"{sampler.traits.name} with {batches.policy} batches: its thermostat takes gradient "
            "noise for independent from step to step, but within an epoch it cancels. The posterior "
            "variance can come out half as large as it is. Use isotherm.independent_batches, or "
            "keep the sweeps and use a fixed friction (isotherm.sghmc).",
            PolicyWarning,
            stacklevel=3,
        )


def _start(sampler: Sampler, position: ArrayTree, keys: Key, per_chain: bool) -> Any:
    position = as_position(position)
    num_chains = keys.shape[0]
    if per_chain and any(leaf.shape[:1] != (num_chains,) for leaf in jax.tree.leaves(position)):
        raise ValueError(
            f"`position_per_chain` needs a leading axis of {num_chains} on every leaf of `position`."
        )
    # Three keys per chain: 0 makes the noise, 1 the batches, 2 the start.
    start = jax.vmap(lambda x, k: sampler.init(x, random.fold(k, 2)), (0 if per_chain else None, 0))
    return start(position, keys)


@dataclass(frozen=True)
class _Program:
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
def _compiled(function: Callable, *static: str) -> Callable:
    """Compile a chunk; only when the first one runs is it known on what."""
    return jax.jit(
        function, static_argnames=static, donate_argnums=0, compiler_options=compiler_options()
    )


def _advance(
    state: Any, keys: Key, batches: BatchPolicy, num_blocks: int, size: int, *, program: _Program
):
    def chain(state: Any, key: Key) -> tuple[Any, jax.Array]:
        state = jax.lax.fori_loop(
            0, num_blocks, lambda _, s: program.steps(s, key, batches, size)[0], state
        )
        return state, _finite(state)

    return jax.vmap(chain)(state, keys)


def _collect(
    state: Any, memory: Any, keys: Key, batches: BatchPolicy, num_draws: int,
    *, program: _Program, capacity: int,
):  # fmt: skip
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


def _observed(program: _Program, state: Any) -> Any:
    """Give the shapes of what is kept of a draw of one chain."""
    num_leaves = len(jax.tree.leaves(state.position))
    info = StepInfo(jnp.zeros(()), jnp.zeros(num_leaves))
    return jax.eval_shape(program.observe, state, info)


def _page_like(program: _Program, state: Any, num_chains: int) -> Any:
    """Give the shapes of a page without draws."""
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((num_chains, 0, *s.shape), s.dtype),
        _observed(program, state),
    )


def _which_run(
    key: Key, sampler: Sampler, batches: BatchPolicy, state: Any, memory: Any, thin: int, burn_in: int
) -> dict[str, Any]:  # fmt: skip
    """Say what makes a run this run, as far as it can be seen from outside."""
    traits = sampler.traits
    return {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "sampler": [traits.name, traits.integrator, traits.thermostat, float(traits.temperature)],
        "batches": [batches.policy, getattr(batches, "batch_size", None), digest(batches)],
        "thin": thin,
        "burn_in": burn_in,
        "num_chains": state.step_index.shape[0],
        "state": describe(state),
        "collect": describe(memory),
    }


def _capacity(program: _Program, state: Any, num_chains: int, num_draws: int) -> int:
    """How many draws fit on the device at once."""
    kept = jax.tree.leaves(_observed(program, state))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in kept) * num_chains
    return max(1, min(num_draws, CHUNK_BYTES // size))


class _Pace:
    """Choose how much to do per chunk from how long the last one took."""

    def __init__(self) -> None:
        self.size, self.compiled, self.since = 8, False, 0.0

    def next(self, left: int) -> int:
        self.since = time.perf_counter()
        return min(self.size, left)

    def took(self, num: int) -> None:
        if not self.compiled:  # the first chunk includes compilation and says nothing
            self.compiled = True
            return
        seconds = max(time.perf_counter() - self.since, 1e-6)
        wanted = num * CHUNK_SECONDS / seconds
        self.size = int(min(max(wanted, 1), 16 * num))


def _one_page(pages: list[Any]) -> Any:
    """Put pages of draws, (chain, draw, …), one behind the other."""
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *pages)


class _HostSide:
    """What stays in Python: pages of draws, the look for divergence, the result."""

    def __init__(
        self, sampler: Sampler, state: Any, thin: int, burn_in: int, num_chains: int, policy: str
    ) -> None:
        self.sampler, self.thin, self.burn_in, self.policy = sampler, thin, burn_in, policy
        self.state_names = leaf_names(state)
        one = jax.tree.map(lambda leaf: leaf[0], state)
        self.names = tuple(leaf_names(one.position))
        self.sizes = tuple(int(n) for n in leaf_sizes(getattr(one, "momentum", ())))
        self.diverged = np.zeros(num_chains, bool)
        self.pages: list[Any] = []
        self.started = time.perf_counter()

    def keep(self, page: Any) -> None:
        self.pages.append(page)

    def progressed(
        self, done: int, kept: int, state: Any, memory: Any, num_saved: int
    ) -> Progressed:
        """Give all that a checkpoint needs; pages not saved yet become one."""
        if len(self.pages) > num_saved:
            self.pages[num_saved:] = [_one_page(self.pages[num_saved:])]
        return Progressed(done, kept, self.diverged, state, memory, list(self.pages))

    def temperature(self, state: Any) -> float | None:
        if not hasattr(state, "momentum"):
            return None
        leaves = [np.asarray(p, np.float64) for p in jax.tree.leaves(state.momentum)]
        return float(sum((p**2).sum() for p in leaves) / sum(p.size for p in leaves))

    def check(
        self, state: Any, finite: jax.Array, first: int, last: int, memory: Any = None,
        running: Mapping[str, Running] | None = None,
    ) -> None:  # fmt: skip
        """Find chains that diverged between steps `first` and `last`."""
        lost = ~np.asarray(finite)
        fresh = lost.any(1) & ~self.diverged
        self.diverged |= lost.any(1)
        if not fresh.any() or self.policy == "continue":
            return
        chain = int(np.flatnonzero(fresh)[0])
        leaf = self.state_names[int(np.flatnonzero(lost[chain])[0])]
        good = 0
        if memory is not None:
            good = self._trim()
            last = min(last, first + (good + 1) * self.thin)
            first += good * self.thin
        raise DivergedError(chain, first, last, leaf, self.run(state, memory or {}, running or {}))

    def _trim(self) -> int:
        """Cut the last page before the first draw that is not finite; return what is left of it."""
        page = self.pages[-1]
        leaves = jax.tree.leaves(page)
        bad = sum(~np.isfinite(x.astype(np.float64)).all((0, *range(2, x.ndim))) for x in leaves)
        good = int(np.argmax(bad > 0)) if np.any(bad) else leaves[0].shape[1]
        self.pages[-1] = jax.tree.map(lambda x: x[:, :good], page)
        return good

    def run(self, state: Any, memory: Any, running: Mapping[str, Running]) -> Run:
        """Put everything together."""
        kept, stats = {}, {}
        if self.pages:
            kept, stats = _one_page(self.pages)
        collected = dict(kept)
        for name, collector in running.items():
            collected[name] = jax.tree.map(np.asarray, collector.result(memory[name]))
        step_sizes = stats.get("step_size")
        return Run(
            draws=collected.get("draws"),
            collected=collected,
            stats=stats,
            state=state,
            diverged=self.diverged,
            traits=self.sampler.traits,
            momentum_sizes=self.sizes,
            leaf_names=self.names,
            num_draws=0 if step_sizes is None else step_sizes.shape[1],
            thin=self.thin,
            burn_in=self.burn_in,
            seconds=time.perf_counter() - self.started,
        )

"""Advance all chains of a run by one chunk, and assemble the result.

A run is a `Job`, which stays the same, and a `RunState`, which functions advance. The arrays of
`RunState.state` are donated to the chunk that advances them; to use a state again, take a
`snapshot` of it first.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.batches.streamed import StreamedBatches
from isotherm.loop import chunks, pages
from isotherm.loop.chunks import FixedPace, Pace, Program, TimedPace
from isotherm.loop.devices import Devices
from isotherm.loop.feed import Feed
from isotherm.loop.progress import ProgressReport
from isotherm.loop.run import Run, momentum_names
from isotherm.loop.state import Plan, RunState
from isotherm.loop.traces import fingerprint, is_known_by_text
from isotherm.tree import leaf_names, leaf_sizes, signature, tracing_options
from isotherm.types import BatchPolicy, Key, Sampler, Traits

BURN_IN_BLOCK = 100
"""Burn-in steps per compiled loop; fixed, so that rounding does not depend on the chunks."""


MOST_KNOWN = 16
"""Compiled programs that are remembered."""


class Compiled(NamedTuple):
    """A compiled program that makes draws."""

    program: Program
    """What it was compiled for, without parameters."""
    temporary_bytes: int
    """Its temporary arrays, such as activations; 0 if the compiler does not tell."""


_compiled: dict[Any, Compiled] = {}
"""By program and shapes, and by the hash of the trace."""


@dataclass(frozen=True, eq=False)
class Job:
    """What stays the same during a run."""

    plan: Plan
    make_sampler: Callable[[float], Sampler]
    """Builds the sampler with its step size times a factor; returns the same one each time."""
    keys: Key
    """One per chain."""
    batches: BatchPolicy
    devices: Devices
    one: Any
    """The state of one chain, for its shapes."""
    capacity: int
    """Draws that a page has room for."""
    burn_in_pace: Pace
    draw_pace: Pace
    started: float
    """Clock at the start, in seconds."""
    call: Mapping[str, Any]
    """The arguments of `sample`, for `Run.call`."""
    feed: Feed | None = None
    """Of streamed batches."""
    compiled: Program | None = None
    """An equal program, compiled earlier, in place of that of the sampler before any rollback."""

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.keys.shape[0]

    @property
    def traits(self) -> Traits:
        """Traits of the sampler."""
        return self.make_sampler(1.0).traits

    @property
    def momentum_sizes(self) -> tuple[int, ...]:
        """Coordinates of each leaf of the momentum; empty for a sampler without one."""
        return tuple(int(n) for n in leaf_sizes(getattr(self.one, "momentum", ())))

    @property
    def position_names(self) -> tuple[str, ...]:
        """Names of the leaves of the position."""
        return tuple(leaf_names(self.one.position))

    def program(self, run: RunState) -> Program:
        """Return the program for the current step size: halved once per rollback."""
        program = make_program(self.make_sampler(0.5 ** len(run.rollbacks)), self.plan)
        if self.compiled is None or run.rollbacks:
            return program
        return replace(self.compiled, parameters=program.parameters)

    def empty_page(self) -> Any:
        """Return the shapes of a page without draws."""
        return make_program(self.make_sampler(1.0), self.plan).empty_page(self.one, self.num_chains)


def make_program(sampler: Sampler, plan: Plan) -> Program:
    """Return what is compiled for a sampler and a plan."""
    collectors = tuple(plan.running.items()), tuple(plan.stacked.items())
    family = getattr(sampler, "family", None)
    if family is None:
        return Program(sampler, *collectors, plan.thin)
    return Program(family.build, *collectors, plan.thin, family.parameters)


def prepare(
    keys: Key,
    make_sampler: Callable[[float], Sampler],
    state: Any,
    batches: BatchPolicy,
    plan: Plan,
    devices: Devices,
    call: Mapping[str, Any],
) -> tuple[Job, RunState]:
    """Put keys, data and states on the devices; return the job and its first state."""
    one = jax.tree.map(lambda leaf: leaf[0], state)
    num_chains = keys.shape[0]
    program = make_program(make_sampler(1.0), plan)
    capacity = program.capacity(one, num_chains, plan.num_draws)
    burn_in_pace: Pace = TimedPace()
    draw_pace: Pace = TimedPace()
    if plan.on_divergence == "rollback":
        burn_in_pace = FixedPace(chunks.CHUNK_STEPS // BURN_IN_BLOCK)
        draw_pace = FixedPace(min(chunks.CHUNK_STEPS // plan.thin, capacity))
        if isinstance(batches, StreamedBatches):  # which count steps, not blocks or draws
            burn_in_pace = draw_pace = FixedPace(chunks.CHUNK_STEPS)
    feed = None
    if isinstance(batches, StreamedBatches):
        feed = Feed(batches, keys, devices, plan.num_steps, _common_step(state))
        batches, capacity = feed.placeholder(), min(capacity, feed.length // plan.thin + 1)
    job = Job(
        plan,
        make_sampler,
        devices.put_keys(keys),
        devices.put_batches(batches),
        devices,
        one,
        capacity,
        burn_in_pace,
        draw_pace,
        started=time.perf_counter(),
        call=call,
        feed=feed,
    )
    accumulators = jax.vmap(lambda s: {n: c.start(s) for n, c in plan.running.items()})(state)
    run = RunState(
        burn_in_done=0,
        num_kept=0,
        diverged=np.zeros(num_chains, bool),
        state=devices.put_chains(jax.tree.map(jnp.copy, state)),  # a copy: chunks donate it
        accumulators=devices.put_chains(accumulators),
    )
    return job, run


def _common_step(state: Any) -> int:
    """Return the steps that all chains have taken before the run."""
    steps = set(np.asarray(state.step_index).tolist())
    if len(steps) > 1:
        raise ValueError(
            f"With streamed batches all chains of `state` must have taken as many steps, got "
            f"{sorted(steps)}."
        )
    return steps.pop()


def snapshot(run: RunState) -> RunState:
    """Copy the arrays that the next chunk donates."""
    return run._replace(state=jax.tree.map(jnp.copy, run.state))


class Chunk(NamedTuple):
    """A run before and after one chunk."""

    before: RunState
    """Without its `state`, whose arrays were donated."""
    after: RunState
    """Not yet checked: divergence is not marked."""
    diverged: np.ndarray
    """Leaves of the state that are not finite, (chain, leaf)."""

    @property
    def has_draws(self) -> bool:
        """Whether the chunk made draws; otherwise it was part of the burn-in."""
        return self.after.num_kept > self.before.num_kept


def advance(job: Job, run: RunState, *, only_to_draw: bool = False) -> Chunk:
    """Run one compiled chunk: part of the burn-in, or some draws.

    With `only_to_draw` a run of streamed batches goes no further than to its next draw.
    """
    step = _burn_in if run.burn_in_done < job.plan.burn_in else _draw
    if job.feed is not None:
        step = partial(_stream, only_to_draw=only_to_draw)
    after, finite = step(job, run)
    return Chunk(run._replace(state=None), after, ~finite)


def _burn_in(job: Job, run: RunState) -> tuple[RunState, np.ndarray]:
    """Take steps before the first draw; what exceeds whole blocks comes first."""
    total, done = job.plan.burn_in, run.burn_in_done
    size, number = total % BURN_IN_BLOCK or BURN_IN_BLOCK, 1
    if done:
        size, blocks_done = BURN_IN_BLOCK, -(-done // BURN_IN_BLOCK)
        number = job.burn_in_pace.next(blocks_done, (total - done) // size)
        (number,) = job.devices.agree(number)
    compiled = job.devices.compiled(chunks.advance)
    state, finite = compiled(
        run.state, job.keys, job.batches, number, size, program=job.program(run)
    )
    finite = np.asarray(finite)  # wait for the device before reading the clock
    job.burn_in_pace.took(number)
    return run._replace(state=state, burn_in_done=done + number * size), finite


def _draw(job: Job, run: RunState) -> tuple[RunState, np.ndarray]:
    """Make draws and move them to the host."""
    number = job.draw_pace.next(run.num_kept, job.plan.num_draws - run.num_kept)
    (number,) = job.devices.agree(min(number, job.capacity))
    compiled, arguments, static = _draw_program(job, run, number)
    state, accumulators, page, finite = compiled(*arguments, **static)
    page = pages.move_to_host(page, number)
    job.draw_pace.took(number)
    after = run._replace(
        state=state,
        accumulators=accumulators,
        num_kept=run.num_kept + number,
        pages=(*run.pages, page),
    )
    return after, np.asarray(finite)


def _draw_program(job: Job, run: RunState, number: int) -> tuple[Any, tuple, dict[str, Any]]:
    """Return the function that makes draws, and its arguments."""
    compiled = job.devices.compiled(chunks.collect, "capacity")
    arguments = (run.state, run.accumulators, job.keys, job.batches, number)
    return compiled, arguments, {"program": job.program(run), "capacity": job.capacity}


def compile_draws(job: Job, run: RunState) -> tuple[Job, int]:
    """Compile the program that makes draws, unless an equal one is compiled already.

    Samplers that were built again, and collectors with other functions of equal code, are traced to
    an equal program; such a job uses the earlier one.

    Returns
    -------
    The job, and the bytes of temporary arrays of the program. They are 0 on a mesh of devices,
    whose memory is not that of the host, and for streamed batches, whose program depends on the
    first batches.
    """
    if job.feed is not None or job.plan.is_finished(run) or run.rollbacks:
        return job, 0
    function, arguments, static = _draw_program(job, run, 1)
    if not hasattr(function, "lower"):
        return job, 0
    program = static["program"]
    structure = jax.tree.structure(program.parameters)
    shapes = signature((run.state, run.accumulators, job.batches))
    key = (program.fixed, structure, job.capacity, job.keys.dtype, shapes, tracing_options())
    if key not in _compiled:
        traced = function.trace(*arguments, **static)
        equal = (fingerprint(traced), *key[1:]) if is_known_by_text(traced) else key
        if equal not in _compiled:
            memory = traced.lower().compile().memory_analysis()
            size = int(getattr(memory, "temp_size_in_bytes", 0))
            _remember(equal, Compiled(program.fixed, size))
        _remember(key, _compiled[equal])
    found = _compiled[key]
    return replace(job, compiled=found.program), found.temporary_bytes


def _remember(key: Any, compiled: Compiled) -> None:
    if len(_compiled) >= 2 * MOST_KNOWN:
        del _compiled[next(iter(_compiled))]
    _compiled[key] = compiled


def _block(plan: Plan, run: RunState) -> tuple[int, int]:
    """Return the steps from one draw, or part of the burn-in, to the next, and where that ends."""
    if run.burn_in_done < plan.burn_in:
        return BURN_IN_BLOCK, plan.burn_in
    return plan.thin, plan.num_steps


def is_inside_step(job: Job, run: RunState) -> bool:
    """Return whether the states are open: their gradients are still to be evaluated."""
    size, end = _block(job.plan, run)
    done = job.plan.steps_done(run)
    return job.feed is not None and done > 0 and (end - done) % size != 0


def _stream(job: Job, run: RunState, *, only_to_draw: bool = False) -> tuple[RunState, np.ndarray]:
    """Take steps of the burn-in, or steps and draws, as far as the stack of batches reaches."""
    feed, plan = job.feed, job.plan
    assert feed is not None
    done, is_burn_in = plan.steps_done(run), run.burn_in_done < plan.burn_in
    pace = job.burn_in_pace if is_burn_in else job.draw_pace
    size, end = _block(plan, run)
    first = (end - done - 1) % size + 1
    batches, end_of_stack = feed.stack(done, run.source)
    if only_to_draw:
        end_of_stack = min(end_of_stack, done + first)
    elif not is_burn_in:  # no more draws than a page has room for
        end_of_stack = min(end_of_stack, done + first + job.capacity * size - 1)
    number = pace.next(done, min(end, end_of_stack) - done)
    (number,) = job.devices.agree(number)
    if plan.on_divergence == "rollback" and number >= first:  # to where a rollback may return
        number -= (number - first) % size
    ends = 0 if number < first else 1 + (number - first) // size
    rest = number if ends == 0 else (number - first) % size
    is_open = int(is_inside_step(job, run))
    compiled = job.devices.compiled(
        chunks.stream_shared if feed.shared else chunks.stream, "capacity"
    )
    state, accumulators, page, finite = compiled(
        run.state,
        run.accumulators,
        job.keys,
        batches,
        chunks.Cuts(is_open, first, size, ends, rest),
        program=job.program(run),
        capacity=0 if is_burn_in else job.capacity,
    )
    finite = np.asarray(finite)  # wait for the device before reading the clock
    pace.took(number)
    run = run._replace(state=state, accumulators=accumulators, source=feed.position(done + number))
    if is_burn_in:
        return run._replace(burn_in_done=done + number), finite
    page = (pages.move_to_host(page, ends),) if ends else ()
    into_draw = rest if ends else plan.thin - first + rest
    return run._replace(
        num_kept=run.num_kept + ends, steps_into_draw=into_draw, pages=(*run.pages, *page)
    ), finite


def step_sizes(job: Job, run: RunState) -> np.ndarray:
    """Compute the size of the next step of every chain."""
    compiled = job.devices.compiled(chunks.step_size, donate=False)
    (sizes,) = compiled(run.state, job.keys, job.batches, program=job.program(run))
    return np.asarray(sizes)


def kinetic_temperatures(job: Job, run: RunState) -> np.ndarray:
    """Return the kinetic temperature of every chain and leaf; (chains, 0) without momenta."""
    if (
        job.momentum_sizes and run.pages and not run.steps_into_draw
    ):  # the last draw is the current state
        return run.pages[-1][1]["kinetic_temperature"][:, -1]
    leaves = jax.tree.leaves(job.devices.gather(getattr(run.state, "momentum", ())))
    with np.errstate(over="ignore", invalid="ignore"):
        means = [(np.asarray(p, np.float64).reshape(len(p), -1) ** 2).mean(1) for p in leaves]
    return np.stack(means, 1) if means else np.zeros((job.num_chains, 0))


def mean_temperature(job: Job, run: RunState) -> float | None:
    """Return the kinetic temperature of all momenta together; `None` without momenta."""
    temperatures, sizes = kinetic_temperatures(job, run), job.momentum_sizes
    return float((temperatures @ sizes).mean() / sum(sizes)) if temperatures.size else None


def progress_report(job: Job, chunk: Chunk, run: RunState, first_step: int) -> ProgressReport:
    """Describe how far a run is after a chunk; the call began at `first_step`."""
    temperatures = kinetic_temperatures(job, run).mean(0)
    names = momentum_names(job.position_names, len(job.momentum_sizes))
    went_back = run.num_kept < chunk.after.num_kept
    fresh = () if went_back else run.pages[len(chunk.before.pages) :]
    state = job.devices.gather(run.state)
    return ProgressReport(
        step=job.plan.steps_done(run),
        num_steps=job.plan.num_steps,
        num_draws=run.num_kept,
        seconds=time.perf_counter() - job.started,
        step_size=last_step_size(run),
        temperature=mean_temperature(job, run),
        temperatures=dict(zip(names, temperatures.tolist(), strict=True)),
        diverged=run.diverged,
        draws=pages.join(fresh)[0],
        state=lambda: state,
        first_step=first_step,
    )


def last_step_size(run: RunState) -> float | None:
    """Return the step size of the last draw, in the first chain."""
    return float(run.pages[-1][1]["step_size"][0, -1]) if run.pages else None


def assemble(job: Job, run: RunState) -> Run:
    """Build the result of a run."""
    values, stats = pages.join(run.pages)
    collected = dict(values)
    if run.accumulators is not None:
        accumulators = job.devices.gather(run.accumulators)
        for name, collector in job.plan.running.items():
            collected[name] = jax.tree.map(np.asarray, collector.result(accumulators[name]))
    h = stats.get("step_size")
    return Run(
        draws=collected.get("draws"),
        collected=collected,
        stats=stats,
        state=job.devices.gather(run.state),
        diverged=run.diverged,
        traits=job.traits,
        momentum_sizes=job.momentum_sizes,
        leaf_names=job.position_names,
        num_draws=0 if h is None else h.shape[1],
        thin=job.plan.thin,
        burn_in=job.plan.burn_in,
        seconds=time.perf_counter() - job.started,
        rollbacks=run.rollbacks,
        call=job.call,
    )

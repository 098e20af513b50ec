r"""The only loop: compiled chunks of steps, with Python in between.

A chunk is one XLA program over all chains (`chunks.py`). Between chunks the host moves draws off
the device, checks for divergence (`divergence.py`), saves, and moves the progress bar. Step $t$ of
a chain depends on nothing but the chain's key, its state and $t$, so how a run is cut into chunks
does not change a single bit of it.

Between two kept draws the loop carries *opened* steps (`Halves`), so that XLA joins the end of a
step and the start of the next in one pass over memory.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from isotherm import random
from isotherm.exceptions import (
    CheckpointWarning,
    ConvergenceWarning,
    HealthWarning,
    LostDrawsWarning,
)
from isotherm.io.digest import digest
from isotherm.io.locks import locked
from isotherm.loop import pages
from isotherm.loop.arguments import (
    check_batches,
    check_key,
    check_state,
    count_chains,
    make_plan,
    sampler_factory,
    start,
)
from isotherm.loop.chains import (
    Chunk,
    Job,
    advance,
    assemble,
    compile_draws,
    last_step_size,
    make_program,
    mean_temperature,
    prepare,
    progress_report,
    snapshot,
)
from isotherm.loop.checkpoint import Checkpoints, PeriodicSaver, describe
from isotherm.loop.chunks import Program
from isotherm.loop.collect import Collector
from isotherm.loop.devices import Devices
from isotherm.loop.divergence import POLICIES
from isotherm.loop.forecast import (
    Forecast,
    describe_full_disk,
    describe_shortage,
    forecast,
    one_chain,
)
from isotherm.loop.health import HealthMonitor
from isotherm.loop.progress import ProgressReport, make_progress
from isotherm.loop.run import Run, describe_disagreement, describe_loss
from isotherm.loop.state import Plan, RunState
from isotherm.loop.traces import fingerprint, trace
from isotherm.loop.user_warnings import Message, warn_user
from isotherm.tree import as_position, count, shapes_of, signature, tracing_options
from isotherm.types import ArrayTree, BatchPolicy, Key, Sampler


def sample(
    key: Key,
    sampler: Sampler | Callable[[float], Sampler],
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
    max_rollbacks: int = 5,
    progress: bool | None = None,
    callback: Callable[[ProgressReport], Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    checkpoint_keep: int = 2,
    checkpoint_in_parts: bool = False,
    mesh: Mesh | None = None,
    max_memory: float | None = None,
) -> Run:
    """Run chains of a sampler and keep their draws.

    Parameters
    ----------
    key
        Determines everything: chains, batches and noise.
    sampler
        From `isotherm.msgnht` and the other factories, or any `Sampler(init, step)`. For rollbacks,
        a function of a factor that builds it with its step size times the factor.
    position
        Where the chains start, a pytree of floating-point arrays.
    batches
        A batch policy: `isotherm.independent_batches(data, batch_size)`, …
    num_draws
        Draws to keep per chain.
    thin
        Steps from one kept draw to the next.
    burn_in
        Steps before the first draw.
    num_chains
        Independent chains, run at once, each with its own noise and batches.
    collect
        What to keep, by name (`isotherm.collect.draws`, `moments`, `average`, `probabilities`); by
        default all draws.
    state
        Continue from this state (`run.state`) instead of `position`.
    position_per_chain
        Whether `position` has a leading axis with one start per chain.
    on_divergence
        `"raise"` stops with `DivergedError`, which holds the draws made before; `"continue"` lets
        the other chains continue and marks the diverged ones in `run.diverged`; `"rollback"`
        returns all chains to the last good chunk (of 500 steps, or one draw if that is more),
        halves the step size and continues. `run.rollbacks` lists where and why.
    max_rollbacks
        Number of rollbacks after which a divergence raises `DivergedError`.
    progress
        Whether to show a progress bar; by default if stderr is a terminal.
    callback
        Called after every chunk (about four times per second) with a
        `isotherm.loop.ProgressReport`: steps, draws, temperatures, the current positions. If it
        returns `True`, the run ends with the draws made so far. The results of a run do not depend
        on when it is called; they do if it stops the run.
    checkpoint
        A folder in which the run is saved periodically, at its end, and before it stops for Ctrl-C
        or SIGTERM. The same call resumes from what is there, and its result is bit for bit that of
        an uninterrupted run; with more `num_draws` it continues further. The folder of another run
        (another model, step size, data or key) is refused.
    checkpoint_seconds
        Time between saves.
    checkpoint_keep
        Number of saves to keep: if the last is damaged, the one before is used.
    checkpoint_in_parts
        Whether every process writes its own part of the state with orbax (`isotherm[sharded]`),
        instead of the first process gathering it: for states that do not fit in one host. Both
        kinds of checkpoint can be resumed either way.
    mesh
        Devices, of one process or several, with axes `chain`, along which chains are distributed,
        and `data`, along which the shards of `isotherm.sharded_batches` are. Every process makes
        the same call and gets the same result. All must see the `checkpoint` folder, which the
        first process writes; a run can be resumed on another number of devices.
    max_memory
        Bytes of memory that the run may need. A run that needs more is refused before it starts,
        with the numbers; by default, more than is free. `float("inf")` refuses nothing, not even
        checkpoints that do not fit on the disk.

    Raises
    ------
    DivergedError
        If a chain diverges; see `on_divergence`.
    LostProcessError
        If another process has ended.

    Warns
    -----
    HealthWarning
        If the temperatures of a chain show that its draws are not the posterior
        (`isotherm.loop.health`); once.
    RollbackWarning, CheckpointWarning, PolicyWarning
        At the first rollback; if a checkpoint is damaged; if sampler and batch policy do not fit.
    ConvergenceWarning
        At the end, if several chains of at least 100 draws do not agree: R-hat is above 1.2 for a
        number of the position or of a collected value, if these have at most 100 numbers.
    LostDrawsWarning
        At the end, with counts, if chains have diverged (`on_divergence="continue"`) or collected
        values are not finite. `run.ok` is then false.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> sampler = isotherm.msgnht(lambda x, batch: -x, step_size=0.2)
    >>> run = isotherm.sample(jax.random.key(0), sampler, jnp.zeros(2), isotherm.no_batches(),
    ...                       num_draws=100, thin=5, num_chains=4)
    >>> run.draws.shape
    (4, 100, 2)
    """
    check_key(key)
    plan = make_plan(num_draws, thin, burn_in, collect, on_divergence, max_rollbacks)
    num_chains = count_chains(num_chains)
    make_sampler = sampler_factory(sampler, on_divergence)
    sampler = make_sampler(1.0)
    _warn(check_batches(sampler, batches))
    devices = Devices(mesh, num_chains, batches)
    if not (isinstance(checkpoint_seconds, int | float) and checkpoint_seconds >= 0):
        raise ValueError(f"`checkpoint_seconds` must not be negative, got {checkpoint_seconds!r}.")
    checkpoint_keep = count("checkpoint_keep", checkpoint_keep, 1)
    if callback is not None and not callable(callback):
        raise ValueError(f"`callback` must be a function of a progress report, got {callback!r}.")

    chain_keys = jax.vmap(lambda i: random.fold(key, i))(jnp.arange(num_chains))
    if state is None:
        state = start(sampler, position, chain_keys, position_per_chain)
    else:
        check_state(state, num_chains)
    with devices.lost_process_errors(), ExitStack() as held:
        state = devices.gather(state)
        needed = _refuse_shortage(sampler, plan, state, max_memory, devices)
        call = _describe_call(key, batches, plan, num_chains)
        job, run = prepare(chain_keys, make_sampler, state, batches, plan, devices, call)
        if on_divergence == "rollback" and job.feed and not job.feed.can_return:
            raise ValueError(
                "`on_divergence='rollback'` needs batches that can be read again, but this source "
                "has no `state_dict` or `get_state`: use 'raise' or 'continue'."
            )
        saved = None
        if checkpoint is not None or devices.several:
            identity = _identify(key, job, run, batches)
            if devices.several:
                everything = {**identity, "num_draws": num_draws, "start": digest(state)}
                advice = "use the same key, settings, data and start in all of them"
                devices.check_same(advice, everything)
            if checkpoint is not None:
                _lock(held, Path(checkpoint), devices)
                full = (needed, Path(checkpoint), checkpoint_keep, max_memory)
                _refuse(describe_full_disk(*full) if devices.first else None, devices)
                options = {"in_parts": checkpoint_in_parts, "keep": checkpoint_keep}
                saved = Checkpoints(checkpoint, identity, writes=devices.first, **options)
                run, message = _resume(job, run, saved)
                _warn(message)
        job, temporaries = compile_draws(job, run)
        if max_memory != float("inf"):
            needed = needed._replace(temporaries=temporaries)
            _refuse(describe_shortage(needed, plan, num_chains, max_memory), devices)
        check = POLICIES[on_divergence]
        good = snapshot(run) if on_divergence == "rollback" else None
        monitor = HealthMonitor(sampler.traits, job.position_names, job.momentum_sizes)
        label = f"{sampler.traits.name} x {num_chains}"
        with (
            job.feed or nullcontext(),
            make_progress(progress if devices.first else False, plan.num_steps, label) as bar,
            PeriodicSaver(
                saved, checkpoint_seconds, devices.agree, devices.gather, devices.gather_json
            ) as saver,
        ):
            first_step = done = plan.steps_done(run)
            bar.advance(done, None, None)
            stop = False
            while not (plan.is_finished(run) or (stop and not run.steps_into_draw)):
                chunk = advance(job, run, only_to_draw=stop)
                run, good, messages = check(job, chunk, good)
                _warn(*messages, _check_health(job, chunk, run, monitor))
                if callback is not None and not stop:
                    asked = callback(progress_report(job, chunk, run, first_step))
                    stop = any(devices.agree(asked is True or asked is np.True_))
                saver.after_chunk(good or run, last=stop or plan.is_finished(run))
                before, done = done, plan.steps_done(run)
                bar.advance(done - before, mean_temperature(job, run), last_step_size(run))
        result = assemble(job, run)
        if not result.ok:
            _warn(Message(describe_loss(result), LostDrawsWarning))
        if float(sampler.traits.temperature) > 0:
            per_draw = {k: v for k, v in result.collected.items() if k not in plan.running}
            text = describe_disagreement(result, per_draw)
            _warn(Message(text, ConvergenceWarning) if text else None)
        return result


def _warn(*messages: Message | None) -> None:
    for message in messages:
        if message is not None:
            warn_user(message)


def _refuse_shortage(
    sampler: Sampler,
    plan: Plan,
    state: Any,
    max_memory: float | None,
    devices: Devices,
) -> Forecast:
    """Raise an error with numbers and remedies if memory does not suffice."""
    if max_memory is not None and not (isinstance(max_memory, int | float) and max_memory > 0):
        raise ValueError(f"`max_memory` must be a positive number of bytes, got {max_memory!r}.")
    num_chains = jax.tree.leaves(state)[0].shape[0]
    needed = forecast(make_program(sampler, plan), plan, state)
    _refuse(describe_shortage(needed, plan, num_chains, max_memory), devices)
    return needed


def _refuse(problem: str | None, devices: Devices) -> None:
    """Raise an error in all processes if one of them has a problem."""
    if any(devices.agree(problem is not None)):
        raise ValueError(problem or "Another process has too little memory or disk for this run.")


def _lock(held: ExitStack, folder: Path, devices: Devices) -> None:
    """Lock the folder of the checkpoints in the first process; if that fails, fail in all."""
    problem = None
    if devices.first:
        try:
            held.enter_context(locked(folder))
        except (OSError, ValueError) as error:
            problem = error
    if any(devices.agree(problem is not None)):
        raise problem or ValueError(f"The first process cannot use `{folder}`.")


def _resume(job: Job, run: RunState, saved: Checkpoints) -> tuple[RunState, Message | None]:
    """Return the run as it was saved last, or as it is if there is no checkpoint."""
    found, message = saved.load(run.state, run.accumulators, job.empty_page())
    job.devices.check_same(
        f"they see different checkpoints in `{saved.folder}`; use a disk that all of them read",
        {"found": found and [found.burn_in_done, found.num_kept]},
    )
    if found is None:
        return run, message
    if (found.num_kept, found.steps_into_draw) > (job.plan.num_draws, 0):
        raise ValueError(
            f"`{saved.folder}` already has {found.num_kept} draws, more than `num_draws`, which is "
            f"{job.plan.num_draws}."
        )
    job.program(found)  # raises if the sampler cannot be built with the reduced step size
    arrays = jax.tree.map(jnp.asarray, (found.state, found.accumulators))
    state, accumulators = job.devices.put_chains(arrays)
    found = found._replace(state=state, accumulators=accumulators)
    return _at_its_batches(job, found, message)


def _at_its_batches(
    job: Job, found: RunState, message: Message | None
) -> tuple[RunState, Message | None]:
    """Return a saved run with the position of its source of batches in this process."""
    if job.feed is None or job.plan.is_finished(found):
        return found._replace(source=None), message
    saved = found.source if isinstance(found.source, list) else []
    if len(saved) == jax.process_count() and saved[jax.process_index()] is not None:
        return found._replace(source=saved[jax.process_index()]), message
    if not job.feed.source.can_start_anywhere and message is None:
        text = (
            "The source of the batches has no saved state to continue from: the run continues with "
            "the batches that the source returns now, which differ from those of an uninterrupted "
            "run. A source with `state_dict` or `get_state`, or one that reads by number, resumes "
            "bit for bit."
        )
        message = Message(text, CheckpointWarning)
    return found._replace(source=None), message


def _check_health(job: Job, chunk: Chunk, run: RunState, monitor: HealthMonitor) -> Message | None:
    """Return a warning if the chains are finite but their draws are not the posterior."""
    went_back = run.num_kept < chunk.after.num_kept
    if not chunk.has_draws or went_back or not job.momentum_sizes:
        return None
    if job.plan.on_divergence == "continue":  # the user looks at `run.diverged`
        return None
    if not monitor.is_due(run.num_kept, job.plan.is_finished(run)):
        return None
    h = last_step_size(run)
    assert h is not None
    temperatures = pages.statistic(run.pages, "kinetic_temperature")
    text = monitor.check(temperatures, h, job.plan.thin, job.devices.gather(run.state))
    return Message(text, HealthWarning) if text else None


def run_chain(
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

    `sample` runs many chains of *one* sampler, shows progress, checks for divergence and moves
    draws to the host. This function runs one chain of a sampler whose step size or diffusion may be
    traced, so that a whole grid of settings becomes one program. A chain that diverges ends in NaN.
    The draws are those of `sample`, whose chain `i` has the key `isotherm.random.fold(key, i)`.

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
    ...     draws, _ = isotherm.run_chain(key, sampler, jnp.zeros(2), isotherm.no_batches(),
    ...                                   num_draws=200, thin=10)
    ...     return draws.std()
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> jax.jit(jax.vmap(spread))(jnp.array([0.1, 0.2, 0.4]), keys).shape
    (3,)
    """
    plan = make_plan(num_draws, thin, burn_in, None, "continue", 0)
    program = Program(sampler, (), (), plan.thin)
    state = sampler.init(as_position(position), random.fold(key, 2))
    if plan.burn_in:
        state = program.steps(state, key, batches, plan.burn_in)[0]

    def draw(state: Any, _: None) -> tuple[Any, ArrayTree]:
        state = program.steps(state, key, batches, plan.thin)[0]
        return state, state.position

    state, draws = jax.lax.scan(draw, state, length=plan.num_draws)
    return draws, state


def _describe_call(key: Key, batches: BatchPolicy, plan: Plan, num_chains: int) -> dict[str, Any]:
    """Return the arguments of `sample` as far as they can be written in JSON."""
    return {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "batches": getattr(batches, "policy", type(batches).__name__),
        **{name: getattr(batches, name, None) for name in ("batch_size", "data_size")},
        "num_draws": plan.num_draws,
        "thin": plan.thin,
        "burn_in": plan.burn_in,
        "num_chains": num_chains,
        "on_divergence": plan.on_divergence,
        "max_rollbacks": plan.max_rollbacks,
    }


def _identify(key: Key, job: Job, run: RunState, batches: BatchPolicy) -> dict[str, Any]:
    """Return what tells this run from others, as far as it can be seen from outside."""
    sampler = job.make_sampler(1.0)
    traits = sampler.traits
    states = signature(run.state)
    made, step = _traces(sampler.step, key.dtype, states, signature(job.batches), tracing_options())
    identity = {
        "key": job.call["key"],
        "sampler": [traits.name, traits.integrator, traits.thermostat, float(traits.temperature)],
        "batches": [
            batches.policy,
            getattr(batches, "batch_size", None),
            _digest_data(batches, made),
        ],
        "thin": job.plan.thin,
        "burn_in": job.plan.burn_in,
        "num_chains": job.num_chains,
        "state": describe(*states),
        "collect": describe(*signature(run.accumulators)),
        "what a step does (model, step size, settings)": fingerprint(step),
    }
    collectors = sorted([*job.plan.running.items(), *job.plan.stacked.items()])
    chosen = tuple((name, collector) for name, collector in collectors if not collector.is_plain)
    if chosen:
        read = _trace_of_collectors(chosen, states, tracing_options())
        identity["what is collected (functions, and data in them)"] = fingerprint(read)
    return identity


@lru_cache(maxsize=16)
def _traces(
    step: Callable[..., Any], key_type: Any, states: Any, batches: Any, options: tuple
) -> tuple[Any, Any]:
    """Return the traces of making a batch and of a step, for signatures of states and batches.

    JAX keeps its traces, too, but looks them up slowly. `options` only tells traces apart.
    """
    key = jax.ShapeDtypeStruct((), key_type)
    made = trace(_make_batch, shapes_of(*batches), key, 0)
    return made, trace(step, key, one_chain(*states), made.out_info)


@lru_cache(maxsize=16)
def _trace_of_collectors(
    collectors: tuple[tuple[str, Any], ...], states: Any, options: tuple
) -> Any:
    """Return the trace of the values that collectors read from the state of one chain."""

    def read(state: Any) -> dict[str, Any]:
        return {name: collector.value(state) for name, collector in collectors}

    return trace(read, one_chain(*states))


def _digest_data(batches: BatchPolicy, made: Any) -> str:
    """Return a digest of all data of a policy, or of the traced function that generates them.

    Policies whose data are not arrays of this process have their own `data_digest`.
    """
    own = getattr(batches, "data_digest", None)
    if own is not None:
        return own()
    if jax.tree.leaves(batches):
        return digest(batches)
    return fingerprint(made)


def _make_batch(batches: BatchPolicy, key: Key, step_index: jax.Array) -> Any:
    return batches.batch(key, step_index)

r"""Policies for chains that diverge.

NaN is absorbing in every recursion here, so one check per chunk finds it. A policy is a function
of a chunk and of the last good state; it returns the state to continue from.

- `raise` ends the run; the error holds the draws made before.
- `continue` marks the chains that have diverged and lets the others continue.
- `rollback` returns *all* chains to the end of the last good chunk and continues with half the
  step size: chains of one run have one step size, hence one law. The random numbers of a step are
  a function of the key and $t$ only, so they are the same again and no noise is ever rejected. A
  chunk is good if nothing in it overflows and no momentum at its end is a hundred times too hot:
  a chain that is about to diverge is not a state to return to. Chunks end at fixed steps, not by
  the clock, and a checkpoint holds the end of a good chunk.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from isotherm.exceptions import DivergedError, RollbackWarning
from isotherm.loop import pages
from isotherm.loop.chains import (
    Chunk,
    Job,
    assemble,
    is_inside_step,
    kinetic_temperatures,
    snapshot,
    step_sizes,
)
from isotherm.loop.run import Rollback
from isotherm.loop.state import RunState
from isotherm.loop.user_warnings import Message
from isotherm.tree import leaf_names

TOO_HOT = 100.0
"""Times the temperature; a momentum of a healthy chain exceeds it with probability 1e-23."""


class Checked(NamedTuple):
    """What a policy decides after a chunk."""

    run: RunState
    """Where the run continues."""
    good: RunState | None
    """The last good state, if a rollback may return to it."""
    messages: Sequence[Message] = ()


Policy = Callable[[Job, Chunk, RunState | None], Checked]


def raise_error(job: Job, chunk: Chunk, good: RunState | None) -> Checked:
    """Raise `DivergedError` if a chain has diverged."""
    if _find(chunk):
        _raise(job, chunk)
    return Checked(_marked(chunk), None)


def continue_others(job: Job, chunk: Chunk, good: RunState | None) -> Checked:
    """Mark the chains that have diverged."""
    return Checked(_marked(chunk), None)


def roll_back(job: Job, chunk: Chunk, good: RunState | None) -> Checked:
    """Return to the last good state with half the step size if a chain has diverged."""
    assert good is not None
    found = _find(chunk)
    if not found:
        run = _marked(chunk)
        is_good = job.plan.is_finished(run) or (
            not is_inside_step(job, run) and _is_healthy(job, run)
        )
        return Checked(run, snapshot(run) if is_good else good)
    if len(good.rollbacks) >= job.plan.max_rollbacks:
        _raise(job, chunk)
    chain, leaf = found
    h = float(step_sizes(job, good)[chain])
    rollback = Rollback(job.plan.steps_done(good), chain, leaf, h, h / 2)
    messages = [] if good.rollbacks else [_first_rollback(job, rollback)]
    good = good._replace(rollbacks=(*good.rollbacks, rollback))
    return Checked(snapshot(good), good, messages)


POLICIES: dict[str, Policy] = {
    "raise": raise_error,
    "continue": continue_others,
    "rollback": roll_back,
}


def _find(chunk: Chunk) -> tuple[int, str] | None:
    """Return the first chain that diverged in this chunk, and the first leaf that is not finite."""
    fresh = np.flatnonzero(chunk.diverged.any(1) & ~chunk.before.diverged)
    if not fresh.size:
        return None
    leaf = int(np.flatnonzero(chunk.diverged[fresh[0]])[0])
    return int(fresh[0]), leaf_names(chunk.after.state)[leaf]


def _marked(chunk: Chunk) -> RunState:
    """Return the state after a chunk, with divergence marked."""
    diverged = chunk.before.diverged | chunk.diverged.any(1)
    return chunk.after._replace(diverged=diverged)


def _is_healthy(job: Job, run: RunState) -> bool:
    """Return whether the last chunk shows no sign that a chain is about to diverge."""
    if run.pages and not pages.statistics_are_finite(run.pages[-1]):
        return False
    target = float(job.traits.temperature)
    return target == 0 or bool(np.all(kinetic_temperatures(job, run) <= TOO_HOT * target))


def _first_rollback(job: Job, rollback: Rollback) -> Message:
    text = (
        f"{job.traits.name} diverged at step size {rollback.step_size_before:.3g} (chain "
        f"{rollback.chain}, `{rollback.leaf}`): all chains went back to step {rollback.step} and "
        f"continue with step size {rollback.step_size_after:.3g}. `run.rollbacks` lists every "
        f"rollback; the run fails after {job.plan.max_rollbacks}."
    )
    return Message(text, RollbackWarning)


def _raise(job: Job, chunk: Chunk) -> NoReturn:
    """Raise `DivergedError` with the draws that are finite."""
    found = _find(chunk)
    assert found is not None
    chain, leaf = found
    plan, run = job.plan, _marked(chunk)
    first, last = plan.steps_done(chunk.before), plan.steps_done(run)
    accumulators = None
    if chunk.has_draws:
        page = pages.trim(run.pages[-1])
        kept = pages.num_draws(page)
        last = min(last, first + (kept + 1) * plan.thin)
        first += kept * plan.thin
        accumulators = chunk.before.accumulators
        run = run._replace(pages=(*chunk.before.pages, page))
    run = run._replace(accumulators=accumulators)
    raise DivergedError(chain, first, last, leaf, assemble(job, run))

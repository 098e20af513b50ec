r"""Chains on their way: one chunk further, and what to do if a chain is lost.

NaN is absorbing in every recursion here, so one look per chunk finds it. Then, by the policy,

- `raise` ends the run with the draws made before,
- `continue` goes on and remembers which chains are lost,
- `rollback` takes *all* chains back to the end of the last good chunk and goes on with half the step size: chains of
  one run have one step size, and so one law. The random numbers of a step are a function of the key and $t$ only: they
  are the same again, so that no noise is ever rejected. A chunk is good if nothing in it overflows and no momentum at its
  end is a hundred times too hot: a chain that is about to be lost is no place to come back to. Chunks are then
  cut at fixed steps, not by the clock, and a checkpoint holds the end of a good one.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.exceptions import DivergedError, HealthWarning, RollbackWarning
from isotherm.loop import chunks
from isotherm.loop.checkpoint import Progressed
from isotherm.loop.collect import Draws, Running
from isotherm.loop.devices import Devices
from isotherm.loop.health import Watch
from isotherm.loop.pages import Pages
from isotherm.loop.run import Rollback, Run
from isotherm.tree import leaf_names, leaf_sizes
from isotherm.types import BatchPolicy, Key, Sampler

BURN_IN_BLOCK = 100
"""Steps of the burn-in that are run as one; always the same, so that rounding does not depend on the pace."""
TOO_HOT = 100.0
"""Times the temperature; one momentum of a healthy chain is there with a probability of 1e-23."""
POLICIES = ("raise", "continue", "rollback")


class Plan(NamedTuple):
    """How much to do, what to keep, and what to do if a chain is lost."""

    num_draws: int
    thin: int
    burn_in: int
    running: Mapping[str, Running]
    stacked: Mapping[str, Draws]
    on_divergence: str
    max_rollbacks: int


class Place(NamedTuple):
    """Where chains can go back to."""

    done: int
    kept: int
    state: Any
    memory: Any
    num_pages: int


class Advanced(NamedTuple):
    """What a chunk tells the progress bar."""

    num_steps: int
    """Less than none, if chains went back."""
    temperature: float | None
    step_size: float | None


class Chains:
    """All chains of one run: where they are, how far that is, and what was kept."""

    def __init__(
        self,
        keys: Key,
        make: Callable[[float], Sampler],
        state: Any,
        batches: BatchPolicy,
        plan: Plan,
        devices: Devices,
    ) -> None:
        self.make, self.plan, self.devices = make, plan, devices
        self.call: Mapping[str, Any] = {}
        self.keys, self.batches = devices.put_keys(keys), devices.put_batches(batches)
        memory = jax.vmap(lambda s: {n: c.start(s) for n, c in plan.running.items()})(state)
        # A copy: chunks reuse its memory.
        self.state = devices.put_chains(jax.tree.map(jnp.copy, state))
        self.memory = devices.put_chains(memory)
        self.done = self.kept = 0
        self.pages, self.rollbacks = Pages(), ()
        self.num_chains = keys.shape[0]
        self.diverged = np.zeros(self.num_chains, bool)
        self.one = jax.tree.map(lambda leaf: leaf[0], state)
        self.sizes = tuple(int(n) for n in leaf_sizes(getattr(self.one, "momentum", ())))
        self.names = tuple(leaf_names(self.one.position))
        self.started = time.perf_counter()
        self._set_off()
        self._remember()
        self.watch = Watch(self.program.sampler.traits, self.names, self.sizes)

    def _set_off(self) -> None:
        """Choose program and pace for where the chains are."""
        plan = self.plan
        sampler = self.make(0.5 ** len(self.rollbacks))
        running, stacked = tuple(plan.running.items()), tuple(plan.stacked.items())
        self.program = chunks.Program(sampler, running, stacked, plan.thin)
        self.capacity = self.program.capacity(self.one, self.num_chains, plan.num_draws)
        self.burn_in_pace, self.pace = chunks.Pace(), chunks.Pace()
        if plan.on_divergence == "rollback":
            steps = chunks.CHUNK_STEPS
            blocks = -(-self.done // BURN_IN_BLOCK)
            self.burn_in_pace = chunks.SteadyPace(steps // BURN_IN_BLOCK, blocks)
            self.pace = chunks.SteadyPace(min(steps // plan.thin, self.capacity), self.kept)

    @property
    def steps_done(self) -> int:
        """Steps that each chain has taken."""
        return self.done + self.kept * self.plan.thin

    @property
    def arrived(self) -> bool:
        """Whether nothing is left to do."""
        return self.done == self.plan.burn_in and self.kept == self.plan.num_draws

    def empty_page(self) -> Any:
        """Give the shapes of a page without draws."""
        return self.program.empty_page(self.one, self.num_chains)

    def resume(self, found: Progressed) -> None:
        """Go on from a checkpoint."""
        self.done, self.kept, self.diverged = found.done, found.kept, found.diverged
        state_and_memory = jax.tree.map(jnp.asarray, (found.state, found.memory))
        self.state, self.memory = self.devices.put_chains(state_and_memory)
        self.pages = Pages(found.pages)
        self.rollbacks = tuple(Rollback(*told) for told in found.rollbacks)
        self._set_off()
        self._remember()

    def progressed(self, num_saved: int, *, in_parts: bool = False) -> Progressed:
        """Give all that a checkpoint needs; pages not saved yet become one, and states are gathered unless they may be in parts."""
        done, kept, state, memory, num_pages = self.good or self._here()
        pages = self.pages.bound(num_saved, num_pages)
        if self.good:
            self.good = self.good._replace(num_pages=len(pages))
        if not in_parts:
            state, memory = self.devices.whole((state, memory))
        return Progressed(done, kept, self.diverged, state, memory, pages, self.rollbacks)

    def _here(self) -> Place:
        return Place(self.done, self.kept, self.state, self.memory, len(self.pages.pages))

    def _remember(self) -> None:
        """Make this the place to come back to, if one is wanted."""
        self.good = None
        if self.plan.on_divergence == "rollback":
            self.good = self._here()._replace(state=jax.tree.map(jnp.copy, self.state))

    def chunk(self) -> Advanced:
        """Go one chunk further, or back."""
        before = self.steps_done
        step_size = self._burn_in() if self.done < self.plan.burn_in else self._draw()
        advanced = self.steps_done - before
        if advanced > 0 and self.good and (self.arrived or self._is_good(self.good)):
            self._remember()
        return Advanced(advanced, self._temperature(), step_size)

    def _is_good(self, good: Place) -> bool:
        """Tell whether the last chunk shows no sign of a divergence to come."""
        if len(self.pages.pages) > good.num_pages and not self.pages.last_is_finite():
            return False
        target = float(self.program.sampler.traits.temperature)
        return bool(np.all(self._temperatures() <= TOO_HOT * target)) or target == 0

    def _burn_in(self) -> None:
        """Take steps before the first draw."""
        block, n = BURN_IN_BLOCK, 1
        if self.done:
            (n,) = self.devices.agree(
                self.burn_in_pace.next((self.plan.burn_in - self.done) // block)
            )
        else:  # what is left over of whole blocks goes first
            block = self.plan.burn_in % block or block
        advance = self.devices.compiled(chunks.advance, "program")
        self.state, finite = advance(
            self.state, self.keys, self.batches, n, block, program=self.program
        )
        if self._all_there(finite, n * block):
            self.burn_in_pace.took(n)
            self.done += n * block

    def _draw(self) -> float | None:
        """Make draws; give the last step size."""
        plan = self.plan
        (n,) = self.devices.agree(min(self.pace.next(plan.num_draws - self.kept), self.capacity))
        before = self.memory  # still good if this chunk is not
        collect = self.devices.compiled(chunks.collect, "program", "capacity")
        self.state, self.memory, page, finite = collect(
            self.state,
            self.memory,
            self.keys,
            self.batches,
            n,
            program=self.program,
            capacity=self.capacity,
        )
        self.pages.add(page, n)
        if not self._all_there(finite, n * plan.thin, before):
            return None
        self.pace.took(n)
        self.kept += n
        h = float(self.pages.last("step_size")[0, -1])
        self._look_after(h)
        return h

    def _look_after(self, step_size: float) -> None:
        """Warn of a chain that is not well, once; who lets lost chains go on looks after them."""
        if not self.sizes or self.plan.on_divergence == "continue":
            return
        if self.watch.is_due(self.kept, self.arrived):
            temperatures = self.pages.statistic("kinetic_temperature")
            state = self.devices.whole(self.state)
            if told := self.watch.look(temperatures, step_size, self.plan.thin, state):
                warnings.warn(told, HealthWarning, stacklevel=5)

    def _temperatures(self) -> np.ndarray:
        """Give the kinetic temperature of every chain and leaf; without momenta there is none."""
        if self.sizes and self.kept:  # the last draw is where the chains are
            return self.pages.last("kinetic_temperature")[:, -1]
        leaves = jax.tree.leaves(self.devices.whole(getattr(self.state, "momentum", ())))
        with np.errstate(over="ignore", invalid="ignore"):
            means = [(np.asarray(p, np.float64).reshape(len(p), -1) ** 2).mean(1) for p in leaves]
        return np.stack(means, 1) if means else np.zeros((self.num_chains, 0))

    def _temperature(self) -> float | None:
        """Give the kinetic temperature of all momenta together."""
        found = self._temperatures()
        return float((found @ self.sizes).mean() / sum(self.sizes)) if found.size else None

    def _all_there(self, finite: jax.Array, num_steps: int, memory: Any = None) -> bool:
        """Look for chains that the last steps have lost; tell whether all go on.

        `memory` is what running collectors held before, given if the steps made draws.
        """
        lost = ~np.asarray(finite)
        fresh = lost.any(1) & ~self.diverged
        if not fresh.any() or self.plan.on_divergence == "continue":
            self.diverged = self.diverged | lost.any(1)
            return True
        chain = int(np.flatnonzero(fresh)[0])
        leaf = leaf_names(self.state)[int(np.flatnonzero(lost[chain])[0])]
        if self.good and len(self.rollbacks) < self.plan.max_rollbacks:
            self._go_back(self.good, chain, leaf)
            return False
        self.diverged = self.diverged | lost.any(1)
        first = self.steps_done
        last = first + num_steps
        if memory is not None:
            kept = self.pages.trim()
            last = min(last, first + (kept + 1) * self.plan.thin)
            first += kept * self.plan.thin
        self.memory = memory
        raise DivergedError(chain, first, last, leaf, self.run())

    def _go_back(self, good: Place, chain: int, leaf: str) -> None:
        """Halve the step size, write down why, and say so the first time."""
        self.done, self.kept, self.memory = good.done, good.kept, good.memory
        self.state = jax.tree.map(jnp.copy, good.state)
        self.pages.drop_after(good.num_pages)
        step_size = self.devices.compiled(chunks.step_size, "program", donate=False)
        (sizes,) = step_size(self.state, self.keys, self.batches, program=self.program)
        h = float(np.asarray(sizes)[chain])
        told = Rollback(self.steps_done, chain, leaf, h, h / 2)
        if not self.rollbacks:
            warnings.warn(
                f"{self.program.sampler.traits.name} diverged at step size {h:.3g} (chain {chain}, `{leaf}`): "
                f"all chains went back to step {told.step} and go on with {h / 2:.3g}. Every rollback is in "
                f"`run.rollbacks`; after {self.plan.max_rollbacks} the run ends.",
                RollbackWarning,
                stacklevel=6,
            )
        self.rollbacks = (*self.rollbacks, told)
        self._set_off()

    def run(self) -> Run:
        """Put everything together."""
        kept, stats = self.pages.all()
        collected = dict(kept)
        if self.memory is not None:
            memory = self.devices.whole(self.memory)
            for name, collector in self.plan.running.items():
                collected[name] = jax.tree.map(np.asarray, collector.result(memory[name]))
        step_sizes = stats.get("step_size")
        return Run(
            draws=collected.get("draws"),
            collected=collected,
            stats=stats,
            state=self.devices.whole(self.state),
            diverged=self.diverged,
            traits=self.program.sampler.traits,
            momentum_sizes=self.sizes,
            leaf_names=self.names,
            num_draws=0 if step_sizes is None else step_sizes.shape[1],
            thin=self.plan.thin,
            burn_in=self.plan.burn_in,
            seconds=time.perf_counter() - self.started,
            rollbacks=self.rollbacks,
            call=self.call,
        )

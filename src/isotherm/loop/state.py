"""The plan of a run and its state: immutable records that functions advance."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from isotherm.loop.collect import Draws, Running
from isotherm.loop.run import Rollback

Page = tuple[dict[str, Any], dict[str, np.ndarray]]
"""Draws of one chunk: the values of collectors and the statistics, leading axes (chain, draw)."""


class RunState(NamedTuple):
    """All that determines the rest of a run; a checkpoint holds exactly this."""

    burn_in_done: int
    """Steps of burn-in that each chain has taken."""
    num_kept: int
    """Draws kept of each chain."""
    diverged: np.ndarray
    """Which chains are no longer finite."""
    state: Any
    """States of the sampler, leading axis over chains."""
    accumulators: Any
    """One per running collector, leading axis over chains; `None` if they are not valid."""
    pages: tuple[Page, ...] = ()
    rollbacks: tuple[Rollback, ...] = ()
    steps_into_draw: int = 0
    """Steps after the last draw; streamed batches may end there."""
    source: Any = None
    """Where the source of streamed batches is, in JSON terms; `None` if it has no state."""


class Plan(NamedTuple):
    """How many draws to make, what to keep of them, and what to do if a chain diverges."""

    num_draws: int
    thin: int
    burn_in: int
    running: Mapping[str, Running]
    stacked: Mapping[str, Draws]
    on_divergence: str
    max_rollbacks: int

    @property
    def num_steps(self) -> int:
        """Steps of each chain in the whole run."""
        return self.burn_in + self.num_draws * self.thin

    def steps_done(self, run: RunState) -> int:
        """Return the steps that each chain has taken."""
        return run.burn_in_done + run.num_kept * self.thin + run.steps_into_draw

    def is_finished(self, run: RunState) -> bool:
        """Return whether all draws are made."""
        return self.steps_done(run) == self.num_steps

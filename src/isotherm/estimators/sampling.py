r"""The sampler behind all estimators: mSGNHT-S in natural coordinates.

Where the curvature is 1 the same settings fit every problem: diffusion 1, thermostat mass 10, a step of
at most 0.1. Two units of time later a draw has nearly forgotten the last one, and fifty make a burn-in.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from isotherm.coordinates.natural import DIFFUSION, THERMOSTAT_MASS
from isotherm.loop import sample
from isotherm.loop.run import Run
from isotherm.samplers.msgnht import msgnht
from isotherm.types import BatchPolicy, GradFn, Key, Sampler

THINNING_TIME, BURN_IN_TIME = 2.0, 50.0
LONGEST = 2**31 - 1
"""Steps; as good as no bound."""


Draws = dict[str, np.ndarray]
"""Arrays by the names of the attributes, with leading axes `(chain, draw)`."""


class Target(Protocol):
    """A posterior in natural coordinates: all that a run needs to know, and the way back."""

    @property
    def batches(self) -> BatchPolicy:
        """The data."""
        ...

    @property
    def gradient(self) -> GradFn:
        """The gradient of the log density; the same function for all data, so that it compiles once."""
        ...

    @property
    def step_size(self) -> float:
        """The step size."""
        ...

    @property
    def dimension(self) -> int:
        """How many numbers a position has."""
        ...

    def read(self, draws: np.ndarray) -> Draws:
        """Turn draws in natural coordinates into draws of coefficients."""
        ...

    def locate(self, draws: Draws) -> np.ndarray:
        """Find the natural coordinates of coefficients."""
        ...


def run_chains(
    key: Key,
    target: Target,
    *,
    num_draws: int,
    num_chains: int,
    thin: int | None = None,
    burn_in: int | None = None,
    state: Any = None,
    verbose: bool = False,
    checkpoint: Path | None = None,
    longest_thinning: int = LONGEST,
    longest_burn_in: int = LONGEST,
) -> Run:
    """Run chains from the origin, or go on from a state.

    Parameters
    ----------
    key, num_draws, num_chains, thin, burn_in, state, checkpoint
        As in `isotherm.sample`; thinning and burn-in have defaults in units of time.
    target
        What to sample.
    verbose
        Whether to show progress.
    longest_thinning, longest_burn_in
        Steps; bounds on the defaults.
    """
    if thin is None:
        thin = min(max(1, round(THINNING_TIME / target.step_size)), longest_thinning)
    if burn_in is None:
        burn_in = min(round(BURN_IN_TIME / target.step_size), longest_burn_in)
    return sample(
        key,
        _sampler(target.gradient, target.step_size),
        jnp.zeros(target.dimension),
        target.batches,
        num_draws=num_draws,
        thin=thin,
        burn_in=burn_in,
        num_chains=num_chains if state is None else len(state.step_index),
        state=state,
        progress=verbose,
        checkpoint=checkpoint,
    )


@lru_cache(maxsize=64)
def _sampler(gradient: GradFn, step_size: float) -> Sampler:
    """Make a sampler; the same one for the same settings, so that its program compiles once."""
    return msgnht(gradient, step_size, DIFFUSION, thermostat_mass=THERMOSTAT_MASS)

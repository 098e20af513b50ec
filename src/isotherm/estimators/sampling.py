"""The sampler of all estimators: mSGNHT-S in natural coordinates.

Where the curvature is 1 the same settings suit every problem: diffusion 1, thermostat mass 10, and
a step size of at most 0.1. Draws two units of time apart are nearly independent, and fifty units
are a sufficient burn-in.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from isotherm.coordinates.linear import Coordinates
from isotherm.coordinates.natural import DIFFUSION, THERMOSTAT_MASS
from isotherm.exceptions import ConvergenceWarning
from isotherm.loop.run import Run
from isotherm.loop.sampling import sample
from isotherm.samplers.msgnht import msgnht
from isotherm.types import BatchPolicy, Family, GradFn, Key, Sampler

THINNING_TIME, BURN_IN_TIME = 2.0, 50.0

Draws = dict[str, np.ndarray]
"""Draws of parameters by name, with leading axes `(chain, draw)`."""


class Target(Protocol):
    """A posterior in natural coordinates, with the map to the parameters of the model."""

    @property
    def batches(self) -> BatchPolicy:
        """The data."""
        ...

    @property
    def gradient(self) -> GradFn:
        """Gradient of the log density; the same object for all data, so that it compiles once."""
        ...

    @property
    def step_size(self) -> float:
        """Step size of the sampler."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a position."""
        ...

    def to_parameters(self, positions: np.ndarray) -> Draws:
        """Convert draws of positions, (chain, draw, dimension), to draws of parameters."""
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
    starts: Any = None,
    thermostat_mass: float = THERMOSTAT_MASS,
    integrator: str | None = None,
    coordinates: Coordinates | None = None,
    verbose: bool = False,
    checkpoint: Path | None = None,
) -> Run:
    """Run chains from the origin or from given starts, or continue from a state.

    Parameters
    ----------
    key, num_draws, num_chains, state, checkpoint
        As in `isotherm.sample`.
    target
        The posterior to sample.
    thin, burn_in
        As in `isotherm.sample`; by default 2 and 50 units of time.
    starts
        Where chains start, (chain, dimension); by default at the origin.
    thermostat_mass, integrator, coordinates
        As in `isotherm.msgnht`.
    verbose
        Whether to show a progress bar.
    """
    if thin is None:
        thin = max(1, round(THINNING_TIME / target.step_size))
    if burn_in is None:
        burn_in = round(BURN_IN_TIME / target.step_size)
    if starts is not None:
        num_chains = len(starts)
    if coordinates is None:
        sampler = _sampler(target.gradient, target.step_size, thermostat_mass, integrator)
    else:
        build = _family(target.gradient, thermostat_mass, integrator)
        sampler = build((target.step_size, coordinates))
    with warnings.catch_warnings():  # estimators judge R-hat themselves, of their outputs
        warnings.simplefilter("ignore", ConvergenceWarning)
        return sample(
            key,
            sampler,
            jnp.zeros(target.dimension) if starts is None else starts,
            target.batches,
            num_draws=num_draws,
            thin=thin,
            burn_in=burn_in,
            num_chains=num_chains if state is None else len(state.step_index),
            position_per_chain=starts is not None,
            state=state,
            progress=verbose,
            checkpoint=checkpoint,
        )


def _build(
    gradient: GradFn,
    step_size: float,
    thermostat_mass: float,
    integrator: str | None,
    coordinates: Coordinates | None = None,
) -> Sampler:
    """Build a sampler."""
    return msgnht(
        gradient,
        step_size,
        DIFFUSION,
        thermostat_mass=thermostat_mass,
        integrator=integrator,
        coordinates=coordinates,
    )


_sampler = lru_cache(maxsize=64)(_build)
"""Equal arguments give the same object, so that its program compiles once."""


@lru_cache(maxsize=64)
def _family(
    gradient: GradFn, thermostat_mass: float, integrator: str | None
) -> Callable[[tuple[float, Coordinates]], Sampler]:
    """Return what builds a sampler from step size and coordinates; all share a program."""

    def build(parameters: tuple[float, Coordinates]) -> Sampler:
        step_size, coordinates = parameters
        sampler = _build(gradient, step_size, thermostat_mass, integrator, coordinates)
        return sampler._replace(family=Family(build, parameters))

    return build

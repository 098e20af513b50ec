"""The posterior of a logistic regression, ready to sample: coordinates, step size, batches."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from isotherm.batches.importance import UrnBatches
from isotherm.coordinates.natural import LARGEST_STEP
from isotherm.estimators.design_svd import Axes, times
from isotherm.estimators.logistic_surrogate import Lines, draw_lines, gradient, on_device
from isotherm.estimators.logistic_tuning import choose_batches, choose_step
from isotherm.estimators.sampling import run_chains
from isotherm.references.hmc import logistic_hill

PILOTS, PILOT_DRAWS = 2, 25
"""Pilot runs where the mode is not typical, and what they keep of each of four chains."""


@dataclass(frozen=True)
class LogisticTarget:
    """What a sampler needs to know of the posterior, and the way back to coefficients."""

    batches: UrnBatches
    step_size: float
    axes: Axes
    scale: np.ndarray
    """Units of the axes in which the posterior is of order 1."""
    lines: Lines
    """The rest of the way to natural coordinates, in these units."""
    stiff: bool = False
    """Whether typical places are so much stiffer than the coordinates say that the step is short."""

    gradient = staticmethod(gradient)

    @property
    def dimension(self) -> int:
        """How many numbers the sampler moves; those beyond the basis are there for company."""
        return self.batches.shared.tilt.size

    def places(self, draws: np.ndarray) -> np.ndarray:
        """Turn draws of $q$ into places on the axes, (draws, axes, columns)."""
        center, basis = self.lines.center, self.lines.basis
        flat = draws.reshape(-1, self.dimension).astype(np.float64)[:, : len(basis)]
        return center + (flat @ basis.T).reshape(-1, *center.shape)

    def positions(self, places: np.ndarray) -> np.ndarray:
        """Find $q$ of places on the axes."""
        shift = (places - self.lines.center).reshape(len(places), -1)
        found = np.linalg.solve(self.lines.basis, shift.T).T
        return np.pad(found, [(0, 0), (0, self.dimension - found.shape[1])]).astype(np.float32)

    def read(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Turn draws of $q$ into coefficients (…, columns, features) and intercepts (…, columns)."""
        places = np.swapaxes(self.places(draws), 1, 2)
        found = places @ (self.axes.loadings * self.scale).T
        found = found.reshape(*draws.shape[:-1], *found.shape[1:])
        return {"coef": found[..., 1:], "intercept": found[..., 0]}

    def locate(self, draws: dict[str, np.ndarray]) -> np.ndarray:
        """Find $q$ of coefficients and intercepts."""
        both = np.concatenate([draws["intercept"][..., None], draws["coef"]], axis=-1)
        return self.positions(np.swapaxes(self.axes.locate(both) / self.scale, -1, -2))


def logistic_target(
    x: Any, labels: np.ndarray, num_classes: int, axes: Axes, batch_size: int | None
) -> LogisticTarget:
    """Find natural coordinates of a posterior, and how to sample it.

    Parameters
    ----------
    x
        (rows, features), dense or SciPy sparse.
    labels
        0, 1, …, `num_classes` - 1.
    num_classes
        2 gives one column of coefficients, more give one per class.
    axes
        The principal axes of `x` under the prior.
    batch_size
        Rows per step; by default all of up to 1024, and of more as few as the noise allows.
    """
    columns = 1 if num_classes == 2 else num_classes
    scale = (axes.strengths**2 / 4 + 1) ** -0.5  # near the posterior's width, whatever the units
    design = times(x, axes.loadings * scale)

    mode = logistic_hill(design, labels, 1 / scale**2, num_classes).mode
    aim = partial(_aim, design, labels, axes, scale, batch_size)
    target = aim(mode.reshape(1, -1, columns))
    for _ in range(PILOTS):
        if not target.stiff:
            break
        pilot = run_chains(jax.random.key(0), target, num_draws=PILOT_DRAWS, num_chains=4)
        target = aim(target.places(pilot.draws))
    return target


def _aim(
    design: np.ndarray,
    labels: np.ndarray,
    axes: Axes,
    scale: np.ndarray,
    batch_size: int | None,
    places: np.ndarray,
) -> LogisticTarget:
    """Make the coordinates that suit some places, and choose step and batches."""
    lines = draw_lines(design, labels, scale**2, places)
    whole = on_device(design, lines)
    target = LogisticTarget(whole, LARGEST_STEP, axes, scale, lines)
    if len(places) == 1:  # the mode: typical is what its Gaussian says
        typical = np.random.default_rng(0).normal(size=(16, target.dimension)).astype(np.float32)
    else:
        typical = target.positions(places[:: max(1, len(places) // 16)])
    step_size = choose_step(whole, typical)
    stiff = step_size < LARGEST_STEP
    batches, step_size = choose_batches(whole, typical, step_size, batch_size)
    return replace(target, batches=batches, step_size=step_size, stiff=stiff)

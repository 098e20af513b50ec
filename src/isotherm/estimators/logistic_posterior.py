"""The posterior of a logistic regression as a target: coordinates, step size and batches."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from isotherm.batches.importance import ImportanceBatches
from isotherm.coordinates.natural import LARGEST_STEP
from isotherm.estimators.design_svd import DesignSVD, design_matrix
from isotherm.estimators.logistic_surrogate import (
    LinearSurrogate,
    fit_surrogate,
    full_batches,
    gradient,
)
from isotherm.estimators.logistic_tuning import choose_batches, choose_step_size
from isotherm.estimators.sampling import run_chains
from isotherm.models.logistic_mode import logistic_log_density

MAX_PILOT_RUNS, PILOT_DRAWS = 2, 25
"""Number of pilot runs, where the mode is not typical, and draws of each of their four chains."""


@dataclass(frozen=True)
class LogisticTarget:
    """The posterior as a target of the sampler, with the map to coefficients.

    A position is $q$ of `isotherm.estimators.logistic_surrogate`; *SVD coordinates* are those of
    `isotherm.estimators.design_svd` divided by `scale`.
    """

    batches: ImportanceBatches
    step_size: float
    svd: DesignSVD
    scale: np.ndarray
    """Scales of the SVD coordinates on which the posterior is of order 1."""
    surrogate: LinearSurrogate
    """The map from positions to SVD coordinates."""
    short_step: bool = False
    """Whether the curvature at typical points is so large that the step size had to be reduced."""

    gradient = staticmethod(gradient)

    @property
    def dimension(self) -> int:
        """Length of a position. Coordinates beyond the basis are padding and standard normal."""
        return self.batches.shared.center_gradient.size

    def to_svd_coordinates(self, positions: np.ndarray) -> np.ndarray:
        """Convert positions (…, dimension) to SVD coordinates, (positions, columns, outputs)."""
        center, basis = self.surrogate.center, self.surrogate.basis
        flat = positions.reshape(-1, self.dimension).astype(np.float64)[:, : len(basis)]
        return center + (flat @ basis.T).reshape(-1, *center.shape)

    def from_svd_coordinates(self, points: np.ndarray) -> np.ndarray:
        """Convert SVD coordinates (points, columns, outputs) to positions."""
        shift = (points - self.surrogate.center).reshape(len(points), -1)
        q = np.linalg.solve(self.surrogate.basis, shift.T).T
        return np.pad(q, [(0, 0), (0, self.dimension - q.shape[1])]).astype(np.float32)

    def to_parameters(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Convert positions to coefficients (…, outputs, features) and intercepts (…, outputs)."""
        points = np.swapaxes(self.to_svd_coordinates(positions), 1, 2)
        both = points @ (self.svd.loadings * self.scale).T
        both = both.reshape(*positions.shape[:-1], *both.shape[1:])
        return {"coef": both[..., 1:], "intercept": both[..., 0]}

    def to_positions(self, parameters: dict[str, np.ndarray]) -> np.ndarray:
        """Convert coefficients and intercepts to positions."""
        both = np.concatenate([parameters["intercept"][..., None], parameters["coef"]], axis=-1)
        points = self.svd.from_coefficients(both) / self.scale
        return self.from_svd_coordinates(np.swapaxes(points, -1, -2))


def logistic_target(
    x: Any,
    labels: np.ndarray,
    weights: np.ndarray,
    num_classes: int,
    svd: DesignSVD,
    batch_size: int | None,
) -> LogisticTarget:
    """Build the posterior of a logistic regression in natural coordinates.

    Parameters
    ----------
    x
        (rows, features), dense or SciPy sparse.
    labels
        0, 1, …, `num_classes` - 1.
    weights
        By which the log likelihoods of the rows are multiplied, (rows,).
    num_classes
        2 gives one output, more give one output per class.
    svd
        SVD of the design under the prior.
    batch_size
        Rows per step; by default all of up to 1024 rows, otherwise as few as the gradient noise
        allows.
    """
    num_outputs = 1 if num_classes == 2 else num_classes
    scale = (svd.singular_values**2 / 4 + 1) ** -0.5  # close to posterior sds
    design = design_matrix(x, svd.loadings * scale)

    mode = logistic_log_density(design, labels, 1 / scale**2, num_classes, weights).mode()
    build = partial(_build_target, design, labels, weights, svd, scale, batch_size)
    target = build(mode.reshape(1, -1, num_outputs))
    for _ in range(MAX_PILOT_RUNS):
        if not target.short_step:
            break
        pilot = run_chains(jax.random.key(0), target, num_draws=PILOT_DRAWS, num_chains=4)
        target = build(target.to_svd_coordinates(pilot.draws))
    return target


def _build_target(
    design: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    svd: DesignSVD,
    scale: np.ndarray,
    batch_size: int | None,
    points: np.ndarray,
) -> LogisticTarget:
    """Fit the surrogate at some points, and choose the step size and the batches.

    Parameters
    ----------
    points
        SVD coordinates: the mode, or draws of a pilot run.
    """
    surrogate = fit_surrogate(design, labels, weights, scale**2, points)
    full = full_batches(design, weights, surrogate)
    target = LogisticTarget(full, LARGEST_STEP, svd, scale, surrogate)
    if len(points) == 1:  # typical positions of the Gaussian approximation at the mode
        typical = np.random.default_rng(0).normal(size=(16, target.dimension)).astype(np.float32)
    else:
        typical = target.from_svd_coordinates(points[:: max(1, len(points) // 16)])
    step_size = choose_step_size(full, typical)
    short_step = step_size < LARGEST_STEP
    batches, step_size = choose_batches(full, typical, step_size, batch_size)
    return replace(target, batches=batches, step_size=step_size, short_step=short_step)

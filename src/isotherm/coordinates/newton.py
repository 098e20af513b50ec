r"""Newton's method with backtracking, for the mode of a log density.

$$ \theta_{k+1} = \theta_k + s_k\, H(\theta_k)^{-1} \nabla\log\pi(\theta_k), $$

where $H$ is the Hessian of $-\log\pi$ (or another positive curvature, such as the Fisher
information, which makes it a natural-gradient method) and $s_k$ is the first of some decreasing
factors for which the log density does not decrease. Everything is in double precision on NumPy
arrays.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

HALVINGS = tuple(0.5**i for i in range(30))
"""Step factors 1, 1/2, 1/4, …: 30 of them."""


def newton_ascent(
    log_density: Callable[[np.ndarray], float],
    gradient: Callable[[np.ndarray], np.ndarray],
    curvature: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    *,
    solve: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.linalg.solve,
    factors: Sequence[float] = HALVINGS,
    max_steps: int = 100,
    min_decrement: float = 0.0,
    min_gain: float = -np.inf,
    accept_equal: bool = True,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    r"""Return a local maximum of a log density.

    The iteration stops after a step that meets `min_decrement` or `min_gain`, after `max_steps`
    steps, or when no factor gives an acceptable step.

    Parameters
    ----------
    log_density, gradient, curvature
        Functions of a flat vector of $d$ numbers in double precision: $\log\pi$, its gradient, and
        the $d \times d$ Hessian of $-\log\pi$.
    start
        The first position.
    solve
        `solve(curvature, gradient)` returns the full step. `solve_positive` also handles a
        curvature that is not positive definite.
    factors
        Factors of the full step, tried in this order.
    max_steps
        Number of steps after which the position is returned as it is.
    min_decrement
        Stop after a step with $\nabla\log\pi^\top H^{-1} \nabla\log\pi$ below this.
    min_gain
        Stop after a step that increases the log density by less than this.
    accept_equal
        Whether a step may leave the log density unchanged.
    dtype
        Positions are rounded to this precision, in which the log density is evaluated.
    """
    position = start
    value = log_density(position)
    for _ in range(max_steps):
        slope = gradient(position)
        step = solve(curvature(position), slope)
        for factor in factors:
            trial = (position + factor * step).astype(dtype).astype(np.float64)
            trial_value = log_density(trial)
            if trial_value > value or (accept_equal and trial_value == value):
                break
        else:
            return position
        gain = trial_value - value
        position, value = trial, trial_value
        if slope @ step < min_decrement or gain < min_gain:
            break
    return position


def solve_positive(matrix: np.ndarray, vector: np.ndarray, floor: float = 1e-6) -> np.ndarray:
    """Solve a symmetric system after making its matrix positive definite.

    Eigenvalues are replaced by their absolute values, and those below `floor` times the largest are
    raised to it, so that the solution is an ascent direction when `vector` is a gradient.
    """
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(np.abs(values), floor * np.abs(values).max())
    return vectors @ ((vectors.T @ vector) / values)

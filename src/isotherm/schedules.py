r"""Step sizes that change with the step: $t \mapsto h_t$.

A schedule is any function of the step number, including those of optax; a number is a constant
schedule. It is evaluated at `state.step_index`, so a resumed run continues it correctly.
"""

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.tree import is_traced
from isotherm.types import ScalarOrSchedule, Schedule

LARGEST_INT32 = 2**31 - 1
"""The largest integer that JAX accepts by default."""


def require_positive(name: str, value: object) -> None:
    """Raise unless a number is positive and finite; traced values and functions are not checked."""
    if callable(value) or is_traced(value):
        return
    number = _number(name, value)
    if not (_is_real(number) and np.all((number > 0) & np.isfinite(number))):
        raise ValueError(f"`{name}` must be positive, got {value}.")


def require_nonnegative(name: str, value: object) -> None:
    """Raise unless a number is finite and not negative; traced values are not checked."""
    if is_traced(value):
        return
    number = _number(name, value)
    if not (_is_real(number) and np.all((number >= 0) & np.isfinite(number))):
        raise ValueError(f"`{name}` must not be negative, got {value}.")


def require_finite(name: str, value: object) -> None:
    """Raise unless a number is real and finite; traced values are not checked."""
    if is_traced(value):
        return
    number = _number(name, value)
    if not (_is_real(number) and np.isfinite(number).all()):
        raise ValueError(f"`{name}` must be a finite number, got {value}.")


def _number(name: str, value: object) -> np.ndarray:
    """Return `value` as an array; raise if it is an integer that does not fit into 32 bits."""
    if isinstance(value, int | np.integer) and abs(value) > LARGEST_INT32:
        raise ValueError(f"`{name}` must fit into 32 bits or be a float, got {value}.")
    return np.asarray(value)


def _is_real(number: np.ndarray) -> bool:
    return number.size > 0 and number.dtype.kind not in "cOSUMm"


def as_schedule(step_size: ScalarOrSchedule) -> Schedule:
    """Return a schedule; a number becomes a constant schedule and must be positive.

    Examples
    --------
    >>> float(as_schedule(0.5)(10))
    0.5
    """
    require_positive("step_size", step_size)
    if callable(step_size):
        return step_size
    return lambda step_index: step_size


def _number_of_steps(name: str, value: float) -> float:
    """Check a number of steps; one that does not fit into 32 bits becomes a float."""
    if isinstance(value, int | np.integer) and value > LARGEST_INT32:
        value = float(min(value, 2**63))  # no run is that long
    require_positive(name, value)
    return value


def halving(step_size: float, every: int) -> Schedule:
    r"""Halve the step size every `every` steps: $h\,2^{-\lfloor t/m \rfloor}$.

    Examples
    --------
    >>> [float(halving(0.4, every=10)(t)) for t in (0, 9, 10, 20)]  # doctest: +ELLIPSIS
    [0.4..., 0.4..., 0.2..., 0.1...]
    """
    require_positive("step_size", step_size)
    steps = _number_of_steps("every", every)
    return lambda step_index: step_size * 0.5 ** (jnp.asarray(step_index) // steps)


def polynomial(step_size: float, delay: float = 1.0, power: float = 0.55) -> Schedule:
    r"""Decrease the step size as $h\,(1 + t/b)^{-\gamma}$ (Welling & Teh 2011).

    With $\gamma \in (1/2, 1]$ the steps sum to infinity and their squares do not.
    """
    require_positive("step_size", step_size)
    require_positive("power", power)
    steps = _number_of_steps("delay", delay)
    return lambda step_index: step_size * (1 + jnp.asarray(step_index) / steps) ** -power


def cyclical(step_size: float, period: int, floor: float = 0.0) -> Schedule:
    r"""Decrease the step size by a cosine from `step_size` to `floor`, again every `period` steps.

    $h_t = f + (h - f)\,\tfrac12[1 + \cos(\pi\,(t \bmod m)/m)]$ (Zhang et al. 2020, *Cyclical
    stochastic gradient MCMC*).
    """
    require_positive("step_size", step_size)
    steps = _number_of_steps("period", period)
    require_nonnegative("floor", floor)

    def schedule(step_index: jax.Array) -> jax.Array:
        phase = (jnp.asarray(step_index) % steps) / steps
        return floor + (step_size - floor) * 0.5 * (1 + jnp.cos(jnp.pi * phase))

    return schedule

r"""Step sizes that change with the step: $t \mapsto h_t$.

Any function of the step number fits, optax's schedules as they are; a number is a constant
schedule. A schedule reads `state.step_index`, so it goes on correctly after a checkpoint.
"""

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.tree import is_traced
from isotherm.types import ScalarOrSchedule, Schedule

BIGGEST = 2**31 - 1
"""Among JAX's whole numbers."""


def require_positive(name: str, value: object) -> None:
    """Refuse a concrete number that is not positive and finite; let tracers and functions pass."""
    if callable(value) or is_traced(value):
        return
    number = _number(name, value)
    if not (_is_real(number) and np.all((number > 0) & np.isfinite(number))):
        raise ValueError(f"`{name}` must be positive, got {value}.")


def require_nonnegative(name: str, value: object) -> None:
    """Refuse a concrete number that is negative or not finite; let tracers pass."""
    if is_traced(value):
        return
    number = _number(name, value)
    if not (_is_real(number) and np.all((number >= 0) & np.isfinite(number))):
        raise ValueError(f"`{name}` must not be negative, got {value}.")


def require_finite(name: str, value: object) -> None:
    """Raise unless a concrete number is real and finite."""
    if is_traced(value):
        return
    number = _number(name, value)
    if not (_is_real(number) and np.isfinite(number).all()):
        raise ValueError(f"`{name}` must be a finite number, got {value}.")


def _number(name: str, value: object) -> np.ndarray:
    """Refuse a whole number that has no place in JAX's; a floating-point one of that size has."""
    if isinstance(value, int | np.integer) and abs(value) > BIGGEST:
        raise ValueError(f"`{name}` must fit into 32 bits or have a decimal point, got {value}.")
    return np.asarray(value)


def _is_real(number: np.ndarray) -> bool:
    return number.size > 0 and number.dtype.kind not in "cOSUMm"


def as_schedule(step_size: ScalarOrSchedule) -> Schedule:
    """Turn a number into a constant schedule; check it if it can be checked.

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
    """Check a number of steps; one too big for the type of the step number becomes floating point."""
    if isinstance(value, int | np.integer) and value > BIGGEST:
        value = float(min(value, 2**63))  # no run comes that far
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
    r"""Let the step size decay as $h\,(1 + t/b)^{-\gamma}$ (Welling & Teh 2011).

    With $\gamma \in (1/2, 1]$ the steps sum to infinity and their squares do not.
    """
    require_positive("step_size", step_size)
    require_positive("power", power)
    steps = _number_of_steps("delay", delay)
    return lambda step_index: step_size * (1 + jnp.asarray(step_index) / steps) ** -power


def cyclical(step_size: float, period: int, floor: float = 0.0) -> Schedule:
    r"""Restart a cosine from `step_size` down to `floor` every `period` steps.

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

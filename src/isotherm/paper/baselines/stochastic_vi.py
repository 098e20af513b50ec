r"""What the variational methods share: units of the posterior, and a compiled climb.

They move $w$ in $\theta = \theta_0 + Sw$ with a diagonal $S$ of about the size of the posterior's
standard deviations. In $w$ the largest curvature is about 1, so step sizes have no dimension: they
depend neither on the size of the data nor on the units of the features. $S$ is also where $L$ starts.

References
----------
Ruiz (2001), *A scaling algorithm to equilibrate both rows and columns norms in matrices*. Polyak &
Juditsky (1992), *Acceleration of stochastic approximation by averaging*: in the long run the mean of
the iterates has the smallest error that noisy gradients allow, whatever the step size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.gaussian import (
    GaussianApproximation,
    LogDensity,
    Parameters,
    flatten,
)
from isotherm.schedules import require_positive
from isotherm.tree import as_position, is_traced
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key


def natural_scale(
    key: Key,
    log_density: LogDensity,
    origin: jax.Array,
    batches: BatchPolicy,
    *,
    per_coordinate: bool = True,
    num_batches: int = 32,
) -> jax.Array:
    r"""Estimate units $s_i$ in which the curvature at a point is at most about 1.

    With $H$ the Hessian of $-\log p$ over some batches, the rows of $s_i H_{ij} s_j$ are brought to
    equal norm (Ruiz equilibration, so the answer follows the units of the features); the norm of a row
    needs only products with random signs $v$, since $\mathbb E_v[(Hv)_i^2] = \sum_j H_{ij}^2$. Then the
    largest eigenvalue, found by power iteration, is divided out.
    """
    each = jnp.arange(num_batches)

    def times(v: jax.Array, t: jax.Array) -> jax.Array:
        batch = batches.batch(key, t)
        return -jax.jvp(jax.grad(lambda x: log_density(x, batch)), (origin,), (v,))[1]

    def equilibrate(r: jax.Array, unit: jax.Array) -> jax.Array:
        def row_squares(t: jax.Array) -> jax.Array:
            sign_key = random.fold(random.fold(key, num_batches + r), t)
            sign = jnp.where(random.bits(sign_key, unit.shape) >> 31 == 1, unit, -unit)
            return (unit * times(sign, t)) ** 2

        rows = jnp.sqrt(jnp.mean(jax.lax.map(row_squares, each), axis=0))
        return unit * jnp.where(rows > 0, rows, 1) ** -0.5

    unit = jnp.ones_like(origin)
    if per_coordinate:
        unit = jax.lax.fori_loop(0, 8, equilibrate, unit)

    def mean_times(v: jax.Array) -> jax.Array:
        return unit * jnp.mean(jax.lax.map(lambda t: times(unit * v, t), each), axis=0)

    start = random.gaussian(random.fold(key, 2 * num_batches), unit)
    largest = largest_eigenvalue(mean_times, start, 15)
    return unit * jnp.where(largest > 0, largest, 1) ** -0.5


class Standardised(NamedTuple):
    r"""The target over flat numbers $w$ in units of the posterior: $\theta = \theta_0 + Sw$."""

    log_density: LogDensity
    origin: jax.Array
    unit: jax.Array
    unflatten: Callable[[jax.Array], ArrayTree]

    def start(self, covariance: str) -> Parameters:
        r"""Begin at $\theta_0$ with $L = S$."""
        ones = jnp.ones_like(self.origin)
        return Parameters(0 * ones, ones if covariance == "diagonal" else jnp.diag(ones))

    def finish(self, parameters: Parameters, values: jax.Array) -> GaussianApproximation:
        """Go back to the coordinates of the user."""
        factor = parameters.factor
        scale = self.unit * factor if factor.ndim == 1 else self.unit[:, None] * jnp.tril(factor)
        mean = self.unflatten(self.origin + self.unit * parameters.mean)
        return GaussianApproximation(mean, scale, values + jnp.sum(jnp.log(self.unit)))


def standardise(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    scale: str,
    given: ArrayTree,
) -> Standardised:
    """Flatten a target and put it in units of its posterior."""
    origin, unflatten = flatten(position)

    def original(x: jax.Array, batch: Batch) -> jax.Array:
        return grad_fn.log_density(unflatten(x), batch)

    if scale == "given":
        unit = jnp.broadcast_to(flatten(given)[0], origin.shape).astype(origin.dtype)
    else:
        per_coordinate = scale == "per-coordinate"
        unit = natural_scale(key, original, origin, batches, per_coordinate=per_coordinate)

    def log_density(w: jax.Array, batch: Batch) -> jax.Array:
        return original(origin + unit * w, batch)

    return Standardised(log_density, origin, unit, unflatten)


def climb(
    step: Callable[[jax.Array, Parameters, Any], tuple[Parameters, Any, jax.Array]],
    parameters: Parameters,
    memory: Any,
    num_steps: int,
    average: float,
) -> tuple[Parameters, jax.Array]:
    """Repeat `step(t, parameters, memory) -> (parameters, memory, value)`; average the tail.

    Returns the mean of the parameters over the last `average` of the steps, and all values.
    """
    first = round((1 - average) * num_steps)

    def body(carry: tuple, t: jax.Array) -> tuple:
        parameters, memory, tail = carry
        parameters, memory, value = step(t, parameters, memory)
        weight = 1 / jnp.maximum(t - first + 1, 1).astype(jnp.float32)
        tail = jax.tree.map(lambda mean, x: mean + weight * (x - mean), tail, parameters)
        return (parameters, memory, tail), value

    carry = (parameters, memory, parameters)
    (_, _, tail), values = jax.lax.scan(body, carry, jnp.arange(num_steps))
    return tail, values


def check_arguments(
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    scale: str | ArrayTree,
    covariance: str,
    num_steps: int,
    draws_per_step: int,
    average: float,
) -> tuple[ArrayTree, str, ArrayTree]:
    """Refuse what cannot work; return the position and the scale as a rule and, if given, values."""
    if not isinstance(grad_fn, MinibatchGradient):
        raise ValueError(
            "`grad_fn` must come from `isotherm.minibatch_gradient`: a variational bound needs the "
            f"log density and not only its gradient. Got {type(grad_fn).__name__}."
        )
    if covariance not in ("full", "diagonal"):
        raise ValueError(f"`covariance` must be 'full' or 'diagonal', got {covariance!r}.")
    for name, value in {"num_steps": num_steps, "draws_per_step": draws_per_step}.items():
        if not value >= 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")
    if not 0 <= average < 1:
        raise ValueError(f"`average` must be at least 0 and below 1, got {average}.")
    position = as_position(position)
    if isinstance(scale, str):
        if scale not in ("per-coordinate", "uniform"):
            raise ValueError(
                "`scale` must be 'per-coordinate', 'uniform', a number, or a tree like the "
                f"position, got {scale!r}."
            )
        return position, scale, None
    return position, "given", _checked_scale(position, scale)


def _checked_scale(position: ArrayTree, scale: ArrayTree) -> ArrayTree:
    """Require one positive number, or positive numbers shaped like the position."""
    scale = jax.tree.map(jnp.asarray, scale)
    shapes = jax.tree.map(jnp.shape, scale)
    if shapes != () and shapes != jax.tree.map(jnp.shape, position):
        raise ValueError(
            "`scale` must be one number or have the shapes of the position, "
            f"{jax.tree.map(jnp.shape, position)}, got {shapes}."
        )
    for leaf in jax.tree.leaves(scale):
        require_positive("scale", leaf)
    return scale


def check_finite(name: str, approximation: GaussianApproximation) -> GaussianApproximation:
    """Raise if the numbers left the real line (unless they are only known later)."""
    flat, _ = flatten(approximation.mean)
    if is_traced(flat) or is_traced(approximation.scale):
        return approximation
    if not (np.all(np.isfinite(flat)) and np.all(np.isfinite(approximation.scale))):
        bad = np.flatnonzero(~np.isfinite(np.asarray(approximation.elbo)))
        where = f" (the bound is not finite from step {bad[0]} on)" if bad.size else ""
        raise FloatingPointError(
            f"{name} diverged{where}. Try a smaller `step_size`, a larger batch, or another `scale`."
        )
    return approximation

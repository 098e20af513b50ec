r"""Common parts of DSVI and HFSGVI: settings, standardized coordinates, the compiled loop.

Both optimize over $w$ in $\theta = \theta_0 + Sw$, where $S$ is diagonal and of about the size of
the posterior standard deviations. In $w$ the largest curvature is about 1, so step sizes are
dimensionless: they depend neither on the size of the data nor on the units of the features. $S$ is
also the initial value of $L$.

References
----------
Ruiz (2001), *A scaling algorithm to equilibrate both rows and columns norms in matrices*. Polyak &
Juditsky (1992), *Acceleration of stochastic approximation by averaging*: asymptotically the mean of
the iterates has the smallest error that noisy gradients allow, for any step size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

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
    check_count,
    flatten,
)
from isotherm.schedules import polynomial, require_positive
from isotherm.tree import is_traced
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, ScalarOrSchedule, Schedule


def natural_scale(
    key: Key,
    log_density: LogDensity,
    origin: jax.Array,
    batches: BatchPolicy,
    *,
    per_coordinate: bool = True,
    num_batches: int = 32,
) -> jax.Array:
    r"""Estimate scales $s_i$ such that the curvature of $s_i H_{ij} s_j$ is at most about 1.

    $H$ is the Hessian of $-\log p$ at `origin`, averaged over some batches. Ruiz equilibration
    brings the rows of $s_i H_{ij} s_j$ to equal norm, so the scales follow the units of the
    features. The norm of a row needs only products with random signs $v$:
    $\mathbb E_v[(Hv)_i^2] = \sum_j H_{ij}^2$. Then the scales are divided by the root of the
    largest eigenvalue, found by power iteration.
    """
    batch_numbers = jnp.arange(num_batches)

    def hessian_times(v: jax.Array, t: jax.Array) -> jax.Array:
        batch = batches.batch(key, t)
        return -jax.jvp(jax.grad(lambda x: log_density(x, batch)), (origin,), (v,))[1]

    def equilibrate(r: jax.Array, unit: jax.Array) -> jax.Array:
        def row_squares(t: jax.Array) -> jax.Array:
            sign_key = random.fold(random.fold(key, num_batches + r), t)
            sign = jnp.where(random.bits(sign_key, unit.shape) >> 31 == 1, unit, -unit)
            return (unit * hessian_times(sign, t)) ** 2

        rows = jnp.sqrt(jnp.mean(jax.lax.map(row_squares, batch_numbers), axis=0))
        return unit * jnp.where(rows > 0, rows, 1) ** -0.5

    unit = jnp.ones_like(origin)
    if per_coordinate:
        unit = jax.lax.fori_loop(0, 8, equilibrate, unit)

    def mean_times(v: jax.Array) -> jax.Array:
        products = jax.lax.map(lambda t: hessian_times(unit * v, t), batch_numbers)
        return unit * jnp.mean(products, axis=0)

    start = random.gaussian(random.fold(key, 2 * num_batches), unit)
    largest = largest_eigenvalue(mean_times, start, 15)
    return unit * jnp.where(largest > 0, largest, 1) ** -0.5


class Standardized(NamedTuple):
    r"""The target as a function of the flat array $w$ in $\theta = \theta_0 + Sw$."""

    log_density: LogDensity
    origin: jax.Array
    unit: jax.Array
    unflatten: Callable[[jax.Array], ArrayTree]

    def start(self, covariance: str) -> Parameters:
        r"""Return the initial parameters: mean $\theta_0$ and $L = S$."""
        ones = jnp.ones_like(self.origin)
        return Parameters(0 * ones, ones if covariance == "diagonal" else jnp.diag(ones))

    def finish(self, parameters: Parameters, values: jax.Array) -> GaussianApproximation:
        """Transform the result to the coordinates of the user."""
        factor = parameters.factor
        scale = self.unit * factor if factor.ndim == 1 else self.unit[:, None] * jnp.tril(factor)
        mean = self.unflatten(self.origin + self.unit * parameters.mean)
        return GaussianApproximation(mean, scale, values + jnp.sum(jnp.log(self.unit)))


Step = Callable[[jax.Array, Parameters, Any], tuple[Parameters, Any, jax.Array]]
"""`(step_index, parameters, state) -> (parameters, state, bound)`."""


@dataclass(frozen=True)
class Settings:
    """Settings that both methods have; a static argument of their compiled programs."""

    grad_fn: MinibatchGradient
    num_steps: int
    covariance: str
    draws_per_step: int
    scale: str
    """`"per-coordinate"`, `"uniform"`, or `"given"` if the user gave numbers."""
    average: float
    schedule: Schedule | None
    """The step size, if it is a schedule."""

    def standardize(
        self, key: Key, position: ArrayTree, batches: BatchPolicy, given_scale: ArrayTree
    ) -> Standardized:
        """Flatten the target and scale it to unit curvature."""
        origin, unflatten = flatten(position)

        def original(x: jax.Array, batch: Batch) -> jax.Array:
            return self.grad_fn.log_density(unflatten(x), batch)

        if self.scale == "given":
            unit = jnp.broadcast_to(flatten(given_scale)[0], origin.shape).astype(origin.dtype)
        else:
            per_coordinate = self.scale == "per-coordinate"
            unit = natural_scale(key, original, origin, batches, per_coordinate=per_coordinate)

        def log_density(w: jax.Array, batch: Batch) -> jax.Array:
            return original(origin + unit * w, batch)

        return Standardized(log_density, origin, unit, unflatten)

    def step_size_schedule(self, step_size: float | jax.Array, delay: float) -> Schedule:
        """Return the user's schedule, or one that decays after `delay` of the steps."""
        if self.schedule is not None:
            return self.schedule
        return polynomial(cast(float, step_size), delay=self.num_steps * delay, power=0.7)

    def noise_shape(self, target: Standardized) -> jax.Array:
        """Return zeros shaped like the $z$ of one step."""
        return jnp.zeros((self.draws_per_step, target.origin.size), target.origin.dtype)

    def maximize_elbo(
        self, step: Step, target: Standardized, start: Parameters, state: Any
    ) -> GaussianApproximation:
        """Repeat `step`; return the mean of the iterates over the last `average` of the steps."""
        first = round((1 - self.average) * self.num_steps)

        def body(carry: tuple, t: jax.Array) -> tuple:
            parameters, state, tail = carry
            parameters, state, value = step(t, parameters, state)
            weight = 1 / jnp.maximum(t - first + 1, 1).astype(jnp.float32)
            tail = jax.tree.map(lambda mean, x: mean + weight * (x - mean), tail, parameters)
            return (parameters, state, tail), value

        carry = (start, state, start)
        (_, _, tail), values = jax.lax.scan(body, carry, jnp.arange(self.num_steps))
        return target.finish(tail, values)


def checked_settings(
    grad_fn: MinibatchGradient,
    scale: str | ArrayTree,
    step_size: ScalarOrSchedule,
    *,
    num_steps: int,
    covariance: str,
    draws_per_step: int,
    average: float,
) -> Settings:
    """Check the arguments that both methods have, and collect them."""
    if not isinstance(grad_fn, MinibatchGradient):
        raise ValueError(
            "`grad_fn` must come from `isotherm.minibatch_gradient`: a variational bound needs the "
            f"log density and not only its gradient. Got {type(grad_fn).__name__}."
        )
    if covariance not in ("full", "diagonal"):
        raise ValueError(f"`covariance` must be 'full' or 'diagonal', got {covariance!r}.")
    check_count("num_steps", num_steps)
    check_count("draws_per_step", draws_per_step)
    if not 0 <= average < 1:
        raise ValueError(f"`average` must be at least 0 and below 1, got {average}.")
    if isinstance(scale, str) and scale not in ("per-coordinate", "uniform"):
        raise ValueError(
            "`scale` must be 'per-coordinate', 'uniform', a number, or a tree like the "
            f"position, got {scale!r}."
        )
    require_positive("step_size", step_size)
    return Settings(
        grad_fn,
        num_steps,
        covariance,
        draws_per_step,
        scale if isinstance(scale, str) else "given",
        average,
        step_size if callable(step_size) else None,
    )


def checked_scale(position: ArrayTree, scale: str | ArrayTree) -> ArrayTree:
    """Return the numbers that the user gave as scale, or `None` if the scale is a rule.

    They must be one positive number, or positive numbers shaped like the position.
    """
    if isinstance(scale, str):
        return None
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
    """Return the approximation; raise if it is not finite (traced values are not checked)."""
    flat, _ = flatten(approximation.mean)
    if is_traced(flat) or is_traced(approximation.scale):
        return approximation
    if not (np.all(np.isfinite(flat)) and np.all(np.isfinite(approximation.scale))):
        bad = np.flatnonzero(~np.isfinite(np.asarray(approximation.elbo)))
        first = f" (the bound is not finite from step {bad[0]} on)" if bad.size else ""
        raise FloatingPointError(
            f"{name} diverged{first}. "
            "Try a smaller `step_size`, a larger batch, or another `scale`."
        )
    return approximation

r"""The double well: a density in one dimension with two modes and known expectations.

$$ \log\pi(\theta) = -U(\theta) - \log Z, \qquad
   U(\theta) = \tfrac1{14}(\theta + 4)(\theta + 1)(\theta - 1)(\theta - 3) + \tfrac12 $$

The modes are at $\theta = -2.94$ (with 87 % of the mass) and $\theta = 2.22$; the barrier between
them has a height of 4.3 and 2.2, respectively. With a noisy gradient this is the toy problem of the
thermostat literature. Exact expectations allow to measure discretisation errors with either
gradient.

References
----------
Ding et al. (2014), *Bayesian sampling using stochastic gradient thermostats*. Li et al. (2016),
*High-order stochastic gradient thermostats for Bayesian learning of deep models*.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.schedules import require_nonnegative, require_positive
from isotherm.types import Batch, GradFn, Key

# Midpoints of cells of width 0.001; less than 1e-80 of the mass is outside of [-8, 8].
_POINTS = (np.arange(-8000, 8000) + 0.5) / 1000


def log_density(x: Any) -> Any:
    r"""Return $-U$, the log density up to the constant $\log Z$, elementwise."""
    return -(x + 4) * (x + 1) * (x - 1) * (x - 3) / 14 - 0.5


def gradient(position: jax.Array, batch: Batch) -> jax.Array:
    r"""Return the exact gradient $-U'$; the batch is ignored."""
    del batch
    x = position
    return -(((4 * x + 3) * x - 26) * x - 1) / 14


def curvature(x: Any) -> Any:
    r"""Return $U''$, elementwise."""
    return ((12 * x + 6) * x - 26) / 14


def noisy_gradient(step_size: float | jax.Array, level: float | jax.Array = 1.0) -> GradFn:
    r"""Build a gradient function with white noise of covariance $2B$ per unit time.

    $h\,\hat g(\theta) = -h\,U'(\theta) + \mathcal N(0, 2Bh)$. In equilibrium the mean of a
    thermostat is $E[\xi] = D + B$.

    Parameters
    ----------
    step_size
        $h$ of a sampler with one gradient per step.
    level
        $B$; 1 in the literature.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> grad_fn = noisy_gradient(step_size=0.1)
    >>> grad_fn(jnp.zeros(3), jax.random.key(0)).shape  # the batch is a key, a new one each step
    (3,)
    """
    require_positive("step_size", step_size)
    require_nonnegative("level", level)

    def grad_fn(position: jax.Array, key: Key) -> jax.Array:
        noise = jnp.sqrt(2 * level / step_size) * random.gaussian(key, position)
        return gradient(position, None) + noise.astype(position.dtype)

    return grad_fn


def density(grid: Any) -> np.ndarray:
    r"""Return the normalised density $e^{-U}/Z$ at the points of a grid.

    Examples
    --------
    >>> grid = np.linspace(-5, 5, 1001)
    >>> round(float(density(grid).sum() * 0.01), 4)
    1.0
    """
    return np.exp(log_density(np.asarray(grid, np.float64))) / _unnormalised(np.ones_like)


def expectation(f: Callable[[np.ndarray], Any]) -> float:
    r"""Compute $\int f\,d\pi$ for a vectorised $f$.

    The midpoint rule is exact up to rounding for smooth $f$, and up to $10^{-7}$ for a jump
    at a multiple of 0.001.

    Examples
    --------
    >>> round(expectation(lambda x: x > 0), 4)
    0.1288
    """
    return float(_unnormalised(f) / _unnormalised(np.ones_like))


def exact_draws(key: Key, num_draws: int) -> jax.Array:
    r"""Draw independent positions from $\pi$, by inverting its distribution function.

    Examples
    --------
    >>> import jax
    >>> draws = exact_draws(jax.random.key(0), 10_000)
    >>> round(float((draws > 0).mean()), 1)
    0.1
    """
    below = np.cumsum(np.exp(log_density(_POINTS)))
    uniform = jax.random.uniform(key, (num_draws,))
    return jnp.interp(uniform, jnp.asarray(below / below[-1]), jnp.asarray(_POINTS + 0.0005))


def _unnormalised(f: Callable[[np.ndarray], Any]) -> float:
    return np.sum(f(_POINTS) * np.exp(log_density(_POINTS))) / 1000

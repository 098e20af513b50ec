r"""Stochastic gradient Langevin dynamics.

$$ \theta \leftarrow \theta + h\,\hat g(\theta) + \sqrt{2hT}\,R, \qquad R \sim \mathcal N(0, I). $$

As $h \to 0$ the law of $\theta$ tends to $\pi^{1/T}$. With fixed $h$ and exact gradients, a
Gaussian target of precision $\Lambda$ is sampled with covariance $T[\Lambda(I - h\Lambda/2)]^{-1}$;
gradient noise of variance $\sigma^2$ adds $h\sigma^2/2$ to the temperature. In coordinates
$\theta = c + Mq$ the drift is $h\,MM^\top\hat g$ and the noise $\sqrt{2hT}\,MR$. State: one
position.

References
----------
Welling & Teh (2011), *Bayesian learning via stochastic gradient Langevin dynamics*, ICML. Their
$\epsilon_t$ is our $2h_t$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.coordinates.linear import Coordinates, as_coordinates
from isotherm.diagnostics.temperature import virial
from isotherm.dynamics.overdamped import overdamped
from isotherm.schedules import as_schedule, require_nonnegative
from isotherm.tree import add_increment, as_position
from isotherm.types import (
    ArrayTree,
    GradFn,
    Key,
    Sampler,
    Scalar,
    ScalarOrSchedule,
    StepInfo,
    Traits,
)


class SGLDState(NamedTuple):
    """Position, and number of steps taken."""

    position: ArrayTree
    step_index: jax.Array


def sgld(
    grad_fn: GradFn | None,
    step_size: ScalarOrSchedule,
    *,
    temperature: Scalar = 1.0,
    noise: str | random.Noise = "gaussian",
    coordinates: Coordinates | None = None,
) -> Sampler:
    r"""Build an SGLD sampler.

    Parameters
    ----------
    grad_fn
        `(position, batch) -> grads`, an unbiased estimate of $\nabla\log\pi$; `None` if gradients
        are supplied from outside (`isotherm.as_optax`).
    step_size
        $h$: a positive number, or a schedule `step_index -> h`.
    temperature
        $T$: 1 targets $\pi$; 0 is stochastic gradient ascent.
    noise
        `"gaussian"`, `"three-point"`, or a function.
    coordinates
        A constant preconditioner $MM^\top$ (`isotherm.coordinates`).

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> sampler = sgld(lambda x, batch: -x, step_size=0.1)
    >>> state = sampler.init(jnp.zeros(2))
    >>> state, info = sampler.step(jax.random.key(0), state, batch=None)
    >>> state.position.shape, int(state.step_index)
    ((2,), 1)
    """
    step_size_fn = as_schedule(step_size)
    require_nonnegative("temperature", temperature)
    noise_fn = random.as_noise(noise)
    space = as_coordinates(coordinates)

    def init(position: ArrayTree, key: Key | None = None) -> SGLDState:
        del key  # nothing to draw
        return SGLDState(as_position(position), jnp.zeros((), jnp.int32))

    def update(key: Key, state: SGLDState, grads: ArrayTree) -> tuple[SGLDState, StepInfo]:
        h = step_size_fn(state.step_index)
        force = space.pull(grads)
        xi = noise_fn(key, force)
        increment = space.push(
            jax.tree.map(lambda g, r: h * g + jnp.sqrt(2 * h * temperature) * r, force, xi)
        )
        position = jax.tree.map(add_increment, state.position, increment)
        info = StepInfo(jnp.asarray(h, jnp.float32), virial(state.position, grads))
        return SGLDState(position, state.step_index + 1), info

    return overdamped(grad_fn, init, update, Traits("sgld", temperature=temperature))

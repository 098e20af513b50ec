r"""Preconditioned SGLD: each coordinate scaled by the size of its recent gradients.

$$ \begin{aligned}
V &\leftarrow \beta V + (1-\beta)\,\hat g\odot\hat g, \qquad
G = 1\big/\bigl(\lambda + \sqrt{V/(1-\beta^t)}\bigr), \\
\theta &\leftarrow \theta + h\,G\odot\hat g + \sqrt{2hTG}\odot R.
\end{aligned} $$

As long as $G$ follows the gradients it depends on $\theta$, and omitting the term
$\Gamma = \nabla\cdot G$, as is usual, biases the chain by an amount of order $1-\beta$. With
`freeze_after` $=m$ the preconditioner is constant after $m$ steps and the bias vanishes: set $m$ to
the length of the burn-in. The division by $1-\beta^t$ (as in Adam) removes the bias of $V$ towards
its initial value 0. State: two positions.

References
----------
Li, Chen, Carlson & Carin (2016), *Preconditioned stochastic gradient Langevin dynamics for deep
neural networks*, AAAI. Their gradient is a mean over the batch: with $N$ data their $\epsilon$ is
our $2h/N$ and their $\lambda$ our $\lambda/N$.
"""

from numbers import Real
from typing import NamedTuple

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.diagnostics.temperature import virial
from isotherm.dynamics.overdamped import overdamped
from isotherm.schedules import as_schedule, require_nonnegative, require_positive
from isotherm.tree import add_increment, as_position, count, zeros_like_working
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


class PSGLDState(NamedTuple):
    """Position, running mean of squared gradients, and number of steps taken."""

    position: ArrayTree
    second_moment: ArrayTree
    step_index: jax.Array


def psgld(
    grad_fn: GradFn | None,
    step_size: ScalarOrSchedule,
    *,
    decay: float = 0.99,
    damping: Scalar = 1e-5,
    freeze_after: int | None = None,
    temperature: Scalar = 1.0,
    noise: str | random.Noise = "gaussian",
) -> Sampler:
    r"""Build a pSGLD sampler.

    Parameters
    ----------
    grad_fn, step_size, temperature, noise
        As in `isotherm.sgld`; $h$ is relative to the size of the gradient.
    decay
        $\beta$ in $[0, 1)$: decay of the running mean per step.
    damping
        $\lambda > 0$, in units of the gradient: the preconditioner is at most $1/\lambda$.
    freeze_after
        Number of steps after which the preconditioner is kept constant; `None` means never.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> sampler = psgld(lambda x, batch: -x, step_size=0.1, freeze_after=100)
    >>> state = sampler.init(jnp.ones(2))
    >>> state, info = sampler.step(jax.random.key(0), state, batch=None)
    >>> state.second_moment.shape
    (2,)
    """
    step_size_fn = as_schedule(step_size)
    require_nonnegative("temperature", temperature)
    require_positive("damping", damping)
    if not isinstance(decay, Real) or not 0 <= decay < 1:
        raise ValueError(f"`decay` must be a number in [0, 1), got {decay!r}.")
    if freeze_after is not None:
        freeze_after = count("freeze_after", freeze_after, 1)
    if freeze_after is not None and freeze_after > 2**31 - 1:
        freeze_after = None  # no run is that long
    noise_fn = random.as_noise(noise)

    def init(position: ArrayTree, key: Key | None = None) -> PSGLDState:
        del key  # nothing to draw
        position = as_position(position)
        return PSGLDState(position, zeros_like_working(position), jnp.zeros((), jnp.int32))

    def update(key: Key, state: PSGLDState, grads: ArrayTree) -> tuple[PSGLDState, StepInfo]:
        h = step_size_fn(state.step_index)
        frozen = False if freeze_after is None else state.step_index >= freeze_after
        seen = state.step_index + 1
        if freeze_after is not None:
            seen = jnp.minimum(seen, freeze_after)

        def learn(v: jax.Array, g: jax.Array) -> jax.Array:
            return jnp.where(frozen, v, decay * v + (1 - decay) * g * g).astype(v.dtype)

        def move(x: jax.Array, v: jax.Array, g: jax.Array, r: jax.Array) -> jax.Array:
            preconditioner = 1 / (damping + jnp.sqrt(v / (1 - decay**seen)))
            drift = h * preconditioner * g
            return add_increment(x, drift + jnp.sqrt(2 * h * temperature * preconditioner) * r)

        second_moment = jax.tree.map(learn, state.second_moment, grads)
        xi = noise_fn(key, second_moment)
        position = jax.tree.map(move, state.position, second_moment, grads, xi)
        info = StepInfo(jnp.asarray(h, jnp.float32), virial(state.position, grads))
        return PSGLDState(position, second_moment, state.step_index + 1), info

    return overdamped(grad_fn, init, update, Traits("psgld", temperature=temperature))

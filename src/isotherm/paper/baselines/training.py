"""What the baselines that train share: compiled chunks of optimiser steps, with Python in between.

Step $t$ depends on nothing but the key, the parameters and $t$. Between chunks the host moves the
progress bar and looks whether the loss is still a number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isotherm import random
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.loop.progress import make_progress
from isotherm.schedules import require_positive
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, ScalarOrSchedule

NUM_CHUNKS = 100
"""How often a fit looks up from its work."""


class Fitted(Protocol):
    """What every baseline returns: something to draw positions from."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions with leading axes `(chain, draw)`, as `isotherm.posterior_predictive` wants them."""
        ...


@dataclass(frozen=True)
class Training:
    """What is compiled: a loss to go down, and how."""

    name: str
    """For messages."""
    loss: Callable[[Key, ArrayTree, Batch], jax.Array]
    """`(key, parameters, batch) -> loss`, at the scale of one datum."""
    optimizer: optax.GradientTransformation


class _State(NamedTuple):
    parameters: ArrayTree
    memory: optax.OptState
    losses: jax.Array


def train(
    key: Key,
    training: Training,
    parameters: ArrayTree,
    batches: BatchPolicy,
    num_steps: int,
    progress: bool | None = None,
) -> tuple[ArrayTree, jax.Array]:
    """Take `num_steps` optimiser steps; return where they end, and the loss at each of them.

    Raises
    ------
    FloatingPointError
        If the loss, or at the end a parameter, is not finite.
    """
    parameters = jax.tree.map(jnp.copy, parameters)  # chunks reuse the memory
    state = _State(parameters, training.optimizer.init(parameters), jnp.zeros(num_steps))
    chunk = max(1, num_steps // NUM_CHUNKS)
    with make_progress(progress, num_steps, training.name) as bar:
        for start in range(0, num_steps, chunk):
            stop = min(start + chunk, num_steps)
            state = _advance(state, key, batches, start, stop, training=training)
            _check(training.name, state, start, stop)
            bar.advance(stop - start, None, None)
    return state.parameters, state.losses


@partial(jax.jit, static_argnames="training", donate_argnums=0)
def _advance(
    state: _State, key: Key, batches: BatchPolicy, start: int, stop: int, *, training: Training
) -> _State:
    batch_key, noise_key = random.fold(key, 0), random.fold(key, 1)

    def step(t: jax.Array, state: _State) -> _State:
        parameters, memory, losses = state
        batch = batches.batch(batch_key, t)
        loss, grads = jax.value_and_grad(training.loss, argnums=1)(
            random.fold(noise_key, t), parameters, batch
        )
        updates, memory = training.optimizer.update(grads, memory, parameters)
        parameters = optax.apply_updates(parameters, updates)
        return _State(parameters, memory, losses.at[t].set(loss.astype(losses.dtype)))

    return jax.lax.fori_loop(start, stop, step, state)


def _check(name: str, state: _State, start: int, stop: int) -> None:
    bad = np.flatnonzero(~np.isfinite(np.asarray(state.losses[start:stop])))
    leaves = jax.tree.leaves(state.parameters)
    if bad.size == 0 and all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves):
        return
    first = start + int(bad[0]) if bad.size else stop
    raise FloatingPointError(
        f"{name} diverged: it is not finite from step {first} on. Try a smaller `step_size`, or "
        "look for NaN in the data."
    )


def check_training(grad_fn: object, batches: object, num_steps: int) -> None:
    """Refuse what no baseline can train on."""
    if not isinstance(grad_fn, MinibatchGradient):
        raise ValueError(
            "`grad_fn` must come from `isotherm.minibatch_gradient` or `network.gradient`: training "
            f"needs the log density and not only its gradient. Got {type(grad_fn).__name__}."
        )
    if not hasattr(batches, "batch"):
        raise ValueError(
            "`batches` must be a batch policy such as isotherm.shuffled_batches((x, y), 100), got "
            f"{type(batches).__name__}."
        )
    if not num_steps >= 1:
        raise ValueError(f"`num_steps` must be at least 1, got {num_steps}.")


def momentum_optimizer(
    step_size: ScalarOrSchedule,
    momentum: float,
    optimizer: optax.GradientTransformation | None,
) -> optax.GradientTransformation:
    """Make gradient descent with momentum, unless another optimiser is given."""
    require_positive("step_size", step_size)
    if not 0 <= momentum < 1:
        raise ValueError(f"`momentum` must be at least 0 and below 1, got {momentum}.")
    return optimizer or optax.sgd(cast(float, step_size), momentum)


def check_num_draws(num_draws: int) -> None:
    """Refuse fewer than one draw."""
    if not num_draws >= 1:
        raise ValueError(f"`num_draws` must be at least 1, got {num_draws}.")

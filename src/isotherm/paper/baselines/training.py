"""Training loop of the baselines: compiled chunks of optimizer steps, controlled from Python.

Step $t$ depends only on the key, the parameters and $t$. Between chunks the host updates the
progress bar and checks that the loss is finite.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

import isotherm
from isotherm import random
from isotherm.diagnostics.predictions import joined_draws
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.loop.progress import make_progress
from isotherm.models.networks import Network
from isotherm.paper.baselines.gaussian import check_count
from isotherm.schedules import require_positive
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, Sampler, ScalarOrSchedule

NUM_CHUNKS = 100
"""Number of compiled chunks of a fit."""


class Fitted(Protocol):
    """What every baseline returns: an approximation of the posterior that can be sampled."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions with leading axes `(chain, draw)`.

        `isotherm.posterior_predictive` accepts them as they are.
        """
        ...


@dataclass(frozen=True)
class KeptDraws:
    """Draws of chains as approximation of the posterior."""

    draws: ArrayTree
    """Positions with leading axes `(chain, draw)`."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Return draws of all chains in a random order, with leading axes `(1, num_draws)`.

        None is repeated before all have been used.
        """
        check_count("num_draws", num_draws)
        flat = joined_draws(self.draws)
        total = jax.tree.leaves(flat)[0].shape[0]
        order = np.random.default_rng(random.numpy_seed(key)).permutation(total)
        chosen = order[np.arange(num_draws) % total]
        return jax.tree.map(lambda leaf: jnp.asarray(leaf[chosen])[None], flat)


def run_chains(
    key: Key,
    build: Callable[..., Sampler],
    settings: tuple[float, ...],
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_draws: int,
    thin: int,
    burn_in: int = 0,
    num_chains: int = 1,
    position_per_chain: bool = False,
) -> KeptDraws:
    """Run chains of the sampler `build(*settings)` in one program, and keep their draws.

    `isotherm.sample` compiles a program for every sampler. Here settings are arguments of the
    program: equal `build` with other settings, data or keys do not compile again. The burn-in is
    rounded up to a multiple of `thin`.

    Raises
    ------
    FloatingPointError
        If a chain diverged.
    """
    for name, value in (("num_draws", num_draws), ("thin", thin), ("num_chains", num_chains)):
        check_count(name, value)
    if not position_per_chain:
        position = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (num_chains, *jnp.shape(leaf))), position
        )
    left_out = -(-burn_in // thin)
    keys = jax.vmap(lambda i: random.fold(key, i))(jnp.arange(num_chains))
    plan = {"num_draws": num_draws + left_out, "thin": thin}
    draws = _chains(keys, tuple(map(float, settings)), position, batches, build=build, **plan)
    kept = jax.tree.map(lambda leaf: np.asarray(leaf[:, left_out:]), draws)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(kept)):
        raise FloatingPointError("A chain diverged. Try a smaller step size.")
    return KeptDraws(kept)


@partial(jax.jit, static_argnames=["build", "num_draws", "thin"])
def _chains(
    keys: Key,
    settings: tuple[float, ...],
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    build: Callable[..., Sampler],
    num_draws: int,
    thin: int,
) -> ArrayTree:
    def chain(key: Key, start: ArrayTree) -> ArrayTree:
        sampler = build(*settings)
        return isotherm.run_chain(key, sampler, start, batches, num_draws=num_draws, thin=thin)[0]

    return jax.vmap(chain)(keys, position)


def draw_outputs(fitted: Fitted, network: Network, key: Key, x: Any, num_draws: int) -> jax.Array:
    """Draw the outputs of a network at inputs, (draw, row, column).

    All scores need only these: the likelihood makes of them a mixture (`predictive`) or class
    probabilities (`predict`). A fit that predicts otherwise than by weights has its own method
    `outputs(key, network, x, num_draws)`.
    """
    own = getattr(fitted, "outputs", None)
    if own is not None:
        return own(key, network, jnp.asarray(x), num_draws)
    positions = joined_draws(fitted.sample(key, num_draws))
    return _outputs(positions, jnp.asarray(x), network=network)


@partial(jax.jit, static_argnames="network")
def _outputs(positions: ArrayTree, x: jax.Array, *, network: Network) -> jax.Array:
    return jax.lax.map(lambda w: network.apply(w, x), positions, batch_size=16)


@dataclass(frozen=True)
class Training:
    """A training program: the loss and its optimizer.

    Programs with equal loss and optimizer are compiled once.
    """

    name: str = field(compare=False)
    """Name of the method, for messages."""
    loss: Callable[[Key, ArrayTree, Batch], jax.Array]
    """`(key, parameters, batch) -> loss`, per datum."""
    optimizer: optax.GradientTransformation


class TrainingState(NamedTuple):
    """Parameters, the state of the optimizer, and the loss of every step."""

    parameters: ArrayTree
    optimizer_state: optax.OptState
    losses: jax.Array


def train(
    key: Key,
    training: Training,
    parameters: ArrayTree,
    batches: BatchPolicy,
    num_steps: int,
    progress: bool | None = None,
) -> tuple[ArrayTree, jax.Array]:
    """Take `num_steps` optimizer steps; return the final parameters and the loss of every step.

    Raises
    ------
    FloatingPointError
        If a loss or a parameter is not finite.
    """
    state = train_state(key, training, parameters, batches, num_steps, progress)
    return state.parameters, state.losses


def train_state(
    key: Key,
    training: Training,
    parameters: ArrayTree,
    batches: BatchPolicy,
    num_steps: int,
    progress: bool | None = None,
) -> TrainingState:
    """Do what `train` does, and return the state of the optimizer too."""
    parameters = jax.tree.map(jnp.copy, parameters)  # the chunks donate their input
    state = initial_state(training, parameters, num_steps)
    chunk = max(1, num_steps // NUM_CHUNKS)
    with make_progress(progress, num_steps, training.name) as bar:
        for start in range(0, num_steps, chunk):
            stop = min(start + chunk, num_steps)
            state = _advance(state, key, batches, start, stop, training=training)
            _check_finite(training.name, state, start, stop)
            bar.advance(stop - start, None, None)
    return state


def initial_state(training: Training, parameters: ArrayTree, num_steps: int) -> TrainingState:
    """Return the state before the first of `num_steps` steps."""
    return TrainingState(parameters, training.optimizer.init(parameters), jnp.zeros(num_steps))


@partial(jax.jit, static_argnames="training", donate_argnums=0)
def _advance(
    state: TrainingState,
    key: Key,
    batches: BatchPolicy,
    start: int,
    stop: int,
    *,
    training: Training,
) -> TrainingState:
    return steps(state, key, batches, start, stop, training)


def steps(
    state: TrainingState,
    key: Key,
    batches: BatchPolicy,
    start: int | jax.Array,
    stop: int | jax.Array,
    training: Training,
) -> TrainingState:
    """Take steps `start` to `stop - 1`, inside a compiled program."""
    batch_key, noise_key = random.fold(key, 0), random.fold(key, 1)

    def step(t: jax.Array, state: TrainingState) -> TrainingState:
        parameters, optimizer_state, losses = state
        batch = batches.batch(batch_key, t)
        loss, grads = jax.value_and_grad(training.loss, argnums=1)(
            random.fold(noise_key, t), parameters, batch
        )
        updates, optimizer_state = training.optimizer.update(grads, optimizer_state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        losses = losses.at[t].set(loss.astype(losses.dtype))
        return TrainingState(parameters, optimizer_state, losses)

    return jax.lax.fori_loop(start, stop, step, state)


def _check_finite(name: str, state: TrainingState, start: int, stop: int) -> None:
    bad = np.flatnonzero(~np.isfinite(np.asarray(state.losses[start:stop])))
    leaves = jax.tree.leaves(state.parameters)
    if bad.size == 0 and all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves):
        return
    first = start + int(bad[0]) if bad.size else stop
    raise FloatingPointError(
        f"{name} diverged: it is not finite from step {first} on. Try a smaller `step_size`, or "
        "check the data for NaN."
    )


def check_training(grad_fn: object, batches: object, num_steps: int) -> None:
    """Raise a `ValueError` for arguments that no baseline can train with."""
    if not isinstance(grad_fn, MinibatchGradient):
        raise ValueError(
            "`grad_fn` must come from `isotherm.minibatch_gradient` or `network.gradient`: "
            "training needs the log density and not only its gradient. "
            f"Got {type(grad_fn).__name__}."
        )
    if not hasattr(batches, "batch"):
        raise ValueError(
            "`batches` must be a batch policy such as isotherm.shuffled_batches((x, y), 100), got "
            f"{type(batches).__name__}."
        )
    check_count("num_steps", num_steps)


def momentum_optimizer(
    step_size: ScalarOrSchedule,
    momentum: float,
    optimizer: optax.GradientTransformation | None,
) -> optax.GradientTransformation:
    """Return `optimizer` or, if it is `None`, gradient descent with momentum."""
    require_positive("step_size", step_size)
    if not 0 <= momentum < 1:
        raise ValueError(f"`momentum` must be at least 0 and below 1, got {momentum}.")
    if optimizer is not None:
        return optimizer
    if isinstance(step_size, int | float) or callable(step_size):
        return _sgd(step_size, momentum)
    return optax.sgd(cast(float, step_size), momentum)


@lru_cache(maxsize=64)
def _sgd(step_size: ScalarOrSchedule, momentum: float) -> optax.GradientTransformation:
    """Return the same object for the same settings, so that programs with it compile once."""
    return optax.sgd(cast(float, step_size), momentum)


def hashable(step_size: ScalarOrSchedule) -> Any:
    """Return a step size as a key of a cache: a schedule, or a Python number."""
    return step_size if callable(step_size) else float(step_size)


@lru_cache(maxsize=256)
def cosine_adam(step_size: float, num_steps: int) -> optax.GradientTransformation:
    """Return Adam with a cosine decay to zero; the same object for the same settings."""
    return optax.adam(optax.cosine_decay_schedule(step_size, num_steps))

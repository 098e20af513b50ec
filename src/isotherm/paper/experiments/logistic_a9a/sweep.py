"""The paper's protocol over grids of settings and seeds, in blocks of vectorized chains."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.dsvi import dsvi
from isotherm.paper.baselines.hfsgvi import hfsgvi
from isotherm.paper.experiments.logistic_a9a.problem import Labelled, Problem, score, scores
from isotherm.types import GradFn, Key, Sampler

BLOCK = 64
"""Chains per compiled program: enough for vector units, few enough for short tables."""


def _thermostat(grad_fn: GradFn, h: Any, d: Any, *, make: Any, integrator: str) -> Sampler:
    return make(grad_fn, h, d, integrator=integrator)


def _overdamped(grad_fn: GradFn, h: Any, d: Any, *, make: Any) -> Sampler:
    del d  # nothing to choose
    return make(grad_fn, h)


Build = Callable[[GradFn, Any, Any], Sampler]
UNDERDAMPED: dict[str, Build] = {
    f"{name}-{letter}": partial(_thermostat, make=make, integrator=word)
    for name, make in (
        ("mSGNHT", isotherm.msgnht),
        ("SGHMC", isotherm.sghmc),
        ("SGNHT", isotherm.sgnht),
    )
    for letter, word in (("S", "ABOBA"), ("E", "euler"))
}
OVERDAMPED: dict[str, Build] = {
    "SGLD": partial(_overdamped, make=isotherm.sgld),
    "pSGLD": partial(_overdamped, make=isotherm.psgld),
}
SAMPLERS = {**UNDERDAMPED, **OVERDAMPED}


class Protocol(NamedTuple):
    """Length of a chain, and which draws are kept."""

    batch_size: int
    num_steps: int
    burn_in: int
    thin: int

    @property
    def num_draws(self) -> int:
        """Number of draws kept after the burn-in."""
        return (self.num_steps - self.burn_in) // self.thin

    @property
    def discarded(self) -> int:
        """Number of draws, `thin` steps apart, in the burn-in."""
        return self.burn_in // self.thin


def accuracy(
    problem: Problem, protocol: Protocol, name: str, settings: np.ndarray, num_seeds: int, key: Key
) -> np.ndarray:
    """Return the accuracy of every setting (step size, diffusion) and seed; NaN if it diverged.

    Seed i has the same key for every setting and sampler.

    Parameters
    ----------
    settings
        (..., 2).
    """
    skipped = protocol.discarded
    blocks = _blocks(
        problem,
        protocol.batch_size,
        name,
        settings.reshape(-1, 2),
        num_seeds,
        key,
        # As in `curves`: with the same counts both use one compiled program.
        (skipped + protocol.num_draws, protocol.thin, protocol.burn_in - skipped * protocol.thin),
    )
    accuracies = [np.asarray(scores(draws[:, skipped:], problem.test)[0]) for draws in blocks]
    shape = (*settings.shape[:-1], num_seeds)
    return np.concatenate(accuracies).astype(np.float64).reshape(shape)


def _blocks(
    problem: Problem,
    batch_size: int,
    name: str,
    settings: np.ndarray,
    num_seeds: int,
    key: Key,
    counts: tuple[int, int, int],
) -> Iterator[jax.Array]:
    """Run every setting with every seed; yield draws, (chain, draw, features), block by block."""
    chains, keys = np.repeat(settings, num_seeds, axis=0), _keys(key, num_seeds, len(settings))
    for first in range(0, len(chains), BLOCK):  # the last block is padded with its last chain
        rows = np.minimum(np.arange(first, first + BLOCK), len(chains) - 1)
        draws = _draws(
            jnp.asarray(chains[rows], jnp.float32),
            keys[rows],
            problem.batches(batch_size),
            problem.position,
            build=SAMPLERS[name],
            grad_fn=problem.grad_fn,
            counts=counts,
        )
        yield draws[: len(chains) - first]


def _keys(key: Key, num_seeds: int, num_settings: int) -> Key:
    """Return the keys of all chains: the same for every setting, one per seed."""
    return jax.vmap(lambda i: random.fold(key, i))(jnp.tile(jnp.arange(num_seeds), num_settings))


@partial(jax.jit, static_argnames=("build", "grad_fn", "counts"))
def _draws(
    settings: jax.Array,
    keys: Key,
    batches: InMemoryBatches,
    position: jax.Array,
    *,
    build: Build,
    grad_fn: GradFn,
    counts: tuple[int, int, int],
) -> jax.Array:
    num_draws, thin, burn_in = counts

    def one(setting: jax.Array, key: Key) -> jax.Array:
        sampler = build(grad_fn, setting[0], setting[1])
        return isotherm.run_chain(
            key, sampler, position, batches, num_draws=num_draws, thin=thin, burn_in=burn_in
        )[0]

    return jax.vmap(one)(settings, keys)


def curves(
    problem: Problem, protocol: Protocol, name: str, settings: np.ndarray, num_seeds: int, key: Key
) -> tuple[np.ndarray, np.ndarray]:
    """Return test error and training log likelihood, (setting, seed, kept iteration).

    The error is that of the prediction averaged over the draws since the burn-in, and of the
    latest draw before that; the log likelihood, per row, is that of the latest draw.
    """
    counts = (protocol.num_steps // protocol.thin, protocol.thin, 0)
    blocks = _blocks(problem, protocol.batch_size, name, settings, num_seeds, key, counts)
    curves = [_curves(draws, problem.train, problem.test, protocol.discarded) for draws in blocks]
    shape = (len(settings), num_seeds, -1)
    error, fit = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    return error.astype(np.float64).reshape(shape), fit.astype(np.float64).reshape(shape)


@jax.jit
def _curves(
    draws: jax.Array, train: Labelled, test: Labelled, burn_in: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def add_draw(carry: tuple, weights: jax.Array) -> tuple:
        i, total = carry
        probability = jax.nn.sigmoid(test[0] @ weights)
        total = jnp.where(i <= burn_in, 0, total) + probability
        error = 1 - score(total / jnp.maximum(i - burn_in + 1, 1), test[1])[0]
        z = train[0] @ weights
        fit = -jnp.mean(jax.nn.softplus(jnp.where(train[1] == 1, -z, z)))
        return (i + 1, total), (error, fit)

    def one(draws: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = (0, jnp.zeros(test[1].shape))
        return jax.lax.scan(add_draw, start, draws)[1]

    return jax.lax.map(one, draws)


def lifetimes(
    problem: Problem,
    batch_size: int,
    step_sizes: np.ndarray,
    diffusion: float,
    expected: np.ndarray,
    num_seeds: int,
    key: Key,
) -> np.ndarray:
    """Return the number of steps until mSGNHT-E diverges, to a percent of `expected`.

    Shape (step size, seed); infinite if it takes more than three times `expected`.
    """
    lifetimes = np.full((len(step_sizes), num_seeds), np.inf)
    keys = _keys(key, num_seeds, 1)
    for i, (h, life) in enumerate(zip(step_sizes, expected, strict=True)):
        thin = max(1, int(life / 100))
        draws = _draws(
            jnp.tile(jnp.array([h, diffusion], jnp.float32), (num_seeds, 1)),
            keys,
            problem.batches(batch_size),
            problem.position,
            build=UNDERDAMPED["mSGNHT-E"],
            grad_fn=problem.grad_fn,
            counts=(int(3 * life / thin), thin, 0),
        )
        alive = np.isfinite(np.asarray(draws)).all(-1).sum(1)  # draws; NaN is absorbing
        lifetimes[i] = np.where(alive < draws.shape[1], thin * (alive + 0.5), np.inf)
    return lifetimes


VARIATIONAL = {"DSVI": dsvi, "HFSGVI": hfsgvi}


def variational_accuracy(
    problem: Problem,
    protocol: Protocol,
    name: str,
    step_sizes: np.ndarray,
    num_seeds: int,
    key: Key,
) -> np.ndarray:
    """Return the accuracy of Gaussians fitted with as many steps and batches, (step size, seed)."""
    draws = _fitted_draws(
        jnp.repeat(jnp.asarray(step_sizes, jnp.float32), num_seeds),
        _keys(key, num_seeds, len(step_sizes)),
        problem.batches(protocol.batch_size),
        problem.position,
        name=name,
        grad_fn=problem.grad_fn,
        num_steps=protocol.num_steps,
    )
    return np.asarray(scores(draws, problem.test)[0], np.float64).reshape(-1, num_seeds)


@partial(jax.jit, static_argnames=("name", "grad_fn", "num_steps"))
def _fitted_draws(
    step_sizes: jax.Array,
    keys: Key,
    batches: InMemoryBatches,
    position: jax.Array,
    *,
    name: str,
    grad_fn: MinibatchGradient,
    num_steps: int,
) -> jax.Array:
    def one(step_size: jax.Array, key: Key) -> jax.Array:
        fitted = VARIATIONAL[name](
            random.fold(key, 0),
            grad_fn,
            position,
            batches,
            num_steps=num_steps,
            covariance="diagonal",
            scale="uniform",
            step_size=step_size,
        )
        return fitted.sample(random.fold(key, 1), 200)[0]

    return jax.vmap(one)(step_sizes, keys)

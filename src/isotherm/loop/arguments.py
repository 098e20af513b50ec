"""Checks of the arguments of `sample`; every error says what is wrong and what to do."""

from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.exceptions import PolicyWarning
from isotherm.loop.collect import Collector, Draws, Running
from isotherm.loop.divergence import POLICIES
from isotherm.loop.state import Plan
from isotherm.loop.user_warnings import Message
from isotherm.tree import as_position, count, leaf_names
from isotherm.types import ArrayTree, BatchPolicy, Key, Sampler


def count_chains(num_chains: Any) -> int:
    """Check the number of chains."""
    number = count("num_chains", num_chains, 1)
    if number >= 2**31:
        raise ValueError(f"`num_chains` must be below 2**31, got {number}.")
    return number


def make_plan(
    num_draws: int,
    thin: int,
    burn_in: int,
    collect: Mapping[str, Collector] | None,
    on_divergence: str,
    max_rollbacks: int,
) -> Plan:
    """Check the settings of a run."""
    num_draws, thin = count("num_draws", num_draws, 1), count("thin", thin, 1)
    burn_in = count("burn_in", burn_in, 0)
    max_rollbacks = count("max_rollbacks", max_rollbacks, 0)
    if burn_in + num_draws * thin >= 2**31:
        raise ValueError(
            "A chain may take at most 2**31 - 1 steps (`burn_in + num_draws * thin`); for more, "
            "continue from `run.state` with a new key."
        )
    if not isinstance(on_divergence, str) or on_divergence not in POLICIES:
        raise ValueError(
            f"`on_divergence` must be one of {', '.join(map(repr, POLICIES))}, "
            f"got {on_divergence!r}."
        )
    collectors = {"draws": Draws()} if collect is None else collect
    if not isinstance(collectors, Mapping) or not all(
        isinstance(name, str) and isinstance(c, Draws | Running) for name, c in collectors.items()
    ):
        raise ValueError(
            "`collect` must map names to collectors, as {'mean': isotherm.collect.moments()}, got "
            f"{collect!r}."
        )
    running = {n: c for n, c in collectors.items() if isinstance(c, Running)}
    stacked = {n: c for n, c in collectors.items() if isinstance(c, Draws)}
    return Plan(num_draws, thin, burn_in, running, stacked, on_divergence, max_rollbacks)


def sampler_factory(
    sampler: Sampler | Callable[[float], Sampler], on_divergence: str
) -> Callable[[float], Sampler]:
    """Return a function that builds the sampler with its step size times a factor.

    It returns the same sampler each time it is called with the same factor.
    """
    if callable(sampler):
        return cache(lambda factor: _check_sampler(_call_factory(sampler, factor)))
    _check_sampler(sampler)
    advice = (
        "pass a function of a factor that builds the sampler, such as "
        "`lambda factor: isotherm.msgnht(grad_fn, factor * 0.1)`."
    )
    if on_divergence == "rollback":
        raise ValueError(f"`on_divergence='rollback'` needs to change the step size: {advice}")

    def make(factor: float) -> Sampler:
        if factor != 1:
            raise ValueError(f"The step size of this run was reduced by a rollback: {advice}")
        return sampler

    return make


def _call_factory(factory: Callable[[float], Sampler], factor: float) -> Sampler:
    try:
        signature(factory).bind(factor)
    except TypeError as error:
        raise ValueError(
            "`sampler` must be a Sampler, or a function of one factor that returns one, got "
            f"{factory!r}: {error}."
        ) from error
    except ValueError:  # some built-in functions have no signature
        pass
    return factory(factor)


def _check_sampler(sampler: Any) -> Sampler:
    if not all(hasattr(sampler, name) for name in ("init", "step", "halves", "traits")):
        raise ValueError(
            "`sampler` must be a Sampler, as isotherm.msgnht(grad_fn, 0.1) builds it, got "
            f"{type(sampler).__name__}."
        )
    return sampler


def check_state(state: Any, num_chains: int) -> None:
    """Raise an error if this is not the state of that many chains."""
    if not hasattr(state, "step_index"):
        raise ValueError(f"`state` must be the `state` of another run, got {type(state).__name__}.")
    if np.shape(state.step_index) != (num_chains,):
        raise ValueError(
            f"`state` has {np.size(state.step_index)} chains, but `num_chains` is {num_chains}."
        )


def check_key(key: Any) -> None:
    """Raise an error if this is not one typed key."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ValueError(f"`key` must be a typed key such as jax.random.key(0), got {key!r}.")
    if key.shape != ():
        raise ValueError(f"`key` must be a single key, got an array of shape {key.shape}.")


def check_batches(sampler: Sampler, batches: BatchPolicy) -> Message | None:
    """Raise an error if this is not a batch policy; return a warning if it does not suit."""
    if not hasattr(batches, "batch"):
        raise ValueError(
            "`batches` must be a batch policy such as isotherm.independent_batches((x, y), 100) or "
            f"isotherm.no_batches(), got {type(batches).__name__}."
        )
    if sampler.traits.balanced:
        problem = _unbalanced(sampler, batches)
        return None if problem is None else Message(problem, PolicyWarning)
    if sampler.traits.adaptive and batches.policy == "unknown":
        text = (
            f"{sampler.traits.name} with streamed batches of an unknown order: its thermostat "
            "assumes that batches are independent from step to step, rows drawn with replacement. "
            "If they are, pass `policy='independent'` to isotherm.streamed_batches."
        )
        return Message(text, PolicyWarning)
    epochs = ("shuffled", "symmetric", "sequential")
    if not sampler.traits.adaptive or batches.policy not in epochs:
        return None
    text = (
        f"{sampler.traits.name} with {batches.policy} batches: its thermostat assumes gradient "
        "noise that is independent from step to step, but within an epoch the noise cancels. The "
        "posterior variance can come out at half its size. Use isotherm.independent_batches, or "
        "keep the epochs and use a fixed friction (isotherm.sghmc)."
    )
    return Message(text, PolicyWarning)


def _unbalanced(sampler: Sampler, batches: BatchPolicy) -> str | None:
    """Raise an error, or return a warning, if rows are not drawn as a balanced gradient assumes."""
    if batches.policy == "full":
        raise ValueError(
            "A balanced gradient takes out the noise of rows drawn with replacement, but a full "
            "batch has no noise. Use the plain gradient, or isotherm.independent_batches."
        )
    if batches.policy in ("shuffled", "symmetric", "sequential", "unknown"):
        return (
            f"{sampler.traits.name} with a balanced gradient and {batches.policy} batches: the "
            "gradient takes out the noise of rows drawn independently, but within an epoch the "
            "noise cancels by itself, so that positions come out too cold. Use "
            "isotherm.independent_batches, or the plain gradient with a fixed friction "
            "(isotherm.sghmc)."
        )
    shards = getattr(batches, "num_shards", 1)
    if shards == sampler.traits.num_shards:
        return None
    return (
        f"Each batch has rows of {shards} shards, but the balanced gradient expects "
        f"{sampler.traits.num_shards}: rows of different shards are not exchangeable, and the "
        "difference between shards is taken for noise. Use isotherm.balanced(grad_fn, "
        f"num_shards={shards})."
    )


def start(sampler: Sampler, position: ArrayTree, keys: Key, per_chain: bool) -> Any:
    """Return the states of chains that start at one position, or at one position each."""
    try:
        position = as_position(position)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"`position` must be a pytree of arrays of numbers: {error}") from error
    for name, leaf in zip(leaf_names(position), jax.tree.leaves(position), strict=True):
        if leaf.size == 0:
            raise ValueError(f"`position` leaf {name!r} is empty, shape {leaf.shape}: remove it.")
        if not np.isfinite(leaf).all():
            raise ValueError(f"`position` leaf {name!r} is not finite: a chain cannot start there.")
    num_chains = keys.shape[0]
    if per_chain and any(leaf.shape[:1] != (num_chains,) for leaf in jax.tree.leaves(position)):
        raise ValueError(
            "`position_per_chain=True` needs a leading axis of length "
            f"{num_chains} (`num_chains`) on every leaf of `position`."
        )
    # Three keys per chain: 0 is for the noise, 1 for the batches, 2 for the start.
    start = jax.vmap(lambda x, k: sampler.init(x, random.fold(k, 2)), (0 if per_chain else None, 0))
    return start(position, keys)

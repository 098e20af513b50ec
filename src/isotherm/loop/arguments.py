"""What `sample` may be asked for: every argument checked, and a sentence for what will not do."""

import warnings
from collections.abc import Callable, Mapping
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.exceptions import PolicyWarning
from isotherm.loop.chains import POLICIES, Plan
from isotherm.loop.collect import Collector, Draws, Running
from isotherm.tree import as_position, leaf_names
from isotherm.types import ArrayTree, BatchPolicy, Key, Sampler


def count(name: str, value: Any, least: int) -> int:
    """Take a whole number, of Python or of NumPy."""
    whole = None
    if isinstance(value, float):
        whole = int(value) if value.is_integer() else None
    elif hasattr(value, "__index__") and np.ndim(value) == 0:
        whole = index(value)
    if whole is None or whole < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")
    return whole


def count_chains(num_chains: Any) -> int:
    """Take a number of chains that an axis can have."""
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
    """Check what is to be done."""
    num_draws, thin = count("num_draws", num_draws, 1), count("thin", thin, 1)
    burn_in = count("burn_in", burn_in, 0)
    max_rollbacks = count("max_rollbacks", max_rollbacks, 0)
    if burn_in + num_draws * thin >= 2**31:
        raise ValueError(
            "A chain may take at most 2**31 - 1 steps; go on from `run.state` with a new key."
        )
    if not isinstance(on_divergence, str) or on_divergence not in POLICIES:
        raise ValueError(
            f"`on_divergence` must be {', '.join(map(repr, POLICIES[:-1]))} or {POLICIES[-1]!r}, "
            f"got {on_divergence!r}."
        )
    collectors = {"draws": Draws()} if collect is None else collect
    if not isinstance(collectors, Mapping) or not all(
        isinstance(name, str) and isinstance(c, Draws | Running) for name, c in collectors.items()
    ):
        raise ValueError(
            "`collect` must map names to isotherm.collect.draws, moments or average objects."
        )
    running = {n: c for n, c in collectors.items() if isinstance(c, Running)}
    stacked = {n: c for n, c in collectors.items() if isinstance(c, Draws)}
    return Plan(num_draws, thin, burn_in, running, stacked, on_divergence, max_rollbacks)


def make_sampler_again(
    sampler: Sampler | Callable[[float], Sampler], on_divergence: str
) -> Callable[[float], Sampler]:
    """Give a function that makes the sampler with its step size times a factor."""
    if callable(sampler):
        return lambda factor: _check_sampler(sampler(factor))
    _check_sampler(sampler)
    advice = (
        "give a function of a factor that makes the sampler, such as "
        "`lambda factor: isotherm.msgnht(grad_fn, factor * 0.1)`."
    )
    if on_divergence == "rollback":
        raise ValueError(f"`on_divergence='rollback'` needs to make smaller steps: {advice}")

    def make(factor: float) -> Sampler:
        if factor != 1:
            raise ValueError(f"This run has made its step size smaller: {advice}")
        return sampler

    return make


def _check_sampler(sampler: Any) -> Sampler:
    if not all(hasattr(sampler, name) for name in Sampler._fields):
        raise ValueError(
            "`sampler` must come from isotherm.msgnht or one of its relatives, or be a Sampler, "
            f"got {type(sampler).__name__}."
        )
    return sampler


def check_state(state: Any, num_chains: int) -> None:
    """Refuse what is no state of so many chains."""
    if not hasattr(state, "step_index"):
        raise ValueError(f"`state` must be the `state` of another run, got {type(state).__name__}.")
    if np.shape(state.step_index) != (num_chains,):
        raise ValueError(
            f"`state` has {np.size(state.step_index)} chains, but `num_chains` is {num_chains}."
        )


def check_key(key: Any) -> None:
    """Refuse what is not one typed key."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ValueError(f"`key` must be a typed key, as jax.random.key(0) makes it, got {key!r}.")
    if key.shape != ():
        raise ValueError(f"`key` must be one key, got {key.size} of them, shape {key.shape}.")


def check_batches(sampler: Sampler, batches: BatchPolicy) -> None:
    """Refuse what is no batch policy, and warn of one that the sampler cannot take."""
    if not hasattr(batches, "batch"):
        raise ValueError(
            "`batches` must be a batch policy such as isotherm.independent_batches((x, y), 100) or "
            f"isotherm.no_batches(), got {type(batches).__name__}."
        )
    if sampler.traits.adaptive and batches.policy in ("shuffled", "symmetric"):
        warnings.warn(
            f"{sampler.traits.name} with {batches.policy} batches: its thermostat takes gradient "
            "noise for independent from step to step, but within an epoch it cancels. The posterior "
            "variance can come out half as large as it is. Use isotherm.independent_batches, or "
            "keep the sweeps and use a fixed friction (isotherm.sghmc).",
            PolicyWarning,
            stacklevel=3,
        )


def start(sampler: Sampler, position: ArrayTree, keys: Key, per_chain: bool) -> Any:
    """Give the states of chains that start at a position, or at one each."""
    try:
        position = as_position(position)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"`position` must be a pytree of arrays of numbers: {error}") from error
    for name, leaf in zip(leaf_names(position), jax.tree.leaves(position), strict=True):
        if leaf.size == 0:
            raise ValueError(
                f"`position` leaf {name!r} is empty, shape {leaf.shape}: leave it out."
            )
        if not np.isfinite(leaf).all():
            raise ValueError(f"`position` leaf {name!r} is not finite: no chain can start there.")
    num_chains = keys.shape[0]
    if per_chain and any(leaf.shape[:1] != (num_chains,) for leaf in jax.tree.leaves(position)):
        raise ValueError(
            f"`position_per_chain` needs a leading axis of {num_chains} on every leaf of `position`."
        )
    # Three keys per chain: 0 makes the noise, 1 the batches, 2 the start.
    start = jax.vmap(lambda x, k: sampler.init(x, random.fold(k, 2)), (0 if per_chain else None, 0))
    return start(position, keys)

r"""The only loop: compiled chunks of steps, with Python in between.

Inside a chunk everything is one XLA program over all chains (`chunks.py`); between chunks the host moves
draws off the device, looks for divergence (`chains.py`), saves and moves the progress bar. Step $t$ of a chain
depends on nothing but the chain's key, its state and $t$, so how a run is cut into chunks does not change a
single bit of it.

From one kept draw to the next the loop carries *opened* steps (`Halves`): the end of a step and the start of
the next become one pass over memory.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from isotherm import random
from isotherm.batches.sharded import ShardedBatches
from isotherm.loop.arguments import (
    check_batches,
    check_key,
    check_state,
    count,
    count_chains,
    make_plan,
    make_sampler_again,
    start,
)
from isotherm.loop.chains import Chains
from isotherm.loop.checkpoint import Checkpoints, Keeper, describe, digest, fingerprint
from isotherm.loop.chunks import Program
from isotherm.loop.collect import Collector
from isotherm.loop.devices import Devices
from isotherm.loop.progress import make_progress
from isotherm.loop.run import Run
from isotherm.tree import as_position
from isotherm.types import ArrayTree, BatchPolicy, Key, Sampler


def sample(
    key: Key,
    sampler: Sampler | Callable[[float], Sampler],
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_draws: int,
    thin: int = 1,
    burn_in: int = 0,
    num_chains: int = 1,
    collect: Mapping[str, Collector] | None = None,
    state: Any = None,
    position_per_chain: bool = False,
    on_divergence: str = "raise",
    max_rollbacks: int = 5,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    checkpoint_keep: int = 2,
    checkpoint_in_parts: bool = False,
    mesh: Mesh | None = None,
) -> Run:
    """Run chains of a sampler and keep what they find.

    Parameters
    ----------
    key
        Determines everything: chains, batches and noise.
    sampler
        From `isotherm.msgnht` and its relatives, or any `Sampler(init, step)`; for rollbacks a function
        that makes it with its step size times a factor.
    position
        Where the chains start, a pytree of floating-point arrays.
    batches
        A batch policy: `isotherm.independent_batches(data, batch_size)`, …
    num_draws
        Draws to keep per chain.
    thin
        Steps from one kept draw to the next.
    burn_in
        Steps before the first of these.
    num_chains
        Independent chains, run at once, each with its own noise and batches.
    collect
        What to keep, by name (`isotherm.collect.draws`, `moments`, `average`); all draws if not given.
    state
        Go on from here (`run.state`) instead of `position`.
    position_per_chain
        Whether `position` has a leading axis with one start per chain.
    on_divergence
        `"raise"` stops with `DivergedError`, which keeps the draws made so far; `"continue"` lets
        the other chains go on and marks the lost ones in `run.diverged`; `"rollback"` takes all chains back
        to the last good chunk (of 500 steps, or one draw if that is more), halves the step size and goes on.
        `run.rollbacks` says why and where.
    max_rollbacks
        How often; then it is `DivergedError`.
    progress
        Show a progress bar; by default if stderr is a terminal.
    checkpoint
        A folder to save the run in, now and then, at its end, and before Ctrl-C or SIGTERM is obeyed. The same
        call goes on from what is there, and its result is that of a run never cut, bit for bit; with more
        `num_draws` it goes further. A folder of another run (another model, step size, data, key) is refused.
    checkpoint_seconds
        Time from one save to the next.
    checkpoint_keep
        How many saves to keep: if the last is damaged, the one before is taken.
    checkpoint_in_parts
        Let every process write its own part of the state, by orbax (`isotherm[sharded]`), instead of gathering it in the first:
        for states that no host can hold. What is found in the folder is read either way.
    mesh
        Devices, of one process or of several, with axes `chain`, along which chains are dealt out, and `data`, along which
        the shards of `isotherm.sharded_batches` are. Every process makes the same call and gets the same result, and all see
        the `checkpoint` folder, which the first one writes; another number of devices can go on from it.

    Raises
    ------
    DivergedError
        If a chain is lost; see `on_divergence`.
    LostProcessError
        If another process has ended.

    Warns
    -----
    HealthWarning
        If a chain is finite but not well (`isotherm.loop.health`), once.
    RollbackWarning, CheckpointWarning, PolicyWarning
        If chains went back; if a checkpoint is damaged; if sampler and batches do not fit.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> sampler = isotherm.msgnht(lambda x, batch: -x, step_size=0.2)
    >>> run = isotherm.sample(jax.random.key(0), sampler, jnp.zeros(2), isotherm.no_batches(),
    ...                       num_draws=100, thin=5, num_chains=4)
    >>> run.draws.shape
    (4, 100, 2)
    """
    check_key(key)
    plan = make_plan(num_draws, thin, burn_in, collect, on_divergence, max_rollbacks)
    num_chains = count_chains(num_chains)
    make = make_sampler_again(sampler, on_divergence)
    sampler = make(1.0)
    check_batches(sampler, batches)
    devices = Devices(mesh, num_chains, batches)
    if not (isinstance(checkpoint_seconds, int | float) and checkpoint_seconds >= 0):
        raise ValueError(f"`checkpoint_seconds` must not be negative, got {checkpoint_seconds!r}.")
    checkpoint_keep = count("checkpoint_keep", checkpoint_keep, 1)

    chain_keys = jax.vmap(lambda i: random.fold(key, i))(jnp.arange(num_chains))
    if state is None:
        state = start(sampler, position, chain_keys, position_per_chain)
    else:
        check_state(state, num_chains)
    with devices.together():
        state = devices.whole(state)
        chains = Chains(chain_keys, make, state, batches, plan, devices)
        chains.call = _call(key, chains)
        saved = None
        if checkpoint is not None or devices.several:
            which = _which_run(key, sampler, chains, batches)
            told = {**which, "num_draws": num_draws, "start": digest(state)}
            devices.same("give all of them the same key, settings, data and start", told)
            saved = _resumed(chains, which, checkpoint, checkpoint_in_parts, checkpoint_keep)
        label = f"{sampler.traits.name} x {num_chains}"
        shown = progress if devices.first else False
        with (
            make_progress(shown, plan.burn_in + plan.num_draws * plan.thin, label) as bar,
            Keeper(saved, checkpoint_seconds, devices.agree) as keeper,
        ):
            bar.advance(chains.steps_done, None, None)
            while not chains.arrived:
                bar.advance(*chains.chunk())
                keeper.after_chunk(chains.progressed, last=chains.arrived)
        return chains.run()


def _resumed(
    chains: Chains,
    which: dict[str, Any],
    folder: str | os.PathLike[str] | None,
    in_parts: bool,
    keep: int,
) -> Checkpoints | None:
    """Take the chains to where they were when they were saved last."""
    if folder is None:
        return None
    saved = Checkpoints(folder, which, writes=chains.devices.first, in_parts=in_parts, keep=keep)
    found = saved.load(chains.state, chains.memory, chains.empty_page())
    chains.devices.same(
        f"they see different checkpoints in `{folder}`; put it on a disk that all of them read",
        {"found": found and [found.done, found.kept]},
    )
    num_draws = chains.plan.num_draws
    if found is not None and found.kept > num_draws:
        raise ValueError(
            f"`{folder}` has {found.kept} draws already, more than `num_draws` {num_draws}."
        )
    if found is not None:
        chains.resume(found)
    return saved


def run_chain(
    key: Key,
    sampler: Sampler,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_draws: int,
    thin: int = 1,
    burn_in: int = 0,
) -> tuple[ArrayTree, Any]:
    """Run one chain as a pure function: for `jax.jit`, and for `jax.vmap` over settings.

    `sample` runs many chains of *one* sampler, with progress, a look for divergence and draws
    moved to the host. This runs one chain of a sampler whose step size or diffusion may be
    traced, so that a whole grid of settings becomes one program. A chain that diverges ends in
    NaN. Draws are those of `sample`, which gives chain `i` the key `isotherm.random.fold(key, i)`.

    Parameters
    ----------
    key, sampler, position, batches, num_draws, thin, burn_in
        As in `sample`.

    Returns
    -------
    The draws, with a leading axis, and the last state.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> def spread(step_size, key):
    ...     sampler = isotherm.msgnht(lambda x, batch: -x, step_size)
    ...     draws, _ = isotherm.run_chain(key, sampler, jnp.zeros(2), isotherm.no_batches(),
    ...                               num_draws=200, thin=10)
    ...     return draws.std()
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> jax.jit(jax.vmap(spread))(jnp.array([0.1, 0.2, 0.4]), keys).shape
    (3,)
    """
    plan = make_plan(num_draws, thin, burn_in, None, "continue", 0)
    program = Program(sampler, (), (), plan.thin)
    state = sampler.init(as_position(position), random.fold(key, 2))
    if plan.burn_in:
        state = program.steps(state, key, batches, plan.burn_in)[0]

    def draw(state: Any, _: None) -> tuple[Any, ArrayTree]:
        state = program.steps(state, key, batches, plan.thin)[0]
        return state, state.position

    state, draws = jax.lax.scan(draw, state, length=plan.num_draws)
    return draws, state


def _call(key: Key, chains: Chains) -> dict[str, Any]:
    """Write down how a run was asked for."""
    plan, batches = chains.plan, chains.batches
    return {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "batches": getattr(batches, "policy", type(batches).__name__),
        **{name: getattr(batches, name, None) for name in ("batch_size", "data_size")},
        "num_draws": plan.num_draws,
        "thin": plan.thin,
        "burn_in": plan.burn_in,
        "num_chains": chains.num_chains,
        "on_divergence": plan.on_divergence,
        "max_rollbacks": plan.max_rollbacks,
    }


def _which_run(key: Key, sampler: Sampler, chains: Chains, batches: BatchPolicy) -> dict[str, Any]:
    """Say what makes a run this run, as far as it can be seen from outside."""
    traits, data = sampler.traits, batches
    if isinstance(batches, ShardedBatches):
        data = chains.devices.whole(jax.jit(ShardedBatches.some_rows)(batches))
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), chains.state)
    batch = jax.eval_shape(batches.batch, key, 0)
    return {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "sampler": [traits.name, traits.integrator, traits.thermostat, float(traits.temperature)],
        "batches": [batches.policy, getattr(batches, "batch_size", None), digest(data)],
        "thin": chains.plan.thin,
        "burn_in": chains.plan.burn_in,
        "num_chains": chains.num_chains,
        "state": describe(chains.state),
        "collect": describe(chains.memory),
        "what a step does (model, step size, settings)": fingerprint(sampler.step, key, one, batch),
    }

"""Programs that `test_devices.py` starts: `several_devices.py devices|process FOLDER [ID PORT]`."""

import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import isotherm
from isotherm import random
from isotherm.loop import chunks, devices

KEY = jax.random.key
X = np.sin(np.arange(120.0, dtype=np.float32)).reshape(40, 3)
Y = X @ np.ones(3, np.float32)
COLLECT = {"draws": isotherm.collect.draws(), "moments": isotherm.collect.moments()}


def grad_fn(position, batch):
    """A sum over the batch: a mean over devices instead of a sum would be seen."""
    x, y = batch
    return (len(X) / len(x)) * x.T @ (y - x @ position) - position


SAMPLER = isotherm.msgnht(grad_fn, 0.05, noise="three-point")  # compiles faster than Gaussian noise
BALANCED = isotherm.msgnht(
    isotherm.balanced(
        isotherm.minibatch_gradient(
            lambda position, batch: -0.5 * (batch[1] - batch[0] @ position) ** 2,
            lambda position: -0.5 * jnp.sum(position**2),
            len(X),
        ),
        num_shards=4,
    ),
    0.05,
    noise="three-point",
)


def mesh(*shape):
    number = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:number]).reshape(shape), ("chain", "data"))


def run(batches, grid, num_draws=6, burn_in=0, sampler=SAMPLER, **settings):
    return isotherm.sample(
        KEY(0),
        sampler,
        jnp.zeros(3),
        batches,
        num_draws=num_draws,
        thin=3,
        burn_in=burn_in,
        num_chains=4,
        collect=COLLECT,
        progress=False,
        mesh=grid,
        **settings,
    )


def everything(result):
    return [np.asarray(x) for x in jax.tree.leaves((result.collected, result.state, result.stats))]


def keep(folder, name, result):
    np.savez(folder / f"{name}.npz", *everything(result))


def streamed(**settings):
    return isotherm.streamed_batches((X, Y), 8, buffer_bytes=3000, **settings)


def share(number, index):
    """Return the half of a batch that a process reads."""
    rows = (np.arange(4) + 8 * index + 4 * number) % 40
    return X[rows], Y[rows]


def collectives(grid, batches, sampler):
    """Return the collective operations in the program of a chunk, with the shapes of results."""
    target = devices.Devices(grid, 4, batches)
    keys = jax.vmap(lambda i: random.fold(KEY(0), i))(jnp.arange(4))
    state = jax.vmap(lambda key: sampler.init(jnp.zeros(3), key))(keys)
    program = chunks.Program(sampler, (), (), 3)
    collect = target.compiled(chunks.collect, "program", "capacity")
    placed = target.put_chains(state), {}, target.put_keys(keys), target.put_batches(batches)
    lowered = collect.func.lower(*collect.args, *placed, 6, program=program, capacity=6)
    names = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    return re.findall(rf"= (\S+) ({names})\S*\(", lowered.compile().as_text())


def on_devices(folder):
    """Four devices in one process."""
    full = isotherm.full_batch((X, Y))
    keep(folder, "chains-1", run(full, mesh(1, 1), burn_in=120))
    cut = {"burn_in": 120, "checkpoint": folder / "cut"}
    run(full, mesh(4, 1), num_draws=3, **cut)
    keep(folder, "chains-4-then-2", run(full, mesh(2, 1), **cut))
    shards = isotherm.sharded_batches((X, Y), 8, 4)
    keep(folder, "shared-none", run(shards, None))
    keep(folder, "shared-2-by-2", run(shards, mesh(2, 2)))
    for policy, name in ((streamed(), "streamed"), (streamed(shared=True), "streamed-shared")):
        for grid in (None, mesh(1, 1), mesh(4, 1), mesh(2, 2)):
            label = "none" if grid is None else f"{grid.shape['chain']}-{grid.shape['data']}"
            keep(folder, f"{name}-{label}", run(policy, grid, burn_in=20))
    for number in (1, 2, 4):
        keep(folder, f"balanced-{number}", run(shards, mesh(1, number), sampler=BALANCED))
    samplers = {"plain": SAMPLER, "balanced": BALANCED}
    print(json.dumps({name: collectives(mesh(2, 2), shards, s) for name, s in samplers.items()}))


def in_process(folder, number, port):
    """One of two processes; the second is killed while both run."""
    jax.distributed.initialize(
        f"127.0.0.1:{port}", 2, number, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10
    )
    shards_read = []

    def read(shard):
        shards_read.append(shard)
        rows = slice(10 * shard, 10 * shard + 10)
        return X[rows], Y[rows]

    across = mesh(1, 2)
    shared = run(isotherm.sharded_batches(read, 8, 4, across), across)
    keep(folder, f"shared-process-{number}", shared)
    (folder / f"read-{number}.json").write_text(json.dumps(shards_read))
    for name, grid in (("chains", mesh(2, 1)), ("rows", across)):
        result = run(streamed(), grid, burn_in=20, checkpoint=folder / f"streamed-{name}")
        keep(folder, f"streamed-{name}-{number}", result)
    loader = map(lambda i: share(number, i), itertools.count())
    keep(
        folder,
        f"streamed-loader-{number}",
        run(isotherm.streamed_batches(loader, policy="independent"), across),
    )
    try:
        run(isotherm.full_batch((X, Y)), mesh(2, 1), num_draws=6 + number)
    except ValueError as error:
        print(error, flush=True)
    if number == 1:
        threading.Thread(
            target=kill_after_checkpoints, args=(folder / "killed",), daemon=True
        ).start()
    often = {"checkpoint": folder / "killed", "checkpoint_seconds": 0, "checkpoint_in_parts": True}
    run(isotherm.full_batch((X, Y)), mesh(2, 1), 100_000, **often)


def kill_after_checkpoints(checkpoint):
    while max(checkpoint.glob("state-*.json"), default=Path()).name < "state-00003":
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    if what == "devices":
        on_devices(Path(folder))
    else:
        in_process(Path(folder), *map(int, rest))

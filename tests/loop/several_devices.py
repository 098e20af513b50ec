"""What `test_devices.py` runs in processes of its own: `several_devices.py devices | process FOLDER [ID PORT]`."""

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
    """A sum over the batch, so that no mean over devices can stand in for it."""
    x, y = batch
    return (len(X) / len(x)) * x.T @ (y - x @ position) - position


SAMPLER = isotherm.msgnht(grad_fn, 0.05, noise="three-point")  # compiles faster than a normal law


def mesh(*shape):
    number = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:number]).reshape(shape), ("chain", "data"))


def run(batches, grid, num_draws=6, burn_in=0, **settings):
    return isotherm.sample(
        KEY(0),
        SAMPLER,
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


def everything(found):
    return [np.asarray(x) for x in jax.tree.leaves((found.collected, found.state, found.stats))]


def keep(folder, name, found):
    np.savez(folder / f"{name}.npz", *everything(found))


def collectives(grid, batches):
    """Name the collective operations in the program of a chunk of draws, with the shapes of their results."""
    there = devices.Devices(grid, 4, batches)
    keys = jax.vmap(lambda i: random.fold(KEY(0), i))(jnp.arange(4))
    state = jax.vmap(lambda key: SAMPLER.init(jnp.zeros(3), key))(keys)
    program = chunks.Program(SAMPLER, (), (), 3)
    collect = there.compiled(chunks.collect, "program", "capacity")
    arguments = there.put_chains(state), {}, there.put_keys(keys), there.put_batches(batches), 6
    lowered = collect.func.lower(*collect.args, *arguments, program=program, capacity=6)
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
    print(json.dumps(collectives(mesh(2, 2), shards)))


def in_process(folder, number, port):
    """One of two processes; the second is killed while both are at work."""
    jax.distributed.initialize(
        f"127.0.0.1:{port}", 2, number, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10
    )
    asked = []

    def read(shard):
        asked.append(shard)
        rows = slice(10 * shard, 10 * shard + 10)
        return X[rows], Y[rows]

    across = mesh(1, 2)
    shared = run(isotherm.sharded_batches(read, 8, 4, across), across)
    keep(folder, f"shared-process-{number}", shared)
    (folder / f"read-{number}.json").write_text(json.dumps(asked))
    try:
        run(isotherm.full_batch((X, Y)), mesh(2, 1), num_draws=6 + number)
    except ValueError as error:
        print(error, flush=True)
    if number == 1:
        threading.Thread(target=die_after, args=(folder / "killed",), daemon=True).start()
    often = {"checkpoint": folder / "killed", "checkpoint_seconds": 0, "checkpoint_in_parts": True}
    run(isotherm.full_batch((X, Y)), mesh(2, 1), 100_000, **often)


def die_after(checkpoint):
    while max(checkpoint.glob("state-*.json"), default=Path()).name < "state-00003":
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    if what == "devices":
        on_devices(Path(folder))
    else:
        in_process(Path(folder), *map(int, rest))

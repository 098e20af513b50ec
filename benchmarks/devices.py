"""How chains scale: four chains of a network on one device, on two simulated devices of one process, and on two processes.

The network 784-100-100-10 on MNIST-shaped noise, batches of 100, mSGNHT-S, no draws kept but one. Every contestant is a program of its own, which is
given one core per device (`taskset`), makes the run once to compile it and then five times; they take turns. Seconds are the fastest of all, and the chains must be
the same, bit for bit. A run without a mesh, where the chains are one program, stands beside them. Writes `docs/results/devices_speed.json`.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from hashlib import sha256

import jax
import numpy as np
from jax.sharding import Mesh
from reporting import RESULTS, machine

import isotherm

CHAINS, STEPS, RUNS = 4, 2000, 5
CONTESTANTS = {
    "no mesh, one core": (1, 1, False),
    "one device": (1, 1, True),
    "two devices": (1, 2, True),
    "two processes": (2, 1, True),
}
"""Processes, devices of each, and whether there is a mesh."""


def work(meshed: bool, steps: int) -> None:
    """Be a contestant: print seconds and a digest of the chains."""
    rng = np.random.default_rng(0)
    data = rng.random((6000, 784), np.float32), rng.integers(0, 10, 6000).astype(np.int32)
    network = isotherm.models.mlp((784, 100, 100, 10))
    sampler = isotherm.msgnht(network.gradient(60_000), 1e-5, 10.0)
    mesh = Mesh(np.array(jax.devices()), ("chain",)) if meshed else None
    start, batches = network.init(jax.random.key(1)), isotherm.independent_batches(data, 100)
    seconds = []
    for _ in range(1 + RUNS):
        began = time.perf_counter()
        run = isotherm.sample(
            jax.random.key(0),
            sampler,
            start,
            batches,
            num_draws=1,
            burn_in=steps - 1,
            num_chains=CHAINS,
            mesh=mesh,
            progress=False,
        )
        seconds.append(time.perf_counter() - began)
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.draws)]
    print(json.dumps({"seconds": seconds[1:], "digest": sha256(b"".join(leaves)).hexdigest()}))


def play(name: str, steps: int) -> dict:
    """Start the processes of a contestant, each on its own cores."""
    processes, devices, meshed = CONTESTANTS[name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "OMP_NUM_THREADS": "1",
    }
    started = []
    for i in range(processes):
        cores = ",".join(str(i * devices + j) for j in range(devices))
        words = ["taskset", "-c", cores, sys.executable, __file__, "--steps", str(steps), "--work"]
        words += [str(int(meshed)), str(i), str(processes), str(port)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment))
    told = [process.communicate()[0] for process in started]
    return json.loads(told[0].splitlines()[-1])


def main() -> None:
    """Let all take turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round; writes nothing")
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs=4, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        meshed, number, processes, port = arguments.work
        if processes > 1:
            jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
        work(bool(meshed), arguments.steps)
        return
    where, steps = (
        machine(("isotherm", "jax", "jaxlib", "numpy")),
        100 if arguments.quick else arguments.steps,
    )
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    digests = {}
    for _ in range(1 if arguments.quick else 3):
        for name in CONTESTANTS:
            found = play(name, steps)
            seconds[name] += found["seconds"]
            digests[name] = found["digest"]
    alone = min(seconds["one device"])
    rows = [
        {
            "name": name,
            "steps per second, all chains": round(CHAINS * steps / min(seconds[name])),
            "over one device": round(alone / min(seconds[name]), 2),
            "same bits as one device": digests[name] == digests["one device"],
            "seconds": [round(x, 3) for x in seconds[name]],
        }
        for name in CONTESTANTS
    ]
    for row in rows:
        print({key: value for key, value in row.items() if key != "seconds"})
    if not arguments.quick:
        text = json.dumps({"machine": where, "contestants": rows}, indent=1)
        (RESULTS / "devices_speed.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

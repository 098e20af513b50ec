"""Scaling over devices: four chains of a network on one device, two devices, and two processes.

The network 784-100-100-10 on MNIST-shaped noise, batches of 100, mSGNHT-S, with one draw kept. Two
devices are simulated in one process. Every contestant is a program of its own with one core per
device (`taskset`). It makes one run to compile and then five; contestants take turns, three rounds
each. Speeds are those of the fastest run. The rows also say whether the chains are bit-identical to
those on one device. A run without a mesh, in which all chains are one program, is included. Writes
`docs/results/devices_speed.json`.
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
from reporting import RESULTS, machine, write_document

import isotherm

CHAINS, STEPS, RUNS = 4, 2000, 5
CONTESTANTS = {
    "no mesh, one core": (1, 1, False),
    "one device": (1, 1, True),
    "two devices": (1, 2, True),
    "two processes": (2, 1, True),
}
"""Number of processes, devices per process, and whether there is a mesh."""


def run_contestant(meshed: bool, steps: int) -> None:
    """Run one contestant; print its seconds and a digest of the chains as JSON."""
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


def measure(name: str, steps: int) -> dict:
    """Start the processes of a contestant, each on its own cores; return what it prints."""
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
    outputs = [process.communicate()[0] for process in started]
    return json.loads(outputs[0].splitlines()[-1])


def main() -> None:
    """Measure all contestants in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round; writes nothing")
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs=4, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        meshed, number, processes, port = arguments.work
        if processes > 1:
            jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
        run_contestant(bool(meshed), arguments.steps)
        return
    where = machine(("isotherm", "jax", "jaxlib", "numpy"))
    steps = 100 if arguments.quick else arguments.steps
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    digests = {}
    for _ in range(1 if arguments.quick else 3):
        for name in CONTESTANTS:
            result = measure(name, steps)
            seconds[name] += result["seconds"]
            digests[name] = result["digest"]
    fastest = min(seconds["one device"])
    rows = [
        {
            "name": name,
            "steps per second, all chains": round(CHAINS * steps / min(seconds[name])),
            "over one device": round(fastest / min(seconds[name]), 2),
            "same bits as one device": digests[name] == digests["one device"],
            "seconds": [round(x, 3) for x in seconds[name]],
        }
        for name in CONTESTANTS
    ]
    for row in rows:
        print({key: value for key, value in row.items() if key != "seconds"})
    if not arguments.quick:
        document = {"machine": where, "contestants": rows}
        write_document(RESULTS / "devices_speed.json", document)


if __name__ == "__main__":
    main()

"""From `import` to the first draw: how long Python, JAX and the compiler take, call by call.

A network of 784-100-100-10 on simulated images, batches of 100. Every round is a new process
without a compilation cache. It imports isotherm, builds the network, and calls `isotherm.sample`
for one draw of one step; then come the same call again, and calls that should compile little or
nothing: another seed, more draws, an equal sampler that was built again, four chains; last, what a
network also needs. The table has wall time and CPU time (all threads): on a busy machine only the
latter means something. Writes `docs/results/startup.json`.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from reporting import RESULTS, machine, write_document
from rich.console import Console

PROGRAM = """
import json, time
times = []
began, used = time.perf_counter(), time.process_time()


def lap(name):
    global began, used
    times.append([name, time.perf_counter() - began, time.process_time() - used])
    began, used = time.perf_counter(), time.process_time()


import jax
import numpy as np
lap("import jax and numpy")
import isotherm
lap("import isotherm")
rng = np.random.default_rng(0)
x = rng.standard_normal((2000, 784), dtype=np.float32)
y = rng.integers(0, 10, 2000).astype(np.int32)
lap("make the data")
network = isotherm.models.mlp((784, 100, 100, 10))
start, key = network.init(jax.random.key(1)), jax.random.key(0)
grad_fn = network.gradient(2000)
batches = isotherm.independent_batches((x, y), 100)
sampler = isotherm.msgnht(grad_fn, step_size=1e-4, diffusion=5.0)
lap("build network, batches and sampler")


def sample(key=key, sampler=sampler, num_draws=1, **more):
    return isotherm.sample(
        key, sampler, start, batches, num_draws=num_draws, progress=False, **more
    )


sample()
lap("first draw")
sample()
lap("second call")
sample(jax.random.key(7))
lap("another seed")
sample(num_draws=20)
lap("20 draws")
sample(num_draws=20)
lap("20 draws again")
sample(sampler=isotherm.msgnht(network.gradient(2000), step_size=1e-4, diffusion=5.0))
lap("an equal sampler, built again")
sample(num_chains=4)
lap("four chains")
isotherm.find_mode(key, grad_fn, start, batches, num_steps=10)
lap("find_mode, 10 steps")
more = {"coordinates": "prior", "num_steps": 0, "rounds": 1, "steps_per_round": 10}
warm = isotherm.warm_start(key, grad_fn, start, batches, **more)
lap("warm_start, 10 steps in units of the prior")
sample(sampler=isotherm.msgnht(warm.grad_fn, **warm.settings))
lap("first draw with its balanced gradient")
one = jax.tree.map(lambda leaf: leaf[None, None], start)
isotherm.posterior_predictive(network.predict, one, x[:100])
lap("posterior_predictive of 100 rows")
print(json.dumps(times))
"""
FIRST = ("import jax and numpy", "import isotherm", "build network, batches and sampler")


def one_round() -> list[list]:
    """Return names, wall seconds and CPU seconds of a new process."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(found.stderr)
    return json.loads(found.stdout)


def rows(rounds: list[list[list]]) -> list[dict]:
    """Return the table: medians over rounds, and the sum up to the first draw."""
    table = []
    for position, (name, *_) in enumerate(rounds[0]):
        each = [found[position] for found in rounds]
        wall, cpu = ([times[i] for times in each] for i in (1, 2))
        table.append({"call": name, "seconds": median(wall), "CPU seconds": median(cpu)})
    first = [row for row in table if row["call"] in (*FIRST, "first draw")]
    total = {name: sum(row[name] for row in first) for name in ("seconds", "CPU seconds")}
    return [{"call": "from import to the first draw", **total}, *table]


def main() -> None:
    """Measure some rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "startup.json")
    parser.add_argument("--quick", action="store_true", help="one round, written nowhere")
    options = parser.parse_args()
    about = machine(("isotherm", "jax", "jaxlib", "numpy"))
    rounds = [one_round() for _ in range(1 if options.quick else options.rounds)]
    table = rows(rounds)
    for row in table:
        print(f"{row['call']:45} {row['seconds']:7.2f} s {row['CPU seconds']:7.2f} s of CPU")
    if not options.quick:
        write_document(options.out, {"machine": about, "rows": table, "rounds": rounds})
        Console().print(f"written to {options.out.name}")


if __name__ == "__main__":
    main()

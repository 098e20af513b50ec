"""Streaming: steps per second with batches in memory, streamed, from a callback and from a loop.

A network of 784-200-200-10 on simulated images, mSGNHT with ABOBA, batches of 200 and 800 rows.
All contestants use the same sampler and rows drawn independently:

- `independent_batches`: all data on the device, `isotherm.sample`.
- `streamed_batches, arrays`, `np.memmap` and `iterator`: `isotherm.sample`, with the rows in NumPy
  arrays, in files, and from a generator of batches.
- `io_callback`: a compiled loop that asks the host for a batch at every step
  (`jax.experimental.io_callback`, ordered).
- `Python loop`: a compiled step, called with a NumPy batch.

The time is that of the fastest of several rounds after one that compiles; contestants take turns.
CPU time is the sum over all threads. Writes `docs/results/streaming.json`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from reporting import RESULTS, machine, rotated, write_document
from rich.console import Console
from rich.table import Table

import isotherm
from isotherm.loop import compiler_options

PACKAGES = ("isotherm", "jax", "jaxlib", "numpy")
BASE = "independent_batches"


def data(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray, tuple]:
    """Return images and labels, and both as memory-mapped files."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 784), dtype=np.float32)
    y = rng.integers(0, 10, rows).astype(np.int32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return x, y, tuple(np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))


def contestants(
    x: np.ndarray, y: np.ndarray, maps: tuple, batch_size: int, steps: int
) -> dict[str, Callable[[], object]]:
    """Return functions that make the steps."""
    network = isotherm.models.mlp((784, 200, 200, 10))
    sampler = isotherm.msgnht(network.gradient(len(x)), step_size=1e-4, diffusion=5.0)
    start = network.init(jax.random.key(1))
    norm = {"norm": isotherm.collect.average(lambda w: jnp.sum(w[-1].bias ** 2))}

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(1)
        while True:
            rows = rng.integers(0, len(x), batch_size)
            yield x[rows], y[rows]

    def sampled(policy: isotherm.types.BatchPolicy) -> Callable[[], object]:
        return lambda: isotherm.sample(
            jax.random.key(0),
            sampler,
            start,
            policy,
            num_draws=steps // 50,
            thin=50,
            collect=norm,
            progress=False,
        )

    stream = batches()
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), next(stream))

    @jax.jit(compiler_options=compiler_options())
    def with_callback(state: object) -> object:
        def step(t: jax.Array, state: object) -> object:
            batch = io_callback(lambda: next(stream), shapes, ordered=True)
            return sampler.step(jax.random.fold_in(jax.random.key(2), t), state, batch)[0]

        return jax.lax.fori_loop(0, steps, step, state)

    @jax.jit(donate_argnums=0, compiler_options=compiler_options())
    def one(state: object, t: int, batch: tuple) -> object:
        return sampler.step(jax.random.fold_in(jax.random.key(2), t), state, batch)[0]

    def loop() -> None:
        state = sampler.init(jax.tree.map(jnp.copy, start), jax.random.key(3))
        for t in range(steps):
            state = one(state, t, next(stream))
        jax.block_until_ready(state)

    def from_batches() -> object:
        return sampled(isotherm.streamed_batches(batches(), policy="independent"))()

    state = sampler.init(start, jax.random.key(3))
    return {
        BASE: sampled(isotherm.independent_batches((x, y), batch_size)),
        "streamed_batches, arrays": sampled(isotherm.streamed_batches((x, y), batch_size)),
        "streamed_batches, np.memmap": sampled(isotherm.streamed_batches(maps, batch_size)),
        "streamed_batches, iterator": from_batches,
        "io_callback": lambda: jax.block_until_ready(with_callback(state)),
        "Python loop": loop,
    }


def measure(rows: int, batch_sizes: list[int], steps: int, rounds: int) -> list[dict]:
    """Return one row per contestant and batch size."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        x, y, maps = data(Path(folder), rows)
        for batch_size in batch_sizes:
            runs = contestants(x, y, maps, batch_size, steps)
            times, cpu = ({name: [] for name in runs} for _ in range(2))
            for number in range(-1, rounds):
                for name in rotated(list(runs), max(number, 0)):
                    began, used = time.perf_counter(), time.process_time()
                    runs[name]()
                    if number >= 0:
                        times[name].append(time.perf_counter() - began)
                        cpu[name].append(time.process_time() - used)
            for name, seconds in times.items():
                results.append(
                    {
                        "contestant": name,
                        "batch_size": batch_size,
                        "ms_per_step": 1000 * min(seconds) / steps,
                        "relative": min(times[BASE]) / min(seconds),
                        "cpu_ms_per_step": 1000 * min(cpu[name]) / steps,
                        "seconds": seconds,
                    }
                )
    return results


def main() -> None:
    """Measure all contestants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[200, 800])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "streaming.json")
    given = parser.parse_args()
    about = machine(PACKAGES)
    rows = measure(given.rows, given.batch_sizes, given.steps, given.rounds)
    table = Table("contestant", "batch", "ms per step", "ms of CPU", "speed relative to memory")
    for row in rows:
        table.add_row(
            row["contestant"],
            str(row["batch_size"]),
            f"{row['ms_per_step']:.2f}",
            f"{row['cpu_ms_per_step']:.2f}",
            f"{100 * row['relative']:.0f} %",
        )
    Console().print(table)
    settings = {"rows": given.rows, "steps": given.steps, "rounds": given.rounds}
    write_document(given.out, {"machine": about, "settings": settings, "rows": rows})


if __name__ == "__main__":
    main()

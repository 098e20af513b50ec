"""Measure what digests, locks and forecasts cost: speed, and share of a run.

    python soak/overhead.py

- `digest`: bytes per CPU second, and per second with a thread on every core, of
  `isotherm.io.digest`, for an array in memory.
- `start-up`: share of a first call of `isotherm.sample` with 188 MB of data (60 000 rows of 784
  numbers) and one draw that goes into digests; JAX arrays are hashed once, so a second call has
  none.
- `tiny run`: a call with two chains, two coordinates and 1000 draws, in a new folder of
  checkpoints, with all checks and with none: locks, identity of the run (digests, fingerprint of
  the step), forecasts of memory and disk, and the search for draws that are not finite. Calls with
  and without are made in turn in one process that has compiled the program; `first` calls, which
  compile, are made in processes of their own. `share` is the difference of the medians of CPU time
  over the median with checks, `wall_share` the same of elapsed time, and `spread` the standard
  error of `share` (over blocks of calls).

CPU seconds hardly depend on how busy the machine is.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing import get_context
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from reporting import record

import isotherm
from isotherm.io.digest import digest
from isotherm.loop import checkpoint, sampling
from isotherm.loop.forecast import Forecast
from isotherm.loop.run import Run

ROWS, COLUMNS = 60_000, 784
CALLS, BLOCKS = 150, 10
"""Calls with and without checks, and the blocks for the standard error."""
FIRST_CALLS = 5
"""Processes for the first call, with and without checks."""


@contextmanager
def no_checks() -> Iterator[None]:
    """Leave out locks, digests, fingerprints, forecasts and the search for values not finite."""
    nothing = Forecast(0, 0, 0, 0, 0)
    with ExitStack() as stack:
        for target, name, new in (
            (sampling, "locked", lambda folder: nullcontext()),
            (sampling, "_identify", lambda *arguments: {}),
            (sampling, "digest", lambda tree: ""),
            (sampling, "_refuse_shortage", lambda *arguments: nothing),
            (sampling, "temporary_size", lambda *arguments: 0),
            (sampling, "describe_shortage", lambda *arguments: None),
            (Run, "ok", True),
        ):
            stack.enter_context(mock.patch.object(target, name, new))
        yield


def digest_speed(repeats: int = 7) -> dict[str, Any]:
    """Measure the speed of a digest."""
    data = np.random.default_rng(0).standard_normal(2**26, np.float32)
    cpu, elapsed = [], []
    for _ in range(repeats):
        began = time.process_time(), time.perf_counter()
        digest(data)
        cpu.append(time.process_time() - began[0])
        elapsed.append(time.perf_counter() - began[1])
    return {
        "megabytes": data.nbytes / 1e6,
        "gigabytes_per_cpu_second": round(data.nbytes / 1e9 / statistics.median(cpu), 2),
        "gigabytes_per_second": round(data.nbytes / 1e9 / statistics.median(elapsed), 2),
    }


def call(
    sampler: Any, start: Any, batches: Any, folder: str, num_draws: int, chains: int
) -> tuple[float, float]:
    """Make a run with checkpoints in a new folder; return its CPU and elapsed seconds."""
    began = time.process_time(), time.perf_counter()
    isotherm.sample(
        jax.random.key(0),
        sampler,
        start,
        batches,
        num_draws=num_draws,
        num_chains=chains,
        checkpoint=folder,
        progress=False,
    )
    return time.process_time() - began[0], time.perf_counter() - began[1]


def start_up(folder: str) -> dict[str, Any]:
    """Measure the share of digests in the first call with much data."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, COLUMNS), np.float32)
    y = rng.integers(0, 10, ROWS).astype(np.int32)
    network = isotherm.models.mlp((COLUMNS, 100, 10))
    sampler = isotherm.sghmc(network.gradient(data_size=ROWS), 1e-4)
    batches = isotherm.independent_batches((x, y), 100)
    start = network.init(jax.random.key(0))
    entry: dict[str, Any] = {"megabytes": (x.nbytes + y.nbytes) / 1e6}
    seconds = []

    def timed(tree: Any) -> str:
        began = time.process_time()
        found = digest(tree)
        seconds.append(time.process_time() - began)
        return found

    for label in ("first", "second"):
        seconds.clear()
        patch = mock.patch.object
        with patch(sampling, "digest", timed), patch(checkpoint, "digest", timed):
            total, _ = call(sampler, start, batches, f"{folder}/{label}", 1, 1)
        entry[f"{label}_cpu_seconds"] = round(total, 3)
        entry[f"{label}_digest_share"] = round(sum(seconds) / total, 4)
    return entry


def tiny(sampler: Any, folder: str) -> tuple[float, float]:
    """Make the tiny run; return its CPU and elapsed seconds."""
    return call(sampler, jnp.zeros(2), isotherm.no_batches(), folder, 1000, 2)


def first_call(folder: str, checks: bool) -> float:
    """Return the CPU seconds of a first call, which compiles; in a process of its own."""
    with nullcontext() if checks else no_checks():
        return tiny(isotherm.msgnht(lambda x, batch: -x, 0.2), folder)[0]


def first_calls(folder: str) -> dict[bool, list[float]]:
    """Measure first calls with and without checks in turn."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for number in range(FIRST_CALLS):
            for checks in (True, False):
                path = f"{folder}/first-{number}-{checks}"
                seconds[checks].append(pool.submit(first_call, path, checks).result())
    return seconds


def tiny_run(folder: str) -> dict[str, Any]:
    """Measure the share of all checks in a run of a fraction of a second."""
    sampler = isotherm.msgnht(lambda x, batch: -x, 0.2)
    times = np.zeros((CALLS, 2, 2))  # call, checks or not, CPU or elapsed
    for number in range(-3, CALLS):  # the first ones compile
        for checks in (1, 0):
            with nullcontext() if checks else no_checks():
                measured = tiny(sampler, f"{folder}/tiny-{number}-{checks}")
            if number >= 0:
                times[number, checks] = measured
    without, everything = np.median(times, 0)
    shares = [
        1 - np.median(block[:, 0, 0]) / np.median(block[:, 1, 0])
        for block in np.array_split(times, BLOCKS)
    ]
    first = first_calls(folder)
    with_checks, none = statistics.median(first[True]), statistics.median(first[False])
    return {
        "calls": CALLS,
        "cpu_milliseconds": round(1000 * everything[0], 2),
        "checks_cpu_milliseconds": round(1000 * (everything[0] - without[0]), 2),
        "share": round(1 - without[0] / everything[0], 4),
        "spread": round(np.std(shares, ddof=1) / BLOCKS**0.5, 4),
        "wall_milliseconds": round(1000 * everything[1], 2),
        "wall_share": round(1 - without[1] / everything[1], 4),
        "first_cpu_milliseconds": round(1000 * with_checks, 1),
        "first_share": round(1 - none / with_checks, 4),
    }


def main() -> None:
    """Measure everything and record it."""
    record("overhead", "digest", digest_speed())
    with tempfile.TemporaryDirectory() as folder:
        record("overhead", "start-up", start_up(folder))
        record("overhead", "tiny run", tiny_run(folder))


if __name__ == "__main__":
    main()

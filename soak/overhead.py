"""Measure what digests, locks and forecasts cost: speed, and share of a run.

    python soak/overhead.py

- `digest`: bytes per CPU second, and per second with a thread on every core, of
  `isotherm.io.digest`, for an array in memory.
- `start-up`: share of digests in the CPU time of a first call of `isotherm.sample` with 188 MB of
  data (60 000 rows of 784 numbers) and one draw; JAX arrays are hashed once, so the second call
  does not hash the data again.
- `tiny run`: a call with two chains, two coordinates and 1000 draws, in a new folder of
  checkpoints. Checks are locks, identity of the run (digests, fingerprint of the step), forecasts
  of memory and disk, and the search for draws that are not finite. `share` is the CPU time that
  was measured inside them over that of the whole call, the median over calls in a process that has
  compiled the program, and `spread` is its standard error; `parts_milliseconds` has each check.
  `first` calls, which compile, are made in processes of their own. `difference_share` compares
  calls with all checks and with none, made in turn, and also sees effects outside the checks; it
  is the noisier number. `tiny run in memory` has its folder in memory instead of on the disk:
  ext4 takes longer to make a file after many were removed in the last minutes, as here.

CPU seconds hardly depend on how busy the machine is.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from reporting import record

import isotherm
from isotherm.io import locks
from isotherm.io.digest import digest
from isotherm.loop import chains, checkpoint, sampling
from isotherm.loop.forecast import Forecast
from isotherm.loop.run import Run

ROWS, COLUMNS = 60_000, 784
CALLS, PAIRS, BLOCKS = 60, 500, 10
"""Timed calls, pairs of calls with and without checks, and the blocks for the standard error."""
MEMORY = Path("/dev/shm")
"""A file system in memory, on Linux."""
FIRST_CALLS = 5
"""Processes for the first call."""


NOTHING = Forecast(0, 0, 0, 0, 0)
SWITCHES = (
    (sampling, "locked", lambda folder: nullcontext()),
    (sampling, "_identify", lambda *arguments: {}),
    (sampling, "digest", lambda tree: ""),
    (sampling, "_refuse_shortage", lambda *arguments: NOTHING),
    (sampling, "compile_draws", lambda job, run: (job, 0)),
    (sampling, "describe_shortage", lambda *arguments: None),
    (sampling, "describe_full_disk", lambda *arguments: None),
    (Run, "ok", True),
)
"""Where the checks are, and what does nothing in place of each."""


@contextmanager
def checks(on: bool) -> Iterator[None]:
    """Switch locks, digests, fingerprints, forecasts and the search for non-finite values.

    If they stay on, they are replaced by themselves: a call after replacements finds less of its
    code in the caches of the CPU, which would count against the other kind of calls.
    """
    with ExitStack() as stack:
        for target, name, nothing in SWITCHES:
            new = vars(target)[name] if on else nothing
            stack.enter_context(mock.patch.object(target, name, new))
        yield


@contextmanager
def timed_checks(*, is_first: bool = False) -> Iterator[dict[str, float]]:
    """Measure the CPU seconds in every check that `checks` switches.

    Making the folder is not counted, since a run without a lock needs it, too. Neither is the
    compilation in a first call, since the run uses the program: only the time of the forecast when
    the program is already compiled is counted.
    """
    spent = {"forecast": 0.0, "identity": 0.0, "lock": 0.0, "search": 0.0}
    active: list[str] = []

    def timed(name: str, function: Any, sign: int = 1) -> Any:
        def measure(*arguments: Any) -> Any:
            if name in active and sign > 0:  # counted already
                return function(*arguments)
            active.append(name)
            began = time.process_time()
            result = function(*arguments)
            spent[name] += sign * (time.process_time() - began)
            active.pop()
            return result

        return measure

    @contextmanager
    def timed_lock(folder: Any) -> Iterator[None]:
        lock = locks.locked(folder)
        timed("lock", lock.__enter__)()
        yield
        timed("lock", lock.__exit__)(None, None, None)

    measured_compilation = timed("forecast", chains.compile_draws)

    def compile_again(*arguments: Any) -> Any:
        chains.compile_draws(*arguments)
        chains._compiled.clear()
        return measured_compilation(*arguments)

    with ExitStack() as stack:
        for target, name, new in (
            (sampling, "locked", timed_lock),
            (locks, "make_folders", timed("lock", locks.make_folders, -1)),
            (sampling, "_identify", timed("identity", sampling._identify)),
            (sampling, "_refuse_shortage", timed("forecast", sampling._refuse_shortage)),
            (sampling, "compile_draws", compile_again if is_first else measured_compilation),
            (sampling, "describe_shortage", timed("forecast", sampling.describe_shortage)),
            (sampling, "describe_full_disk", timed("forecast", sampling.describe_full_disk)),
            (Run, "ok", property(timed("search", Run.ok.fget))),
        ):
            stack.enter_context(mock.patch.object(target, name, new))
        yield spent


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


def first_call(folder: str) -> tuple[float, float]:
    """Return the CPU seconds of a first call, which compiles, and of its checks."""
    with timed_checks(is_first=True) as spent:
        total, _ = tiny(isotherm.msgnht(lambda x, batch: -x, 0.2), folder)
    return total, sum(spent.values())


def first_calls(folder: str) -> dict[str, Any]:
    """Measure first calls, each in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        folders = [f"{folder}/first-{number}" for number in range(FIRST_CALLS)]
        total, inside = np.array(list(pool.map(first_call, folders))).T
    return {
        "first_calls": FIRST_CALLS,
        "first_cpu_milliseconds": _milliseconds(total),
        "first_checks_cpu_milliseconds": _milliseconds(inside),
        "first_share": round(float(np.median(inside / total)), 4),
        "first_share_most": round(float(np.max(inside / total)), 4),
    }


def later_calls(sampler: Any, folder: str) -> dict[str, Any]:
    """Measure calls in this process, which has compiled the program."""
    totals, parts = [], []
    for number in range(CALLS):
        with timed_checks() as spent:
            totals.append(tiny(sampler, f"{folder}/later-{number}"))
        parts.append(spent)
    cpu, elapsed = np.array(totals).T
    inside = np.array([sum(spent.values()) for spent in parts])
    shares = inside / cpu
    blocks = [np.median(block) for block in np.array_split(shares, BLOCKS)]
    return {
        "calls": CALLS,
        "cpu_milliseconds": _milliseconds(cpu),
        "wall_milliseconds": _milliseconds(elapsed),
        "checks_cpu_milliseconds": _milliseconds(inside),
        "parts_milliseconds": {
            name: _milliseconds([spent[name] for spent in parts]) for name in parts[0]
        },
        "share": round(float(np.median(shares)), 4),
        "spread": round(float(np.std(blocks, ddof=1)) / BLOCKS**0.5, 4),
    }


def difference(sampler: Any, folder: str) -> dict[str, Any]:
    """Compare calls with all checks and with none, made in turn."""
    cpu = np.zeros((PAIRS, 2))
    for number in range(PAIRS):
        for on in (0, 1) if number % 2 else (1, 0):
            with checks(bool(on)):
                cpu[number, on], _ = tiny(sampler, f"{folder}/pair-{number}-{on}")
    shares = [1 - np.divide(*np.median(block, 0)) for block in np.array_split(cpu, BLOCKS)]
    return {
        "pairs": PAIRS,
        "difference_share": round(float(1 - np.divide(*np.median(cpu, 0))), 4),
        "difference_spread": round(float(np.std(shares, ddof=1)) / BLOCKS**0.5, 4),
    }


def tiny_run(folder: str) -> dict[str, Any]:
    """Measure the share of all checks in a run of a fraction of a second."""
    sampler = isotherm.msgnht(lambda x, batch: -x, 0.2)
    for number in range(3):  # compile
        tiny(sampler, f"{folder}/compile-{number}")
    later = later_calls(sampler, folder)
    return {**later, **difference(sampler, folder), **first_calls(folder)}


def _milliseconds(seconds: Any) -> float:
    return round(1000 * float(np.median(seconds)), 3)


def main() -> None:
    """Measure everything and record it."""
    record("overhead", "digest", digest_speed())
    with tempfile.TemporaryDirectory() as folder:
        record("overhead", "start-up", start_up(folder))
        record("overhead", "tiny run", tiny_run(folder))
    if MEMORY.is_dir():
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            record("overhead", "tiny run in memory", tiny_run(folder))


if __name__ == "__main__":
    main()

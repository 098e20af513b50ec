"""Measure what digests, locks and forecasts cost: speed, and share of a run, in CPU seconds.

    python soak/overhead.py

- `digest`: bytes per CPU second of `isotherm.io.digest`, for an array in memory.
- `start-up`: share of a first call of `isotherm.sample` with 188 MB of data (60 000 rows of 784
  numbers) and one draw that goes into digests; JAX arrays are hashed once, so a second call has
  none.
- `tiny run`: share of a call with two chains, two coordinates and 1000 draws, in a new folder of
  checkpoints, that goes into locks, digests, the fingerprint of the step, and forecasts of memory
  and disk: in the first call, which compiles, and in later calls of the same process.

CPU seconds do not depend on how busy the machine is; each number is a median.
"""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from reporting import record

import isotherm
from isotherm.io.digest import digest
from isotherm.loop import checkpoint, sampling

ROWS, COLUMNS = 60_000, 784
COMPILATION = "temporary arrays"
"""In the first call this is the compilation, which the run needs anyway."""


class Clock:
    """CPU seconds inside functions, by label; the time of nested calls counts once."""

    def __init__(self) -> None:
        self.seconds, self.depth = Counter(), 0

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a clock."""

        def call(*arguments: Any, **settings: Any) -> Any:
            with self.inside(label):
                return function(*arguments, **settings)

        return call

    @contextmanager
    def inside(self, label: str) -> Any:
        """Count the CPU time of a context."""
        self.depth, began = self.depth + 1, time.process_time()
        try:
            yield
        finally:
            self.depth -= 1
            if self.depth == 0:
                self.seconds[label] += time.process_time() - began


def install(clock: Clock) -> None:
    """Put the clock around everything that is measured."""

    @contextmanager
    def locked(folder: Path) -> Any:
        held = real(folder)
        with clock.inside("locks"):
            held.__enter__()
        try:
            yield
        finally:
            with clock.inside("locks"):
                held.__exit__(None, None, None)

    real = sampling.locked
    sampling.locked = locked
    sampling.digest = clock.timed("digests", sampling.digest)
    checkpoint.digest = clock.timed("digests", checkpoint.digest)
    sampling.fingerprint = clock.timed("fingerprint", sampling.fingerprint)
    for name in ("_refuse_shortage", "describe_shortage"):
        setattr(sampling, name, clock.timed("forecasts", getattr(sampling, name)))
    sampling.temporary_size = clock.timed(COMPILATION, sampling.temporary_size)


def digest_speed(repeats: int = 7) -> dict[str, Any]:
    """Measure the speed of a digest."""
    data = np.random.default_rng(0).standard_normal(2**26, np.float32)
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        digest(data)
        seconds.append(time.process_time() - began)
    return {
        "megabytes": data.nbytes / 1e6,
        "gigabytes_per_cpu_second": round(data.nbytes / 1e9 / statistics.median(seconds), 2),
    }


def call(sampler: Any, start: Any, batches: Any, folder: str, num_draws: int, chains: int) -> float:
    """Make a run with checkpoints in a new folder; return its CPU seconds."""
    began = time.process_time()
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
    return time.process_time() - began


def start_up(clock: Clock, folder: str) -> dict[str, Any]:
    """Measure the share of digests in the first call with much data."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, COLUMNS), np.float32)
    y = rng.integers(0, 10, ROWS).astype(np.int32)
    network = isotherm.models.mlp((COLUMNS, 100, 10))
    sampler = isotherm.sghmc(network.gradient(data_size=ROWS), 1e-4)
    batches = isotherm.independent_batches((x, y), 100)
    start = network.init(jax.random.key(0))
    entry: dict[str, Any] = {"megabytes": (x.nbytes + y.nbytes) / 1e6}
    for label in ("first", "second"):
        clock.seconds.clear()
        total = call(sampler, start, batches, f"{folder}/{label}", 1, 1)
        entry[f"{label}_cpu_seconds"] = round(total, 3)
        entry[f"{label}_digest_share"] = round(clock.seconds["digests"] / total, 4)
    return entry


def tiny_run(clock: Clock, folder: str, repeats: int = 21) -> dict[str, Any]:
    """Measure the share of all checks in a run of a fraction of a second."""
    sampler = isotherm.msgnht(lambda x, batch: -x, 0.2)
    calls = []
    for number in range(repeats + 1):
        clock.seconds.clear()
        arguments = (sampler, jnp.zeros(2), isotherm.no_batches(), f"{folder}/tiny-{number}")
        total = call(*arguments, 1000, 2)
        calls.append((total, dict(clock.seconds)))
    warm = calls[1:]  # the first one compiles
    labels = sorted({label for _, seconds in warm for label in seconds})
    shares = {
        label: round(statistics.median(s.get(label, 0) / total for total, s in warm), 5)
        for label in labels
    }
    everything = statistics.median(sum(s.values()) / total for total, s in warm)
    milliseconds = statistics.median(1000 * sum(s.values()) for _, s in warm)
    first, parts = calls[0]
    first_share = sum(s for label, s in parts.items() if label != COMPILATION) / first
    return {
        "cpu_milliseconds": round(1000 * statistics.median(total for total, _ in warm), 2),
        "first_cpu_milliseconds": round(1000 * first, 1),
        "first_share": round(first_share, 4),
        "checks_cpu_milliseconds": round(milliseconds, 2),
        "shares": shares,
        "share": round(everything, 4),
    }


def main() -> None:
    """Measure everything and record it."""
    record("overhead", "digest", digest_speed())
    clock = Clock()
    install(clock)
    with tempfile.TemporaryDirectory() as folder:
        record("overhead", "start-up", start_up(clock, folder))
        record("overhead", "tiny run", tiny_run(clock, folder))


if __name__ == "__main__":
    main()

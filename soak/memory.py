"""Run the loop with checkpoints for long: memory must be constant, and files must be closed.

    python soak/memory.py --seconds 3600

The run has a network, minibatches, two chains, a checkpoint every second and running moments. It
keeps one draw in 2000 steps, because kept draws take memory. Resident memory and open files are
measured once a second from the second save on. The first tenth, with compilation, is ignored;
after it memory must stay within 2 % of the median, and the second half must not have more open
files than the first.
"""

import argparse
import os
import resource
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from reporting import record

import isotherm

TOLERANCE = 0.02


class Meter:
    """Measures memory and open files once a second, and stops the run at the end."""

    def __init__(self, seconds: float, folder: str) -> None:
        self.seconds, self.folder = seconds, Path(folder)
        self.memory: list[float] = []
        self.opened: list[int] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while len(list(self.folder.glob("state-*.json"))) < 2:
            time.sleep(0.1)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.memory.append(pages * resource.getpagesize() / 2**20)
            self.opened.append(len(os.listdir("/proc/self/fd")))
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    def result(self) -> dict[str, Any]:
        """Return the measurements after the first tenth."""
        memory, opened = (x[len(x) // 10 :] for x in (self.memory, self.opened))
        middle, half, tenth = statistics.median(memory), len(opened) // 2, max(len(memory) // 10, 1)
        return {
            "seconds": self.seconds,
            "rss_mib": round(middle, 1),
            "rss_below": round(1 - min(memory) / middle, 4),
            "rss_above": round(max(memory) / middle - 1, 4),
            "rss_last_tenth_over_first": round(
                statistics.mean(memory[-tenth:]) / statistics.mean(memory[:tenth]), 4
            ),
            "open_files": [max(opened[:half], default=0), max(opened[half:])],
            "rss_series_mib": [round(x, 1) for x in self.memory[:: max(len(self.memory) // 60, 1)]],
        }


def run(folder: str) -> None:
    """Sample until the process gets SIGTERM."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 10)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    network = isotherm.models.mlp((10, 32, 2))
    sampler = isotherm.msgnht(network.gradient(data_size=2000), 0.002, 5.0)
    isotherm.sample(
        jax.random.key(0),
        sampler,
        network.init(jax.random.key(1)),
        isotherm.independent_batches((x, y), 50),
        num_draws=10**6,
        thin=2000,
        num_chains=2,
        collect={"moments": isotherm.collect.moments()},
        checkpoint=folder,
        checkpoint_seconds=1,
        progress=False,
    )


def main() -> None:
    """Run, and record the measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--quick", action="store_true", help="do not record the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        meter = Meter(arguments.seconds, folder)
        try:
            run(folder)
        except KeyboardInterrupt as stopped:
            print(stopped)
        saves = 1 + max(int(path.stem.split("-")[1]) for path in Path(folder).glob("state-*.json"))
    entry = {**meter.result(), "saves": saves}
    if arguments.quick:
        print(entry)
    else:
        record("memory", "loop", entry)
    constant = max(entry["rss_below"], entry["rss_above"]) <= TOLERANCE
    sys.exit(0 if constant and entry["open_files"][0] >= entry["open_files"][1] else 1)


if __name__ == "__main__":
    main()

"""Compare `BayesianMLPRegressor` with long Hamiltonian Monte Carlo on the UCI sets under 2000 rows.

    python benchmarks/hmc_uci.py [--splits 5] [--sets boston,concrete]

The method HMC of `isotherm run uci`, with trajectories five times as long as its default: one layer
of 50 ReLUs, Gaussian noise, learned scales of the prior, five chains from trained networks, 100
trajectories of burn-in and 100 draws, 1000 leapfrog steps on all rows each, in double precision.
isotherm has its defaults. Finished fits are kept in `docs/results/hmc.json`, so that the program
can be interrupted; `--anew` starts again.
"""

import argparse
import time
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from reporting import RESULTS, measure_all, paired

from isotherm import random
from isotherm.data.uci import load_uci, uci_names
from isotherm.paper.experiments.uci import Config
from isotherm.paper.experiments.uci.methods import METHODS, Job
from isotherm.paper.experiments.uci.problem import scores

PACKAGES = ("isotherm", "jax", "jaxlib", "numpy")
PATH = RESULTS / "hmc.json"
SETS, CONTESTANTS = ("boston", "concrete", "energy", "wine"), ("isotherm", "HMC")
BUDGET = replace(Config().budget, hmc_leapfrog=1000)


def measure(method: str, name: str, split: int) -> dict[str, Any]:
    """Fit one split and score it."""
    train, test = load_uci(name).split(split)
    key = random.fold(random.fold(jax.random.key(0), uci_names().index(name)), split)
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():  # both are judged by their predictions
        warnings.simplefilter("ignore")
        predictor = METHODS[method](Job(train, key, BUDGET))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    found = {"set": name, "split": split, "method": method, **scores(predictor, test)}
    return {**found, "seconds": round(wall, 1), "cpu_seconds": round(cpu, 1)}


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--anew", action="store_true")
    options = parser.parse_args()
    fits = {
        (name, split, method): partial(measure, method, name, split)
        for split in range(options.splits)
        for name in options.sets.split(",")
        for method in CONTESTANTS
    }
    measure_all(PATH, fits, partial(paired, rival="HMC"), anew=options.anew, packages=PACKAGES)


if __name__ == "__main__":
    main()

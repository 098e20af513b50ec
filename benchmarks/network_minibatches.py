"""Compare the predictions of a network on minibatches with those on all rows.

`BayesianMLPRegressor` on `power` (split 0, 8611 rows) with its balanced minibatches, and with all
rows in every step. Chains of both start at the same networks, trained from the same seeds, and are
continued (`partial_fit` with the same rows) until every chain has `LENGTHS` times the draws of one
fit; the first half is left out. Reported over 300 test rows: the ratio of the standard deviations
of the network's output, R-hat and effective draws of both runs, and their kinetic temperatures. A
small network, whose chains agree, decides; the default one shows what a fit gives people. Writes
`docs/results/network_minibatches.json`.
"""

import argparse
import json
import time
import warnings
from typing import Any

import jax
import numpy as np
from reporting import RESULTS, machine, write_document
from rich.console import Console

from isotherm import BayesianMLPRegressor
from isotherm.data.uci import Rows, load_uci
from isotherm.diagnostics import ess, rhat

PACKAGES = ("isotherm", "jax", "jaxlib", "numpy", "scikit-learn")
LENGTHS = {(6,): 4, (32, 32): 2}
"""Hidden layers, and the number of fits in a row."""
ROWS = 300


def outputs(hidden: tuple[int, ...], train: Rows, test: Rows, batch_size: int | None) -> Any:
    """Return outputs of the later draws, (chain, draw, row), and a description of the run."""
    began = time.process_time()
    model = BayesianMLPRegressor(hidden, batch_size=batch_size, random_state=0)
    with warnings.catch_warnings():  # the table has R-hat
        warnings.simplefilter("ignore")
        for number in range(LENGTHS[hidden]):
            fit = model.partial_fit if number else model.fit
            fit(train.x, train.y)
    location = np.asarray(model.predictive(test.x[:ROWS]).location)
    found = location.reshape(model.num_chains, -1, location.shape[-1])
    found = found[:, found.shape[1] // 2 :]
    temperatures = np.asarray(model._run.stats["kinetic_temperature"]).mean(1)
    r, effective = rhat(found), ess(found)
    return found, {
        "batch_size": getattr(model._target.batches, "batch_size", len(train.y)),
        "draws": int(np.prod(found.shape[:2])),
        "step_size": float(model._target.step_size),
        "thin": int(model._run.thin),
        "rhat_median": float(np.median(r)),
        "rhat_max": float(r.max()),
        "ess_median": float(np.median(effective)),
        "temperature_min": float(temperatures.min()),
        "temperature_max": float(temperatures.max()),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def measure(hidden: tuple[int, ...]) -> dict[str, Any]:
    """Compare both runs of a network."""
    train, test = load_uci("power").split(0)
    few, minibatches = outputs(hidden, train, test, None)
    jax.clear_caches()
    every, full = outputs(hidden, train, test, len(train.y))
    ratio = few.std((0, 1)) / every.std((0, 1))
    shift = np.abs(few.mean((0, 1)) - every.mean((0, 1))) / every.std((0, 1))
    return {
        "hidden": list(hidden),
        "sd_ratio_median": float(np.median(ratio)),
        "sd_ratio_10": float(np.quantile(ratio, 0.1)),
        "sd_ratio_90": float(np.quantile(ratio, 0.9)),
        "mean_shift_median": float(np.median(shift)),
        "minibatches": minibatches,
        "full": full,
    }


def main() -> None:
    """Measure the networks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = {"-".join(map(str, hidden)): hidden for hidden in LENGTHS}
    parser.add_argument("networks", nargs="*", default=list(names), help=", ".join(names))
    options = parser.parse_args()
    path, rows = RESULTS / "network_minibatches.json", []
    if path.exists():  # keep the rows of the others
        rows = json.loads(path.read_text())["rows"]
    where = machine(PACKAGES)
    for name in options.networks:
        row = measure(names[name])
        Console(width=120).print_json(data=row)
        rows = [each for each in rows if each["hidden"] != row["hidden"]] + [row]
        write_document(path, {"machine": where, "rows": rows})


if __name__ == "__main__":
    main()

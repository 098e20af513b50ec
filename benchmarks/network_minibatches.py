"""Compare the predictions of a network on minibatches with those on all rows.

`BayesianMLPRegressor` on `power` (split 0, 8611 rows) with its balanced minibatches, and with all
rows in every step. Chains of both start at the same networks, trained from the same seeds, and take
`TIME` units of time in `DRAWS` draws after they have arrived, so that both have moved equally far
however long their steps are; the first half is left out.

Chains of a network do not visit all of its posterior in this time (R-hat is reported), so what is
compared is the spread of the network's output *within* a chain, from equal starts: for 300 test
rows the ratio of its standard deviations, minibatches over all rows, with the variances averaged
over chains. The spread of the ratio over chains shows what Monte Carlo error there is. Writes
`docs/results/network_minibatches.json`.
"""

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
TIME, DRAWS = 16.0, 800
"""Units of time of every chain, and its draws."""
CHAINS = 8
ROWS = 300


def outputs(train: Rows, test: Rows, batch_size: int | None) -> Any:
    """Return outputs of the later draws, (chain, draw, row), and a description of the run."""
    began = time.process_time()
    model = BayesianMLPRegressor(
        batch_size=batch_size, num_chains=CHAINS, num_draws=1, thin=1, random_state=0
    )
    with warnings.catch_warnings():  # the table has R-hat
        warnings.simplefilter("ignore")
        model.fit(train.x, train.y)
        thin = round(TIME / DRAWS / model._target.step_size)
        model.set_params(num_draws=DRAWS, thin=thin).partial_fit(train.x, train.y)
    location = np.asarray(model.predictive(test.x[:ROWS]).location)
    found = location.reshape(model.num_chains, -1, location.shape[-1])[:, -DRAWS // 2 :]
    temperatures = np.asarray(model._run.stats["kinetic_temperature"]).mean(1)
    r, effective = rhat(found), ess(found)
    return found, {
        "batch_size": getattr(model._target.batches, "batch_size", len(train.y)),
        "draws": int(np.prod(found.shape[:2])),
        "step_size": float(model._target.step_size),
        "thin": thin,
        "rhat_median": float(np.median(r)),
        "rhat_max": float(r.max()),
        "ess_median": float(np.median(effective)),
        "temperature_min": float(temperatures.min()),
        "temperature_max": float(temperatures.max()),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Compare both runs."""
    train, test = load_uci("power").split(0)
    few, minibatches = outputs(train, test, None)
    jax.clear_caches()
    every, full = outputs(train, test, len(train.y))
    ratio = np.sqrt(few.var(1).mean(0) / every.var(1).mean(0))
    of_chains = np.median(few.std(1) / every.std(1), axis=1)
    row = {
        "name": "default",
        "time": TIME,
        "chains": CHAINS,
        "sd_ratio_median": float(np.median(ratio)),
        "sd_ratio_10": float(np.quantile(ratio, 0.1)),
        "sd_ratio_90": float(np.quantile(ratio, 0.9)),
        "sd_ratio_error": float(of_chains.std(ddof=1) / CHAINS**0.5),
    }
    row |= {f"{name}, minibatches": value for name, value in minibatches.items()}
    row |= {f"{name}, all rows": value for name, value in full.items()}
    Console(width=120).print_json(data=row)
    document = {"machine": machine(PACKAGES), "rows": [row]}
    write_document(RESULTS / "network_minibatches.json", document)


if __name__ == "__main__":
    main()

"""Measure what each part of `BayesianMLPRegressor` contributes.

    python benchmarks/ingredients.py [--splits 3] [--settings default]

The defaults on the first splits of four UCI sets, and the same with one part changed: constant
scales of the prior, Gaussian noise, noise that depends on the input, one layer of 50 units, ReLU.
*Starts* is the ensemble of the trained networks at which the chains of the default fit began, with
early stopping: what the posterior adds to them is the difference. Scores are those of test rows
under the mixture; nothing is chosen by them. Finished fits are kept in
`docs/results/ingredients.json`, so that the program can be interrupted; `--anew` starts again.
"""

import argparse
import copy
import time
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from reporting import RESULTS, measure_all

from isotherm import BayesianMLPRegressor
from isotherm.data.uci import load_uci
from isotherm.diagnostics import Mixture

PACKAGES = ("isotherm", "jax", "jaxlib", "numpy", "scikit-learn")
PATH = RESULTS / "ingredients.json"
SETS = ("boston", "concrete", "energy", "wine")
DEFAULT, STARTS = "default", "starts of the default"
SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "scales of 2, not learned": {"prior_variance": 4.0},
    "Gaussian noise": {"noise_df": None},
    "noise that depends on the input": {"noise": "input-dependent"},
    "one layer of 50 units": {"hidden_layer_sizes": (50,)},
    "ReLU": {"activation": "relu"},
}


def scores(mixture: Mixture, y: np.ndarray) -> dict[str, float]:
    """Return the scores of test rows."""
    lower, upper = mixture.interval(0.9)
    return {
        "log likelihood": float(mixture.log_density(y).mean()),
        "RMSE": float(np.sqrt(np.mean((mixture.mean - y) ** 2))),
        "coverage": float(np.mean((lower <= y) & (y <= upper))),
    }


def measure(setting: str, name: str, split: int) -> dict[str, Any]:
    """Fit one split and score it, and the starts of its chains if it is the default."""
    train, test = load_uci(name).split(split)
    began = time.process_time()
    with warnings.catch_warnings():  # R-hat is in the table
        warnings.simplefilter("ignore")
        model = BayesianMLPRegressor(random_state=split, **SETTINGS[setting])
        model.fit(train.x, train.y)
    found: dict[str, Any] = {"set": name, "split": split, "setting": setting}
    found["cpu_seconds"] = round(time.process_time() - began, 1)
    found |= scores(model.predictive(test.x), test.y)
    found["largest R-hat"] = max(row["rhat"] for row in model.diagnostics_.rows)
    if setting == DEFAULT:
        starts = copy.copy(model)
        starts._run = replace(model._run, draws=np.asarray(model._target.trained)[:, None])
        found["starts"] = scores(starts.predictive(test.x), test.y)
    return found


def summary(fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per set and setting: means over splits, and differences to the default."""
    of = {(fit["set"], fit["setting"], fit["split"]): fit for fit in fits}
    of |= {(s, STARTS, i): fit["starts"] for (s, _, i), fit in list(of.items()) if "starts" in fit}
    rows = []
    for name in SETS:
        for setting in (*SETTINGS, STARTS):
            splits = sorted(
                i for s, m, i in of if (s, m) == (name, setting) and (name, DEFAULT, i) in of
            )
            if not splits:
                continue
            some, base = ([of[name, m, i] for i in splits] for m in (setting, DEFAULT))
            row: dict[str, Any] = {"set": name, "setting": setting, "splits": len(splits)}
            for score in ("log likelihood", "RMSE", "coverage"):
                row[score] = float(np.mean([fit[score] for fit in some]))
            gaps = [
                a["log likelihood"] - b["log likelihood"] for a, b in zip(some, base, strict=True)
            ]
            if setting != DEFAULT:
                row["difference"] = float(np.mean(gaps))
                if len(gaps) > 1:
                    row["difference se"] = float(np.std(gaps, ddof=1) / len(gaps) ** 0.5)
            rows.append(row)
    return rows


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--settings", default=";".join(SETTINGS))
    parser.add_argument("--anew", action="store_true")
    options = parser.parse_args()
    fits = {
        (name, setting, split): partial(measure, setting, name, split)
        for split in range(options.splits)
        for setting in options.settings.split(";")
        for name in options.sets.split(",")
    }
    measure_all(PATH, fits, summary, anew=options.anew, packages=PACKAGES)


if __name__ == "__main__":
    main()

"""Compare `BayesianMLPRegressor` with the microcanonical Langevin ensembles of bde.

    python benchmarks/bde_uci.py [--splits 5] [--sets boston,concrete] [--methods bde]

Both fit the same training rows of the UCI splits, one after the other: isotherm with its defaults,
bde 1.0.2 with the settings of the regression example in its README (eight members of 16-16 units,
5000 steps of warm-up, 2000 samples, every second kept; features and target standardised as there).
Scores are those of test rows under the mixture over all draws, in the original units. `seconds` is
wall time and `cpu_seconds` processor time, with compilation; every fit starts with no compiled
program. Finished fits are kept in `docs/results/bde.json`, so that the program can be interrupted,
and run for each method at the same time; `--anew` starts again. bde needs an environment of its own
(`make bde`).
"""

import argparse
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # as its README does

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from bde import BdeRegressor  # pyright: ignore[reportMissingImports]
from bde.loss import GaussianNLL  # pyright: ignore[reportMissingImports]
from reporting import RESULTS, measure_all, paired

from isotherm import BayesianMLPRegressor
from isotherm.data.uci import Rows, load_uci, uci_names
from isotherm.diagnostics import Mixture

PACKAGES = ("isotherm", "sklearn-contrib-bde", "jax", "jaxlib", "numpy", "blackjax")
PATH = RESULTS / "bde.json"


def isotherm_fit(train: Rows, test: Rows, seed: int) -> Mixture:
    """Return the predictive mixtures of our estimator."""
    return BayesianMLPRegressor(random_state=seed).fit(train.x, train.y).predictive(test.x)


def bde_fit(train: Rows, test: Rows, seed: int) -> Mixture:
    """Return the predictive mixtures of bde, in the original units."""
    x_mean, x_sd = train.x.mean(0), train.x.std(0) + 1e-8
    y_mean, y_sd = train.y.mean(), train.y.std() + 1e-8
    regressor = BdeRegressor(
        hidden_layers=[16, 16],
        n_members=8,
        seed=seed,
        loss=GaussianNLL(),
        epochs=200,
        validation_split=0.15,
        lr=1e-3,
        weight_decay=1e-4,
        warmup_steps=5000,
        n_samples=2000,
        n_thinning=2,
        patience=10,
    )
    regressor.fit(x=(train.x - x_mean) / x_sd, y=((train.y - y_mean) / y_sd).reshape(-1, 1))
    raw = np.asarray(regressor.predict((test.x - x_mean) / x_sd, raw=True), np.float64)
    raw = raw.reshape(-1, *raw.shape[2:])  # members and samples are all draws
    scale = np.logaddexp(raw[..., 1], 0.0) + 1e-6  # the softplus of its likelihood
    return Mixture(y_mean + y_sd * raw[..., 0], y_sd * scale)


CONTESTANTS: dict[str, Callable[[Rows, Rows, int], Mixture]] = {
    "isotherm": isotherm_fit,
    "bde": bde_fit,
}


def measure(contestant: str, name: str, split: int) -> dict[str, Any]:
    """Fit one split and score it."""
    train, test = load_uci(name).split(split)
    jax.clear_caches()
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():  # both are judged by their predictions
        warnings.simplefilter("ignore")
        mixture = CONTESTANTS[contestant](train, test, split)
    lower, upper = mixture.interval(0.9)
    return {
        "set": name,
        "split": split,
        "method": contestant,
        "log likelihood": float(mixture.log_density(test.y).mean()),
        "RMSE": float(np.sqrt(np.mean((mixture.mean - test.y) ** 2))),
        "coverage": float(np.mean((lower <= test.y) & (test.y <= upper))),
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sets", default=",".join(uci_names()))
    parser.add_argument("--methods", default=",".join(CONTESTANTS))
    parser.add_argument("--anew", action="store_true")
    options = parser.parse_args()
    fits = {
        (name, split, method): partial(measure, method, name, split)
        for split in range(options.splits)
        for name in options.sets.split(",")
        for method in options.methods.split(",")
    }
    measure_all(PATH, fits, partial(paired, rival="bde"), anew=options.anew, packages=PACKAGES)


if __name__ == "__main__":
    main()

"""Classify scikit-learn's digits with `BayesianMLPClassifier`: five random divisions, two networks.

    python benchmarks/digits.py [--settings default]

1200 rows to fit, 597 to test, divided by seeds 0 to 4. Defaults, which choose the likelihood on
held-out rows; a noisy Dirichlet with other scales of the prior; and softmax labels, with the prior
scales learned and with fixed ones. *Starts* is the ensemble of the networks at which the chains of
the same fit began, trained with early stopping. Defaults were chosen on parts of the training rows
of divisions 0 to 4; before a common scale of all pixels became one, three fits with it were looked
at on the test rows of division 0. The fits with softmax labels in `docs/results/digits.json` were
made with half of today's budget. Finished fits are kept there; `--anew` starts again.
"""

import argparse
import time
import warnings
from functools import partial
from typing import Any

import numpy as np
from reporting import RESULTS, measure_all
from sklearn.datasets import load_digits

from isotherm import BayesianMLPClassifier
from isotherm.diagnostics.calibration import (
    accuracy,
    expected_calibration_error,
    negative_log_likelihood,
)
from isotherm.diagnostics.predictions import posterior_predictive
from isotherm.estimators.network_posterior import Predict
from isotherm.models import NoisyDirichlet

PACKAGES = ("isotherm", "jax", "jaxlib", "numpy", "scikit-learn")
PATH = RESULTS / "digits.json"
SPLITS, TRAINING_ROWS = range(5), 1200
DIRICHLET = NoisyDirichlet(1e-4)
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "noisy Dirichlet": {"likelihood": DIRICHLET},
    "noisy Dirichlet, prior variance 1": {"likelihood": DIRICHLET, "prior_variance": 1.0},
    "noisy Dirichlet, prior variance 16": {"likelihood": DIRICHLET, "prior_variance": 16.0},
    "noisy Dirichlet, learned scales": {"likelihood": DIRICHLET, "prior_variance": "learned"},
    "softmax": {"likelihood": "categorical"},
    "softmax, prior variance 8": {"likelihood": "categorical", "prior_variance": 8.0},
    "softmax, prior variance 32": {"likelihood": "categorical", "prior_variance": 32.0},
    "softmax, prior variance 128": {"likelihood": "categorical", "prior_variance": 128.0},
}
NETWORKS = {"64-50-10": (50,), "64-100-100-10": (100, 100)}
LARGE = "64-100-100-10"
CASES = [
    *(("64-50-10", setting) for setting in SETTINGS if setting != "noisy Dirichlet"),
    *((LARGE, setting) for setting in ("default", "noisy Dirichlet", "softmax")),
]
"""The larger network has only the defaults, which are softmax, and the noisy Dirichlet."""
SCORES = ("accuracy", "NLL", "ECE", "accuracy of starts", "NLL of starts", "largest R-hat")
"""Of which the table has means and standard errors."""


def measure(network: str, setting: str, split: int) -> dict[str, Any]:
    """Fit one division and score it."""
    x, y = map(np.asarray, load_digits(return_X_y=True))
    order = np.random.default_rng(split).permutation(len(y))
    fitted, test = order[:TRAINING_ROWS], order[TRAINING_ROWS:]
    began = time.process_time()
    with warnings.catch_warnings():  # R-hat is in the table
        warnings.simplefilter("ignore")
        model = BayesianMLPClassifier(NETWORKS[network], random_state=split, **SETTINGS[setting])
        model.fit(x[fitted], y[fitted])
    cpu_seconds = time.process_time() - began
    inputs = np.asarray(model._standardize(x[test]), np.float32)
    trained = np.asarray(model._target.trained)[:, None]
    starts = np.asarray(posterior_predictive(Predict(model._model), trained, inputs))
    chances = model.predict_proba(x[test])
    return {
        "network": network,
        "setting": setting,
        "split": split,
        "accuracy": 100 * accuracy(chances, y[test]),
        "NLL": negative_log_likelihood(chances, y[test]),
        "ECE": expected_calibration_error(chances, y[test]),
        "accuracy of starts": 100 * accuracy(starts, y[test]),
        "NLL of starts": negative_log_likelihood(starts, y[test]),
        "largest R-hat": max(row["rhat"] for row in model.diagnostics_.rows),
        "likelihood": str(model.likelihood_),
        "cpu_seconds": round(cpu_seconds, 1),
    }


def summary(fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per network and setting: means over the divisions and standard errors."""
    rows = []
    for network, setting in CASES:
        some = [fit for fit in fits if (fit["network"], fit["setting"]) == (network, setting)]
        if not some:
            continue
        row: dict[str, Any] = {"network": network, "setting": setting, "splits": len(some)}
        for score in SCORES:
            each = np.array([fit[score] for fit in some])
            row[score] = float(each.mean())
            row[f"{score} se"] = float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else 0
        row["largest R-hat"] = max(fit["largest R-hat"] for fit in some)
        row["cpu_seconds"] = float(np.median([fit["cpu_seconds"] for fit in some]))
        rows.append(row)
    return rows


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--anew", action="store_true")
    options = parser.parse_args()
    chosen = options.settings.split(",")
    fits = {
        (network, setting, split): partial(measure, network, setting, split)
        for split in SPLITS
        for network, setting in CASES
        if setting in chosen
    }
    measure_all(PATH, fits, summary, anew=options.anew, packages=PACKAGES)


if __name__ == "__main__":
    main()

"""Measure the coverage of conformal intervals and sets.

    python benchmarks/conformal.py

Each network of isotherm is fitted once, with its defaults, to 60 % of the rows of a set. The other
rows are divided at random into as many calibration rows and test rows, many times; `coverage` is
the share of test rows in their intervals or sets, averaged over these divisions, and `se` its
standard error from the number of rows alone. `model` is the coverage of the intervals without
calibration, or of the smallest sets with a probability of 90 %. `width` is the width over that of
the model, or the number of classes in a set. Regression sets are those of `uci`; classes are
digits, wine grades and breast cancer. The numbers go to `docs/results/conformal.json`; `--quick`
fits two small sets and writes nothing.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from reporting import RESULTS, machine, short, write_document
from rich.console import Console
from sklearn.datasets import load_breast_cancer, load_digits

from isotherm import BayesianMLPClassifier, BayesianMLPRegressor
from isotherm.data.uci import load_uci, uci_names
from isotherm.diagnostics import conformal_intervals, conformal_sets

PACKAGES = ("isotherm", "jax", "jaxlib", "numpy", "scikit-learn")
SHARE, LEVEL, DIVISIONS = 0.6, 0.9, 200


def halves(number: int, divisions: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return random halves of row numbers: for calibration, and to test."""
    rng = np.random.default_rng(1)
    for _ in range(divisions):
        order = rng.permutation(number)
        yield order[: number // 2], order[number // 2 :]


def row(name: str, method: str, rows: int, model: float, results: list) -> dict[str, Any]:
    """Return the averages over divisions; `results` are pairs of coverage and width."""
    coverage, width = np.mean(results, axis=0)
    return {
        "set": name,
        "method": method,
        "rows": rows,
        "model": model,
        "coverage": float(coverage),
        "se": float(np.sqrt(LEVEL * (1 - LEVEL) / rows)),
        "width": float(width),
    }


def regression(name: str, divisions: int) -> list[dict[str, Any]]:
    """Measure intervals of one regression set."""
    data = load_uci(name)
    fitted, rest = divided(len(data.y))
    model: Any = BayesianMLPRegressor(random_state=0).fit(data.x[fitted], data.y[fitted])
    y = data.y[rest]
    mean, sd = model.predict(data.x[rest], return_std=True)
    lower, upper = model.predict_interval(data.x[rest], LEVEL)
    own = float(np.mean((lower <= y) & (y <= upper)))
    results = []
    for calibration, test in halves(len(rest), divisions):
        intervals = conformal_intervals(
            (mean[calibration], sd[calibration]), y[calibration], level=LEVEL, method="normalized"
        )
        low, high = intervals.interval((mean[test], sd[test]))
        inside = np.mean((low <= y[test]) & (y[test] <= high))
        results.append((inside, np.mean(high - low) / np.mean((upper - lower)[test])))
    return [row(name, "normalized", len(rest), own, results)]


def classification(name: str, x: np.ndarray, y: np.ndarray, divisions: int) -> list[dict[str, Any]]:
    """Measure sets of one classification."""
    fitted, rest = divided(len(y))
    model: Any = BayesianMLPClassifier(random_state=0).fit(x[fitted], y[fitted])
    known = np.isin(y[rest], model.classes_)
    chances, labels = model.predict_proba(x[rest])[known], y[rest][known]
    codes = np.searchsorted(model.classes_, labels)
    order = np.argsort(-chances, axis=1)
    before = np.cumsum(np.take_along_axis(chances, order, 1), 1) - np.take_along_axis(
        chances, order, 1
    )
    rank = np.argmax(order == codes[:, None], axis=1)
    own = float(np.mean(before[np.arange(len(codes)), rank] < LEVEL))
    rows = []
    for method in ("lac", "aps"):
        results = []
        for i, (calibration, test) in enumerate(halves(len(codes), divisions)):
            keys = jax.random.split(jax.random.key(i)) if method == "aps" else (None, None)
            found = conformal_sets(
                chances[calibration], codes[calibration], level=LEVEL, method=method, key=keys[0]
            )
            sets = found.sets(chances[test], keys[1])
            inside = sets[np.arange(len(test)), codes[test]].mean()
            results.append((inside, sets.sum(1).mean()))
        rows.append(row(name, method, len(codes), own, results))
    return rows


def divided(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers to fit, and the others."""
    order = np.random.default_rng(0).permutation(number)
    return np.split(order, [int(SHARE * number)])


def main() -> None:
    """Measure all sets."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")  # convergence does not matter for the guarantee
    divisions = 20 if quick else DIVISIONS
    rows = []
    for name in ("boston",) if quick else uci_names():
        rows += regression(name, divisions)
        Console(width=160).print_json(data=short(rows[-1]), indent=None)
    grades = load_uci("wine")
    classes: dict[str, tuple[Any, Any]] = {"breast cancer": load_breast_cancer(return_X_y=True)}
    if not quick:
        classes |= {"digits": load_digits(return_X_y=True), "wine grades": (grades.x, grades.y)}
    for name, (x, y) in classes.items():
        rows += classification(name, np.asarray(x), np.asarray(y), divisions)
        for each in rows[-2:]:
            Console(width=160).print_json(data=short(each), indent=None)
    if not quick:
        write_document(RESULTS / "conformal.json", {"machine": machine(PACKAGES), "rows": rows})


if __name__ == "__main__":
    main()

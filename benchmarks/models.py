"""Models that were tried: six networks in four libraries, four kinds of coordinates, defaults only.

Every cell is what the documentation says for a network, with no setting chosen: a mode by
`isotherm.find_mode`, `isotherm.warm_start` from there (which does the same, so that coordinates of
a network share their mode), and four chains of `isotherm.sample` with `start.settings`, 200 draws
each, 20 steps apart. `"auto"` is the default of `warm_start`; `chosen` says what it took. The data
are 1200 handwritten digits; the other 597 are the test rows. All weights have the prior N(0, 1). A
cell records accuracy and negative log likelihood of the mode, of the start of the chains and of the
average over their draws; kinetic temperatures (`T` is that of all numbers; the extremes are over
leaves, some of six numbers, and chains); R-hat of the probabilities of the right class (the worst
of 100 rows, and the median); and the warning or error, if there was one. Writes
`docs/results/models.json`; `--cache FOLDER` keeps finished cells, so that an interrupted run
continues, and `--finished` writes the table of what is there. Remove the folder after a change of
the code.
"""

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from models_zoo import MODELS, Rows
from reporting import RESULTS, machine, write_document
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import isotherm
from isotherm.diagnostics import classifier_scores, rhat
from isotherm.exceptions import ConvergenceWarning

COORDINATES = ("auto", "kronecker", "diagonal", "identity")
SEEDS = (0, 1, 2)
TRAINING_ROWS, BATCH_SIZE = 1200, 100
CHAINS, DRAWS, THIN = 4, 200, 20
JUDGED_ROWS = 100
PACKAGES = ("isotherm", "jax", "jaxlib", "flax", "equinox", "numpy")
LARGEST_LOSS = 0.1
"""Nats of test likelihood by which an average over draws may be behind its mode."""
LARGEST_RHAT = 1.2
"""R-hat above which `isotherm.sample` warns."""


def digits(seed: int) -> tuple[Rows, Rows]:
    """Return training and test rows of a random split."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    parts = train_test_split(x, y, train_size=TRAINING_ROWS, random_state=seed, stratify=y)
    return (parts[0], parts[2]), (parts[1], parts[3])


def scores(name: str, probabilities: Any, y: np.ndarray) -> dict[str, float]:
    """Return accuracy in per cent and negative log likelihood."""
    found = classifier_scores(np.asarray(probabilities), y)
    return {f"{name} accuracy": 100 * float(found["accuracy"]), f"{name} NLL": float(found["nll"])}


def sample_from(
    key: jax.Array, network: Any, mode: Any, train: Rows, test: Rows, coordinates: str
) -> dict[str, Any]:
    """Return the numbers of one cell."""
    grad_fn, (x, y) = network.gradient(len(train[1])), test
    batches = isotherm.independent_batches(train, BATCH_SIZE)
    start_key, sample_key = jax.random.split(key)
    began, found = time.process_time(), {}

    def right(position: Any) -> jax.Array:
        probabilities = network.predict(position, x[:JUDGED_ROWS])
        return probabilities[np.arange(JUDGED_ROWS), y[:JUDGED_ROWS]]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ConvergenceWarning)  # R-hat has a column of its own
        try:
            start = isotherm.warm_start(
                start_key, grad_fn, mode, batches, coordinates=coordinates, num_steps=0
            )
            found |= scores("start", network.predict(start.position, x), y)
            found |= {"step size": float(start.step_size), "diffusion": float(start.diffusion)}
            found["chosen"] = start.kind
            run = isotherm.sample(
                sample_key,
                isotherm.msgnht(start.grad_fn, **start.settings),
                start.position,
                batches,
                num_draws=DRAWS,
                thin=THIN,
                num_chains=CHAINS,
                collect={
                    "test": isotherm.collect.probabilities(network.predict, x),
                    "right": isotherm.collect.draws(right),
                },
                progress=False,
            )
        except (FloatingPointError, ValueError, isotherm.exceptions.DivergedError) as error:
            return found | {"outcome": "refused", "message": str(error)}
        found |= scores("posterior", run.collected["test"]["probabilities"].mean(0), y)
    later = run.stats["kinetic_temperature"][:, DRAWS // 2 :].mean(1)
    pooled = np.average(later.mean(0), weights=run.momentum_sizes)
    agreement = rhat(np.asarray(run.collected["right"]))
    messages = [str(each.message) for each in caught]
    return found | {
        "outcome": "warned" if messages else "sampled",
        "message": " ".join(messages),
        "T": float(pooled),
        "T min": float(later.min()),
        "T max": float(later.max()),
        "R-hat": float(np.nanmax(agreement)),
        "R-hat median": float(np.nanmedian(agreement)),
        "CPU seconds": round(time.process_time() - began, 1),
    }


def measure(
    architecture: str, library: str, seed: int, coordinates: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the cells of one network and one seed."""
    train, test = digits(seed)
    keys = jax.random.split(jax.random.key(seed), 3)
    position, apply = MODELS[architecture][library](keys[0], train)
    network = isotherm.models.Network(apply, lambda key: position)
    batches = isotherm.independent_batches(train, BATCH_SIZE)
    mode = isotherm.find_mode(keys[1], network.gradient(len(train[1])), position, batches)
    common = {
        "network": architecture,
        "library": library,
        "seed": seed,
        "parameters": int(sum(leaf.size for leaf in jax.tree.leaves(position))),
        **scores("mode", network.predict(mode, test[0]), test[1]),
    }
    for each in coordinates:
        cell = sample_from(keys[2], network, mode, train, test, each)
        yield common | {"coordinates": each} | cell


def is_silent_failure(cell: dict) -> bool:
    """Return whether a cell predicts worse than its mode without a warning or an error.

    `sample` warns of an R-hat above 1.2, which is not counted among the other warnings.
    """
    if cell["outcome"] != "sampled" or cell["R-hat"] > LARGEST_RHAT:
        return False
    return not cell["posterior NLL"] <= cell["mode NLL"] + LARGEST_LOSS


def summary(cells: list[dict]) -> list[dict]:
    """Return one row per network, library and coordinates: means and extremes over seeds."""
    rows: dict[tuple, list[dict]] = {}
    for cell in cells:
        key = (cell["network"], cell["library"], cell["coordinates"])
        rows.setdefault(key, []).append(cell)
    return [_row(key, each) for key, each in rows.items()]


def _row(key: tuple, cells: list[dict]) -> dict[str, Any]:
    ended = [cell for cell in cells if cell["outcome"] != "refused"]
    row: dict[str, Any] = dict(zip(("network", "library", "coordinates"), key, strict=True))
    row["seeds"] = len(cells)
    for name in ("sampled", "warned", "refused"):
        row[name] = sum(cell["outcome"] == name for cell in cells)
    row["silent failures"] = sum(map(is_silent_failure, cells))
    for name in ("mode accuracy", "mode NLL"):
        row[name] = float(np.mean([cell[name] for cell in cells]))
    if ended:
        for name in ("posterior accuracy", "posterior NLL", "R-hat median", "T"):
            row[name] = float(np.mean([cell[name] for cell in ended]))
        row["worst NLL"] = max(cell["posterior NLL"] for cell in ended)
        row["R-hat"] = max(cell["R-hat"] for cell in ended)
        row["T min"] = min(cell["T min"] for cell in ended)
        row["T max"] = max(cell["T max"] for cell in ended)
    return row


def main() -> None:
    """Measure the networks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--libraries", nargs="*", default=list(MODELS["MLP"]))
    parser.add_argument("--coordinates", nargs="*", default=list(COORDINATES))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--cache", type=Path, help="keep finished cells here")
    parser.add_argument(
        "--finished", action="store_true", help="measure nothing, write the cells of the cache"
    )
    parser.add_argument("--quick", action="store_true", help="one small cell, written nowhere")
    options = parser.parse_args()
    console = Console(width=140)
    if options.quick:
        console.print_json(data=next(measure("MLP", "plain JAX", 0, ["auto"])))
        return
    cells: list[dict] = []
    units = [
        (n, lib, s) for s in options.seeds for lib in options.libraries for n in options.networks
    ]
    for network, library, seed in units:
        name = f"{network} {library} {seed}".replace(" ", "-").replace(",", "")
        path = options.cache / f"{name}.json" if options.cache else None
        known = json.loads(path.read_text()) if path and path.exists() else []
        missing = [c for c in options.coordinates if c not in {k["coordinates"] for k in known}]
        missing = [] if options.finished else missing
        for cell in known:
            console.print(_line(cell), highlight=False)
        for cell in measure(network, library, seed, missing) if missing else ():
            known.append(cell)
            console.print(_line(cell), highlight=False)
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_document(path, known)
        jax.clear_caches()
        cells += known
    write_document(
        RESULTS / "models.json",
        {"machine": machine(PACKAGES), "rows": summary(cells), "cells": cells},
    )


def _line(cell: dict) -> str:
    start = (cell[name] for name in ("network", "library", "coordinates", "seed"))
    text = f"{' / '.join(map(str, start))}: mode {cell['mode accuracy']:.1f} {cell['mode NLL']:.3f}"
    if cell["outcome"] == "refused":
        return f"{text}, refused: {cell['message'][:200]}"
    silent = "SILENT " if is_silent_failure(cell) else ""
    return (
        f"{text}, posterior {cell['posterior accuracy']:.1f} {cell['posterior NLL']:.3f}, "
        f"T {cell['T min']:.2f} to {cell['T max']:.2f}, R-hat {cell['R-hat']:.2f} "
        f"({cell['R-hat median']:.2f}), {cell['CPU seconds']} s, {silent}{cell['outcome']} "
        f"{cell['message'][:120]}"
    )


if __name__ == "__main__":
    main()

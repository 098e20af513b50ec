"""Common parts of the benchmarks: machine, memory, rounds, and results in `docs/results`."""

import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
COLUMNS = ("contestant", "setting", "steps/s", "min", "max", "mean", "variance", "TV")
PACKAGES = ("isotherm", "jax", "jaxlib", "numpy", "blackjax", "posteriors", "torch")
OURS = "isotherm.sample ABOBA, gaussian"
RATIOS = {
    "hand-written scan ABOBA": (OURS, "noisy gradient"),
    "hand-written scan euler": ("isotherm.sample euler, gaussian", "noisy gradient"),
    "blackjax.sgnht, one scan": (OURS, "noisy gradient"),
    "blackjax.sgnht, one scan (exact gradient)": (OURS, "exact gradient"),
    "blackjax.sgnht, jitted step": (OURS, "noisy gradient"),
    "posteriors sgnht": (OURS, "noisy gradient"),
}
"""Other programs, and the contestant of isotherm with which each is compared."""


def machine(packages: tuple[str, ...] = PACKAGES) -> dict:
    """Return a description of the machine and the versions of packages."""
    model = platform.processor()
    if (info := Path("/proc/cpuinfo")).exists():
        lines = info.read_text().splitlines()
        model = next((x.split(": ")[1] for x in lines if x.startswith("model name")), model)
    describe = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
        "date": datetime.date.today().isoformat(),
        "commit": commit or "none",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def megabytes() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_megabytes() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, so that its memory and time are measured separately."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def rotated(items: list, round_number: int) -> list:
    """Return the items in the order of a round: rotated by two places per round."""
    shift = 2 * round_number % len(items)
    return items[shift:] + items[:shift]


def write_document(path: Path, document: dict) -> None:
    """Write a result as indented JSON."""
    path.write_text(json.dumps(document, indent=1) + "\n")


def measure_all(
    path: Path,
    fits: dict[tuple, Callable[[], dict]],
    summarise: Callable[[list[dict]], list[dict]],
    *,
    anew: bool,
    packages: tuple[str, ...],
) -> None:
    """Measure what the file at `path` does not have, and write it after every fit.

    The file is read again before it is written, so that programs that measure different fits can
    run at the same time. `anew` deletes it first. Every fit has a `case`, its key in `fits`.
    """

    def finished() -> list[dict]:
        return json.loads(path.read_text())["fits"] if path.exists() else []

    if anew:
        path.unlink(missing_ok=True)
    done = {tuple(fit["case"]) for fit in finished()}
    where = machine(packages)
    for case, measure in fits.items():
        if case not in done:
            new = {"case": list(case), **measure()}
            kept = [*finished(), new]
            Console(width=200).print_json(data=new, indent=None)
            document = {"machine": where, "rows": summarise(kept), "fits": kept}
            write_document(path, document)


def paired(fits: list[dict[str, Any]], rival: str) -> list[dict[str, Any]]:
    """Return a row per set: means over the splits of isotherm and a rival, and the difference.

    Only splits that both have count; the difference is that of log likelihoods, split by split.
    """
    rows = []
    for name in dict.fromkeys(fit["set"] for fit in fits):
        of = {(fit["method"], fit["split"]): fit for fit in fits if fit["set"] == name}
        both = sorted(s for m, s in of if m == rival and ("isotherm", s) in of)
        if not both:
            continue
        row: dict[str, Any] = {"set": name, "splits": len(both)}
        for score in ("log likelihood", "RMSE", "coverage", "seconds", "cpu_seconds"):
            for method in ("isotherm", rival):
                row[f"{score}, {method}"] = statistics.mean(of[method, s][score] for s in both)
        gaps = [of["isotherm", s]["log likelihood"] - of[rival, s]["log likelihood"] for s in both]
        row["difference"] = statistics.mean(gaps)
        row["difference se"] = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else None
        rows.append(row)
    return rows


def short(row: dict) -> dict:
    """Return a row for printing, with three significant digits."""
    return {key: f"{v:.3g}" if isinstance(v, float) else v for key, v in row.items()}


def ratios(rows: list[dict]) -> dict[str, float]:
    """Return how many times faster `isotherm.sample` is than the others: medians over rounds."""
    rates = {(row["name"], row["setting"]): row["rates"] for row in rows}
    best = max(
        (row for row in rows if row["name"].startswith("posteriors")), key=lambda r: r["median"]
    )
    rates["posteriors sgnht", "noisy gradient"] = best["rates"]
    result = {}
    for peer, (name, setting) in RATIOS.items():
        theirs = rates[peer.removesuffix(" (exact gradient)"), setting]
        pairs = zip(rates[name, setting], theirs, strict=True)
        result[f"{name} / {peer}"] = statistics.median(a / b for a, b in pairs)
    return result


def rounded(value: float) -> str:
    """Format a number with two decimals below 10 and none above."""
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"


def cells(row: dict) -> list[str]:
    """Format one contestant for a table; a dash if it made too few steps for a score."""
    rates = [f"{row[name]:,.0f}" for name in ("median", "min", "max")]
    scores = ["diverged" if row["diverged"] else "–"] * 3
    if "mean" in row:
        scores = [f"{row[name]:.3f} ± {row[name + '_error']:.3f}" for name in ("mean", "variance")]
        scores.append(f"{row['total_variation']:.4f}")
    return [row["name"], row["setting"], *rates, *scores]


def print_table(rows: list[dict], exact: dict[str, float]) -> None:
    """Print the speed and the scores of all contestants."""
    table = Table(title="double well, h = 0.1, one chain")
    for i, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    table.add_row("exact", *[""] * 4, f"{exact['mean']:.3f}", f"{exact['variance']:.3f}", "0")
    console = Console(width=140)
    console.print(table)
    for name, value in ratios(rows).items():
        console.print(f"{name}: {rounded(value)}", highlight=False)


def write_results(rows: list[dict], exact: dict[str, float], where: dict) -> None:
    """Write the JSON file and the figure."""
    where = where | {"load_average_after": os.getloadavg()[0]}
    document = {"machine": where, "exact": exact, "contestants": rows, "ratios": ratios(rows)}
    write_document(RESULTS / "double_well_speed.json", document)
    _plot(rows, RESULTS / "double_well_speed.png")


def _plot(rows: list[dict], path: Path) -> None:
    """Draw horizontal bars on a logarithmic scale, with the range over rounds."""
    rows = sorted(rows, key=lambda row: row["median"])
    figure, axis = plt.subplots(figsize=(9, 0.36 * len(rows) + 1), layout="constrained")
    median = [row["median"] for row in rows]
    below = [row["median"] - row["min"] for row in rows]
    above = [row["max"] - row["median"] for row in rows]
    colors = ["C0" if row["name"].startswith("isotherm") else "0.75" for row in rows]
    labels = [f"{row['name']} ({row['setting']})" for row in rows]
    axis.barh(labels, median, color=colors, xerr=(below, above), error_kw={"capsize": 2})
    axis.set(xscale="log", xlabel="steps per second, one chain (median, minimum to maximum)")
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Save a figure without frames around its panels."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)

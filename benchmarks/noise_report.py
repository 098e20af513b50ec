"""Errors of chains on targets with known moments, their table and their figure."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from reporting import save

VARIANCE, MEAN = "error of variances, rms %", "error of means, rms sds"
BROKEN = 1e3
"""A chain that is ever more than this many exact sds away from the mean has diverged."""
SPREADS = {VARIANCE: "its standard error", MEAN: "its standard error in sds"}


def moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors of mean and variance of every chain, NaN if it diverged.

    Parameters
    ----------
    draws
        (chain, draw, axis), standardised with the exact moments.
    """
    draws = np.asarray(draws, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        broken = ~(np.abs(draws).max((1, 2)) < BROKEN)  # true for NaN
        mean, variance = draws.mean(1), (draws**2).mean(1) - 1
    mean[broken] = variance[broken] = np.nan
    return mean, variance


def size(errors: np.ndarray) -> float:
    """Return the root mean square over axes of the bias of chains, (chain, axis).

    The square of a mean over chains is too large by its Monte Carlo variance, which is subtracted;
    a bias below the Monte Carlo error is 0.
    """
    bias, variance = errors.mean(0), errors.var(0, ddof=1) / len(errors)
    return float(np.sqrt(max(np.mean(bias**2 - variance), 0.0)))


def spread(errors: np.ndarray) -> float:
    """Return the standard error of `size`, with the errors of different axes independent.

    The square of `size` has the variance mean(4 bias^2 s^2 + 2 s^4)/axes, where s is the standard
    error of an axis. The standard error of the root follows by the delta method, and is at most the
    root of the standard error of the square.
    """
    noise = errors.var(0, ddof=1) / len(errors)
    bias2 = np.maximum(errors.mean(0) ** 2 - noise, 0)
    of_square = np.sqrt(np.mean(4 * bias2 * noise + 2 * noise**2) / errors.shape[1])
    return float(of_square / max(2 * size(errors), np.sqrt(of_square)))


def scores(draws: np.ndarray) -> dict[str, Any]:
    """Return the errors of all chains of a method, or how many of them diverged."""
    mean, variance = moments(draws)
    diverged = int(np.isnan(mean).any(1).sum())
    row: dict[str, Any] = {"diverged": diverged, "chains": len(draws)}
    if diverged:
        return row
    for name, errors in ((VARIANCE, 100 * variance), (MEAN, mean)):
        row[name], row[SPREADS[name]] = size(errors), spread(errors)
    together = 100 * variance.mean(1)
    row["error of variances, mean %"] = float(together.mean())
    row["its standard error over chains"] = float(together.std(ddof=1) / np.sqrt(len(draws)))
    return row


def best(errors: np.ndarray) -> int | None:
    """Return the setting with the smallest error of the variances, (setting, chain, axis).

    Settings at which a chain diverged do not count; `None` if none is left. Errors of a pilot are
    noisy, so the Monte Carlo variance is not subtracted: of two settings without bias, the one that
    mixes better is chosen.
    """
    raw = np.sqrt(np.mean(errors.mean(1) ** 2, 1))
    return None if np.isnan(raw).all() else int(np.nanargmin(raw))


def text(point: dict, key: str) -> str:
    """Format one cell of a table."""
    if point["diverged"]:
        return f"{point['diverged']}/{point['chains']} diverged"
    digits = 1 if key == VARIANCE else 3
    return f"{point[key]:.{digits}f} ± {point[SPREADS[key]]:.{digits}f}"


def table(points: list[dict], key: str) -> list[dict]:
    """Return a row per target and noise with a column per method, and medians and maxima."""
    methods = list(dict.fromkeys(point["method"] for point in points))
    rows: dict[tuple[str, str], dict] = {}
    for point in points:
        place = (point["target"], point["noise"])
        row = rows.setdefault(place, {"table": key, "target": place[0], "noise": place[1]})
        row[point["method"]] = text(point, key)
    ends = []
    for label, summary in (("median", np.median), ("largest", np.max)):
        row = {"table": key, "target": label, "noise": "all"}
        for method in methods:
            values = [p.get(key, np.inf) for p in points if p["method"] == method]
            row[method] = f"{summary(values):.{1 if key == VARIANCE else 3}f}"
        ends.append(row)
    return [*rows.values(), *ends]


def prices(points: list[dict]) -> list[dict]:
    """Return the processor time of a gradient of every method, the median over problems."""
    methods = list(dict.fromkeys(point["method"] for point in points))
    times = {
        m: float(np.median([p["CPU µs per gradient"] for p in points if p["method"] == m]))
        for m in methods
    }
    return [{"table": "price", "method": m, "CPU µs per gradient": t} for m, t in times.items()]


def plot(points: list[dict], path: Path) -> None:
    """Draw the errors of the variances as a heat map: a row per problem, a column per method."""
    methods = list(dict.fromkeys(point["method"] for point in points))
    problems = list(dict.fromkeys((point["target"], point["noise"]) for point in points))
    errors = np.full((len(problems), len(methods)), np.nan)
    for point in points:
        place = problems.index((point["target"], point["noise"])), methods.index(point["method"])
        errors[place] = point.get(VARIANCE, np.nan)
    figure, axis = plt.subplots(
        figsize=(2.5 + 0.72 * len(methods), 1.9 + 0.34 * len(problems)), layout="constrained"
    )
    colors = plt.colormaps["RdYlGn_r"].with_extremes(bad="0.6")
    norm = LogNorm(0.5, 100)
    image = axis.imshow(np.maximum(errors, norm.vmin or 0), colors, norm=norm, aspect="auto")
    for (i, j), error in np.ndenumerate(errors):
        label = f"{error:.0f}" if error >= 10 else f"{error:.1f}"
        dark = error <= 1 or error >= 50  # false for NaN
        axis.text(
            j,
            i,
            "div." if np.isnan(error) else label,
            color="white" if dark else "black",
            ha="center",
            va="center",
            fontsize=8,
        )
    axis.set_xticks(range(len(methods)), methods, rotation=40, ha="right", fontsize=9)
    axis.set_yticks(range(len(problems)), [", ".join(p) for p in problems], fontsize=9)
    for end in range(1, len(problems)):
        if problems[end][0] != problems[end - 1][0]:
            axis.axhline(end - 0.5, color="white", lw=3)
    figure.colorbar(image, label="error of the variances, rms over axes, %", pad=0.01)
    save(figure, path)

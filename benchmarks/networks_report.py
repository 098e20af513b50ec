"""Results of `networks.py`: `docs/results/networks_speed.json` and a figure."""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from reporting import RESULTS, save
from rich.console import Console
from rich.table import Table

from isotherm.io.files import write_json

RESULT = RESULTS / "networks_speed.json"
TIME, FASTEST = "over SGD, median of rounds", "ms per step, fastest"
SPREAD = ("over SGD, lowest round", "over SGD, highest round")
BALANCED = ", balanced"
"""Part of the name of a contestant with balanced minibatches."""
PRICE = "over the plain step, median of rounds"
FASTEST_PRICE = "over the plain step, fastest over fastest"


def digits(value: float, number: int = 4) -> float:
    """Round to significant digits.

    >>> digits(0.0123456)
    0.01235
    """
    return float(f"{value:.{number}g}")


def row(
    network: str,
    who: str,
    seconds: list[float],
    sgd: list[float],
    gradients: int,
    copies: float | None,
) -> dict:
    """Build the row of one contestant from its seconds per step and those of SGD, by round."""
    over = [a / b for a, b in zip(seconds, sgd, strict=True)]
    return {
        "network": network,
        "contestant": who,
        FASTEST: digits(1e3 * min(seconds)),
        TIME: digits(statistics.median(over)),
        "over SGD, fastest over fastest": digits(min(seconds) / min(sgd)),
        **dict(zip(SPREAD, (digits(min(over)), digits(max(over))), strict=True)),
        "gradients per step": gradients,
        "ms per gradient, fastest": digits(1e3 * min(seconds) / gradients),
        "per gradient over SGD, median of rounds": digits(statistics.median(over) / gradients),
        "scratch and state, in copies of the weights": None if copies is None else digits(copies),
    }


def price(who: str, seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the time of a balanced step over that of the plain one; nothing for other steps."""
    if BALANCED not in who:
        return {}
    names = [who.replace(BALANCED, form) for form in (" (ABOBA)", "")]
    plain = seconds[next(name for name in names if name in seconds)]
    over = [a / b for a, b in zip(seconds[who], plain, strict=True)]
    fastest = min(seconds[who]) / min(plain)
    return {PRICE: digits(statistics.median(over)), FASTEST_PRICE: digits(fastest)}


def lines(rows: list[dict]) -> Iterator[tuple[str, dict, int]]:
    """Yield label, row and divisor of its times.

    Contestants with several gradients per step have a second line, per gradient.
    """
    for each in rows:
        who, gradients = each["contestant"], each.get("gradients per step", 1)
        yield who, each, 1
        if gradients > 1:
            yield f"{who.partition(',')[0]}, per gradient", each, gradients


def summary(rows: list[dict]) -> list[dict]:
    """Return the rows of three tables, with a row per contestant and a column per network."""
    tables: dict[tuple[str, str], dict] = {}
    for title in ("time per step over plain SGD", "steps per second"):
        for who, each, share in lines(rows):
            line = tables.setdefault((title, who), {"table": title, "contestant": who})
            value = each[TIME] / share if "SGD" in title else share * 1e3 / each[FASTEST]
            line[each["network"]] = digits(value, 3)
    title = "time of a balanced step over a plain one"
    for each in rows:
        if PRICE in each:
            who = each["contestant"]
            line = tables.setdefault((title, who), {"table": title, "contestant": who})
            line[each["network"]] = digits(each[PRICE], 3)
    return list(tables.values())


def merge(path: Path, rows: list[dict], where: dict, networks: Sequence[str]) -> dict:
    """Return the document in which these rows replace earlier ones of the same networks."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    old, fresh = before.get("rows", []), {each["network"] for each in rows}
    measured = {each["network"]: before["machine"] for each in old}
    measured |= before.get("measured", {}) | dict.fromkeys(fresh, where)
    rows = [*rows, *(each for each in old if each["network"] not in fresh)]
    rows = [each for name in networks for each in rows if each["network"] == name]
    return {
        "machine": where,
        "measured": {name: measured[name] for name in networks if name in measured},
        "summary": summary(rows),
        "rows": rows,
    }


def write(rows: list[dict], where: dict, networks: Sequence[str]) -> None:
    """Update the document with rows, and draw the figure again."""
    document = merge(RESULT, rows, where, networks)
    write_json(RESULT, document)
    plot(document["rows"], networks, RESULT.with_suffix(".png"))


def print_table(rows: list[dict]) -> None:
    """Print times and their range over rounds."""
    keys = ("network", "contestant", FASTEST, TIME, *SPREAD, "gradients per step")
    table = Table(*keys, title="time per step")
    for each in rows:
        table.add_row(*(str(each[key]) for key in keys))
    Console(width=160).print(table)


def plot(rows: list[dict], networks: Sequence[str], path: Path) -> None:
    """Draw the time per step over SGD: bars from 1, and lines for the range over rounds."""
    networks = [name for name in networks if any(each["network"] == name for each in rows)]
    names = list(dict.fromkeys(who for who, _, _ in lines(rows)))
    size = (3 * len(networks) + 2.5, 0.27 * len(names) + 1.2)
    figure, axes = plt.subplots(
        1,
        len(networks),
        figsize=size,
        layout="constrained",
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axis, network in zip(axes[0], networks, strict=True):
        for who, each, share in lines([each for each in rows if each["network"] == network]):
            place, value = names.index(who), each[TIME] / share
            color = "C0" if who.startswith("isotherm") else "0.75"
            axis.barh(place, value - 1, left=1, color=color)
            ends = [each[key] / share for key in SPREAD if key in each]
            axis.plot(ends, [place] * len(ends), color="0.2", lw=1)
            right = (max(value, 1, *ends), place)
            axis.annotate(
                f"{value:.3g}", right, (3, 0), textcoords="offset points", va="center", fontsize=8
            )
        axis.axvline(1, color="0.2", lw=0.8)
        axis.set(xscale="log", title=network)
        axis.margins(x=0.15)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].invert_yaxis()
    figure.supxlabel("time per step over optax SGD with momentum, median of rounds", fontsize=10)
    save(figure, path)

"""The tables, with the paper's numbers, and the claims of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isotherm.paper.experiments.contract import Claim

if TYPE_CHECKING:
    from isotherm.paper.experiments.lda_icml import Config

PAPER = {
    "mSGNHT-S": 939.67,
    "mSGNHT-E": 960.56,
    "SGHMC-S": 1004.73,
    "SGHMC-E": 1017.51,
    "SGRLD": 1154.68,
    "Gibbs": 907.84,
}
PAPER_SECONDS = {"mSGNHT-S": 180.55, "mSGNHT-E": 161.99, "Gibbs": 516.12}
OTHER = {
    "SGHMC-S": "friction",
    "SGHMC-E": "friction",
    "SGRLD": "topic prior",
    "SCIR": "topic prior",
    "Gibbs": "topic prior",
    "SGLD": "",
    "pSGLD": "",
}

LONGER = {"num_steps": 5000, "thin": 50}


class Cause(NamedTuple):
    """A method at its best setting with one change."""

    method: str
    protocol: Mapping[str, int] = MappingProxyType({})
    other: float | None = None
    mass: float | None = None


CAUSES: dict[str, Cause] = {
    "mSGNHT-S as chosen": Cause("mSGNHT-S"),
    "mSGNHT-S, thermostat mass 0.1": Cause("mSGNHT-S", mass=0.1),
    "mSGNHT-S, thermostat mass 10": Cause("mSGNHT-S", mass=10.0),
    "mSGNHT-S, D = 0.1": Cause("mSGNHT-S", other=0.1),
    "mSGNHT-S, D = 5": Cause("mSGNHT-S", other=5.0),
    "mSGNHT-S, 3 sweeps, 1 burnt": Cause("mSGNHT-S", {"sweeps": 3, "burn_in": 1}),
    "mSGNHT-S, 40 sweeps, 20 burnt": Cause("mSGNHT-S", {"sweeps": 40, "burn_in": 20}),
    "mSGNHT-S, batches of 50": Cause("mSGNHT-S", {"batch_size": 50}),
    "mSGNHT-S, every second step averaged": Cause("mSGNHT-S", {"thin": 2}),
    "mSGNHT-E, thermostat mass 10": Cause("mSGNHT-E", mass=10.0),
    "mSGNHT-E, D = 0.1": Cause("mSGNHT-E", other=0.1),
    "mSGNHT-E, D = 5": Cause("mSGNHT-E", other=5.0),
    "SGRLD, topic prior 0.01": Cause("SGRLD", other=0.01),
    "mSGNHT-S, 5 times the steps": Cause("mSGNHT-S", LONGER),
    "mSGNHT-E, 5 times the steps": Cause("mSGNHT-E", LONGER),
    "SGHMC-S, 5 times the steps": Cause("SGHMC-S", LONGER),
    "SGRLD, 5 times the steps": Cause("SGRLD", LONGER),
    "SCIR, 5 times the steps": Cause("SCIR", LONGER),
    "pSGLD, 5 times the steps": Cause("pSGLD", LONGER),
}

Result = dict[str, np.ndarray]


def last(result: Result, name: str) -> np.ndarray:
    """Return the test perplexities of a method at its best setting, one per seed."""
    return result[f"test {name}"][:, -1]


def spread(values: np.ndarray) -> float:
    """Return the standard deviation over seeds; NaN if one diverged."""
    return float(values.std(ddof=1)) if np.isfinite(values).all() else np.nan


def _scored(config: Config) -> str:
    share, p = f"{config.observed:.0%}", config.protocol
    return f"{share} observed, {p.num_averaged} draws averaged"


def _diverged(values: np.ndarray) -> str:
    return f"{np.isinf(values).sum()}/{len(values)}"


def rows(config: Config, result: Result) -> list[dict[str, Any]]:
    """Return the rows of all tables."""
    return [*best(config, result), *over_steps(config, result), *causes(config, result)]


def best(config: Config, result: Result) -> list[dict[str, Any]]:
    """Return a row for each method at its best setting, and one for a single topic."""
    table = []
    for name in config.methods:
        h, other, held_out, num_skipped = result[f"chosen {name}"]
        values, per_1000 = last(result, name), 1000 / config.num_steps
        setting = OTHER.get(name, "D")
        table.append(
            {
                "table": "Test perplexity, each method at its best setting",
                "method": name,
                "step size": h or np.nan,
                "other": f"{setting} {other:g}" if setting else "",
                "validation": held_out,
                "perplexity": values.mean(),
                "perplexity sd": spread(values),
                "better but diverged": int(num_skipped),
                "perplexity paper": PAPER.get(name, np.nan),
                "seconds per 1000": np.nanmin(result[f"seconds {name}"]) * per_1000,
                "CPU seconds": np.nanmin(result[f"cpu {name}"]) * per_1000,
                "seconds paper": PAPER_SECONDS.get(name, np.nan),
                "scored with": _scored(config),
            }
        )
    value = {"method": "one topic", "perplexity": result["unigram"][0]}
    return [*table, dict.fromkeys(table[0], None) | {"table": table[0]["table"]} | value]


def over_steps(config: Config, result: Result) -> list[dict[str, Any]]:
    """Return the perplexities at the ends of the learning curves."""
    table = []
    for h_index, h in enumerate(config.curve_step_sizes):
        for key in (key for key in result if key.startswith("curve ")):
            values = result[key][h_index, :, -1]
            table.append(
                {
                    "table": (
                        f"Test perplexity after {config.num_steps} steps at the paper's step sizes"
                    ),
                    "method": key.removeprefix("curve "),
                    "step size": h,
                    "D or friction": config.diffusion,
                    "perplexity": values.mean(),
                    "perplexity sd": spread(values),
                    "diverged": _diverged(values),
                    "scored with": _scored(config),
                }
            )
    return table


def causes(config: Config, result: Result) -> list[dict[str, Any]]:
    """Return one row per changed setting."""
    return [
        {
            "table": "One thing changed at a time",
            "change": label,
            "perplexity": result[f"cause {label}"].mean(),
            "perplexity sd": spread(result[f"cause {label}"]),
            "diverged": _diverged(result[f"cause {label}"]),
            "draws averaged": config.protocol._replace(**cause.protocol).num_averaged,
        }
        for label, cause in CAUSES.items()
        if f"cause {label}" in result
    ]


def _less(a: np.ndarray, b: np.ndarray) -> tuple[bool, str]:
    """Return whether a is below b by more than two standard errors, and by how much."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return bool(np.isfinite(a).all()), "one of them diverged"
    gap = b.mean() - a.mean()
    error = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    return bool(gap > 2 * error), f"{gap:+.1f} ± {error:.1f}"


def check(config: Config, result: Result) -> list[Claim]:
    """Check all claims."""
    checked = []
    order = [name for name in PAPER if name in config.methods and name != "Gibbs"]
    order = ["Gibbs", *order]
    for better, worse in pairwise(order):
        holds, gap = _less(last(result, better), last(result, worse))
        checked.append(
            Claim(
                f"{better} has a lower perplexity than {worse}, each at its best setting",
                holds,
                f"{last(result, better).mean():.1f} and {last(result, worse).mean():.1f}, "
                f"gap {gap}",
                f"paper: {PAPER[better]:g} and {PAPER[worse]:g}; a gap beyond two standard errors",
            )
        )
    return [*checked, *_curve_claims(config, result), _speed_claim(config, result)]


def _curve_claims(config: Config, result: Result) -> list[Claim]:
    checked = []
    for family in ("mSGNHT", "SGHMC"):
        pairs = zip(result[f"curve {family}-S"], result[f"curve {family}-E"], strict=True)
        gaps = [_less(s[:, -1], e[:, -1]) for s, e in pairs]
        checked.append(
            Claim(
                f"{family}-S is better than {family}-E at every step size",
                all(holds for holds, _ in gaps),
                ", ".join(
                    f"h = {h:g}: {gap}"
                    for h, (_, gap) in zip(config.curve_step_sizes, gaps, strict=True)
                ),
                "all gaps beyond two standard errors",
            )
        )
    for h in (1e-2, 4e-2):
        if h not in config.curve_step_sizes:
            continue
        i = config.curve_step_sizes.index(h)
        a, b = (result[f"curve {family}-S"][i, :, -1] for family in ("mSGNHT", "SGHMC"))
        holds, gap = _less(a, b)
        checked.append(
            Claim(
                f"at the large step h = {h:g} mSGNHT-S is far better than SGHMC-S",
                holds,
                f"{a.mean():.1f} and {b.mean():.1f}, gap {gap}",
                "a gap beyond two standard errors"
                + ("" if h == 1e-2 else "; beyond the paper's step sizes"),
            )
        )
    return checked


def _speed_claim(config: Config, result: Result) -> Claim:
    seconds = {
        name: float(np.nanmin(result[f"seconds {name}"])) * 1000 / config.num_steps
        for name in ("mSGNHT-S", "mSGNHT-E", "Gibbs")
    }
    return Claim(
        "1000 steps take less than 5 s",
        max(seconds["mSGNHT-S"], seconds["mSGNHT-E"]) < 5,
        ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items()),
        "under 5 s; paper: 180.55, 161.99 and 516.12 s",
    )

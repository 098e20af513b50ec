"""The tables and claims of the experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isotherm.paper.experiments.contract import Claim

if TYPE_CHECKING:
    from isotherm.paper.experiments.dpfa_wiki import Config

BAR = 1071.0
"""Perplexity of tomotopy's LDA on all articles in memory, with the same test articles and observed
share, and a common fold-in (measured once, before this experiment was written)."""
ONE_LAYER = "S, one layer"
KINDS = ("SGRLD", "SCIR", "TLASGR")
"""Samplers of the topics."""
Result = dict[str, np.ndarray]


def difference(result: Result, a: str, b: str) -> tuple[float, float]:
    """Return perplexity of `a` minus that of `b`, and its standard error over test documents."""
    gap = _log_likelihood(result, b) - _log_likelihood(result, a)
    lengths = np.diff(
        np.concatenate([[0], np.cumsum(result["cell counts"])])[result["cell starts"]]
    )
    used = lengths > 0
    gap, lengths = gap[used], lengths[used]
    mean = gap.sum() / lengths.sum()
    error = np.sqrt(((gap - mean * lengths) ** 2).sum()) / lengths.sum()
    level = result[f"final {b}"][0]
    return float(level * np.expm1(mean)), float(level * np.exp(mean) * error)


def _log_likelihood(result: Result, name: str) -> np.ndarray:
    """Return the log likelihood of the scored cells of every document."""
    terms = result["cell counts"] * result[f"cells {name}"]
    return np.diff(np.concatenate([[0], np.cumsum(terms)])[result["cell starts"]])


def rows(config: Config, result: Result) -> list[dict[str, Any]]:
    """Return the rows of all tables."""
    first = next(iter(config.methods()))
    table = []
    for name in config.methods():
        value, error, single, speed, used = result[f"final {name}"]
        gap, gap_error = difference(result, name, first)
        on = result[f"curve {name}"][-1, 3:]
        table.append(
            {
                "table": "Perplexity",
                "method": name,
                "perplexity": round(float(value), 1),
                "± over articles": round(float(error), 1),
                f"above {first}": "" if name == first else f"{gap:+.1f} ± {gap_error:.1f}",
                "single draw": round(float(single), 1),
                "on": " ".join(f"{x:.2f}" for x in on if np.isfinite(x)),
                "topics in use": "" if np.isnan(used) else int(used),
                "documents per CPU-second": round(float(speed)),
            }
        )
    for name in config.seeded():
        ends = result[f"seeds {name}"]
        gaps = ends - result[f"seeds {first}"]
        paired = (
            f"{gaps.mean():+.1f} ± {gaps.std(ddof=1) / len(gaps) ** 0.5:.1f}"
            if len(gaps) > 1
            else ""
        )
        table.append(
            {
                "table": "Seeds",
                "method": name,
                "documents": config.seed_documents,
                "perplexity": round(float(ends.mean()), 1),
                "± over seeds": round(float(ends.std(ddof=1)), 1) if len(ends) > 1 else "",
                f"above {first}, same seeds": "" if name == first else paired,
                "seeds": len(ends),
            }
        )
    for kind in KINDS:
        for step, value in result[f"tried {kind}"].T:
            table.append(
                {
                    "table": "Step sizes (held-out training articles)",
                    "of": kind,
                    "step": float(step),
                    "perplexity": round(float(value), 1),
                }
            )
    return table


def check(config: Config, result: Result) -> list[Claim]:
    """Check the order of the paper, the bound by tomotopy, and the use of the upper layers."""
    large = max(config.step_sizes)
    best = f"mSGNHT-S, h = {large:g}"
    checked = []
    for other in ("mSGNHT-E, h = " + f"{large:g}", "RBM", "BCDF", "NB-FTM, BCDF", "LDA, BCDF"):
        gap, error = difference(result, other, best)
        checked.append(
            Claim(
                f"mSGNHT-S at h = {large:g} is ahead of {other}",
                gap > 0,
                f"{gap:+.1f} ± {error:.1f}",
                "paper: above 0",
            )
        )
    if config.alternatives:
        gap, error = difference(result, ONE_LAYER, best)
        checked.append(
            Claim(
                "The layers above the first do work",
                gap > 2 * error,
                f"without them {gap:+.1f} ± {error:.1f}",
                "above twice its standard error",
            )
        )
    value = float(result[f"final {best}"][0])
    least = BAR if config.num_documents > 200_000 else 3000.0
    checked.append(
        Claim(
            "The stream comes below LDA on all articles in memory",
            value < least,
            f"{value:.0f}",
            f"below {least:.0f} (tomotopy)" if least == BAR else f"below {least:.0f}",
        )
    )
    return checked

"""The table, with published numbers, and the claims of the experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isotherm.paper.experiments.contract import Claim
from isotherm.paper.experiments.uci.problem import SCORES

if TYPE_CHECKING:
    from isotherm.paper.experiments.uci import Config

Result = dict[str, np.ndarray]

OURS = "isotherm"
LARGE_ENSEMBLES = ("deep ensemble of 100", "deep ensemble of 100 (our network)")
TUNED_RIVALS = ("MC dropout", "deep ensemble", *LARGE_ENSEMBLES, "MAP ensemble")
"""Rivals that isotherm must be ahead of."""
MOST_SECONDS = 60.0
"""Largest median wall time of a fit."""


class Published(NamedTuple):
    """Test log likelihood and RMSE with their standard errors; `None` if not given."""

    log_likelihood: float
    log_likelihood_se: float | None
    rmse: float
    rmse_se: float | None


PUBLISHED: dict[str, dict[str, Published]] = {
    "PBP (published)": {
        "boston": Published(-2.57, 0.09, 3.01, 0.18),
        "concrete": Published(-3.16, 0.02, 5.67, 0.09),
        "energy": Published(-2.04, 0.02, 1.80, 0.05),
        "wine": Published(-0.97, 0.01, 0.64, 0.01),
        "power": Published(-2.84, 0.01, 4.12, 0.03),
    },
    "MC dropout (published)": {
        "boston": Published(-2.40, 0.04, 2.90, 0.18),
        "concrete": Published(-2.94, 0.02, 4.83, 0.16),
        "energy": Published(-1.21, 0.01, 0.54, 0.01),
        "wine": Published(-0.93, 0.01, 0.62, 0.01),
        "power": Published(-2.81, 0.01, 4.01, 0.04),
    },
    "deep ensemble (published)": {
        "boston": Published(-2.41, None, 3.28, None),
        "concrete": Published(-3.06, None, 6.03, None),
        "energy": Published(-1.38, None, 2.09, None),
        "wine": Published(-0.94, None, 0.64, None),
        "power": Published(-2.79, None, 4.11, None),
    },
    "HMC (published)": {
        "boston": Published(-2.27, 0.03, 2.76, 0.20),
        "concrete": Published(-2.72, 0.02, 4.12, 0.14),
        "energy": Published(-0.93, 0.01, 0.48, 0.01),
        "wine": Published(-0.91, 0.02, 0.63, 0.01),
        "power": Published(-2.70, 0.00, 3.73, 0.04),
    },
}


class Difference(NamedTuple):
    """Mean difference of two methods over their common splits, and its standard error."""

    mean: float
    standard_error: float
    num_splits: int

    @property
    def ahead(self) -> bool:
        """Whether the mean is above zero by two standard errors."""
        return bool(self.mean > 2 * self.standard_error)

    @property
    def behind(self) -> bool:
        """Whether the mean is below zero by two standard errors."""
        return bool(self.mean < -2 * self.standard_error)

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.standard_error:.3f}"


def values(result: Result, name: str, method: str, score: str) -> np.ndarray:
    """Return a score of every split; NaN where there is none."""
    key = f"{name}/{method}"
    if key not in result:
        return np.zeros(0)
    return result[key][:, SCORES.index(score)]


def mean_and_error(each: np.ndarray) -> tuple[float, float]:
    """Return the mean over splits and its standard error; NaN if there are too few."""
    each = each[np.isfinite(each)]
    error = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
    return float(each.mean()) if len(each) else np.nan, float(error)


def difference(result: Result, name: str, one: str, two: str, score: str) -> Difference | None:
    """Compare two methods split by split; `None` without two common splits."""
    first, second = (values(result, name, method, score) for method in (one, two))
    if not (len(first) and len(second)):
        return None
    each = first - second
    num_splits = int(np.isfinite(each).sum())
    return Difference(*mean_and_error(each), num_splits) if num_splits > 1 else None


def rows(config: Config, result: Result) -> list[dict[str, Any]]:
    """Return a row per set and method, then the published ones of that set."""
    table = []
    for name in config.sets:
        for method in config.methods:
            each = {score: values(result, name, method, score) for score in SCORES}
            num_splits = int(np.isfinite(each["log likelihood"]).sum())
            if not num_splits:
                continue
            row: dict[str, Any] = {"set": name, "method": method, "splits": num_splits}
            for score in ("log likelihood", "RMSE"):
                row[score], row[f"{score} se"] = mean_and_error(each[score])
            row["coverage of 90 % intervals"] = mean_and_error(each["coverage"])[0]
            row["CRPS"], row["CRPS se"] = mean_and_error(each["CRPS"])
            row["CPU seconds"] = float(np.nanmedian(each["CPU seconds"]))
            row["seconds"] = float(np.nanmedian(each["seconds"]))
            table.append(row)
        for method, numbers in PUBLISHED.items():
            one = numbers[name]
            table.append(
                {
                    "set": name,
                    "method": method,
                    "splits": 20,
                    "log likelihood": one.log_likelihood,
                    "log likelihood se": one.log_likelihood_se,
                    "RMSE": one.rmse,
                    "RMSE se": one.rmse_se,
                    "coverage of 90 % intervals": None,
                    "CRPS": None,
                    "CRPS se": None,
                    "CPU seconds": None,
                    "seconds": None,
                }
            )
    return table


def check(config: Config, result: Result) -> list[Claim]:
    """Check that all methods learn and, if isotherm is among them, what it must show."""
    claims = [_learns(config, result)]
    if OURS not in config.methods:
        return claims
    claims += [_ahead(config, result, m) for m in TUNED_RIVALS if m in config.methods]
    if "HMC" in config.methods:
        claims.append(_nowhere_behind(config, result, "log likelihood", ("HMC",)))
    others = [m for m in (*TUNED_RIVALS, "HMC") if m in config.methods]
    if others:
        claims.append(_nowhere_behind(config, result, "RMSE", others))
    seconds = np.concatenate([values(result, s, OURS, "seconds") for s in config.sets])
    median = float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else np.nan
    claims.append(
        Claim(
            "the median fit of isotherm takes at most a minute",
            median <= MOST_SECONDS,
            f"{median:.0f} s",
            f"at most {MOST_SECONDS:.0f} s",
        )
    )
    return claims


def _learns(config: Config, result: Result) -> Claim:
    """Check that every method predicts better than a Gaussian that ignores the features."""
    failed = []
    for name in config.sets:
        for method in config.methods:
            each = values(result, name, method, "log likelihood")
            gain = each - result[f"{name}/constant"]
            skipped = method == "HMC" and np.isnan(each).all()
            if not skipped and not np.nanmean(np.where(np.isnan(each), -np.inf, gain)) > 0:
                failed.append(f"{method} on {name}")
    return Claim(
        "every method predicts better than a Gaussian that ignores the features, on every set",
        not failed,
        "all" if not failed else f"not {', '.join(failed)}",
        "all",
    )


def _ahead(config: Config, result: Result, rival: str) -> Claim:
    """Check that isotherm is ahead of a rival on all sets but one."""
    each = {s: difference(result, s, OURS, rival, "log likelihood") for s in config.sets}
    ahead = [name for name, gap in each.items() if gap is not None and gap.ahead]
    needed = max(1, len(config.sets) - 1)
    return Claim(
        f"isotherm has a higher log likelihood than {rival}, by two standard errors, on at least "
        f"{needed} of {len(config.sets)} sets",
        len(ahead) >= needed,
        "; ".join(f"{name} {gap}" for name, gap in each.items()),
        f"above zero by two standard errors on {needed}",
    )


def _nowhere_behind(
    config: Config, result: Result, score: str, rivals: list[str] | tuple[str, ...]
) -> Claim:
    """Check that isotherm is on no set worse than a rival by two standard errors."""
    sign = -1 if score == "RMSE" else 1
    worse, compared = [], 0
    for name in config.sets:
        for rival in rivals:
            gap = difference(result, name, OURS, rival, score)
            if gap is None:
                continue
            compared += 1
            if gap._replace(mean=sign * gap.mean).behind:
                worse.append(f"{name} {gap} against {rival}")
    return Claim(
        f"isotherm's {score} is on no set worse than that of {', '.join(rivals)} by two standard "
        "errors",
        compared > 0 and not worse,
        "; ".join(worse) if worse else f"nowhere, in {compared} comparisons",
        "nowhere",
    )

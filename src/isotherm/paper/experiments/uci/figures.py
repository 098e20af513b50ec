"""The figure of `uci`: test log likelihood per set, with methods as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from isotherm.paper.experiments.uci.tables import OURS, PUBLISHED, Result, mean_and_error, values
from isotherm.paper.report.figures import panels

if TYPE_CHECKING:
    from isotherm.paper.experiments.uci import Config


def plot(config: Config, result: Result) -> dict[str, Figure]:
    """Draw the log likelihood of every method with standard errors, a panel per set."""
    names = [*config.methods, *PUBLISHED]
    columns, height = len(config.sets), 0.26 * len(names) + 0.9
    width = 2.3 + 2.6 / columns  # with the names of the methods
    figure, axes = panels(columns, width=width, height=height, sharey=True, squeeze=False)
    for panel, name in zip(axes[0], config.sets, strict=True):
        for i, method in enumerate(names):
            mean, error = _point(result, name, method)
            if not np.isfinite(mean):
                continue
            color = "C0" if method == OURS else "0.65" if method in PUBLISHED else "0.25"
            spread = error if np.isfinite(error) else 0.0
            panel.errorbar(mean, i, xerr=spread, fmt="o", color=color, ms=4, capsize=2)
        ours = _point(result, name, OURS)[0]
        if np.isfinite(ours):
            panel.axvline(ours, color="C0", lw=0.6, ls=":")
        panel.locator_params(axis="x", nbins=4)
        panel.set_title(name)
        panel.set_xlabel("test log likelihood")
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].invert_yaxis()
    figure.set_label(
        "Test log likelihood of the predictive mixture, mean and standard error over splits; "
        "published numbers are grey."
    )
    return {"likelihood": figure}


def _point(result: Result, name: str, method: str) -> tuple[float, float]:
    if method in PUBLISHED:
        one = PUBLISHED[method][name]
        return one.log_likelihood, one.log_likelihood_se or np.nan
    return mean_and_error(values(result, name, method, "log likelihood"))

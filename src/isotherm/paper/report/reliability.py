"""Reliability diagrams: the accuracy of a classifier as a function of its confidence."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from matplotlib.figure import Figure

from isotherm.paper.report.figures import panels

FEW = 4
"""Up to this many curves the legend is inside the plot."""


class Curve(Protocol):
    """A reliability curve, as `isotherm.diagnostics.reliability` returns it."""

    @property
    def edges(self) -> np.ndarray:
        """Edges of the bins."""
        ...

    @property
    def confidence(self) -> np.ndarray:
        """Mean confidence per bin."""
        ...

    @property
    def accuracy(self) -> np.ndarray:
        """Share of correct predictions per bin."""
        ...

    @property
    def count(self) -> np.ndarray:
        """Number of rows per bin."""
        ...

    @property
    def error(self) -> float:
        """Expected calibration error."""
        ...


def reliability_diagram(curves: Mapping[str, Curve], *, least_rows: int = 10) -> Figure:
    """Draw reliability curves and, below them, the distribution of the confidence.

    On the diagonal a classifier is calibrated; below it, overconfident. Error bars are one binomial
    standard error.

    Parameters
    ----------
    curves
        By name; the legend also gives the expected calibration error of each.
    least_rows
        Bins with fewer rows are not drawn: their accuracy is too uncertain.
    """
    if not curves:
        raise ValueError("`curves` must name at least one reliability curve.")
    many = len(curves) > FEW
    figure, (upper, lower) = panels(
        rows=2,
        width=7.5 if many else 4.2,
        height=2.4,
        sharex=True,
        gridspec_kw={"height_ratios": [3, 1]},
    )
    upper.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", zorder=1)
    for i, (name, curve) in enumerate(curves.items()):
        style = {"color": f"C{i % 7}", "linestyle": ("-", ":", "-.")[i // 7 % 3]}
        shown = curve.count >= max(least_rows, 1)
        share = curve.accuracy[shown]
        error = np.sqrt(share * (1 - share) / curve.count[shown])
        upper.errorbar(
            curve.confidence[shown],
            share,
            error,
            marker="o",
            label=f"{name} ({curve.error:.2%})",
            **style,
        )
        lower.stairs(curve.count / curve.count.sum(), curve.edges, **style)
    upper.set(ylabel="Accuracy", ylim=(0, 1.02), xlim=(0, 1), xlabel="")
    if many:
        figure.legend(title="ECE in brackets", loc="outside right upper")
    else:
        upper.legend(title="ECE in brackets", loc="upper left")
    lower.set(xlabel="Confidence", ylabel="Share of rows", yscale="log")
    figure.set_label(
        "Reliability: accuracy against confidence, by bins of confidence, "
        "and the share of rows in each"
    )
    return figure

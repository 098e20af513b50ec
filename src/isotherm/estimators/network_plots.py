"""Plots of a fitted network: its way into the posterior, and whether predictions are calibrated."""

from typing import TYPE_CHECKING

import numpy as np

from isotherm.diagnostics.calibration import reliability
from isotherm.diagnostics.pit import pit_histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (5.0, 3.6)
_COLOR, _IDEAL = "#0072b2", "#555555"


def plot_learning_curve(log_likelihoods: np.ndarray, points_per_round: int) -> "Figure":
    """Plot the log likelihood of rows along the rounds, a line per chain.

    Parameters
    ----------
    log_likelihoods
        (chain, point).
    points_per_round
        Number of points in each round.
    """
    figure, axis = _panel()
    rounds = (1 + np.arange(log_likelihoods.shape[1])) / points_per_round
    for number, values in enumerate(log_likelihoods):
        axis.plot(rounds, values, lw=1.2, label=f"chain {number}")
    axis.set_xlabel("round")
    axis.set_ylabel("log likelihood of the rows")
    axis.legend(frameon=False, fontsize=8)
    return figure


def plot_reliability(probabilities: np.ndarray, labels: np.ndarray) -> "Figure":
    """Plot the share of correct predictions against the confidence, in bins of equally many rows.

    On the diagonal a classifier is calibrated, below it is overconfident. Bars are one binomial
    standard error of a calibrated classifier.

    Parameters
    ----------
    probabilities
        (rows, classes).
    labels
        Class numbers, (rows,).
    """
    figure, axis = _panel()
    curve = reliability(probabilities, labels, num_bins=10, bins="equal-mass")
    full = curve.count > 0
    confidence, correct = curve.confidence[full], curve.accuracy[full]
    error = np.sqrt(confidence * (1 - confidence) / curve.count[full])
    axis.plot([0, 1], [0, 1], color=_IDEAL, lw=0.8, ls="--")
    axis.errorbar(confidence, correct, error, color=_COLOR, marker="o", ms=4, lw=1.2)
    lowest = max(0.0, min(confidence.min(), correct.min()) - 0.05)
    axis.set_xlim(lowest, 1.01)
    axis.set_ylim(lowest, 1.01)
    axis.set_xlabel("confidence")
    axis.set_ylabel("share of correct predictions")
    axis.set_title(f"calibration error {curve.error:.3f}", fontsize=9)
    return figure


def plot_pit(values: np.ndarray) -> "Figure":
    """Plot the histogram of PIT values, with the band that calibrated predictions stay in.

    Parameters
    ----------
    values
        Predictive distribution functions at the targets, (rows,).
    """
    figure, axis = _panel()
    histogram = pit_histogram(values, num_bins=10 if len(values) >= 100 else 5)
    width = np.diff(histogram.edges)
    axis.bar(histogram.edges[:-1], histogram.count, width, align="edge", color=_COLOR, ec="white")
    axis.axhspan(*histogram.band, color=_IDEAL, alpha=0.2, lw=0)
    axis.set_xlim(0, 1)
    axis.set_xlabel("predictive probability of a smaller target")
    axis.set_ylabel("rows")
    axis.set_title("grey: 95 % band of calibrated predictions", fontsize=9)
    return figure


def _panel() -> tuple:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis

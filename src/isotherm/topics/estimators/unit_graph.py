"""Plot of the correlations between units of all layers of a deep topic model."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from isotherm.topics.estimators.summaries import Activation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POSITIVE, _NEGATIVE, _NODE = "#0072b2", "#d55e00", "#555555"


def choose_units(activation: Activation, max_units: int) -> list[np.ndarray]:
    """Choose the units of each layer that are correlated most strongly, from the top down.

    In the top layer these are the units with the largest sum of squared correlations, in the layers
    below those with the largest positive correlation to a chosen unit above. A single layer shows
    the units that are on most often. A layer is ordered by the positions of the units above that
    its units are correlated with, so that few lines cross.
    """
    strength = [np.zeros_like(on) for on in activation.on]
    for layer, x in enumerate(activation.correlation):
        strength[layer] += (x**2).sum(1)
        strength[layer + 1] += (x**2).sum(0)
    if len(strength) == 1:
        strength = [activation.on[0]]
    chosen = [np.sort(np.argsort(-strength[-1], kind="stable")[:max_units])]
    for x in activation.correlation[::-1]:
        links = np.maximum(x[:, chosen[0]], 0) ** 2
        best = np.argsort(-links.max(1), kind="stable")[:max_units]
        weight = links[best] + 1e-12
        middle = weight @ np.arange(len(chosen[0])) / weight.sum(1)
        chosen.insert(0, best[np.argsort(middle, kind="stable")])
    return chosen


def plot_graph(
    activation: Activation, labels: Sequence[Sequence[str]], max_units: int, max_links: int
) -> "Figure":
    """Plot layers as columns, units as dots, and lines between correlated units.

    Parameters
    ----------
    activation
        Correlations between units.
    labels
        Text for every unit of every layer.
    max_units
        Maximum number of units per layer.
    max_links
        Maximum number of lines between two layers, the strongest correlations first.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    chosen = choose_units(activation, max_units)
    depth, rows = len(chosen), max(map(len, chosen))
    figure = Figure(figsize=(3.6 * depth + 0.6, 0.42 * rows + 1.3), layout="constrained")
    axes = figure.add_subplot()
    heights = [_heights(len(units), rows) for units in chosen]
    for layer, (below, above) in enumerate(pairwise(heights)):
        links = activation.correlation[layer][np.ix_(chosen[layer], chosen[layer + 1])]
        _draw_links(axes, layer, links, below, above, max_links)
    for layer, (units, y) in enumerate(zip(chosen, heights, strict=True)):
        on = activation.on[layer][units]
        axes.scatter(np.full(len(y), layer), y, s=15 + 160 * on, color=_NODE, zorder=3)
        for unit, height in zip(units, y, strict=True):
            axes.annotate(
                labels[layer][int(unit)],
                (layer, height),
                (8, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                zorder=4,
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8},
            )
    names = ["topics", *(f"layer {layer}" for layer in range(2, depth + 1))]
    axes.set_xticks(range(depth), names)
    axes.set_yticks([])
    axes.set_xlim(-0.15, depth - 0.25)
    axes.set_ylim(-0.8, rows - 0.2)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if depth > 1:
        shown = [
            activation.correlation[layer][np.ix_(*pair)]
            for layer, pair in enumerate(pairwise(chosen))
        ]
        most, least = max(x.max() for x in shown), min(x.min() for x in shown)
        lines = [Line2D([], [], color=color, lw=2) for color in (_POSITIVE, _NEGATIVE)]
        names = [f"on together (correlation up to {most:.2f})", f"on apart (down to {least:.2f})"]
        figure.legend(lines, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _heights(size: int, rows: int) -> np.ndarray:
    """Return vertical positions spread over the height of the plot, the first on top."""
    return rows - 1 - (np.arange(size) + 0.5) * rows / size + 0.5


def _draw_links(
    axes: "Axes", layer: int, links: np.ndarray, below: np.ndarray, above: np.ndarray, most: int
) -> None:
    strongest = np.argsort(-np.abs(links), axis=None)[:most]
    for i, j in zip(*np.unravel_index(strongest, links.shape), strict=True):
        size = abs(links[i, j])
        if size < 0.01:
            continue
        color = _POSITIVE if links[i, j] > 0 else _NEGATIVE
        line = {"color": color, "lw": 0.4 + 5 * size, "alpha": min(0.25 + size, 0.9)}
        axes.plot([layer, layer + 1], [below[i], above[j]], zorder=1, **line)

"""The figures of the experiment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from isotherm.paper.report.figures import panels

if TYPE_CHECKING:
    from isotherm.paper.experiments.dpfa_wiki import Config

HIGHEST = 1.3
"""Upper limit of the axis, in units of the lowest perplexity."""


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the paper's figure, the same for the alternatives, and the layers."""
    names = list(config.methods())
    rivals = [name for name in names if not name.startswith("S, ")]
    figures = {"curves": curves(config, result, rivals), "layers": layers(config, result)}
    if others := [name for name in names if name not in rivals]:
        figures["alternatives"] = curves(config, result, [names[0], *others])
    return figures


def curves(config: Config, result: dict[str, np.ndarray], names: Iterable[str]) -> Figure:
    """Draw test perplexity against documents seen, with a close-up of the last documents."""
    figure, (left, right) = panels(2, width=5.0, height=3.9)
    styles, hidden, lowest = _styles(config), [], np.inf
    for name in names:
        curve, late = result[f"curve {name}"], result[f"late {name}"]
        lowest = min(lowest, late[:, 1].min())
        left.plot(curve[:, 0] / 1000, curve[:, 1], label=name, **styles[name])
        right.plot(late[:, 0] / 1000, late[:, 1], **styles[name])
    for panel, points in ((left, "curve"), (right, "late")):
        lines = {name: result[f"{points} {name}"][:, 1] for name in names}
        top = min(HIGHEST * lowest, 1.02 * max(values.max() for values in lines.values()))
        panel.set_ylim(0.98 * lowest, top)
        hidden += [name for name, values in lines.items() if values.min() > top]
        panel.set(xlabel="thousand documents seen", ylabel="test perplexity")
    right.set_title("the last documents")
    figure.legend(loc="outside right upper", fontsize=7.5)
    above = f" Above the axis: {'; '.join(dict.fromkeys(hidden))}." if hidden else ""
    figure.set_label(
        f"Test perplexity against documents seen. Left: {config.curve_draws} draws averaged at "
        f"every point. Right: the running average of the last {config.final_draws} draws.{above}"
    )
    return figure


def layers(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw the share of units that are on against documents seen, one panel per layer."""
    figure, axes = panels(len(config.layers), width=3.6, height=3.0, squeeze=False, sharey=True)
    for name, style in _styles(config).items():
        curve = result[f"curve {name}"]
        for layer, panel in enumerate(axes[0]):
            if np.isfinite(curve[:, 3 + layer]).all():
                label = name if layer == 0 else None
                panel.plot(curve[:, 0] / 1000, curve[:, 3 + layer], label=label, **style)
    for layer, (panel, units) in enumerate(zip(axes[0], config.layers, strict=True)):
        panel.set(
            xlabel="thousand documents seen", title=f"layer {layer + 1}, {units} units", ylim=(0, 1)
        )
    axes[0, 0].set_ylabel("share of units that are on")
    figure.legend(loc="outside right upper", fontsize=7.5)
    figure.set_label("Share of units of each layer that are on in a batch, against documents seen.")
    return figure


def _styles(config: Config) -> dict[str, dict[str, Any]]:
    """Choose line styles: one colour for S and E of a step size, dots for alternatives."""
    styles: dict[str, dict[str, Any]] = {}
    colors = {"rival": 0, "alternative": 1}
    for name in config.methods():
        kind = "alternative" if name.startswith("S, ") else "rival"
        twin = styles.get(name.replace("mSGNHT-E", "mSGNHT-S"))
        if twin is not None:
            styles[name] = twin | {"ls": "--"}
            continue
        styles[name] = {
            "color": f"C{colors[kind]}",
            "ls": "-" if kind == "rival" else ":",
            "lw": 1.5,
        }
        colors[kind] += 1
    return styles

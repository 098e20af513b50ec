"""The pictures; nothing is computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from isotherm.report.figures import panels

if TYPE_CHECKING:
    from isotherm.experiments.dpfa_wiki import Config


def curves(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw test perplexity against documents seen, and the last documents magnified."""
    figure, (left, right) = panels(2, width=5.0, height=3.9)
    for i, name in enumerate(config.methods()):
        style = {"color": f"C{i % 10}", "ls": "-" if i < 8 else "--", "lw": 1.3}
        curve, late = result[f"curve {name}"], result[f"late {name}"]
        left.plot(curve[:, 0] / 1000, curve[:, 1], label=name, **style)
        right.plot(late[:, 0] / 1000, late[:, 1], **style)
    left.set(xlabel="thousand documents seen", ylabel="test perplexity")
    right.set(
        xlabel="thousand documents seen", ylabel="test perplexity", title="the last documents"
    )
    figure.legend(loc="outside right upper", fontsize=7.5)
    figure.set_label(
        f"Test perplexity against documents seen. Left: {config.curve_draws} draws averaged at every point. Right: the running average of "
        f"the last {config.final_draws} draws."
    )
    return figure


def layers(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw the share of units that are on against documents seen, a panel per layer."""
    figure, axes = panels(len(config.layers), width=3.6, height=3.0, squeeze=False, sharey=True)
    for i, name in enumerate(config.methods()):
        curve = result[f"curve {name}"]
        for layer, panel in enumerate(axes[0]):
            if np.isfinite(curve[:, 3 + layer]).all():
                style = {"color": f"C{i % 10}", "ls": "-" if i < 8 else "--", "lw": 1.3}
                label = name if layer == 0 else None
                panel.plot(curve[:, 0] / 1000, curve[:, 3 + layer], label=label, **style)
    for layer, (panel, units) in enumerate(zip(axes[0], config.layers, strict=True)):
        panel.set(xlabel="thousand documents seen", title=f"layer {layer + 1}, {units} units", ylim=(0, 1))  # fmt: skip
    axes[0, 0].set_ylabel("share of units that are on")
    figure.legend(loc="outside right upper", fontsize=7.5)
    figure.set_label("Share of units of each layer that are on in a batch, against documents seen.")
    return figure

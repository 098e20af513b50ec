"""The figures of the experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from isotherm.paper.experiments.lda_icml.tables import PAPER, last
from isotherm.paper.report.figures import panels

if TYPE_CHECKING:
    from isotherm.paper.experiments.lda_icml import Config

CURVES = ("mSGNHT-S", "mSGNHT-E", "SGHMC-S", "SGHMC-E")


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the learning curves, the table, and perplexity against step size."""
    return {
        "curves": curves(config, result),
        "best": best(config, result),
        "step_sizes": step_sizes(config, result),
    }


def curves(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw test perplexity against iteration, one panel per step size, as in the paper."""
    figure, axes = panels(
        len(config.curve_step_sizes), width=3.6, height=3.2, squeeze=False, sharey=True
    )
    iteration = config.thin * np.arange(1, config.protocol.num_kept + 1)
    gibbs = last(result, "Gibbs").mean()
    ends = [result[f"curve {name}"][:, :, -1] for name in CURVES]
    floor = 0.95 * min(gibbs, *(end.min() for end in ends))
    ticks = [t for t in (600, 700, 800, 1000, 1200, 1500, 2000, 2500) if t > floor]
    for column, h in enumerate(config.curve_step_sizes):
        panel = axes[0, column]
        for i, name in enumerate(CURVES):
            values = result[f"curve {name}"][column]
            alive = np.isfinite(values).all(1)
            style = {"color": f"C{i // 2}", "ls": "-" if name.endswith("S") else "--"}
            if not alive.any():
                panel.plot([], [], label=f"{name} (diverged)", **style)
                continue
            low, middle, high = np.quantile(values[alive], [0, 0.5, 1], axis=0)
            panel.plot(iteration, middle, label=name, lw=1.4, **style)
            panel.fill_between(iteration, low, high, color=f"C{i // 2}", alpha=0.12, lw=0)
        panel.axhline(result["unigram"][0], color="0.5", lw=0.8, ls=":")
        panel.axhline(gibbs, color="k", lw=0.8, ls="-.")
        panel.set(title=f"h = {h:g}", xlabel="iteration", yscale="log", ylim=(floor, 2600))
        panel.set_yticks(ticks, [str(t) for t in ticks])
        panel.minorticks_off()
    axes[0, 0].set_ylabel("test perplexity")
    axes[0, 0].legend(fontsize=8)
    right = axes[0, -1]
    for name, value in (("one topic", result["unigram"][0]), ("Gibbs", gibbs)):
        right.annotate(
            name,
            (iteration[-1], value),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color="0.3",
        )
    figure.set_label(
        f"Test perplexity against iteration, D (friction of SGHMC) = {config.diffusion:g}, batches "
        f"of {config.batch_size}: median over {config.curve_seeds} seeds, band from the lowest to "
        "the highest. Averaged over the later half of the draws so far, "
        f"{config.observed:.0%} of the tokens observed."
    )
    return figure


def best(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw every method at its best setting, and the paper's values."""
    names = sorted(config.methods, key=lambda name: last(result, name).mean())
    figure, axes = panels(2, width=4.4, height=0.34 * len(names) + 1.2, sharey=True)
    y = np.arange(len(names))[::-1]
    ours, paper = axes
    for i, name in zip(y, names, strict=True):
        values = last(result, name)
        ours.plot(values, np.full(len(values), i), "o", color="C0", ms=4, alpha=0.4)
        ours.plot(values.mean(), i, "|", color="C0", ms=14, mew=2)
        if name in PAPER:
            paper.plot(PAPER[name], i, "D", color="C1", ms=6)
            paper.annotate(
                f"{PAPER[name]:.0f}",
                (PAPER[name], i),
                xytext=(7, -3),
                textcoords="offset points",
                fontsize=8,
            )
    ours.set_yticks(y, names)
    ours.set(xlabel="test perplexity, one dot per seed", title="isotherm")
    paper.set(xlabel="test perplexity", title="paper (another preprocessing)")
    paper.set_xlim(880, 1200)
    figure.set_label(
        "Every method at the setting chosen on held-out training documents, in our order; the bar "
        f"is the mean over {config.num_seeds} seeds. Right: the paper's table."
    )
    return figure


def step_sizes(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw validation perplexity against the step size for the thermostats."""
    figure, axes = panels(1, width=5.4, height=3.4)
    for i, name in enumerate(
        name for name in ("mSGNHT-S", "mSGNHT-E", "SGNHT-S") if name in config.methods
    ):
        tried = result[f"tried {name}"]
        middle = tried.mean(1)
        alive = np.isfinite(middle)
        h = np.array(config.step_sizes)
        style = {"color": f"C{i}", "ls": "--" if name.endswith("E") else "-"}
        axes.plot(h[alive], middle[alive], marker="o", ms=4, label=name, **style)
        axes.plot(np.repeat(h, tried.shape[1]), tried.ravel(), ".", color=f"C{i}", ms=3, alpha=0.5)
        for diverged in h[~alive]:
            axes.annotate(
                "×",
                (diverged, 0.97 - 0.06 * i),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                color=f"C{i}",
            )
    axes.set(xscale="log", xlabel="step size h", ylabel="validation perplexity")
    axes.legend()
    figure.set_label(
        f"Perplexity of held-out training documents after {config.num_steps} steps against the "
        f"step size, D = {config.diffusion:g}; × at the top: a seed diverged."
    )
    return figure

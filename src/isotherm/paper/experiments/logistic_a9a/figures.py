"""The figures of the experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from isotherm.paper.experiments.logistic_a9a.posterior import CASES, WHITENED
from isotherm.paper.experiments.logistic_a9a.tables import errors, errors_along_axes, names
from isotherm.paper.report.figures import panels

if TYPE_CHECKING:
    from isotherm.paper.experiments.logistic_a9a import Config

PAPER_SAMPLERS = ("mSGNHT-S", "mSGNHT-E", "SGHMC-S", "SGHMC-E")


def shown(config: Config) -> list[str]:
    """Return the names of the paper's four samplers that are run."""
    return [name for name in PAPER_SAMPLERS if name in config.samplers]


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the paper's figure, the robustness map, the lifetimes and the posterior errors.

    The errors of balanced minibatches have a figure of their own.
    """
    return {
        "curves": curves(config, result),
        "robustness": robustness(config, result),
        "lifetimes": lifetimes(config, result),
        "posterior": posterior(config, result),
        "axes": axes_of_coordinates(config, result),
    }


def curves(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw test error and training log likelihood against iteration, as the paper does."""
    settings = list(zip(config.curve_step_sizes, config.curve_diffusions, strict=True))
    figure, axes = panels(len(settings), 2, width=3.4, height=2.5, squeeze=False)
    num_kept = result[f"error {PAPER_SAMPLERS[0]}"].shape[-1]
    iteration = config.thin * np.arange(1, num_kept + 1)
    for column, (h, d) in enumerate(settings):
        for row, quantity in enumerate(("error", "fit")):
            panel = axes[row, column]
            for i, name in enumerate(shown(config)):
                values = result[f"{quantity} {name}"][column]
                diverged = ~np.isfinite(values).all(-1)
                if diverged.all():
                    panel.plot([], [], f"C{i}x", label=f"{name} (diverged)")
                    continue
                low, middle, high = np.quantile(values[~diverged], [0.1, 0.5, 0.9], axis=0)
                style = "--" if name.endswith("E") else "-"
                panel.plot(iteration, middle, f"C{i}{style}", label=name, lw=1.2)
                panel.fill_between(iteration, low, high, color=f"C{i}", alpha=0.15, lw=0)
            panel.set_xlabel("iteration")
            if row == 0:
                panel.set(title=f"h = {h:g}, D = {d:g}", ylim=(0.145, 0.2))
            else:
                panel.set(ylim=(-0.6, -0.31))
        axes[0, column].legend(fontsize=7)
    axes[0, 0].set_ylabel("test error")
    axes[1, 0].set_ylabel("training log likelihood per row")
    figure.set_label(
        "Learning curves as in the paper's appendix: columns 1 and 2 have the same h, columns 2 to "
        f"4 the same D. Median over {config.curve_seeds} seeds, band from the 10 % to the 90 % "
        "quantile. The error is that of the averaged prediction, the log likelihood that of the "
        "latest draw."
    )
    return figure


def robustness(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw accuracy over step size and diffusion, one heat map per sampler."""
    figure, axes = panels(4, 2, width=3.4, height=2.9)
    panel_names = [
        f"{family}-{letter}" for letter in "SE" for family in ("mSGNHT", "SGHMC", "SGNHT")
    ]
    maps = dict(zip(panel_names, axes[:, :3].ravel(), strict=True))
    lines = {"SGLD": axes[0, 3], "pSGLD": axes[1, 3]}
    for name in {*maps, *lines} - set(config.samplers):
        {**maps, **lines}[name].set_axis_off()
    mesh: Any = None
    for name in config.underdamped:
        panel, mean = maps[name], 100 * result[f"map {name}"].mean(-1)
        panel.set_facecolor("0.25")
        mesh = panel.pcolormesh(
            _edges(config.map_step_sizes),
            _edges(config.map_diffusions),
            np.ma.masked_invalid(mean.T),
            vmin=76,
            vmax=85.2,
            cmap="viridis",
        )
        label = "friction" if name.startswith("SGHMC") else "diffusion D"
        panel.set(xscale="log", yscale="log", title=name, xlabel="step size h", ylabel=label)
        panel.minorticks_off()
        panel.grid(False)
    for name, steps in config.overdamped.items():
        panel, accuracy = lines[name], 100 * result[f"map {name}"]
        panel.plot(steps, accuracy.mean(-1), "o-", ms=3)
        panel.set(
            xscale="log", ylim=(74, 86), title=name, xlabel="step size h", ylabel="accuracy, %"
        )
    figure.colorbar(mesh, ax=axes[:, :3], label="accuracy on the test rows, %", shrink=0.8)
    figure.set_label(
        f"Test accuracy over step size and diffusion, mean of {config.map_seeds} seeds; dark grey "
        "where a seed diverged. SGLD and pSGLD have no diffusion; their step size has other units."
    )
    return figure


def _edges(centres: tuple[float, ...]) -> np.ndarray:
    """Return the edges of cells around points that are evenly spaced on a log axis."""
    logs = np.log(centres)
    middle = (logs[1:] + logs[:-1]) / 2
    return np.exp([2 * logs[0] - middle[0], *middle, 2 * logs[-1] - middle[-1]])


def lifetimes(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw the lifetime of mSGNHT-E against its step size, measured and by theory."""
    figure, axes = panels(1, width=5.4, height=3.4)
    h, measured = result["lifetime step sizes"], result["lifetimes"]
    for seed in range(measured.shape[1]):
        axes.plot(
            h,
            measured[:, seed],
            "o",
            color="C1",
            ms=4,
            alpha=0.5,
            label="" if seed else "mSGNHT-E, one seed",
        )
    axes.plot(h, config.lifetimes, "k", lw=1, label="theory")
    axes.axhline(config.num_steps, color="0.5", lw=0.8, ls=":", label="length of the paper's runs")
    axes.set(xscale="log", yscale="log", xlabel="step size h", ylabel="steps until it diverges")
    axes.legend()
    figure.set_label(
        "Euler's scheme has a lifetime instead of a largest stable step: number of steps until "
        f"mSGNHT-E diverges, {measured.shape[1]} seeds, and by theory. σ² is measured, nothing is "
        "fitted."
    )
    return figure


def posterior(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw the error of each case, and sampled against exact sds for some of them."""
    sd, _ = errors(result)
    known = names(config, result)
    kept = [i for i, name in enumerate(known) if "balanced" not in str(name.get("gradient"))]
    sd, lines = sd[kept], [_label(known[i]) for i in kept]
    figure = Figure(figsize=(13, 0.24 * len(lines) + 1.5))
    bars, scatter = figure.subplots(1, 2, width_ratios=(1.3, 1))
    size = 100 * np.abs(sd)
    middle, high = np.median(size, axis=1), np.quantile(size, 0.9, axis=1)
    y = np.arange(len(lines))[::-1]
    for i in range(len(lines)):
        if np.isfinite(middle[i]) and middle[i] < 1e3:
            bars.plot([middle[i], high[i]], [y[i], y[i]], color="C0", lw=2, alpha=0.4)
            bars.plot(middle[i], y[i], "o", color="C0", ms=5)
        else:
            bars.text(
                0.4,
                y[i],
                "diverged" if np.isnan(middle[i]) else "off the scale",
                va="center",
                fontsize=8,
                color="0.35",
            )
    bars.axvline(2, color="0.5", lw=0.8, ls=":")
    bars.set_yticks(y, lines, fontsize=7)
    bars.set(
        xscale="log", xlim=(0.3, 2000), xlabel="error of posterior sds, %: median to 90 % quantile"
    )
    exact = result["reference sd"]
    shown = {0: "natural coordinates, batch 10", 1: "natural coordinates, batch 100"}
    shown |= {3: "paper's setting, batch 10", 4: "paper's setting, batch 100"}
    for i, label in shown.items():
        if i < len(sd):
            scatter.plot(exact, result["posterior sd"][kept[i]], ".", ms=5, label=label)
    ends = np.array([exact.min(), exact.max()])
    scatter.plot(ends, ends, "k", lw=0.8)
    scatter.set(
        xscale="log", yscale="log", xlabel="exact posterior sd", ylabel="sampled posterior sd"
    )
    scatter.set_box_aspect(1)
    scatter.minorticks_off()
    scatter.set_anchor("N")
    scatter.legend()
    figure.set_label(
        "Left: relative error of the posterior standard deviations of the 124 weights, median "
        "(dot) to 90 % quantile (end of the line). "
        "Right: sampled against exact standard deviations."
    )
    return figure


def axes_of_coordinates(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw the errors along the axes of the curvature, with and without balance."""
    figure, panel_row = panels(2, width=5.0, height=3.6, sharey=True)
    kinds = {"minibatch": ("C1", "plain minibatches"), "balanced": ("C0", "balanced")}
    places = {"eigenbasis": "eigenbasis", WHITENED: "mixed axes", "diagonal": "diagonal"}
    places |= {"plain": "plain"}
    compared = [
        (i, case)
        for i, case in enumerate(CASES[: config.posterior_cases])
        if "balanced" in (case.gradient, case.settings)
        and (case.step, case.policy, case.sampler) == (1, "independent", "mSGNHT-S")
    ]
    run = {case.coordinates for _, case in compared}
    places = {name: text for name, text in places.items() if name in run}
    for panel, batch_size in zip(panel_row, (10, 100), strict=True):
        counts = dict.fromkeys(places, "")
        for i, case in compared:
            if case.batch_size != batch_size:
                continue
            errors_here = 100 * errors_along_axes(result, i)
            shift = -0.15 if case.gradient == "minibatch" else 0.15
            place = list(places).index(case.coordinates) + shift
            color, label = kinds[case.gradient]
            spread = np.linspace(-0.09, 0.09, max(len(errors_here), 1))[: len(errors_here)]
            panel.plot(place + spread, errors_here, ".", color=color, ms=3, alpha=0.5)
            if len(errors_here):
                panel.plot(
                    [place - 0.12, place + 0.12], [np.median(errors_here)] * 2, color=color, lw=2
                )
            if case.gradient == "balanced":
                counts[case.coordinates] = f"\n{len(errors_here)} axes"
        for color, label in kinds.values():
            panel.plot([], [], ".", color=color, label=label)
        panel.axhline(0, color="0.4", lw=0.8)
        texts = [text + counts[name] for name, text in places.items()]
        panel.set_xticks(range(len(places)), texts)
        panel.set(title=f"batches of {batch_size}")
    panel_row[0].set_ylabel("error of the sd along an axis, %")
    panel_row[0].legend()
    figure.set_label(
        "Relative error of the posterior standard deviation along the eigenvectors of the "
        "curvature, from flat to stiff, for those along which the chains mix (their number is "
        "below); bars are medians. Both gradients have the step size of the balanced one."
    )
    return figure


def _label(name: dict[str, object]) -> str:
    parts = [str(name["sampler"])]
    if "batch" in name:
        parts += [str(name["coordinates"]), f"batch {name['batch']}"]
        parts += [
            str(name[key])
            for key, usual in (
                ("batches", "independent"),
                ("gradient", "minibatch"),
                ("start", "mode"),
            )
            if name[key] != usual
        ]
    return ", ".join(parts)

"""How large a step can each integrator take on a double well with noisy gradients?

The potential is U(θ) = (θ+4)(θ+1)(θ−1)(θ−3)/14 + 0.5. The gradient has white noise: h times the
noisy gradient is h ∇U + N(0, 2Bh) with B = 1. No noise is injected (D = 0), so the thermostat has
to adapt to ξ = 1. mSGNHT-S is `ABOBA`, mSGNHT-E is `euler`. Both start at θ = 0, ξ = 1 with p ~
N(0, 1), and every step is kept.

- *KL* is the authors' measure: the symmetric divergence ½ Σ y log(y/q) + ½ Σ q log(q/y) of
  densities on the grid −5:0.01:5 without the cell width, so it is 100 times the usual value.
- Every number is a mean, with its standard deviation, over the seeds whose chains did not diverge.
  Diverged chains are counted in a column of their own.
- At h = 0.001 a million steps are only a thousand time units: that value is Monte Carlo error, for
  both integrators.
- The paper's numbers are read from its figure.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import isotherm
from isotherm import random
from isotherm.diagnostics.grid import authors_kl, grid_density
from isotherm.models import double_well
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.report.figures import panels
from isotherm.types import Key, Sampler

GRID = np.arange(-500, 501) / 100
NAMES = {"ABOBA": "mSGNHT-S", "euler": "mSGNHT-E"}
PAPER_STEPS = (1e-3, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
PAPER_KL = {
    "euler": (4.5, 1.5, 0.27, 0.25, 0.4, 0.6, 80.0, 3000.0),
    "ABOBA": (3.8, 1.1, 0.23, 0.18, 0.4, 0.47, 0.9, 1.4),
}
PAPER_THERMOSTAT = {("euler", 0.2): 1.13, ("ABOBA", 0.2): 1.06}


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    step_sizes: tuple[float, ...] = PAPER_STEPS
    integrators: tuple[str, ...] = ("ABOBA", "euler")
    num_draws: int = 1_000_000
    num_seeds: int = 20
    noise_level: float = 1.0
    traced_step_sizes: tuple[float, ...] = (1e-3, 0.2)
    trace_length: int = 100_000

    def __post_init__(self) -> None:
        if self.trace_length > self.num_draws:
            raise ValueError("`trace_length` must be at most `num_draws`.")


SMOKE = Config(step_sizes=(0.01, 0.1, 0.2, 0.3), num_draws=50_000, num_seeds=4, trace_length=50_000)

PIECE = 250_000
"""Number of draws in memory at once."""


def run(config: Config, key: Key, report: Report) -> dict[str, np.ndarray]:
    """Return KL and mean thermostat per (integrator, step size, seed), and some traces."""
    shape = (len(config.integrators), len(config.step_sizes), config.num_seeds)
    result = {"kl": np.full(shape, np.inf), "thermostat": np.full(shape, np.nan)}
    result["lifetime"] = np.full(shape, config.num_draws)
    for i, word in enumerate(config.integrators):
        for j, h in enumerate(config.step_sizes):
            density, xi, lifetime, trace = _run_seeds(
                config, word, h, random.fold(key, 1000 * i + j)
            )
            for k, q in enumerate(density):
                if lifetime[k] == config.num_draws:
                    result["kl"][i, j, k] = authors_kl(double_well.density(GRID), q)
            result["thermostat"][i, j], result["lifetime"][i, j] = xi, lifetime
            if h in config.traced_step_sizes:
                result[f"position {word} {h}"], result[f"thermostat {word} {h}"] = trace
            alive = int((lifetime == config.num_draws).sum())
            kl = result["kl"][i, j][lifetime == config.num_draws]
            report(
                f"{NAMES.get(word, word)} h = {h:g}: KL {kl.mean() if alive else np.inf:.3g}, "
                f"{alive} of {config.num_seeds} chains survive"
            )
    return result


def _sampler(config: Config, word: str, h: float) -> Sampler:
    grad_fn = double_well.noisy_gradient(h, config.noise_level)
    return isotherm.msgnht(grad_fn, h, 0.0, integrator=word, initial_thermostat=config.noise_level)


def _run_seeds(config: Config, word: str, h: float, key: Key) -> tuple[Any, ...]:
    """Run all seeds at one step size.

    Returns densities, mean thermostats, lifetimes, and the first draws of four chains.
    """
    sampler, state = _sampler(config, word, h), None
    keep = {
        "draws": isotherm.collect.draws(),
        "xi": isotherm.collect.draws(lambda s: s.thermostat, of="state"),
    }
    density, xi, done = np.zeros((config.num_seeds, len(GRID))), np.zeros(config.num_seeds), 0
    lifetime, trace = np.zeros(config.num_seeds, int), None
    while done < config.num_draws:
        n = min(PIECE, config.num_draws - done)
        with warnings.catch_warnings():  # how long chains live is measured here
            warnings.simplefilter("ignore", isotherm.exceptions.LostDrawsWarning)
            run = isotherm.sample(
                key,
                sampler,
                jnp.zeros(()),
                isotherm.generated_batches(_fresh_key),
                num_draws=n,
                num_chains=config.num_seeds,
                collect=keep,
                state=state,
                on_divergence="continue",
            )
        state, draws, friction = run.state, run.draws, run.collected["xi"]
        good = np.isfinite(draws) & np.isfinite(friction) & (np.abs(friction) < 1e6)
        alive = np.cumprod(good, axis=1, dtype=bool)  # NaN is absorbing
        lifetime += alive.sum(1)
        xi += np.where(alive, friction, 0).sum(1, dtype=np.float64)
        for k in np.flatnonzero(alive.all(1)):
            density[k] += grid_density(draws[k], GRID) * n / config.num_draws
        if trace is None:
            cut = slice(0, config.trace_length)
            trace = draws[:, cut][:4], friction[:, cut][:4]
        done += n
    return density, xi / np.maximum(lifetime, 1), lifetime, trace


def _fresh_key(key: Key, step_index: jax.Array) -> Key:
    del step_index
    return key


def _mean_thermostats(result: dict[str, np.ndarray], i: int, j: int) -> np.ndarray:
    """Return the mean thermostat of every chain that did not diverge.

    If all diverged: of all chains before they did.
    """
    alive = np.isfinite(result["kl"][i, j])
    return result["thermostat"][i, j][alive if alive.any() else slice(None)]


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return one row per integrator and step size."""
    table = []
    for i, word in enumerate(config.integrators):
        for j, h in enumerate(config.step_sizes):
            alive = result["lifetime"][i, j] == config.num_draws
            kl, xi = result["kl"][i, j][alive], _mean_thermostats(result, i, j)
            paper = dict(zip(PAPER_STEPS, PAPER_KL.get(word, ()), strict=False)).get(h)
            table.append(
                {
                    "sampler": NAMES.get(word, word),
                    "step size": h,
                    "KL": kl.mean() if alive.any() else np.inf,
                    "KL sd": kl.std(ddof=1) if alive.sum() > 1 else np.nan,
                    "KL paper": paper,
                    "diverged": f"{int((~alive).sum())}/{config.num_seeds}",
                    "mean ξ": xi.mean(),
                    "mean ξ sd": xi.std(ddof=1) if len(xi) > 1 else np.nan,
                    "mean ξ paper": PAPER_THERMOSTAT.get((word, h)),
                }
            )
    return table


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check the claims of the paper's two figures."""
    index = {word: i for i, word in enumerate(config.integrators)}
    h = np.asarray(config.step_sizes)
    claims = []
    if "euler" in index and np.any(h >= 0.25):
        kl = result["kl"][index["euler"]][h >= 0.25]
        claims.append(
            Claim(
                "mSGNHT-E fails at every h ≥ 0.25",
                bool(np.all(kl > 50)),
                f"{np.mean(kl > 50):.0%} of chains diverge or have KL > 50",
                "all",
            )
        )
    if "ABOBA" in index and np.any(h >= 0.05):
        kl = result["kl"][index["ABOBA"]][h >= 0.05]
        # A short run has an additional Monte Carlo error, 5 to 15 at 1000 time units.
        allowed = 1.5 + (0 if config.num_draws >= 10**6 else 60e3 / (config.num_draws * 0.05))
        claims.append(
            Claim(
                "mSGNHT-S stays accurate at every h ≥ 0.05",
                bool(np.all(kl < allowed)),
                f"largest KL over all seeds {kl.max():.2f}",
                f"below {allowed:.3g}",
            )
        )
    if {"ABOBA", "euler"} <= set(index) and 0.2 in config.step_sizes:
        j = config.step_sizes.index(0.2)
        s, e = (_mean_thermostats(result, index[w], j) for w in ("ABOBA", "euler"))
        claims.append(
            Claim(
                "at h = 0.2 the mean thermostat of S is nearer to 1 than that of E",
                bool(abs(s.mean() - 1) < abs(e.mean() - 1)),
                f"S {s.mean():.3f} ± {s.std():.3f}, E {e.mean():.3f} ± {e.std():.3f}",
                "paper: S 1.06, E 1.13; theory 1",
            )
        )
    return claims


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the paper's two figures."""
    figures = {"kl": _plot_kl(config, result)}
    traced = [
        h for h in config.traced_step_sizes if f"position {config.integrators[0]} {h}" in result
    ]
    if traced:
        figures["distribution"] = _plot_distributions(config, result, traced)
    return figures


def _plot_kl(config: Config, result: dict[str, np.ndarray]) -> Figure:
    figure, axes = panels(1, width=6.4, height=4.0)
    ceiling = 3e4
    for i, word in enumerate(config.integrators):
        kl = np.where(np.isfinite(result["kl"][i]), result["kl"][i], ceiling)
        low, middle, high = np.quantile(kl, [0.1, 0.5, 0.9], axis=1)
        (line,) = axes.plot(
            config.step_sizes, middle, "o-", label=f"{NAMES.get(word, word)}, measured"
        )
        axes.fill_between(config.step_sizes, low, high, color=line.get_color(), alpha=0.2, lw=0)
        if word in PAPER_KL:
            axes.plot(
                PAPER_STEPS,
                PAPER_KL[word],
                "--",
                marker="s",
                mfc="none",
                color=line.get_color(),
                alpha=0.7,
                label=f"{NAMES[word]}, paper",
            )
    axes.axhline(ceiling, color="0.5", lw=0.8)
    axes.text(config.step_sizes[0], ceiling * 0.8, "diverged", va="top", color="0.35")
    axes.set(
        xlabel="step size h", ylabel="symmetric KL (authors' measure)", xscale="log", yscale="log"
    )
    axes.legend()
    figure.set_label(
        "KL divergence from the double well against step size: median over seeds, band from the "
        f"10 % to the 90 % quantile of {config.num_seeds} seeds, {config.num_draws:,} steps each."
    )
    return figure


def _plot_distributions(
    config: Config, result: dict[str, np.ndarray], traced: list[float]
) -> Figure:
    words = config.integrators
    figure, axes = panels(len(traced), len(words) + 1, width=4.2, height=2.2, squeeze=False)
    bins = np.linspace(-5, 5, 101)
    for column, h in enumerate(traced):
        for row, word in enumerate(words):
            draws = result[f"position {word} {h}"][0]
            alive = draws[np.isfinite(draws)]
            panel = axes[row, column]
            panel.hist(alive, bins, density=True, color=f"C{row}", alpha=0.6)
            panel.plot(GRID, double_well.density(GRID), "k", lw=1)
            ending = "" if len(alive) == len(draws) else f" (diverged after {len(alive):,})"
            panel.set(
                title=f"{NAMES.get(word, word)}, h = {h:g}{ending}", xlabel="θ", ylabel="density"
            )
            friction = result[f"thermostat {word} {h}"][0].astype(np.float64)
            friction = friction[np.isfinite(friction) & (np.abs(friction) < 1e6)]
            mean = np.cumsum(friction) / np.arange(1, len(friction) + 1)
            shown = np.unique(np.geomspace(1, max(len(mean), 2), 400).astype(int)) - 1
            axes[-1, column].plot(
                shown + 1,
                mean[np.minimum(shown, len(mean) - 1)],
                color=f"C{row}",
                label=NAMES.get(word, word),
            )
        axes[-1, column].axhline(1, color="k", lw=1, ls=":")
        axes[-1, column].set(
            xscale="log",
            xlabel="iteration",
            ylabel="running mean of ξ",
            ylim=(0, 2),
            title=f"h = {h:g}",
        )
        axes[-1, column].legend()
    figure.set_label(
        f"First {config.trace_length:,} draws of one seed against the exact density (black), "
        "and the running mean of the thermostat, whose exact value is 1."
    )
    return figure

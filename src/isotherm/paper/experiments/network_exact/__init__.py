"""How accurate is a sampler on networks small enough for an exact reference?

Two networks with one hidden layer of tanh units at temperature 1: a regression with known noise,
and a classification of three spiral arms. The reference are draws of Hamiltonian Monte Carlo with
a Metropolis test, in double precision on all data. The weights of a network are not identified
(units can be swapped), so the comparison is in function space: posterior mean and standard
deviation of f(x), or of the probability of each class, at points among the data and beyond them.

- *Balanced* gradients take their own noise out (`isotherm.balanced`); the others are plain
  minibatch gradients. *Warm prior* and *Kronecker* use the coordinates and settings of
  `warm_start`, without tuning; "step x 0.3" is 0.3 of its step size. *Plain* has D = 5 and
  thermostat mass 1. *Full matrix* is plain with the thermostat that absorbs correlated noise.
  *Fixed friction* has no thermostat; with symmetric sweeps it is the recipe of Paulin et al.
  (2024).
- *Mean error* is in units of the exact standard deviation; *sd error* is relative. Medians and 90 %
  quantiles are over the points. *Thermostat* is its mean divided by D.
- All chains have the same number of steps, not counting the warm start.
- None of this is in the paper.
"""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import isotherm
from isotherm import random
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.experiments.network_exact.problems import (
    Problem,
    classification,
    regression,
    summary,
)
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.report.figures import panels
from isotherm.types import ArrayTree, Key, Sampler


class Case(NamedTuple):
    """A sampler: coordinates, batches, step size, thermostat, gradient and word."""

    coordinates: str
    batches: str
    step: float
    """h; in the coordinates of a warm start a multiple of its step size."""
    thermostat: str = "per_coordinate"
    balanced: bool = False
    word: str | None = None

    @property
    def name(self) -> str:
        """Label in tables and figures."""
        kind = "full matrix" if self.thermostat == "full_matrix" else self.coordinates
        step = f"h = {self.step:g}" if self.coordinates == "plain" else f"step x {self.step:g}"
        extras = [
            *(["fixed friction"] if self.thermostat == "fixed" else []),
            *([self.word] if self.word else []),
        ]
        start = "balanced, " if self.balanced else ""
        return start + ", ".join([kind, step, self.batches, *extras])


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    num_data: int = 100
    num_hidden: int = 8
    noise_sd: float = 0.3
    batch_size: int = 20
    step_sizes: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    balanced_step_sizes: tuple[float, ...] = (1e-3, 3e-3, 5e-3)
    multiples: tuple[float, ...] = (0.1, 0.3, 1.0)
    """Step sizes in the coordinates of warm starts, in units of the warm start's."""
    diffusion: float = 5.0
    num_steps: int = 200_000
    num_chains: int = 8
    with_rivals: bool = True
    """Whether to run other thermostats, words and batch policies."""
    reference_draws: int = 1000
    num_points: int = 61
    class_data: int = 240
    class_hidden: int = 10
    class_batch_size: int = 24
    class_step_sizes: tuple[float, ...] = (1e-2, 3e-2)
    class_points: int = 9

    def cases(self) -> list[Case]:
        """Return the samplers that are compared with the reference of the regression."""
        longest, whole = self.step_sizes[-1], self.multiples[-1]
        return [
            Case("plain", "all data", longest),
            Case("kronecker", "all data", whole),
            *(Case("plain", "independent", h) for h in self.step_sizes),
            *(Case("kronecker", "independent", multiple) for multiple in self.multiples),
            *(self._rivals() if self.with_rivals else ()),
            *(Case("plain", "independent", h, balanced=True) for h in self.balanced_step_sizes),
            *(Case("kronecker", "independent", m, balanced=True) for m in self.multiples[-2:]),
            Case("warm prior", "independent", whole, balanced=True),
        ]

    def _rivals(self) -> list[Case]:
        """Return other thermostats, words and batch policies."""
        longest, whole = self.step_sizes[-1], self.multiples[-1]
        middle = self.balanced_step_sizes[len(self.balanced_step_sizes) // 2]
        return [
            Case("plain", "all data", longest, word="BAOAB"),
            Case("plain", "independent", longest, "full_matrix"),
            Case("plain", "shuffled", longest),
            Case("kronecker", "shuffled", whole),
            Case("plain", "symmetric", middle, "fixed", word="OABAO"),
            Case("plain", "symmetric", longest, "fixed", word="OABAO"),
            Case("plain", "independent", middle, balanced=True, word="ABOBA"),
            Case("plain", "independent", middle, "fixed", balanced=True),
            Case("kronecker", "independent", whole, "fixed", balanced=True),
        ]

    def class_cases(self) -> list[Case]:
        """Return the samplers that are compared with the reference of the classification."""
        steps, whole = self.class_step_sizes, self.multiples[-1]
        return [
            *([Case("plain", "all data", steps[-1])] if self.with_rivals else []),
            *(Case("plain", "independent", h) for h in steps),
            *(
                [Case("plain", "symmetric", steps[0], "fixed", word="OABAO")]
                if self.with_rivals
                else []
            ),
            *(Case("plain", "independent", h, balanced=True) for h in steps),
            Case("kronecker", "independent", whole, balanced=True),
            Case("warm prior", "independent", whole, balanced=True),
        ]

    def problems(self, key: Key) -> list[tuple[Problem, list[Case]]]:
        """Return both problems with their samplers."""
        first = regression(
            key,
            self.num_data,
            self.num_hidden,
            self.noise_sd,
            batch_size=self.batch_size,
            num_points=self.num_points,
        )
        second = classification(
            key,
            self.class_data,
            self.class_hidden,
            self.class_points,
            batch_size=self.class_batch_size,
        )
        return [(first, self.cases()), (second, self.class_cases())]


SMOKE = Config(
    num_data=20,
    num_hidden=2,
    step_sizes=(1e-2,),
    balanced_step_sizes=(1e-3,),
    multiples=(1.0,),
    num_steps=500,
    num_chains=2,
    with_rivals=False,
    reference_draws=20,
    class_data=30,
    class_hidden=2,
    class_batch_size=6,
    class_step_sizes=(1e-2,),
    class_points=3,
)
TICKS = (-30, -5, 0, 5, 30, 300)
"""Errors in per cent that are marked on the axis."""
LONG = 100_000
"""Number of steps from which the limits of the claims apply."""


def run(
    config: Config, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Simulate data, compute the references, and run every sampler."""
    result = {}
    for problem, cases in config.problems(key):
        result |= {
            f"{problem.name}/{name}": value
            for name, value in {
                "x": problem.x,
                "y": problem.y,
                "grid": problem.grid,
                "inside": problem.inside,
            }.items()
        }
        report(f"Finding a mode of the {problem.name}")
        mode = problem.find_mode(key)
        starts = _WarmStarts(random.fold(key, 2), problem, mode)

        parts = {"exact": partial(problem.reference, mode, config.reference_draws, report)}
        parts |= {
            case.name: partial(_sample, config, random.fold(key, 3), case, problem, starts)
            for case in cases
        }
        for name, compute in parts.items():
            label = f"{problem.name}/{name}"
            arrays = checkpoints.load(label)
            if arrays is None:
                report(label)
                arrays = compute()
                checkpoints.save(label, arrays)
            result |= {f"{label}/{field}": value for field, value in arrays.items()}
    return result


class _WarmStarts:
    """The warm starts of a problem, each computed when it is first needed."""

    def __init__(self, key: Key, problem: Problem, mode: ArrayTree) -> None:
        self.key, self.problem, self.mode = key, problem, mode
        self._found: dict[str, Any] = {}

    def __getitem__(self, coordinates: str) -> Any:
        if coordinates not in self._found:
            p = self.problem
            self._found[coordinates] = isotherm.warm_start(
                self.key,
                p.network.gradient(len(p.y)),
                self.mode,
                isotherm.independent_batches((p.x, p.y), p.batch_size),
                coordinates=coordinates.removeprefix("warm "),
                num_steps=0,
            )
        return self._found[coordinates]


def _sampler(
    config: Config, case: Case, problem: Problem, starts: _WarmStarts
) -> tuple[ArrayTree, float, Sampler]:
    """Return where chains start, D, and the sampler of a case."""
    grad_fn = problem.network.gradient(len(problem.y))
    if case.balanced:
        grad_fn = isotherm.balanced(grad_fn)
    position = starts.mode
    settings: dict[str, Any] = {"step_size": case.step, "diffusion": config.diffusion}
    if case.coordinates != "plain":
        start = starts[case.coordinates]
        position = start.position
        settings = start.settings | {"step_size": case.step * start.step_size}
    diffusion = settings["diffusion"]
    if case.thermostat == "fixed":
        coordinates = settings.get("coordinates")
        return (
            position,
            diffusion,
            isotherm.sghmc(
                grad_fn,
                settings["step_size"],
                diffusion,
                integrator=case.word,
                coordinates=coordinates,
            ),
        )
    chosen = isotherm.msgnht(grad_fn, **settings, thermostat=case.thermostat, integrator=case.word)
    return position, diffusion, chosen


def _sample(
    config: Config, key: Key, case: Case, problem: Problem, starts: _WarmStarts
) -> dict[str, np.ndarray]:
    """Run the chains of a case, and summarize the function."""
    data = (problem.x, problem.y)
    batches = {
        "independent": lambda: isotherm.independent_batches(data, problem.batch_size),
        "shuffled": lambda: isotherm.shuffled_batches(data, problem.batch_size),
        "symmetric": lambda: isotherm.symmetric_batches(data, problem.batch_size),
        "all data": lambda: isotherm.full_batch(data),
    }[case.batches]()
    start, diffusion, sampler = _sampler(config, case, problem, starts)

    def thermostat(state: Any) -> jax.Array:
        return jnp.stack([jnp.mean(leaf) for leaf in jax.tree.leaves(state.thermostat)])

    with warnings.catch_warnings():  # the effect of shuffled batches is measured here
        warnings.simplefilter("ignore", isotherm.exceptions.PolicyWarning)
        warnings.simplefilter("ignore", isotherm.exceptions.HealthWarning)
        warnings.simplefilter("ignore", isotherm.exceptions.LostDrawsWarning)
        sampled = isotherm.sample(
            key,
            sampler,
            start,
            batches,
            num_draws=config.num_steps // 50,
            thin=50,
            burn_in=config.num_steps // 5,
            num_chains=config.num_chains,
            on_divergence="continue",
            progress=False,
            collect={
                "f": isotherm.collect.draws(problem.outputs),
                "thermostat": isotherm.collect.average(thermostat, of="state"),
            },
        )
    return summary(np.asarray(sampled.collected["f"], np.float64)) | {
        "temperature": sampled.stats["kinetic_temperature"].mean((0, 1)),
        "thermostat": np.asarray(sampled.collected["thermostat"])
        .reshape(config.num_chains, -1)
        .mean(0)
        / diffusion,
        "step_size": np.asarray(sampled.stats["step_size"]).reshape(-1)[-1],
    }


def errors(result: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of the mean in exact sds and the relative error of the sd, at all points.

    `name` is that of a problem and a sampler, as in `"regression/plain, h = 0.01, all data"`.
    """
    problem = name.split("/")[0]
    sd = result[f"{problem}/exact/sd"]
    shift = (result[f"{name}/mean"] - result[f"{problem}/exact/mean"]) / sd
    return shift, result[f"{name}/sd"] / sd - 1


def _labels(config: Config) -> list[tuple[str, Case]]:
    return [
        *(("regression", case) for case in config.cases()),
        *(("classification", case) for case in config.class_cases()),
    ]


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    gradients = config.num_steps * config.num_chains
    table = []
    for problem, case in _labels(config):
        name, inside = f"{problem}/{case.name}", result[f"{problem}/inside"]
        shift, widening = errors(result, name)
        temperature, xi = result[f"{name}/temperature"], result[f"{name}/thermostat"]
        table.append(
            {
                "network": problem,
                "sampler": case.name,
                "step size": float(f"{float(result[f'{name}/step_size']):.3g}"),
                "sd error, median (%)": round(100 * float(np.median(widening)), 1),
                "among the data (%)": round(100 * float(np.mean(widening[inside])), 1),
                "beyond them (%)": round(100 * float(np.mean(widening[~inside])), 1),
                "its size, 90 % (%)": round(100 * float(np.quantile(np.abs(widening), 0.9)), 1),
                "mean error, median": round(float(np.median(np.abs(shift))), 3),
                "mean error, 90 %": round(float(np.quantile(np.abs(shift), 0.9)), 3),
                "largest R-hat": round(float(result[f"{name}/rhat"].max()), 3),
                "ESS per 1000 gradients": round(
                    float(1000 * np.median(result[f"{name}/ess"]) / gradients), 2
                ),
                "kinetic temperature": f"{temperature.min():.3f} to {temperature.max():.3f}",
                "thermostat": f"{xi.min():.2f} to {xi.max():.2f}",
            }
        )
    return table


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check our own claims; the paper has none about this."""
    long = config.num_steps >= LONG

    def median(case: Case, problem: str = "regression") -> float:
        return 100 * float(np.median(errors(result, f"{problem}/{case.name}")[1]))

    whole = config.multiples[-1]
    exact = {
        "plain": median(Case("plain", "all data", config.step_sizes[-1])),
        "kronecker": median(Case("kronecker", "all data", whole)),
    }
    steps = {step: median(Case("kronecker", "independent", step)) for step in config.multiples}
    return [
        *(_converged(result, problem, long) for problem in ("regression", "classification")),
        Claim(
            "with exact gradients the function's posterior sd is right in both coordinates",
            all(abs(value) <= (3 if long else 80) for value in exact.values()),
            f"median error {exact['plain']:+.1f} % plain, {exact['kronecker']:+.1f} % Kronecker",
            "within 3 %",
        ),
        Claim(
            "with plain minibatches it is off, and less so with a shorter step",
            not long or list(steps.values()) == sorted(np.abs(list(steps.values()))),
            ", ".join(f"step x {step:g}: {value:+.1f} %" for step, value in steps.items()),
            "falling towards 0",
        ),
        *(
            _accurate(result, problem, case, long)
            for problem in ("regression", "classification")
            for case in (
                Case("warm prior", "independent", whole, balanced=True),
                Case("kronecker", "independent", whole, balanced=True),
            )
        ),
        _faster(config, result, long),
    ]


def _converged(result: dict[str, np.ndarray], problem: str, long: bool) -> Claim:
    worst = float(result[f"{problem}/exact/rhat"].max())
    return Claim(
        f"the reference of the {problem} has converged",
        worst < (1.01 if long else 2),
        f"largest R-hat {worst:.4f}, "
        f"{float(result[f'{problem}/exact/taken']):.0%} of the proposals taken",
        "below 1.01",
    )


def _accurate(result: dict[str, np.ndarray], problem: str, case: Case, long: bool) -> Claim:
    name, inside = f"{problem}/{case.name}", result[f"{problem}/inside"]
    error, xi = 100 * errors(result, name)[1], result[f"{name}/thermostat"]
    middle, among, beyond = np.median(error), error[inside].mean(), error[~inside].mean()
    off = float(np.abs(xi - 1).max())
    return Claim(
        f"{problem}: balanced minibatches with the settings of warm_start are right "
        f"({case.coordinates})",
        not long or bool(abs(middle) <= 2 and abs(among) <= 3 and abs(beyond) <= 5 and off <= 0.1),
        f"median {middle:+.1f} %, among the data {among:+.1f} %, beyond {beyond:+.1f} %, "
        f"thermostat within {100 * off:.0f} % of D",
        "within 2, 3 and 5 %; thermostat within 10 %",
    )


def _faster(config: Config, result: dict[str, np.ndarray], long: bool) -> Claim:
    cases = (
        Case("warm prior", "independent", config.multiples[-1], balanced=True),
        Case("kronecker", "independent", config.multiples[-1], balanced=True),
    )
    per_gradient = 1000 / (config.num_steps * config.num_chains)
    found = [
        per_gradient * float(np.median(result[f"regression/{case.name}/ess"])) for case in cases
    ]
    return Claim(
        "regression: they mix no slower than the warm start of version 0.1, without balance",
        not long or min(found) >= 5.04,
        f"ESS per 1000 gradients {found[0]:.1f} (prior), {found[1]:.1f} (Kronecker)",
        "at least 5.04",
    )


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the function with its bands, and the errors of the standard deviations."""
    return {"function": _function(config, result), "errors": _errors(config, result)}


def _function(config: Config, result: dict[str, np.ndarray]) -> Figure:
    figure, (left, right) = panels(2, width=4.8, height=3.8)
    data = {key.removeprefix("regression/"): value for key, value in result.items()}
    grid, whole = data["grid"][:, 0], config.multiples[-1]
    plain = Case("plain", "independent", config.step_sizes[-1])
    balanced = Case("warm prior", "independent", whole, balanced=True)
    left.plot(data["x"][:, 0], data["y"][:, 0], ".", color="0.75", ms=3)
    shown = (
        ("exact", "exact", "k"),
        (plain.name, "plain", "C1"),
        (balanced.name, "balanced", "C0"),
    )
    for name, label, color in shown:
        mean, sd = data[f"{name}/mean"], data[f"{name}/sd"]
        left.plot(grid, mean, color=color, label=label, lw=1.2)
        left.fill_between(grid, mean - 2 * sd, mean + 2 * sd, color=color, alpha=0.15, lw=0)
    left.set(xlabel="x", ylabel="f(x)")
    left.legend(fontsize=8)
    lines = [(Case("plain", "independent", h), "C1") for h in config.step_sizes]
    if config.with_rivals:
        sweeps = Case("plain", "symmetric", config.step_sizes[-1], "fixed", word="OABAO")
        lines.append((sweeps, "C2"))
    steps = config.balanced_step_sizes
    lines += [(Case("plain", "independent", h, balanced=True), "C0") for h in steps]
    lines += [(Case("kronecker", "independent", whole, balanced=True), "C4"), (balanced, "C3")]
    for i, (case, color) in enumerate(lines):
        ratio = data[f"{case.name}/sd"] / data["exact/sd"]
        dashes = ("-", "--", ":")[i % 3] if case.coordinates == "plain" else "-"
        right.plot(grid, ratio, dashes, color=color, label=case.name, lw=1.2)
    right.axhline(1, color="k", lw=0.8)
    right.set(xlabel="x", ylabel="sd over exact sd", ylim=(0.4, 2.2))
    right.legend(fontsize=5, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    figure.set_label(
        "Left: data, and mean and two standard deviations of f by the reference, by mSGNHT-S with "
        f"plain minibatches (h = {config.step_sizes[-1]:g}) and with balanced minibatches. "
        "Right: posterior standard deviation of f(x) divided by the exact one. "
        "Data are in [-1, 1]."
    )
    return figure


def _errors(config: Config, result: dict[str, np.ndarray]) -> Figure:
    figure, axes = panels(2, width=5.2, height=4.6)
    groups = {"regression": config.cases(), "classification": config.class_cases()}
    for panel, (problem, cases) in zip(axes, groups.items(), strict=True):
        inside = result[f"{problem}/inside"]
        for i, case in enumerate(reversed(cases)):
            error = 100 * errors(result, f"{problem}/{case.name}")[1]
            color = "C0" if case.balanced else "k" if case.batches == "all data" else "C1"
            panel.plot(error[inside].mean(), i, "o", color=color, ms=5)
            panel.plot(error[~inside].mean(), i, "o", mfc="white", color=color, ms=5)
        panel.set_yticks(range(len(cases)), [case.name for case in reversed(cases)], fontsize=6)
        panel.axvline(0, color="k", lw=0.8)
        panel.set(xlabel="error of the sd (%)", ylabel="sampler", title=problem)
        panel.set_xscale("symlog", linthresh=5)
        panel.set(xlim=(-100, 300))
        panel.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        panel.minorticks_off()
    figure.set_label(
        "Mean error of the posterior standard deviation of the function, among the data (filled) "
        "and beyond them (open): balanced minibatches (blue), plain minibatches (orange), all data "
        "(black). The axis is linear within 5 % and logarithmic beyond."
    )
    return figure

"""How accurate is a sampler on a network small enough for an exact reference?

Regression with one hidden layer of tanh units, prior N(0, 1) on every weight, known noise,
temperature 1. The reference are draws of Hamiltonian Monte Carlo with a Metropolis test, in double
precision on all data. The weights of a network are not identified (units can be swapped), so the
comparison is in function space: posterior mean and standard deviation of f(x) on a grid that goes
beyond the data.

- *Kronecker* uses the coordinates and settings of `warm_start`, without tuning; "step x 0.1" is a
  tenth of its step size. *Plain* has D = 5 and thermostat mass 1. *Full matrix* is plain with the
  thermostat that absorbs correlated noise.
- *Mean error* is in units of the exact standard deviation; *sd error* is relative. Medians and 90 %
  quantiles are over the grid.
- All chains have the same number of steps, not counting the warm start.
- None of this is in the paper.
"""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure

import isotherm
from isotherm import random
from isotherm.diagnostics.convergence import ess, rhat
from isotherm.models.networks import Network, mlp
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.report.figures import panels
from isotherm.references.hmc import hmc
from isotherm.references.network import network_target
from isotherm.types import Key, Sampler


class Case(NamedTuple):
    """A sampler: coordinates, batches, step size and thermostat."""

    coordinates: str
    batches: str
    step: float
    """h; in Kronecker coordinates a multiple of the warm start's step size."""
    thermostat: str = "per_coordinate"

    @property
    def name(self) -> str:
        """Label in tables and figures."""
        kind = "full matrix" if self.thermostat == "full_matrix" else self.coordinates
        step = f"h = {self.step:g}" if self.coordinates == "plain" else f"step x {self.step:g}"
        return f"{kind}, {step}, {self.batches}"


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    num_data: int = 100
    num_hidden: int = 8
    noise_sd: float = 0.3
    batch_size: int = 20
    step_sizes: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    multiples: tuple[float, ...] = (0.1, 0.3, 1.0)
    """Step sizes in Kronecker coordinates, in units of the warm start's."""
    diffusion: float = 5.0
    num_steps: int = 200_000
    num_chains: int = 8
    reference_draws: int = 800
    num_points: int = 61

    def cases(self) -> list[Case]:
        """Return the samplers that are compared with the reference."""
        longest = self.step_sizes[-1]
        return [
            Case("plain", "all data", longest),
            Case("kronecker", "all data", self.multiples[-1]),
            *(Case("plain", "independent", h) for h in self.step_sizes),
            *(Case("kronecker", "independent", multiple) for multiple in self.multiples),
            Case("plain", "independent", longest, "full_matrix"),
            Case("plain", "shuffled", longest),
            Case("kronecker", "shuffled", self.multiples[-1]),
        ]


SMOKE = Config(
    num_data=20,
    num_hidden=2,
    step_sizes=(1e-2,),
    multiples=(1.0,),
    num_steps=500,
    num_chains=2,
    reference_draws=20,
)
LONG = 100_000
"""Number of steps from which the limits of the claims apply."""


def run(config: Config, key: Key, report: Report) -> dict[str, np.ndarray]:
    """Simulate data, compute the reference, and run every sampler."""
    rng = np.random.default_rng(random.numpy_seed(key))
    x = rng.uniform(-1, 1, (config.num_data, 1)).astype(np.float32)
    y = (np.sin(4 * x) + 0.3 * x + config.noise_sd * rng.normal(size=x.shape)).astype(np.float32)
    grid = np.linspace(-1.5, 1.5, config.num_points, dtype=np.float32)[:, None]
    network = mlp(
        (1, config.num_hidden, 1),
        activation="tanh",
        likelihood="gaussian",
        noise_sd=config.noise_sd,
    )
    grad_fn = network.gradient(config.num_data)
    policies = {
        "independent": isotherm.independent_batches((x, y), config.batch_size),
        "shuffled": isotherm.shuffled_batches((x, y), config.batch_size),
        "all data": isotherm.full_batch((x, y)),
    }
    report("Finding a mode")
    mode = isotherm.find_mode(
        random.fold(key, 0),
        grad_fn,
        network.init(random.fold(key, 1)),
        policies["independent"],
        num_steps=5000,
    )
    result = {"x": x[:, 0], "y": y[:, 0], "grid": grid[:, 0]}
    result |= _reference(config, network, (x, y), grid, mode, report)
    warm = isotherm.warm_start(
        random.fold(key, 2),
        grad_fn,
        mode,
        policies["independent"],
        coordinates="kronecker",
        num_steps=0,
    )

    def sampler(case: Case) -> tuple[Any, Sampler]:
        if case.coordinates == "plain":
            chosen = isotherm.msgnht(
                grad_fn, case.step, config.diffusion, thermostat=case.thermostat
            )
            return mode, chosen
        settings: dict[str, Any] = warm.settings | {"step_size": case.step * warm.step_size}
        return warm.position, isotherm.msgnht(grad_fn, **settings)

    points = jnp.asarray(grid)
    for case in config.cases():
        report(case.name)
        start, chosen = sampler(case)
        with warnings.catch_warnings():  # the effect of shuffled batches is measured here
            warnings.simplefilter("ignore", isotherm.exceptions.PolicyWarning)
            sampled = isotherm.sample(
                random.fold(key, 3),
                chosen,
                start,
                policies[case.batches],
                num_draws=config.num_steps // 50,
                thin=50,
                burn_in=config.num_steps // 5,
                num_chains=config.num_chains,
                on_divergence="continue",
                progress=False,
                collect={"f": isotherm.collect.draws(lambda w: network.predict(w, points)[:, 0])},
            )
        result |= _summary(case.name, np.asarray(sampled.collected["f"], np.float64))
        result[f"{case.name}/temperature"] = sampled.stats["kinetic_temperature"].mean((0, 1))
    return result


def _reference(
    config: Config, network: Network, data: Any, grid: np.ndarray, mode: Any, report: Report
) -> dict[str, np.ndarray]:
    draws, accepted = hmc(
        network_target(network, data, mode),
        num_chains=32,
        num_draws=config.reference_draws,
        burn_in=config.reference_draws // 4,
        seed=1,
        step_size=0.01,
        num_leapfrog=100,
        start_width=0.3,
        report=report,
    )
    unravel, points = ravel_pytree(mode)[1], jnp.asarray(grid)
    predict = jax.jit(jax.vmap(lambda w: network.predict(unravel(w), points)[:, 0]))
    f = np.stack([np.asarray(predict(jnp.asarray(chain, jnp.float32))) for chain in draws])
    return _summary("exact", f.astype(np.float64)) | {"exact/taken": np.asarray(accepted)}


def _summary(name: str, f: np.ndarray) -> dict[str, np.ndarray]:
    """Summarize draws of the function, (chain, draw, grid)."""
    finite = np.isfinite(f).all()
    return {
        f"{name}/mean": f.mean((0, 1)),
        f"{name}/sd": f.std((0, 1)),
        f"{name}/ess": ess(f) if finite else np.full(f.shape[2], np.nan),
        f"{name}/rhat": rhat(f) if finite else np.full(f.shape[2], np.nan),
    }


def errors(result: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of the mean in exact sds and the relative error of the sd, on the grid."""
    sd = result["exact/sd"]
    shift = (result[f"{name}/mean"] - result["exact/mean"]) / sd
    return shift, result[f"{name}/sd"] / sd - 1


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    gradients = config.num_steps * config.num_chains
    inside = np.abs(result["grid"]) <= 1
    table = []
    for case in config.cases():
        shift, widening = errors(result, case.name)
        temperature = result[f"{case.name}/temperature"]
        table.append(
            {
                "sampler": case.name,
                "sd error, median (%)": round(100 * float(np.median(widening)), 1),
                "among the data (%)": round(100 * float(np.mean(widening[inside])), 1),
                "beyond them (%)": round(100 * float(np.mean(widening[~inside])), 1),
                "its size, 90 % (%)": round(100 * float(np.quantile(np.abs(widening), 0.9)), 1),
                "mean error, median": round(float(np.median(np.abs(shift))), 3),
                "mean error, 90 %": round(float(np.quantile(np.abs(shift), 0.9)), 3),
                "largest R-hat": round(float(result[f"{case.name}/rhat"].max()), 3),
                "ESS per 1000 gradients": round(
                    float(1000 * np.median(result[f"{case.name}/ess"]) / gradients), 2
                ),
                "kinetic temperature": f"{temperature.min():.3f} to {temperature.max():.3f}",
            }
        )
    return table


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check our own claims; the paper has none about this."""
    long = config.num_steps >= LONG

    def median(case: Case) -> float:
        return 100 * float(np.median(errors(result, case.name)[1]))

    longest = {"plain": config.step_sizes[-1], "kronecker": config.multiples[-1]}
    exact = {kind: median(Case(kind, "all data", step)) for kind, step in longest.items()}
    steps = {step: median(Case("kronecker", "independent", step)) for step in config.multiples}
    worst = float(result["exact/rhat"].max())
    return [
        Claim(
            "the reference has converged",
            worst < (1.01 if long else 2),
            f"largest R-hat over the grid {worst:.4f}, "
            f"{float(result['exact/taken']):.0%} of the proposals taken",
            "below 1.01",
        ),
        Claim(
            "with exact gradients the function's posterior sd is right in both coordinates",
            all(abs(value) <= (3 if long else 80) for value in exact.values()),
            f"median error {exact['plain']:+.1f} % plain, {exact['kronecker']:+.1f} % Kronecker",
            "within 3 %",
        ),
        Claim(
            "with minibatches it is off, and less so with a shorter step",
            not long or list(steps.values()) == sorted(np.abs(list(steps.values()))),
            ", ".join(f"step x {step:g}: {value:+.1f} %" for step, value in steps.items()),
            "falling towards 0",
        ),
    ]


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the function with its bands, and the ratio of standard deviations."""
    figure, (left, right) = panels(2, width=4.8, height=3.4)
    grid, cases = result["grid"], config.cases()
    shown = Case("kronecker", "independent", config.multiples[-1]).name
    left.plot(result["x"], result["y"], ".", color="0.75", ms=3)
    for name, label, color in (("exact", "exact", "k"), (shown, shown, "C0")):
        mean, sd = result[f"{name}/mean"], result[f"{name}/sd"]
        left.plot(grid, mean, color=color, label=label, lw=1.2)
        left.fill_between(grid, mean - 2 * sd, mean + 2 * sd, color=color, alpha=0.15, lw=0)
    left.set(xlabel="x", ylabel="f(x)")
    left.legend(fontsize=8)
    for i, case in enumerate(cases):
        ratio = result[f"{case.name}/sd"] / result["exact/sd"]
        dashed = {"all data": "--", "independent": "-", "shuffled": ":"}[case.batches]
        right.plot(grid, ratio, dashed, color=f"C{i % 10}", label=case.name, lw=1.2)
    right.axhline(1, color="k", lw=0.8)
    right.set(xlabel="x", ylabel="sd over exact sd", ylim=(0.4, 2.2))
    right.legend(fontsize=5, ncols=2)
    figure.set_label(
        "Left: data, and mean and two standard deviations of f by the reference and in the "
        "Kronecker basis with minibatches. "
        "Right: posterior standard deviation of f(x) divided by the exact one."
    )
    return {"function": figure}

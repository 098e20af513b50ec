r"""Does the symmetric splitting converge faster in the number of steps?

By Lemma 3, the time average of a function over T steps of size h has the following bias and mean
squared error (MSE):

- bias: $C_1/(T h) + C_2 h^K$, from the initial state and from the integrator;
- MSE: $V/(T h) + C_2^2 h^{2K}$, from the variance and from the integrator.

The longer the run, the smaller the best step. With the best choice, $h \propto T^{-1/(K+1)}$ for
the bias and $h \propto T^{-1/(2K+1)}$ for the MSE, Euler (K = 1) converges like $T^{-1/2}$ and
$T^{-2/3}$, the splitting (K = 2) like $T^{-2/3}$ and $T^{-4/5}$ (Remarks 1 and 2). We run both with
these step sizes and fit the exponents. The bias that remains as $T \to \infty$ at a fixed h, the
$h^K$ of Remark 3, is the stationary bias of the experiment `order`.

*Target.* The double well with the paper's gradient noise: D = 0, B = 1, so the friction should be 1
in equilibrium; $\mu$ = 10. The function is $U'^2 - U''$, whose exact mean is 0. Its bias is of
first order with Euler ($C_2$ about -2). It relaxes within each well, so rare transitions between
wells do not matter; $\theta^2$, for example, would need hundreds of times as many chains. The
constants in the rules for h make both terms about equal in the middle of the range.

*Initial state.* Always $\theta$ = -3, at the bottom of the deeper well. For the bias the friction
starts at 2, which is too high: the chains are too cold at first, $C_1$ is about -40 and has the
sign of $C_2$. For the MSE it starts at 1: Lemma 3 neglects the initial state there, since its
square falls like $(T h)^{-2}$, but from 2 its effect would still be visible at $T = 10^4$.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from isotherm import random
from isotherm.dynamics.integrators import parse_integrator
from isotherm.dynamics.langevin import LangevinState, langevin
from isotherm.dynamics.measured_order import power_law, time_average
from isotherm.models import double_well
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.report.figures import panels
from isotherm.types import Key

INTEGRATORS = ("euler", "ABOBA")
QUANTITIES = ("bias", "MSE")


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    nums_steps: tuple[int, ...] = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)
    num_chains: int = 4_000
    bias_scales: tuple[float, ...] = (4.5, 2.2)
    mse_scales: tuple[float, ...] = (1.5, 1.0)
    position: float = -3.0
    bias_thermostat: float = 2.0
    mse_thermostat: float = 1.0
    thermostat_mass: float = 10.0
    allowance: float = 0.05


SMOKE = Config(nums_steps=(500, 1_000, 2_000, 4_000), num_chains=2_000, allowance=0.1)


class Rule(NamedTuple):
    """The step size and the expected error as powers of the number of steps."""

    scale: float
    step_exponent: float
    error_exponent: float
    thermostat: float


def _rule(config: Config, i: int, quantity: str) -> Rule:
    """Return the rule that balances the two terms of Lemma 3."""
    order = parse_integrator(INTEGRATORS[i]).order
    if quantity == "bias":
        scale, power, start = config.bias_scales[i], order, config.bias_thermostat
    else:
        scale, power, start = config.mse_scales[i], 2 * order, config.mse_thermostat
    return Rule(scale, -1 / (power + 1), -power / (power + 1), start)


def run(config: Config, key: Key, report: Report) -> dict[str, np.ndarray]:
    """Measure errors by integrator, quantity and number of steps, and fit exponents."""
    nums_steps = np.array(config.nums_steps)
    results = []
    for i, integrator in enumerate(INTEGRATORS):
        for q, quantity in enumerate(QUANTITIES):
            rule = _rule(config, i, quantity)
            step_sizes = rule.scale * nums_steps**rule.step_exponent
            averages = []
            for n, h in enumerate(step_sizes):
                report(f"{integrator}, {quantity}: {nums_steps[n]} steps of {h:.3f}")
                run_key = jax.random.fold_in(key, (i * len(QUANTITIES) + q) * 100 + n)
                averages.append(
                    _time_averages(
                        run_key,
                        h,
                        nums_steps[n],
                        config.position,
                        rule.thermostat,
                        config.thermostat_mass,
                        integrator=integrator,
                        num_chains=config.num_chains,
                    )
                )
            errors = _errors(np.array(averages, np.float64), nums_steps, quantity)
            results.append({"step_size": step_sizes, **errors})
    shape = (len(INTEGRATORS), len(QUANTITIES))
    arrays = {name: np.array([result[name] for result in results]) for name in results[0]}
    return {name: array.reshape(shape + array.shape[1:]) for name, array in arrays.items()}


def _errors(averages: np.ndarray, nums_steps: np.ndarray, quantity: str) -> dict[str, np.ndarray]:
    """Compute errors and their exponent from averages (number of steps, chain), with bootstraps."""

    def error(averages: np.ndarray) -> np.ndarray:
        return np.abs(averages.mean(-1)) if quantity == "bias" else np.mean(averages**2, axis=-1)

    picks = np.random.default_rng(0).integers(averages.shape[1], size=(200, *averages.shape))
    resampled = error(np.take_along_axis(averages[None], picks, axis=-1))
    exponent, _ = power_law(nums_steps, error(averages))
    exponents, _ = power_law(nums_steps, resampled)
    return {
        "error": error(averages),
        "error_spread": resampled.std(0),
        "exponent": exponent,
        "exponent_spread": exponents.std(),
    }


@partial(jax.jit, static_argnames=("integrator", "num_chains"))
def _time_averages(
    key: Key,
    h: float,
    num_steps: int,
    position: float,
    thermostat: float,
    mass: float,
    *,
    integrator: str,
    num_chains: int,
) -> jax.Array:
    sampler = langevin(
        double_well.noisy_gradient(h),
        h,
        0.0,
        thermostat="per_coordinate",
        thermostat_mass=mass,
        initial_thermostat=thermostat,
        integrator=integrator,
    )

    def observe(state: LangevinState) -> jax.Array:
        force = double_well.gradient(state.position, None)
        return force**2 - double_well.curvature(state.position)

    def chain(number: jax.Array) -> jax.Array:
        start = jnp.asarray(position, jnp.float32)
        return time_average(random.fold(key, number), sampler, start, observe, num_steps)

    return jax.vmap(chain)(jnp.arange(num_chains))


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return one row per integrator and quantity."""
    table = []
    for i, integrator in enumerate(INTEGRATORS):
        for q, quantity in enumerate(QUANTITIES):
            rule = _rule(config, i, quantity)
            table.append(
                {
                    "integrator": integrator,
                    "quantity": quantity,
                    "step size": f"{rule.scale:g} T^({rule.step_exponent:.3g})",
                    "exponent, paper": rule.error_exponent,
                    "exponent": result["exponent"][i, q],
                    "± exponent": result["exponent_spread"][i, q],
                    "last T": config.nums_steps[-1],
                    "error there": result["error"][i, q, -1],
                    "± error there": result["error_spread"][i, q, -1],
                }
            )
    return table


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Compare exponents with the paper's, allowing for three standard errors and finite T."""
    claims = []
    for i, integrator in enumerate(INTEGRATORS):
        for q, quantity in enumerate(QUANTITIES):
            expected = _rule(config, i, quantity).error_exponent
            exponent, spread = result["exponent"][i, q], result["exponent_spread"][i, q]
            limit = 3 * spread + config.allowance
            claims.append(
                Claim(
                    f"The {quantity} of {integrator} falls like T^({expected:.3g})",
                    bool(abs(exponent - expected) <= limit),
                    f"{exponent:.3f} ± {spread:.3f}",
                    f"{expected:.3f} ± {limit:.3f} (three standard errors and {config.allowance})",
                )
            )
    for q, quantity in enumerate(QUANTITIES):
        gain = result["exponent"][0, q] - result["exponent"][1, q]
        spread = np.hypot(*result["exponent_spread"][:, q])
        text = f"The splitting converges faster than Euler: {quantity}"
        measured = f"exponents differ by {gain:.3f} ± {spread:.3f}"
        claims.append(
            Claim(text, bool(gain > 3 * spread), measured, "more than three standard errors")
        )
    return claims


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw errors against the number of steps."""
    figure, axes = panels(len(QUANTITIES), width=4.4, height=3.6)
    nums_steps = np.array(config.nums_steps)
    for q, (quantity, ax) in enumerate(zip(QUANTITIES, axes, strict=True)):
        for i, integrator in enumerate(INTEGRATORS):
            paper = _rule(config, i, quantity).error_exponent
            error, spread = result["error"][i, q], result["error_spread"][i, q]
            exponent, error_of_it = result["exponent"][i, q], result["exponent_spread"][i, q]
            label = f"{integrator}: {exponent:.3f} ± {error_of_it:.3f} (paper {paper:.3f})"
            ax.errorbar(nums_steps, error, 2 * spread, fmt="os"[i], color=f"C{i}", label=label)
            line = error[0] * (nums_steps / nums_steps[0]) ** paper
            ax.plot(nums_steps, line, "--", color=f"C{i}", lw=1)
        decades = np.log10([0.5 * result["error"][:, q].min(), 1.2 * result["error"][:, q].max()])
        limits = 10.0 ** np.array([np.floor(decades[0]), np.ceil(decades[1])])
        ax.set(xscale="log", yscale="log", xlabel="number of steps T", ylabel=quantity, ylim=limits)
        ax.legend(loc="lower left", title="exponent", alignment="left")
    axes[0].set_title("Bias of the time average")
    axes[1].set_title("Mean squared error")
    figure.set_label(
        "Bias and mean squared error of a time average against the number of steps, each with the "
        "best step size. Error bars are two standard errors (bootstrap over chains); dashed lines "
        "have the paper's exponents and start at the first point."
    )
    return {"rates": figure}

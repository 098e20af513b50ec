r"""Early warnings: chains that are still finite, but whose draws are not the posterior.

Three signs, read from statistics that are kept anyway, after 64, 128, 256, … draws and at the end:

- *Temperature.* Momenta of a healthy chain are $\mathcal N(0, T)$, so the kinetic temperature of a
  leaf with $d$ numbers is $T\chi^2_d/d$, whose median is known. A warning needs more than half of
  the second half of the draws to be more than 25 % above the median, or below it, significantly:
  the share has to exceed 1/2 by as many standard errors as one false alarm in a million checks
  allows. Standard errors use the effective sample size, and nothing is judged before these draws
  span 20 relaxation times $1/\xi$ of the momenta, so that short runs and runs that have not yet
  converged do not warn. A leaf so cold that a single draw would be significant is frozen, and is
  reported at once.
- *Gradient noise.* A thermostat per coordinate settles where it removes the energy that the noise
  adds, $h\xi$ per step. By the module docstring of `diagnostics/noise.py` positions are then at
  $T\cosh(h\xi/2)$ with ABOBA and at $T(1 - h\xi/2)$ with Euler, and $C = h^2\sigma^2/4T$ (injected
  noise included) is $\tfrac12\sinh h\xi$ and $\tfrac14 h\xi(2 - h\xi)$. A warning needs the mean
  over a leaf to put positions 25 % off at two checks in a row, at the same significance, judged by
  its spread over the leaf; or a single coordinate that does not move, $h\xi > 20$.
- *Balance.* A balanced gradient takes its noise out, so its thermostats stay at $D$: by
  `dynamics/thermostats.py` the mean of $\xi$ over the $n$ coordinates of a leaf is
  $\mathcal N(D, T/\mu n)$. Kicks that are too strong to be balanced raise it. That noise depends on
  the position, so that absorbing its average leaves a bias, and all temperatures are right. A
  warning needs the mean to exceed $1.25\,D$ at two checks in a row, significantly: a leaf at
  $1.22\,D$ was harmless (`network-exact`), and at $1.4\,D$ a network stayed at random weights
  (`mnist-natural`). (With a full matrix and with $D = 0$ nothing is judged.)

The median is used, not the mean: in chains on targets without noise that have become unstable, rare
bursts of heat dominate the mean.

False alarms were counted where they are most likely: chains of one or two numbers (momenta of an
Ornstein-Uhlenbeck process, of Langevin dynamics and of mSGNHT on a normal target) at the earliest
moment, 20 relaxation times, with 32 to 400 draws in them. One of 192 000 checks gave a false alarm.
The balance was checked twice, 64 and 128 or 128 and 256 steps after the start, in mSGNHT and SGNHT
with $D$ = 0.3 to 3, $\mu$ = 0.1 to 10 and one to eight numbers: none of 2 160 000 pairs of checks
gave a false alarm (100 of the single checks did).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import gammaincinv, ndtri

from isotherm.diagnostics.convergence import ess
from isotherm.dynamics.langevin import BALANCED_WORD
from isotherm.types import Traits

FIRST_CHECK = 64
"""Draws."""
RELAXATIONS = 20.0
"""Relaxation times that the second half of the draws must span."""
TOLERANCE = 0.25
"""Relative error of a temperature that is too large."""
FALSE_ALARM = 1e-6
"""Probability that one check warns of a healthy run, Bonferroni over chains and leaves."""
FROZEN = 1e-7
"""Probability that one temperature of a healthy chain is as low as that of a frozen one."""
_SPLIT = 2 * float(np.arccosh(1 + TOLERANCE))
LIMIT = {"ABOBA": _SPLIT, BALANCED_WORD: _SPLIT, "euler": 2 * TOLERANCE}
r"""Damping per step, $h\xi$, at which positions are off by `TOLERANCE`."""
STANDSTILL = 20.0
"""Damping per step that removes all of a momentum."""
LARGEST_RATIO = 1.25
"""Largest mean of a thermostat over the diffusion with a balanced gradient."""
ENOUGH_NUMBERS = 32
"""Coordinates of a leaf from which its gradient noise is judged."""

TOO_LONG_STEPS = (
    "The steps are too long for the curvature of the target or the noise of its gradients: try a "
    "smaller `step_size`, a larger batch, or natural coordinates (`isotherm.warm_start`)."
)
TOO_MUCH_FRICTION = (
    "Steps that are too long, or a start far from the mode, have heated the chain, and its "
    "thermostat now damps too strongly: try a smaller `step_size`, a warm start "
    "(`isotherm.warm_start`), a smaller `thermostat_mass` or a longer `burn_in`."
)


class HealthMonitor:
    """Checks a run from time to time, and reports at most one problem.

    Parameters
    ----------
    traits
        Of the sampler.
    names
        Leaves of the position.
    sizes
        Coordinates of each leaf of the momentum.
    """

    def __init__(self, traits: Traits, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.traits, self.sizes = traits, np.asarray(sizes)
        same = len(names) == len(sizes)  # otherwise the momentum lives in other coordinates
        self.names = names if same else [f"momentum {i}" for i in range(len(sizes))]
        self.next_check, self.has_warned = FIRST_CHECK, False
        self.earlier: list[bool] = [False, False]  # what the previous check suspected

    def is_due(self, num_draws: int, last: bool) -> bool:
        """Return whether it is time for a check."""
        if self.has_warned or num_draws < FIRST_CHECK or not float(self.traits.temperature) > 0:
            return False
        due = last or num_draws >= self.next_check
        while self.next_check <= num_draws:
            self.next_check *= 2
        return due

    def check(
        self, temperatures: np.ndarray, step_size: float, thin: int, state: Any
    ) -> str | None:
        """Return a description of the first problem, or `None`.

        Parameters
        ----------
        temperatures
            Kinetic temperatures of all draws, (chain, draw, leaf).
        step_size
            $h$ of the last draw.
        thin
            Steps per draw.
        state
            The current state of the sampler, leading axis over chains.
        """
        later = np.asarray(temperatures, np.float64)[:, temperatures.shape[1] // 2 :]
        relaxations = step_size * thin * later.shape[1] * _friction(state)
        with np.errstate(all="ignore"):  # values may overflow
            problem = self._temperature(later, relaxations, step_size)
            suspicions = self._damping(step_size, state), self._balance(step_size, state)
        for suspicion, earlier in zip(suspicions, self.earlier, strict=True):
            if problem is None and earlier:  # at one check it may be a transient
                problem = suspicion
        self.earlier = [suspicion is not None for suspicion in suspicions]
        self.has_warned = problem is not None
        return problem

    def _temperature(self, later: np.ndarray, relaxations: float, step_size: float) -> str | None:
        target = float(self.traits.temperature)
        later = later / target
        half = self.sizes / 2
        healthy, frozen_below = gammaincinv(half, 0.5) / half, gammaincinv(half, FROZEN) / half
        result = find_frozen(later, frozen_below)
        if result is None and relaxations >= RELAXATIONS:
            result = find_wrong_temperature(later, healthy)
        if result is None:
            return None
        chain, leaf = result
        median = np.median(later[chain, :, leaf])
        cold = median < healthy[leaf]
        advice = TOO_MUCH_FRICTION if cold and self.traits.adaptive else TOO_LONG_STEPS
        return (
            f"The momentum of `{self.names[leaf]}` in chain {chain} is too "
            f"{'cold' if cold else 'hot'}: its kinetic temperature is {target * median:.3g} "
            f"(median of the last {later.shape[1]} draws), in a healthy chain "
            f"{target * healthy[leaf]:.3g}, so its draws are not the posterior. {advice} "
            f"Step size: {step_size:.3g}. `run.summary()` shows all temperatures."
        )

    def _damping(self, h: float, state: Any) -> str | None:
        """Check how strongly the thermostats of single coordinates damp."""
        word = self.traits.integrator
        if self.traits.thermostat != "per_coordinate" or word not in LIMIT:
            return None
        leaves = jax.tree.leaves(state.thermostat)
        num_errors = -ndtri(FALSE_ALARM / (len(leaves) * len(leaves[0])))
        for name, leaf in zip(self.names, leaves, strict=True):
            damping = h * np.asarray(leaf, np.float64).reshape(len(leaf), -1)
            still = (damping > STANDSTILL).sum(1)
            if still.any():
                chain = int(np.argmax(still))
                return (
                    f"{still[chain]} of the {damping.shape[1]} numbers of `{name}` in chain "
                    f"{chain} do not move: their thermostats damp by up to h xi = "
                    f"{damping[chain].max():.2g} per step. {TOO_MUCH_FRICTION} "
                    f"Step size: {h:.3g}."
                )
            error = damping.std(1) / np.sqrt(damping.shape[1])
            lower = damping.mean(1) - num_errors * error
            chain = int(np.argmax(lower))
            if damping.shape[1] >= ENOUGH_NUMBERS and lower[chain] > LIMIT[word]:
                return self._noise(name, chain, h, float(damping[chain].mean()))
        return None

    def _balance(self, h: float, state: Any) -> str | None:
        """Check whether the thermostats of a balanced gradient have left the diffusion."""
        traits = self.traits
        kind, diffusion = traits.thermostat, traits.diffusion
        if not traits.balanced or not traits.adaptive or kind == "full_matrix":
            return None
        if diffusion is None or not float(diffusion) > 0:
            return None
        names, sizes = self.names, self.sizes
        if kind == "scalar":
            names, sizes = ["all parameters"], [self.sizes.sum()]
        leaves = jax.tree.leaves(state.thermostat)
        values = [np.asarray(leaf, np.float64).reshape(len(leaf), -1).mean(1) for leaf in leaves]
        num_errors = -ndtri(FALSE_ALARM / (len(values) * len(values[0])))
        for name, size, means in zip(names, sizes, values, strict=True):
            error = thermostat_error(traits, size)
            chain = int(np.argmax(means))
            if means[chain] - num_errors * error > LARGEST_RATIO * float(diffusion):
                return (
                    "Balanced minibatches leave much of their noise at the step size "
                    f"{h:.3g}: the thermostat of `{name}` in chain {chain} is "
                    f"{means[chain] / float(diffusion):.2g} times the diffusion, in a healthy "
                    "chain as large. Some rows have gradients that are too large to be balanced, "
                    "so draws are biased, although all temperatures are right. Try a smaller "
                    "`step_size` (`isotherm.warm_start` with the balanced gradient chooses one) "
                    "or a larger batch."
                )
        return None

    def _noise(self, name: str, chain: int, h: float, u: float) -> str:
        euler = self.traits.integrator == "euler"
        ratio = u * (2 - u) / 4 if euler else np.sinh(u) / 2
        off = -u / 2 if euler else np.cosh(u / 2) - 1
        return (
            f"Gradient noise is too strong for the step size {h:.3g}: the thermostat of `{name}` "
            f"in chain {chain} damps by h xi = {u:.2g} per step (C = h^2 sigma^2/4T is "
            f"{ratio:.2g}), which puts positions {100 * abs(off):.0f} % too "
            f"{'hot' if off > 0 else 'cold'}. Try a smaller `step_size`, a larger batch or control "
            "variates."
        )


def thermostat_error(traits: Traits, size: int) -> float:
    r"""Return $\sqrt{T/\mu n}$: the sd of the mean thermostat over $n$ coordinates."""
    return float(np.sqrt(float(traits.temperature) / (float(traits.thermostat_mass) * size)))


def _friction(state: Any) -> float:
    """Return the smallest mean of a leaf of the thermostat: the slowest relaxation rate."""
    leaves = jax.tree.leaves(getattr(state, "thermostat", ()))
    means = [np.asarray(leaf, np.float64).reshape(len(leaf), -1).mean(1).min() for leaf in leaves]
    return float(min(means, default=0.0))


def find_frozen(later: np.ndarray, frozen_below: np.ndarray) -> tuple[int, int] | None:
    """Return a chain and a leaf with temperatures so low that one of them is significant.

    Nine in ten must be. By Markov's inequality this is hardly more probable than that one is,
    however strongly the draws are correlated.
    """
    cold = np.argwhere((later < frozen_below).mean(1) >= 0.9)
    return (int(cold[0, 0]), int(cold[0, 1])) if len(cold) else None


def find_wrong_temperature(later: np.ndarray, healthy: np.ndarray) -> tuple[int, int] | None:
    """Return a chain and a leaf whose temperatures are significantly wrong.

    Parameters
    ----------
    later
        Temperatures, (chain, draw, leaf), in units of the target temperature.
    healthy
        Median of each leaf's temperature in a healthy chain.
    """
    num_chains, n, num_leaves = later.shape
    num_errors = -ndtri(FALSE_ALARM / (2 * num_chains * num_leaves))
    hot = (later > (1 + TOLERANCE) * healthy).mean(1)
    cold = (later < (1 - TOLERANCE) * healthy).mean(1)
    share = np.maximum(hot, cold)
    for chain, leaf in np.argwhere(share - num_errors * 0.5 / np.sqrt(n) > 0.5):
        ranks = np.argsort(np.argsort(later[chain, :, leaf]))  # finite, as temperatures need not be
        if share[chain, leaf] - num_errors * 0.5 / np.sqrt(ess(ranks[None])) > 0.5:
            return int(chain), int(leaf)
    return None

r"""Early warning: a chain that is still finite, but whose draws are not the posterior.

Two signs, both read off what is there anyway, after 64 draws, 128, 256, … and at the end:

- *Temperature.* Momenta of a healthy chain are $\mathcal N(0, T)$, so the kinetic temperature of a leaf with $d$ numbers is
  $T\chi^2_d/d$ with a known median. A warning needs more than half of the later half of the draws to be more than 25 % above it,
  or below it, beyond doubt: the share has to differ from 1/2 by as many standard errors as a false alarm in a million healthy runs
  allows. The errors know of autocorrelation, and nothing is judged before these draws span 20 relaxation times
  $1/\xi$ of the momenta, so that a short run, or one that is still on its way, is left alone. A leaf so cold that one draw
  would be proof is frozen, and called so at once.
- *Gradient noise.* A thermostat per coordinate settles where it takes out what the noise puts in, $h\xi$ per step. By
  the module text of `diagnostics/noise.py` positions are then at $T\cosh(h\xi/2)$ with ABOBA and at
  $T(1 - h\xi/2)$ with Euler, and $C = h^2\sigma^2/4T$ (injected noise included) is $\tfrac12\sinh h\xi$ and
  $\tfrac14 h\xi(2 - h\xi)$. A warning needs the mean of a leaf to put it 25 % off at two
  looks, beyond the same doubt, judged by its spread over the leaf; or a single coordinate at a standstill, $h\xi > 20$.

The median, not the mean: in chains that noise-free targets have thrown off, rare bursts of heat carry the mean.

None of 192 000 looks at healthy chains of one or two numbers, the hardest case, at 20 relaxation times, the earliest moment,
gave a false alarm.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import gammaincinv, ndtri

from isotherm.types import Traits

FIRST_LOOK = 64
"""Draws."""
RELAXATIONS = 20.0
"""Relaxation times that the later half of the draws must span."""
TOLERANCE = 0.25
FALSE_ALARM = 1e-6
"""Chance that one look warns of a healthy run, Bonferroni over chains and leaves."""
LIMIT = {"ABOBA": 2 * float(np.arccosh(1 + TOLERANCE)), "euler": 2 * TOLERANCE}
"""Damping per step that puts positions too far off."""
STANDSTILL = 20.0
"""Damping per step that leaves nothing of a momentum."""
FEWEST_BATCHES = 8
ENOUGH_NUMBERS = 32
"""Coordinates whose thermostats must agree about the gradient noise."""

HEATED = (
    "The steps are too long for the curvature of the target or the noise of its gradients: try a smaller "
    "`step_size`, a larger batch, or natural coordinates (`isotherm.warm_start`)."
)
BRAKED = (
    "A thermostat has seen too much heat, from steps that are too long or a start far from the mode, and brakes: try a "
    "smaller `step_size`, a warm start (`isotherm.warm_start`), a smaller `thermostat_mass` or a longer `burn_in`."
)


class Watch:
    """Looks at a run now and then, and warns at most once."""

    def __init__(self, traits: Traits, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.traits, self.sizes = traits, np.asarray(sizes)
        same = len(names) == len(sizes)  # otherwise the momentum lives in other coordinates
        self.names = names if same else [f"momentum {i}" for i in range(len(sizes))]
        self.next_look, self.warned, self.damped_before = FIRST_LOOK, False, False

    def is_due(self, num_draws: int, last: bool) -> bool:
        """Tell whether it is time for a look."""
        if self.warned or num_draws < FIRST_LOOK or not float(self.traits.temperature) > 0:
            return False
        due = last or num_draws >= self.next_look
        while self.next_look <= num_draws:
            self.next_look *= 2
        return due

    def look(self, temperatures: np.ndarray, step_size: float, thin: int, state: Any) -> str | None:
        """Give what there is to say about kinetic temperatures, (chain, draw, leaf), and a state; mostly nothing."""
        later = np.asarray(temperatures, np.float64)[:, temperatures.shape[1] // 2 :]
        relaxations = step_size * thin * later.shape[1] * _friction(state)
        with np.errstate(all="ignore"):  # numbers may be as wild as they like
            told = self._temperature(later, relaxations, step_size)
            damping = self._damping(step_size, state)
        if told is None and self.damped_before:  # once may be a thermostat on its way
            told = damping
        self.damped_before, self.warned = damping is not None, told is not None
        return told

    def _temperature(self, later: np.ndarray, relaxations: float, step_size: float) -> str | None:
        target = float(self.traits.temperature)
        later = later / target
        half = self.sizes / 2
        healthy, proof = gammaincinv(half, 0.5) / half, gammaincinv(half, 1e-9) / half
        found = frozen(later, proof)
        if found is None and relaxations >= RELAXATIONS:
            found = wrong_temperature(later, healthy)
        if found is None:
            return None
        chain, leaf = found
        median = np.median(later[chain, :, leaf])
        cold = median < healthy[leaf]
        return (
            f"The momentum of `{self.names[leaf]}` in chain {chain} is too {'cold' if cold else 'hot'}: its kinetic "
            f"temperature is {target * median:.3g} (median of the last {later.shape[1]} draws), in a healthy chain "
            f"{target * healthy[leaf]:.3g}, so that its draws are not the posterior. "
            f"{BRAKED if cold and self.traits.adaptive else HEATED} Step size: {step_size:.3g}. `run.summary()` has all temperatures."
        )

    def _damping(self, h: float, state: Any) -> str | None:
        """Look at what the thermostats of single coordinates have to damp away."""
        word = self.traits.integrator
        if self.traits.thermostat != "per_coordinate" or word not in ("ABOBA", "euler"):
            return None
        leaves = jax.tree.leaves(state.thermostat)
        doubt = -ndtri(FALSE_ALARM / (len(leaves) * len(leaves[0])))
        for name, leaf in zip(self.names, leaves, strict=True):
            damping = h * np.asarray(leaf, np.float64).reshape(len(leaf), -1)
            still = (damping > STANDSTILL).sum(1)
            if still.any():
                chain = int(np.argmax(still))
                return (
                    f"{still[chain]} of the {damping.shape[1]} numbers of `{name}` in chain {chain} stand still: their "
                    f"thermostats damp by up to h xi = {damping[chain].max():.2g} per step. {BRAKED} Step size: {h:.3g}."
                )
            error = damping.std(1) / np.sqrt(damping.shape[1])
            sure = damping.mean(1) - doubt * error
            chain = int(np.argmax(sure))
            if damping.shape[1] >= ENOUGH_NUMBERS and sure[chain] > LIMIT[word]:
                return self._noise(name, chain, h, float(damping[chain].mean()))
        return None

    def _noise(self, name: str, chain: int, h: float, u: float) -> str:
        euler = self.traits.integrator == "euler"
        ratio = u * (2 - u) / 4 if euler else np.sinh(u) / 2
        off = -u / 2 if euler else np.cosh(u / 2) - 1
        return (
            f"Gradient noise is too strong for the step size {h:.3g}: the thermostat of `{name}` in chain {chain} damps by "
            f"h xi = {u:.2g} per step (C = h^2 sigma^2/4T is {ratio:.2g}), which puts positions {100 * abs(off):.0f} % too "
            f"{'hot' if off > 0 else 'cold'}. Try a smaller `step_size`, a larger batch or control variates."
        )


def _friction(state: Any) -> float:
    """Give the smallest mean of a leaf of the thermostat: what relaxes last."""
    leaves = jax.tree.leaves(getattr(state, "thermostat", ()))
    means = [np.asarray(leaf, np.float64).reshape(len(leaf), -1).mean(1).min() for leaf in leaves]
    return float(min(means, default=0.0))


def frozen(later: np.ndarray, proof: np.ndarray) -> tuple[int, int] | None:
    """Find a chain and a leaf all of whose temperatures are so low that a single one is proof."""
    cold = np.argwhere((later < proof).all(1))
    return (int(cold[0, 0]), int(cold[0, 1])) if len(cold) else None


def wrong_temperature(later: np.ndarray, healthy: np.ndarray) -> tuple[int, int] | None:
    """Find a chain and a leaf whose temperatures are beyond doubt not healthy.

    Parameters
    ----------
    later
        Temperatures, (chain, draw, leaf), in units of the one asked for.
    healthy
        Median of each leaf's temperature in a healthy chain.
    """
    num_chains, n, num_leaves = later.shape
    doubt = -ndtri(FALSE_ALARM / (2 * num_chains * num_leaves))
    hot = (later > (1 + TOLERANCE) * healthy).mean(1)
    cold = (later < (1 - TOLERANCE) * healthy).mean(1)
    share = np.maximum(hot, cold)
    for chain, leaf in np.argwhere(share - doubt * 0.5 / np.sqrt(n) > 0.5):
        effective = _effective(later[chain, :, leaf])
        if share[chain, leaf] - doubt * 0.5 / np.sqrt(effective) > 0.5:
            return int(chain), int(leaf)
    return None


def _effective(series: np.ndarray) -> float:
    """Count independent draws in a series of ranks by the largest of its batch-mean variances, over all scales."""
    ranks = np.argsort(np.argsort(series, kind="stable")) - (len(series) - 1) / 2
    variance, scale = np.mean(ranks**2), 1
    longest = variance
    while len(series) >= FEWEST_BATCHES * scale:
        batches = ranks[: len(ranks) // scale * scale].reshape(-1, scale).mean(1)
        longest = max(longest, scale * np.mean(batches**2) * _autocorrelation_time(batches))
        scale *= 2
    return float(len(series) * variance / longest)


def _autocorrelation_time(x: np.ndarray) -> float:
    """Sum autocorrelations while pairs of them are positive; at least 1."""
    n = len(x)
    correlation = np.fft.irfft(np.abs(np.fft.rfft(x - x.mean(), 2 * n)) ** 2)[:n]
    pairs = correlation[0 : n - 1 : 2] + correlation[1:n:2]
    positive = int(np.argmax(pairs <= 0)) if np.any(pairs <= 0) else len(pairs)
    return max(1.0, 2 * pairs[:positive].sum() / max(correlation[0], 1e-300) - 1)

r"""Kinetic and configurational temperature of every tensor, with confidence bands.

*Kinetic*: momenta in equilibrium are $\mathcal N(0, T)$, so the mean $\overline{p^2}$ over the $d$
coordinates of a tensor has expectation $T$, and $d\,\overline{p^2}/T$ of one draw is $\chi^2_d$.

*Configurational*: let positions follow $\pi^{1/T}$ and let $g$ estimate $\nabla\log\pi$ without
bias. Since $\nabla\pi^{1/T} = \pi^{1/T}\,\nabla\log\pi/T$, integration by parts in the $d$
coordinates of one tensor gives, for *any* fixed centre $c$,

$$
\mathbb E\left[-\frac{(\theta - c)\cdot g}{d}\right]
= -\frac{T}{d}\int (\theta - c)\cdot\nabla\pi^{1/T}\,\mathrm d\theta
= \frac{T}{d}\int \pi^{1/T}\,\nabla\cdot(\theta - c)\,\mathrm d\theta = T.
$$

It needs no momentum and is the temperature of the positions: it also shows gradient noise that a
thermostat removes from the kinetic temperature. The best centre is the mean of the
target: on a Gaussian of precision $\Lambda$ and mean $m$ the variance of one draw is
$2T^2/d + T\,(m - c)^\top\Lambda\,(m - c)/d^2$, and gradient noise adds its own
$\mathbb E[(\theta - c)^\top\Sigma_g(\theta - c)]/d^2$.

*Bands*: an average over $n$ independent draws is distributed as $T\chi^2_{nd}/(nd)$; for correlated
draws $n$ is the effective sample size of the series. Bands are a health check, not a proof: the
kinetic temperature at the end of a step of a splitting integrator differs from $T$ by $O(h^2)$ even
in a correct run, and the band of a large tensor is narrower than that. `tolerance` widens the
bands.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaincinv

from isotherm.diagnostics.convergence import ess
from isotherm.tree import as_arrays
from isotherm.types import ArrayTree, Batch, GradFn


def kinetic_temperature(momentum: ArrayTree) -> jax.Array:
    r"""Return the mean of $p^2$ over each leaf, `(leaves,)`, in the order of `jax.tree.leaves`.

    Examples
    --------
    >>> kinetic_temperature({"b": jnp.array([2.0]), "w": jnp.array([1.0, -1.0])})
    Array([4., 1.], dtype=float32)
    """
    return _per_leaf(lambda p: jnp.mean(p * p), as_arrays("momentum", momentum))


def virial(position: ArrayTree, grads: ArrayTree) -> jax.Array:
    r"""Return the mean of $-\theta g$ over each leaf, `(leaves,)`, ordered as `jax.tree.leaves`.

    Parameters
    ----------
    position
        $\theta$, or $\theta - c$ for any centre $c$.
    grads
        An estimate of $+\nabla\log\pi$ at $\theta$.

    Examples
    --------
    >>> virial(jnp.array([1.0, -1.0]), jnp.array([-1.0, 1.0]))
    Array([1.], dtype=float32)
    """
    return _per_leaf(lambda x, g: -jnp.mean(x * g), position, grads)


def _per_leaf(average: Callable[..., jax.Array], *trees: ArrayTree) -> jax.Array:
    """Return one average per leaf, computed in at least single precision."""

    def widen(x: jax.Array) -> jax.Array:
        return jnp.asarray(x, jnp.promote_types(jnp.result_type(x), jnp.float32))

    averages = jax.tree.map(lambda *leaves: average(*map(widen, leaves)), *trees)
    return jnp.stack(jax.tree.leaves(averages))


def configurational_temperature(
    draws: ArrayTree, grad_fn: GradFn, batch: Batch, center: ArrayTree | None = None
) -> jax.Array:
    r"""Return the virial temperature of every draw; shape `(chain, draw, leaf)`.

    It computes one gradient per draw: all chains at once, and one draw after the other.

    Parameters
    ----------
    draws
        Positions with leading axes `(chain, draw)`.
    grad_fn
        `(position, batch) -> grads`, an estimate of $+\nabla\log\pi$.
    batch
        Passed to `grad_fn` at each draw. It must be independent of the draws: the full data, or a
        batch that was not used for sampling.
    center
        $c$, a tree like one position. By default the mean of all draws, which has a low variance
        and a bias of $-T$ divided by the effective sample size.

    Examples
    --------
    >>> draws = jax.random.normal(jax.random.key(0), (2, 500, 20))
    >>> temperature = configurational_temperature(draws, lambda x, batch: -x, batch=None)
    >>> temperature.shape, f"{temperature.mean():.1f}"
    ((2, 500, 1), '1.0')
    """
    draws = jax.tree.map(jnp.asarray, draws)
    if center is None:
        center = jax.tree.map(lambda x: jnp.mean(x, (0, 1)), draws)

    def one(position: ArrayTree) -> jax.Array:
        offset = jax.tree.map(jnp.subtract, position, center)
        return virial(offset, grad_fn(position, batch))

    by_draw = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), draws)
    return jnp.swapaxes(jax.lax.map(jax.vmap(one), by_draw), 0, 1)


def temperature_band(
    size: Any, num_draws: Any, temperature: float = 1.0, level: float = 0.99
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return bounds that contain the mean temperature of a correct run with probability `level`.

    Exact for the kinetic temperature of momenta that are $\mathcal N(0, T)$, and for the
    configurational temperature of a Gaussian about its mean.

    Parameters
    ----------
    size
        $d$: number of coordinates of the tensor; a number or an array.
    num_draws
        $n$: number of independent draws, or the effective sample size; broadcasts with `size`.
    temperature
        $T$.
    level
        Probability of a mean inside the band, with equal tails.

    Examples
    --------
    >>> low, high = temperature_band(size=10, num_draws=100)
    >>> print(f"{low:.3f} {high:.3f}")
    0.889 1.119
    """
    if not np.all(np.asarray(size) > 0):
        raise ValueError(f"`size` must be positive, got {size}.")
    if np.any(np.asarray(num_draws) <= 0):  # NaN, of a series that is not finite, gives NaN
        raise ValueError(f"`num_draws` must be positive, got {num_draws}.")
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature}.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, got {level}.")
    half = 0.5 * np.asarray(size, np.float64) * np.asarray(num_draws, np.float64)
    tail = 0.5 * (1 - level)
    low, high = (temperature * gammaincinv(half, q) / half for q in (tail, 1 - tail))
    return low, high


class TemperatureRow(NamedTuple):
    """Mean temperature of one tensor in one chain, and its band."""

    name: str
    chain: int
    mean: float
    low: float
    high: float
    ess: float
    """Effective sample size of the temperature series."""
    inside: bool
    """Whether `low <= mean <= high`; a series that is not finite is outside."""


def temperature_table(
    temperatures: Any,
    sizes: Sequence[int],
    temperature: float = 1.0,
    names: Sequence[str] | None = None,
    *,
    level: float = 0.99,
    tolerance: float = 0.0,
) -> list[TemperatureRow]:
    r"""Return one row per tensor and chain: mean temperature, its band, and whether it is inside.

    `level` holds for each row, so a share of `1 - level` of the rows of a correct run is outside.
    As the effective sample size is an estimate, the measured share at 0.99 is 1 % if it is above
    50, 2 % near 25 and 5 % at 7.

    Parameters
    ----------
    temperatures
        Kinetic (or configurational) temperatures, shape `(chain, draw, leaf)`.
    sizes
        Number of coordinates of each leaf.
    temperature
        $T$ of the sampler.
    names
        Names of the leaves; by default `leaf 0`, `leaf 1`, ….
    level
        Probability of each band.
    tolerance
        Relative error allowed in addition to the band, for the effect of the step size on momenta:
        0.01 widens a band around 1 by 0.01 on both sides.

    Examples
    --------
    >>> momenta = np.random.default_rng(0).normal(size=(1, 400, 50))
    >>> (row,) = temperature_table((momenta**2).mean(-1, keepdims=True), sizes=[50], names=["w"])
    >>> print(f"{row.name}: {row.low:.3f} < {row.mean:.3f} < {row.high:.3f}, {row.inside}")
    w: 0.976 < 0.992 < 1.025, True
    """
    series = np.asarray(temperatures, np.float64)
    if series.ndim != 3 or series.shape[-1] != len(sizes):
        raise ValueError(
            f"`temperatures` must have shape (chain, draw, {len(sizes)}), one column per entry of "
            f"`sizes`, got {series.shape}."
        )
    if names is None:
        names = [f"leaf {i}" for i in range(len(sizes))]
    if len(names) != len(sizes):
        raise ValueError(f"`names` must have {len(sizes)} entries, got {len(names)}.")
    if not tolerance >= 0:
        raise ValueError(f"`tolerance` must not be negative, got {tolerance}.")
    counts = ess(np.moveaxis(series, 0, 1)[None], kind="mean")  # one series per chain and leaf
    low, high = temperature_band(np.asarray(sizes), counts, temperature, level)
    low, high = low - tolerance * temperature, high + tolerance * temperature
    mean = series.mean(1)
    return [
        TemperatureRow(
            name,
            chain,
            *(float(x[chain, leaf]) for x in (mean, low, high, counts)),
            inside=bool(low[chain, leaf] <= mean[chain, leaf] <= high[chain, leaf]),
        )
        for leaf, name in enumerate(names)
        for chain in range(len(series))
    ]

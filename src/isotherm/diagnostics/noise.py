r"""Gradient noise, and the step size that it allows.

Let one coordinate of the gradient have variance $\sigma^2$ over batches, and let

$$ C = \frac{h^2\sigma^2}{4T}. $$

Damping must remove the energy that the noise adds: one step must leave $\mathbb E\,p^2 = T$
unchanged. Let $a$ be the factor by which a step damps the momentum, and let $h^2$ times the
curvature be small. If the momenta are at temperature $T$, the positions are at $T_\theta$: the
diffusion $\tfrac12 h^2 T\,\tfrac{1+a}{1-a}$ divided by the mobility, which is $\tfrac{h^2}{1-a}$
times the factor of $h\hat g$:

- Euler, $p' = ap + h\hat g$: $a^2 + 4C = 1$, possible for $C \le \tfrac14$ only;
  $T_\theta/T = \tfrac{1+a}2 \approx 1 - C$.
- ABOBA, $p' = ap + \sqrt a\,h\hat g$: $a^2 + 4aC = 1$, always possible;
  $T_\theta/T = \tfrac{1+a}{2\sqrt a} = \cosh(\tfrac12\operatorname{arsinh} 2C)
  \approx 1 + \tfrac12 C^2$.
- NOGIN, $p' = ap + \tfrac{1+a}2 h\hat g + \sqrt{bT}\,\mathcal N(0, 1)$:
  $b = (1 + a)\,[1 - a - (1 + a)\,C]$ is the noise that remains to be injected, and $T_\theta = T$.
  This requires $a \le \tfrac{1-C}{1+C}$, which is impossible for $C > 1$.

So above $C = 1$ every scheme fails: the exact one has no solution and ABOBA is 27 % too hot at
$C = 1$, 60 % at $C = 2$. At $C = \tfrac14$ ABOBA is 3 % too hot and Euler is at its limit. The
remedy is a smaller step or a larger batch.

**Lifetime of Euler.** Above $C = \tfrac14$ no friction keeps the momentum of Euler at $T$, so the
thermostat grows without limit: with $u = h\xi$ and $s = h^2\sigma^2 + 2DTh$ the momentum has
$p^2 = s/u(2 - u)$, and

$$ \frac{du}{dn} = \frac{h^2}{\mu}\Bigl(\frac{s}{u(2 - u)} - T\Bigr) $$

per step, until $u = 2$, where $1 - u$ no longer damps and the chain diverges. For $h\sigma \gg 1$
this takes $4\mu/3h^4\sigma^2$ steps (`euler_lifetime`). Such a chain has no largest stable step,
only a lifetime; ABOBA damps by $e^{-u}$ and has no such limit.

References
----------
Matthews & Weare (2018), *Langevin Markov chain Monte Carlo with stochastic gradients*: NOGIN.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.types import ArrayTree, Batch, GradFn, Key


def gradient_noise(
    key: Key,
    grad_fn: GradFn,
    position: ArrayTree,
    batch_fn: Callable[[Key], Batch],
    num_batches: int = 100,
) -> ArrayTree:
    r"""Return the variance $\sigma^2$ of each coordinate of the gradient at one position.

    It is computed by Welford's recursion, with two copies of the position in memory. The relative
    standard error of one coordinate is about $\sqrt{2/(\text{num\_batches} - 1)}$.

    Parameters
    ----------
    key
        For the batches.
    grad_fn
        `(position, batch) -> grads`.
    position
        Where to evaluate gradients; best near the mode, where the chain will be.
    batch_fn
        `key -> batch`, independent batches.
    num_batches
        Number of gradients, at least two.

    Examples
    --------
    >>> grad_fn = lambda position, noise: -position + 2 * noise
    >>> batch_fn = lambda key: jax.random.normal(key, (3,))
    >>> gradient_noise(jax.random.key(0), grad_fn, jnp.zeros(3), batch_fn, 10_000).round(1)
    Array([4., 4., 4.], dtype=float32)
    """
    if not num_batches >= 2:
        raise ValueError(f"`num_batches` must be at least 2, got {num_batches}.")

    def zeros(x: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32))

    def add(moments: tuple, count_and_key: tuple) -> tuple:
        (mean, squares), (count, batch_key) = moments, count_and_key
        grads = grad_fn(position, batch_fn(batch_key))
        new = jax.tree.map(lambda m, g: m + (g - m) / count, mean, grads)
        squares = jax.tree.map(lambda q, m, n, g: q + (g - m) * (g - n), squares, mean, new, grads)
        return (new, squares), None

    start = jax.tree.map(zeros, jax.eval_shape(lambda k: grad_fn(position, batch_fn(k)), key))
    counts_and_keys = jnp.arange(1.0, num_batches + 1), jax.random.split(key, num_batches)
    (_, squares), _ = jax.lax.scan(add, (start, start), counts_and_keys)
    return jax.tree.map(lambda q: q / (num_batches - 1), squares)


class NoiseRatio(NamedTuple):
    """$C$ of each leaf: maximum and mean over its coordinates, shapes `(leaves,)`."""

    max: jax.Array
    mean: jax.Array


def noise_ratio(
    step_size: float | jax.Array, variance: ArrayTree, *, temperature: float = 1.0
) -> NoiseRatio:
    r"""Return $C = h^2\sigma^2/4T$ of each leaf.

    Above 1 every scheme fails; below 0.1 the bias is negligible.

    Parameters
    ----------
    step_size
        $h$.
    variance
        $\sigma^2$, as returned by `gradient_noise`.
    temperature
        $T$.

    Examples
    --------
    >>> noise_ratio(0.1, jnp.array([100.0, 300.0]))
    NoiseRatio(max=Array([0.75], dtype=float32), mean=Array([0.5], dtype=float32))
    """
    if isinstance(step_size, int | float) and not step_size > 0:
        raise ValueError(f"`step_size` must be positive, got {step_size}.")
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature}.")
    leaves = [step_size**2 * v / (4 * temperature) for v in jax.tree.leaves(variance)]
    return NoiseRatio(jnp.stack([c.max() for c in leaves]), jnp.stack([c.mean() for c in leaves]))


def largest_step_size(
    variance: ArrayTree, ratio: float = 0.25, *, temperature: float = 1.0
) -> jax.Array:
    r"""Return the largest $h$ for which $C$ is at most `ratio`: $2\sqrt{CT/\max\sigma^2}$.

    This limit is due to gradient noise; curvature requires $h\sqrt{\lambda_{\max}} < 2$.

    Parameters
    ----------
    variance
        $\sigma^2$, as returned by `gradient_noise`; if it is zero the result is infinite.
    ratio
        Largest $C$.
    temperature
        $T$.

    Examples
    --------
    >>> largest_step_size({"w": jnp.array([25.0, 100.0])})
    Array(0.1, dtype=float32)
    """
    if not ratio > 0:
        raise ValueError(f"`ratio` must be positive, got {ratio}.")
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature}.")
    worst = jnp.max(jnp.stack([jnp.max(v) for v in jax.tree.leaves(variance)]))
    return 2 * jnp.sqrt(ratio * temperature / worst)


def euler_lifetime(
    step_size: Any,
    variance: Any,
    *,
    diffusion: float = 0.0,
    thermostat_mass: float = 1.0,
    temperature: float = 1.0,
) -> np.ndarray:
    r"""Return the number of steps until an Euler thermostat diverges because of gradient noise.

    It is the integral of the equation of the module from $u = hD$ to 2, infinite for $s \le T$.
    Curvature is not taken into account.

    Parameters
    ----------
    step_size
        $h$.
    variance
        $\sigma^2$ of the noisiest coordinate, which diverges first.
    diffusion, thermostat_mass, temperature
        $D$, also the initial thermostat; $\mu$; $T$.

    Examples
    --------
    >>> euler_lifetime(np.array([1e-4, 1e-3, 2e-3]), 1.1e7).round(-2)
    array([    inf, 130800.,   7700.])
    """
    h = np.asarray(step_size, np.float64)
    excess = (
        h**2 * np.asarray(variance, np.float64) + 2 * diffusion * temperature * h
    ) / temperature
    root = np.sqrt(np.where(excess > 1, excess - 1, np.nan))
    left = 1 - h * diffusion
    steps = excess / root * (np.arctan(1 / root) + np.arctan(left / root)) - (1 + left)
    return np.where(excess > 1, thermostat_mass / (temperature * h**2) * steps, np.inf)

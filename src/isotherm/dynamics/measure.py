r"""The local weak order of a sampler, measured on the code that samples.

`dynamics/order.py` proves the order of a *word*; this module measures what `langevin` makes of it.
From a fixed start $x = (\theta, p, \xi)$ one step of the real code gives an increment $\Delta$, and
the dynamics after a time $h$ another; their characteristic functions should agree to $O(h^{K+1})$,

$$ \varepsilon(h) = \Bigl| \mathbb E\,e^{ik\cdot\Delta}
   - \bigl(e^{h\mathcal L} e^{ik\cdot(\,\cdot\, - x)}\bigr)(x) \Bigr| . $$

The test function is bounded and smooth, as the definition of a $K$-th order integrator asks, and
unlike a polynomial it sees every moment of $\Delta$; $k$ has no special direction. There is no
Monte Carlo error on either side:

- *One step* is a function of one noise number per noisy letter and coordinate, averaged by
  Gauss–Hermite quadrature. The nodes go in through the sampler's own `noise`. With $n$ nodes the error
  is $O(h^n)$; three nodes with their weights *are* the three-point noise.
- *The dynamics* is $\sum_n h^n \mathcal L^n f/n!$. On $e^{ik\cdot\Delta}$ times polynomials in
  $\Delta$, $\mathcal L$ lowers the degree by at most two, so only few terms can ever come back to
  $\Delta = 0$, and the others are dropped.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import factorial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm.dynamics.integrators import Integrator
from isotherm.dynamics.langevin import LangevinState, langevin
from isotherm.types import ArrayTree

Poly = dict[tuple[int, ...], complex]
"""Coefficients by exponents, in the increments of positions, momenta and thermostat."""

_TERMS = 8
_DEGREE = 4


class Dynamics(NamedTuple):
    """What is integrated, apart from the integrator."""

    log_density: Callable[[ArrayTree], jax.Array]
    """A polynomial of degree four at most."""
    thermostat: str
    diffusion: float = 1.0
    mass: float = 1.0
    temperature: float = 1.0


class Start(NamedTuple):
    """From where the step is taken."""

    position: ArrayTree
    momentum: ArrayTree
    xi: ArrayTree


def local_error(
    integrator: Integrator,
    dynamics: Dynamics,
    start: Start,
    step_sizes: Sequence[float],
    *,
    num_nodes: int = 6,
) -> np.ndarray:
    r"""Measure $\varepsilon(h)$ of one step for several step sizes, in double precision.

    Parameters
    ----------
    integrator
        From `integrators.parse`, palindrome or not.
    dynamics, start
        What is integrated, and from where.
    step_sizes
        One error each.
    num_nodes
        Quadrature nodes per noise number: 3 is the three-point noise, 6 as good as Gaussian.
    """
    with jax.enable_x64(True):
        start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), start)
        wave = np.sin(1.0 + np.arange(ravel_pytree(start)[0].size))
        step = _after_one_step(integrator, dynamics, start, wave, step_sizes, num_nodes)
        return np.abs(step - _after_a_time(dynamics, start, wave, step_sizes))


def slope(step_sizes: Sequence[float], errors: np.ndarray) -> float:
    """Fit the exponent of a power law by least squares in logarithms."""
    return float(np.polyfit(np.log(step_sizes), np.log(errors), 1)[0])


def _after_one_step(
    integrator: Integrator, dynamics: Dynamics, start: Start, wave: np.ndarray,
    step_sizes: Sequence[float], num_nodes: int,
) -> np.ndarray:  # fmt: skip
    grad_fn = jax.grad(dynamics.log_density)
    flat_momentum, unravel = ravel_pytree(start.momentum)
    num_noisy = sum(letter in "NOE" for letter in integrator.letters)
    numbers, weights = _paths(num_noisy * flat_momentum.size, num_nodes)
    numbers = numbers.reshape(-1, num_noisy, flat_momentum.size)
    force = grad_fn(start.position) if integrator.carries_gradient else None
    state = LangevinState(*start, jnp.zeros((), jnp.int32), force)

    def observe(h: jax.Array, numbers: jax.Array) -> jax.Array:
        left = iter(numbers)  # `langevin` asks once per noisy letter, in the order of the word
        sampler = langevin(
            lambda position, batch: grad_fn(position),
            h,
            dynamics.diffusion,
            thermostat=dynamics.thermostat,
            thermostat_mass=dynamics.mass,
            integrator=integrator,
            temperature=dynamics.temperature,
            noise=lambda key, like: unravel(next(left)),
        )
        after, _ = sampler.step(jax.random.key(0), state, None)
        flat, _ = ravel_pytree(Start(after.position, after.momentum, after.thermostat))
        return jnp.exp(1j * (jnp.asarray(wave) @ (flat - ravel_pytree(start)[0])))

    step = jax.vmap(jax.vmap(observe, (None, 0)), (0, None))
    return np.asarray(step(jnp.asarray(step_sizes), jnp.asarray(numbers))) @ weights


def _paths(num_numbers: int, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Combine Gauss–Hermite nodes for independent normal numbers: one row and weight per path."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    picks = np.indices((num_nodes,) * num_numbers).reshape(num_numbers, -1).T
    return nodes[picks], (weights / weights.sum())[picks].prod(1)


def _after_a_time(
    dynamics: Dynamics, start: Start, wave: np.ndarray, step_sizes: Sequence[float]
) -> np.ndarray:
    r"""Sum $h^n \mathcal L^n f/n!$ at the start."""
    drift = _drift(dynamics, start)
    d = ravel_pytree(start.momentum)[0].size
    strength = dynamics.diffusion * dynamics.temperature
    origin = (0,) * len(wave)
    f: Poly = {origin: 1.0}
    total = np.ones(len(step_sizes), complex)
    for n in range(1, _TERMS + 1):
        room = 2 * (_TERMS - n)
        gradient = [_derivative(f, i, wave[i]) for i in range(len(wave))]
        terms = [_product(b, df, room) for b, df in zip(drift, gradient, strict=True)]
        for i in range(d, 2 * d):
            terms.append(_product({origin: strength}, _derivative(gradient[i], i, wave[i]), room))
        f = _sum(terms)
        total += np.asarray(step_sizes) ** n * f.get(origin, 0.0) / factorial(n)
    return total


def _drift(dynamics: Dynamics, start: Start) -> list[Poly]:
    """Expand the drift of positions, momenta and thermostat around the start."""
    momentum, _ = ravel_pytree(start.momentum)
    xi, _ = ravel_pytree(start.xi)
    d, size = momentum.size, 2 * momentum.size + xi.size
    one = (0,) * size

    def variable(i: int, value: float) -> Poly:
        return {one: float(value), tuple(int(j == i) for j in range(size)): 1.0}

    p = [variable(d + i, value) for i, value in enumerate(momentum)]
    x = [variable(2 * d + i, value) for i, value in enumerate(xi)]
    owners = _owners(dynamics.thermostat, start)
    drift = list(p)
    for i, force in enumerate(_force(dynamics.log_density, start.position, size)):
        drag = [_product(x[a], _product({one: -1.0}, p[j], 9), 9) for a, j in owners[i]]
        drift.append(_sum([force, *drag]))
    entries = [(a, i, j) for i in range(d) for a, j in owners[i]]
    for a in range(xi.size):
        mine = [(i, j) for b, i, j in entries if b == a]
        speed = 0.0 if dynamics.thermostat == "fixed" else 1 / (dynamics.mass * len(mine))
        excess = [
            _sum([_product(p[i], p[j], 9), {one: -dynamics.temperature * (i == j)}])
            for i, j in mine
        ]
        drift.append(_product({one: speed}, _sum(excess), 9))
    return drift

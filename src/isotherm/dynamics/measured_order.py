r"""The order of a sampler, measured on the code that samples: local errors and time averages.

`dynamics/order.py` proves the order of a *word*; this module measures the order of its
implementation in `langevin`. One step of the code from a fixed $x = (\theta, p, \xi)$ gives an
increment $\Delta$, and the dynamics after a time $h$ another. In a scheme of order $K$ their
characteristic functions differ by

$$ \varepsilon(h)
   = \bigl| \mathbb E\,e^{ik\cdot\Delta} - e^{-ik\cdot x}\,e^{h\mathcal L} e^{ik\cdot x} \bigr|
   = O(h^{K+1}) . $$

The test function is bounded and smooth, as the definition of order requires, and unlike a
polynomial it depends on every moment of $\Delta$. Neither side has Monte Carlo error:

- *One step* is a function of one noise number per noisy letter and coordinate, and these are
  integrated out by Gauss–Hermite quadrature: the nodes are passed to the sampler as its `noise`.
  The error of five nodes is $O(h^5)$; three nodes with their weights *are* the three-point noise.
- *The dynamics* is $\sum_{n \le 4} h^n \mathcal L^n/n!$, by the algebra of `dynamics/symbolic.py`.
  The remainder, $O(h^5)$, is far below $\varepsilon$ for $h \le 0.02$.

In the long run local errors add up to a bias $O(h^K)$ of stationary averages, which is measured by
Monte Carlo: `time_average` averages over one chain, and `power_law` fits the exponent.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.dynamics.integrators import Integrator
from isotherm.dynamics.langevin import LangevinState, langevin
from isotherm.dynamics.symbolic import Algebra, force_jets
from isotherm.types import ArrayTree, Key, Sampler

LogDensity = Callable[[jax.Array], jax.Array]

NODES = {"gaussian": 5, "three-point": 3}
"""Number of quadrature nodes that represent each noise."""

# Arbitrary values, so that no terms cancel by accident.
DIFFUSION, TEMPERATURE, MASS = 0.8, 0.9, 1.3
_MAX_ORDER = 3


def local_errors(
    integrators: Sequence[Integrator],
    thermostat: str,
    log_density: LogDensity,
    step_sizes: Sequence[float],
) -> np.ndarray:
    r"""Return $\varepsilon(h)$ of one step, computed in double precision.

    The state has two coordinates, or three in tensors of sizes two and one for `per_tensor`: the
    smallest numbers that distinguish the thermostats.

    Parameters
    ----------
    integrators
        From `isotherm.parse_integrator`, palindromes or not.
    thermostat
        A kind from `dynamics/thermostats.py`.
    log_density
        A function of the position as one vector.
    step_sizes
        For example from 0.001 to 0.02: below, rounding errors matter; above, the remainder of the
        reference.

    Returns
    -------
    np.ndarray
        Errors by integrator, noise (in the order of `NODES`) and step size.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from isotherm.dynamics.integrators import parse_integrator
    >>> words = [parse_integrator("euler"), parse_integrator("ABOBA")]
    >>> errors = local_errors(words, "scalar", lambda x: -jnp.prod(x) ** 2, [0.01, 0.005])
    >>> np.log2(errors[:, 0, 0] / errors[:, 0, 1]).round()
    array([2., 3.])
    """
    with jax.enable_x64(True):
        h = np.asarray(step_sizes)
        wave = _numbers(_flat(*_start(thermostat)).size, 4)
        after_time = _dynamics(thermostat, log_density, h, wave)
        steps = [_step(word, thermostat, log_density, h, wave) for word in integrators]
        return np.abs(np.array(steps) - after_time)


def time_average(
    key: Key,
    sampler: Sampler,
    position: ArrayTree,
    observe: Callable[[Any], ArrayTree],
    num_steps: int | jax.Array,
    burn_in: int | jax.Array = 0,
) -> ArrayTree:
    """Return the average of `observe(state)` over the steps of one chain after `burn_in` steps.

    To be mapped over chains with `jax.vmap` and compiled. The batch of every step is a new key.
    """
    noise_key, batch_key, start_key = (random.fold(key, i) for i in range(3))

    def advance(t: jax.Array, carry: tuple[Any, ArrayTree]) -> tuple[Any, ArrayTree]:
        state, total = carry
        state, _ = sampler.step(random.fold(noise_key, t), state, random.fold(batch_key, t))
        weight = jnp.where(t < burn_in, 0.0, 1.0)
        return state, jax.tree.map(lambda a, b: a + weight * b, total, observe(state))

    state = sampler.init(position, start_key)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(observe, state))
    _, total = jax.lax.fori_loop(0, burn_in + num_steps, advance, (state, zeros))
    return jax.tree.map(lambda x: x / num_steps, total)


def power_law(x: Any, y: Any, error: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Fit exponents of power laws by least squares in logarithms, along the last axis.

    Parameters
    ----------
    x, y
        Positive numbers that broadcast against each other.
    error
        Standard errors of `y`, for weighted least squares; without them all weights are equal.

    Returns
    -------
    tuple of np.ndarray
        The exponents and their standard errors (0 without `error`).

    Examples
    --------
    >>> exponent, _ = power_law([1.0, 2.0, 4.0], [3.0, 12.0, 48.0])
    >>> round(float(exponent), 12)
    2.0
    """
    x, y = np.broadcast_arrays(np.log(x), np.log(y))
    weight = np.ones_like(y) if error is None else (np.exp(y) / error) ** 2
    deviation = x - np.sum(weight * x, -1, keepdims=True) / np.sum(weight, -1, keepdims=True)
    spread = np.sum(weight * deviation**2, -1)
    exponent = np.sum(weight * deviation * y, -1) / spread
    return exponent, np.zeros_like(exponent) if error is None else spread**-0.5


def _numbers(size: int, seed: int) -> np.ndarray:
    return np.sin(1 + seed + 2 * np.arange(size))


def _start(thermostat: str) -> tuple[ArrayTree, ArrayTree, ArrayTree]:
    """Return a position, a momentum and a thermostat."""
    position, momentum = jnp.asarray(_numbers(3, 0)), jnp.asarray(_numbers(3, 2))
    if thermostat == "per_tensor":
        position, momentum = ({"a": x[:2], "b": x[2:]} for x in (position, momentum))
        return position, momentum, {"a": jnp.asarray(1.1), "b": jnp.asarray(0.7)}
    xi = {"per_coordinate": [1.1, 0.7], "full_matrix": [[1.1, 0.4], [0.4, 0.7]]}
    return position[:2], momentum[:2], jnp.asarray(xi.get(thermostat, 1.1))


def _flat(position: ArrayTree, momentum: ArrayTree, xi: ArrayTree) -> jax.Array:
    """Return a state as a vector in the order of the algebra; a matrix by its upper triangle."""
    if not isinstance(xi, dict) and xi.ndim == 2:
        xi = xi[np.triu_indices(len(xi))]
    return jnp.concatenate([ravel_pytree(part)[0] for part in (position, momentum, xi)])


def _step(
    word: Integrator, thermostat: str, log_density: LogDensity, h: np.ndarray, wave: np.ndarray
) -> np.ndarray:
    r"""Return $\mathbb E\,e^{ik\cdot\Delta}$ of a step of `langevin`, by noise and step size."""
    position, momentum, xi = start = _start(thermostat)
    flat, unravel = ravel_pytree(position)
    num_noisy = sum(letter in "NOE" for letter in word.letters)
    paths, weights = _paths(num_noisy * flat.size)

    def grad_fn(position: ArrayTree, batch: None) -> ArrayTree:
        del batch
        return unravel(jax.grad(log_density)(ravel_pytree(position)[0]))

    def observe(h: jax.Array, numbers: jax.Array) -> jax.Array:
        nodes = iter(numbers)  # `langevin` calls `noise` once per noisy letter, in order
        sampler = langevin(
            grad_fn,
            h,
            DIFFUSION,
            thermostat=thermostat,
            thermostat_mass=MASS,
            integrator=word,
            temperature=TEMPERATURE,
            noise=lambda key, like: unravel(next(nodes)),
        )
        force = grad_fn(position, None) if word.carries_gradient else None
        state = LangevinState(position, momentum, xi, jnp.zeros((), jnp.int32), force)
        after, _ = sampler.step(jax.random.key(0), state, None)
        increment = _flat(after.position, after.momentum, after.thermostat) - _flat(*start)
        return jnp.exp(1j * (jnp.asarray(wave) @ increment))

    observe_all = jax.jit(jax.vmap(jax.vmap(observe, (None, 0)), (0, None)))
    numbers = jnp.asarray(paths.reshape(-1, num_noisy, flat.size))
    return weights @ np.asarray(observe_all(jnp.asarray(h), numbers)).T


def _paths(num_numbers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all combinations of quadrature nodes, and their weights under each noise."""
    paths, weights = [], []
    for num_nodes in NODES.values():
        nodes, chances = np.polynomial.hermite_e.hermegauss(num_nodes)
        picks = np.indices((num_nodes,) * num_numbers).reshape(num_numbers, -1).T
        paths.append(nodes[picks])
        weights.append((chances / chances.sum())[picks].prod(1))
    blocks = [np.outer(row, w) for row, w in zip(np.eye(len(NODES)), weights, strict=True)]
    return np.concatenate(paths), np.concatenate(blocks, axis=1)


def _dynamics(
    thermostat: str, log_density: LogDensity, h: np.ndarray, wave: np.ndarray
) -> np.ndarray:
    r"""Return the symbol of $e^{h\mathcal L}$ at the initial state, for the wave vector $ik$."""
    position, momentum, xi = _start(thermostat)
    flat, _ = ravel_pytree(position)
    algebra = Algebra(thermostat, flat.size, _MAX_ORDER)
    values = {"sigma": (2 * DIFFUSION * TEMPERATURE) ** 0.5, "T": TEMPERATURE, "1/mu": 1 / MASS}
    values |= dict(zip(algebra.coordinates, _flat(position, momentum, xi).tolist(), strict=True))
    values |= {"k " + x: 1j * k for x, k in zip(algebra.coordinates, wave, strict=True)}
    values |= _derivatives(log_density, flat)

    symbol = algebra.semigroup()
    powers = np.array(symbol.monoms())
    factors = np.array([float(c) for c in symbol.coeffs()], complex)
    for column, name in zip(powers.T, algebra.variable, strict=True):
        factors *= values.get(name, 1.0) ** column
    return h[:, None] ** (powers[:, 0] / 2) @ factors  # the first variable is sqrt(h)


def _derivatives(log_density: LogDensity, position: jax.Array) -> dict[str, float]:
    """Return the derivatives of the log density, under their names in the algebra."""
    functions = [log_density]
    for _ in range(_MAX_ORDER + 1):
        functions.append(jax.jacfwd(functions[-1]))
    tensors = jax.jit(lambda x: [f(x) for f in functions])(position)
    jets = force_jets(position.size, _MAX_ORDER)
    return {name: float(tensors[len(index)][index]) for index, name in jets.items()}

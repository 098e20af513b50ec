r"""The posterior of a small network in double precision, as a target of `isotherm.references.hmc`.

It has many modes (hidden units can be permuted), and its typical set is far from all of them, so
the curvature at a mode gives no useful coordinates. Under the prior $\mathcal N(0, s^2)$ the
natural scale of every weight is $s$; trajectories of unit length on this scale need about a hundred
short steps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm.models.networks import Network
from isotherm.references.hmc import LogDensityTarget, pulled, pushed
from isotherm.types import ArrayTree


def network_target(network: Network, data: Any, position: ArrayTree) -> LogDensityTarget:
    """Return the posterior of a network given all data, over weights flattened by `ravel_pytree`.

    Parameters
    ----------
    network
        The network with its prior and likelihood.
    data
        Rows `(x, y)`.
    position
        Weights around which chains start.
    """
    with jax.enable_x64(True):
        data, position = jax.tree.map(_double, (data, position))
        start, unravel = ravel_pytree(position)

        def log_density(flat: jax.Array) -> jax.Array:
            weights = unravel(flat)
            return network.log_prior(weights) + network.log_likelihood(weights, data).sum()

        each = jax.vmap(jax.value_and_grad(log_density))
        compiled, leapfrog = jax.jit(each), jax.jit(partial(_leapfrog, each))

    def log_density_and_gradient(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _in_double(compiled, points)

    prior_precision = np.full(start.size, network.prior_sd**-2.0)
    return LogDensityTarget(
        np.asarray(start),
        prior_precision,
        log_density_and_gradient,
        partial(_in_double, leapfrog),
    )


def _double(leaf: Any) -> jax.Array:
    """Return an array in double precision; integers, such as labels, as they are."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _in_double(compiled: Callable, *arguments: Any) -> Any:
    """Call a compiled function in double precision; return NumPy arrays."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, compiled(*arguments))


def _leapfrog(
    each: Callable,
    position: jax.Array,
    momentum: jax.Array,
    gradient: jax.Array,
    basis: jax.Array,
    step_size: jax.Array,
    num_leapfrog: jax.Array,
) -> tuple[jax.Array, ...]:
    def step(_: int, carry: tuple) -> tuple:
        position, momentum, _, gradient = carry
        momentum = momentum + 0.5 * step_size * pulled(gradient, basis)
        position = position + step_size * pushed(momentum, basis)
        value, gradient = each(position)
        return position, momentum + 0.5 * step_size * pulled(gradient, basis), value, gradient

    start = position, momentum, jnp.zeros(len(position)), gradient
    return jax.lax.fori_loop(0, num_leapfrog, step, start)

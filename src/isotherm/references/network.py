r"""The posterior of a small network in double precision, as a target of `isotherm.references.hmc`.

It has many modes (hidden units can be permuted), and its typical set is far from all of them, so
the curvature at a mode gives no useful coordinates. Under the prior $\mathcal N(0, s^2)$ the
natural scale of every weight is $s$; trajectories of unit length on this scale need about a hundred
short steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm.models.networks import Network
from isotherm.references.hmc import LogDensityTarget
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
        data, position = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (data, position))
        start, unravel = ravel_pytree(position)

        def log_density(flat: jax.Array) -> jax.Array:
            weights = unravel(flat)
            return network.log_prior(weights) + network.log_likelihood(weights, data).sum()

        compiled = jax.jit(jax.vmap(jax.value_and_grad(log_density)))

    def log_density_and_gradient(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            value, gradient = compiled(jnp.asarray(points, jnp.float64))
            return np.asarray(value), np.asarray(gradient)

    prior_precision = np.eye(start.size) / network.prior_sd**2
    return LogDensityTarget(np.asarray(start), prior_precision, log_density_and_gradient)

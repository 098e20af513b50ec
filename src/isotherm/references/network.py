r"""A small network's posterior in double precision, for draws without bias (`models.hmc`).

Unlike a regression's it has many modes (hidden units can be swapped) and lies far from all of them, so no curvature at
a mode helps. Under a prior $\mathcal N(0, s^2)$ the natural unit of every weight is $s$; trajectories of unit
length in it take a hundred short steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm.models.networks import Network
from isotherm.references.hmc import Hill
from isotherm.types import ArrayTree


def network_hill(network: Network, data: Any, position: ArrayTree) -> Hill:
    """Describe the posterior of a network given all data; weights lie flat, as `ravel_pytree` lays them.

    Parameters
    ----------
    network
        Whose posterior.
    data
        Rows `(x, y)`.
    position
        Where chains start.
    """
    with jax.enable_x64(True):
        data, position = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (data, position))
        start, unravel = ravel_pytree(position)

        def log_density(flat: jax.Array) -> jax.Array:
            weights = unravel(flat)
            return network.log_prior(weights) + network.log_likelihood(weights, data).sum()

        compiled = jax.jit(jax.vmap(jax.value_and_grad(log_density)))

    def evaluate(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            height, slope = compiled(jnp.asarray(points, jnp.float64))
            return np.asarray(height), np.asarray(slope)

    curvature = np.eye(start.size) / network.prior_sd**2
    return Hill(np.asarray(start), curvature, evaluate)

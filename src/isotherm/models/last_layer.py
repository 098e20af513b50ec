"""The posterior of the last layer of a network, on features that are computed once.

Everything below the last layer is frozen, so the features of a row never change: `last_layer`
computes them once, and a step of a sampler costs what a step of a regression costs. The position,
its momenta and checkpoints have the size of the last layer.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from isotherm.models.networks import Layer, LikelihoodLike, Network, affine, build_network
from isotherm.models.priors import Prior


def last_layer(
    features: Callable[[Any], jax.Array],
    layer: tuple[Any, Any],
    x: Any,
    *,
    likelihood: LikelihoodLike = "categorical",
    prior: Prior | None = None,
    prior_sd: float = 1.0,
    noise_sd: float = 1.0,
    rows_per_block: int = 1000,
) -> tuple[Network, jax.Array]:
    r"""Return the network of the last layer, and the features of the rows `x`.

    Parameters
    ----------
    features
        The trained network without its last layer, `x -> (rows, features)`.
    layer
        Weights, (features, outputs), and bias, (outputs,), of the last layer: the start of chains.
    x
        Inputs of the training rows, an array or a pytree of arrays.
    likelihood, prior, prior_sd, noise_sd
        As in `build_network`.
    rows_per_block
        Rows whose features are computed at the same time.

    Returns
    -------
    `(network, cached)`. The inputs of `network` are features: sample with batches of `(cached, y)`,
    and predict new rows by `network.predict(position, features(x))`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> network, cached = last_layer(jnp.tanh, (jnp.ones((3, 2)), jnp.zeros(2)), jnp.ones((5, 3)))
    >>> cached.shape, network.predict(network.init(jax.random.key(0)), cached).shape
    ((5, 3), (5, 2))
    """
    start = Layer(*map(jnp.asarray, layer))
    num_rows = jax.tree.leaves(x)[0].shape[0]
    compute = jax.jit(features)
    blocks = [
        compute(jax.tree.map(lambda leaf, i=i: leaf[i : i + rows_per_block], x))
        for i in range(0, num_rows, rows_per_block)
    ]
    cached = jnp.concatenate(blocks)
    if cached.ndim != 2 or start.weights.shape != (cached.shape[1], start.bias.size):
        raise ValueError(
            "`layer` must be weights (features, outputs) and a bias (outputs,) for features of "
            f"shape {cached.shape}, got {start.weights.shape} and {start.bias.shape}."
        )
    network = build_network(
        affine,
        lambda key: start,
        likelihood=likelihood,
        prior=prior,
        prior_sd=prior_sd,
        noise_sd=noise_sd,
    )
    return network, cached

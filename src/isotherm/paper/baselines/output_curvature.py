r"""The curvature of a likelihood in the outputs of a network, and roots of it.

For outputs $f$ of a row, $\Lambda = \mathbb E_y[-\nabla_f^2\log p(y \mid f)]$:

| likelihood | $\Lambda$ | root $S$, $SS^\top = \Lambda$ |
| --- | --- | --- |
| softmax | $\operatorname{diag}(p) - pp^\top$ | $\operatorname{diag}(\sqrt p) - p\sqrt p^\top$ |
| Gaussian, $\sigma$ known or learned | $\sigma^{-2} I$ | $\sigma^{-1} I$ |
| Gaussian, two heads $(f, \log\sigma)$ | $\operatorname{diag}(\sigma^{-2}, 2)$ | its square root |

A learned $\sigma$ is one of the shared parameters, in the last columns of the outputs. It is fixed
at its mode: its column has neither curvature nor a place in $\Lambda$.
"""

from typing import Any

import jax
import jax.numpy as jnp

from isotherm.models.likelihoods import Categorical, Gaussian
from isotherm.models.networks import Network


def check_likelihood(network: Network) -> None:
    """Raise a `ValueError` unless the likelihood is in the table of the module."""
    if not isinstance(network.output_likelihood, Categorical | Gaussian):
        raise ValueError(
            "`network` must have a categorical or Gaussian likelihood, got "
            f"{type(network.output_likelihood).__name__}."
        )


def weighted_outputs(network: Network, outputs: jax.Array) -> jax.Array:
    """Return the outputs without the columns of shared parameters."""
    return outputs[..., : outputs.shape[-1] - network.output_likelihood.num_shared]


def root_times(network: Network, outputs: jax.Array, vectors: jax.Array) -> jax.Array:
    """Return the root of every row times a vector of that row, (rows, columns).

    `outputs` has all columns, `vectors` and the result those of `weighted_outputs`.
    """
    likelihood = network.output_likelihood
    if isinstance(likelihood, Gaussian):
        return vectors * jnp.sqrt(_precisions(likelihood, outputs))
    p = jax.nn.softmax(outputs)
    mixed = jnp.sqrt(p) * vectors
    return mixed - p * jnp.sum(mixed, axis=-1, keepdims=True)


def output_curvature(network: Network, outputs: jax.Array) -> jax.Array:
    r"""Return $\Lambda$ of every row, (row, output, output)."""
    likelihood = network.output_likelihood
    if isinstance(likelihood, Gaussian):
        return jax.vmap(jnp.diag)(_precisions(likelihood, outputs))
    p = jax.nn.softmax(outputs)
    return jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]


def _precisions(likelihood: Gaussian, outputs: jax.Array) -> jax.Array:
    r"""Return the diagonal of $\Lambda$ for a Gaussian likelihood."""
    if likelihood.noise_sd is None:
        log_sd = outputs[..., likelihood.num_targets :]
        return jnp.concatenate([jnp.exp(-2 * log_sd), jnp.full_like(log_sd, 2.0)], axis=-1)
    if likelihood.num_shared:
        return jnp.exp(-2 * outputs[..., likelihood.num_targets :])
    noise_sd: Any = likelihood.noise_sd
    return jnp.ones_like(outputs) / noise_sd**2

r"""Contrastive divergence for the weights of a deep Boltzmann machine.

The gradient of the log likelihood of a document is a difference of two expectations,
$\mathrm E[h^{(\ell)}h^{(\ell+1)\top}]$ given the document minus the same expectation under the
prior of the machine, and likewise with $h^{(\ell)}$ for the biases. The first is estimated from
layers that were swept with the documents. The second has no closed form. Contrastive divergence
estimates it from layers after $k$ Gibbs sweeps without tokens, layer 1 first, which start from the
layers of the documents:

$$ \hat g_{W^{(\ell)}} = \frac1M\sum_{m=1}^M
   \bigl(h^{(\ell)}_mh^{(\ell+1)\top}_m - \tilde h^{(\ell)}_m\tilde h^{(\ell+1)\top}_m\bigr),
   \qquad \tilde h_m \sim K^k(h_m, \cdot). $$

For finite $k$ it is not the gradient of any function; it tends to the gradient of the log
likelihood as $k \to \infty$. If the layers of the documents already have the law of the machine,
its mean is 0 for any $k$. The result is a point estimate, not a draw: an optimizer follows the
estimate, by default with learning rate 0.01, momentum 0.5 and weight decay 0.005 (not for biases).

References
----------
Hinton (2002), *Training products of experts by minimizing contrastive divergence*.
Salakhutdinov & Hinton (2009), *Deep Boltzmann machines*, AISTATS.
"""

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isotherm import random
from isotherm.topics.dpfa.belief_network import Network, NetworkHalfStep
from isotherm.topics.topic_updates import noise_key
from isotherm.types import Key


def _decay_mask(network: Network) -> Network:
    return Network(
        jax.tree.map(lambda _: True, network.weights), jax.tree.map(lambda _: False, network.biases)
    )


OPTIMISER = optax.chain(
    optax.add_decayed_weights(0.005, _decay_mask), optax.sgd(0.01, momentum=0.5)
)
"""The authors' settings for Wikipedia."""


class ContrastiveDivergenceState(NamedTuple):
    """Weights, state of the optimizer, and number of steps."""

    position: Network
    optimiser: Any
    step_index: Any


@dataclass(frozen=True)
class ContrastiveDivergence:
    """Update of the weights, used instead of `NetworkUpdate` of `belief_network`."""

    steps: int = 1
    """$k$, the number of Gibbs sweeps without tokens."""
    optimiser: optax.GradientTransformation = field(default=OPTIMISER)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"`divergence_steps` must be at least 1, got {self.steps}.")

    def init(self, network: Network) -> ContrastiveDivergenceState:
        """Return the initial state at these weights."""
        return ContrastiveDivergenceState(
            network, self.optimiser.init(network), np.zeros((), np.int32)
        )

    def begin_step(self, seed: int, state: ContrastiveDivergenceState) -> NetworkHalfStep:
        """Return the current weights: layers are drawn at the current state."""
        del seed
        return NetworkHalfStep(state, jax.tree.map(np.asarray, state.position))

    def finish_step(
        self, seed: int, half: NetworkHalfStep, units: tuple[np.ndarray, ...], data_size: float
    ) -> ContrastiveDivergenceState:
        """Take one optimizer step with layers (kept, documents, units)."""
        del data_size  # the gradient is a mean over documents
        flat = tuple(x.reshape(-1, x.shape[-1]) for x in units)
        return _finish_step(noise_key(seed, stream=3), half.state, flat, update=self)


def logits(network: Network, units: Any, layer: int) -> jax.Array:
    """Compute the logits of a layer given the neighbouring layers, (rows, units)."""
    total = network.biases[layer][None]
    if layer + 1 < len(units):
        total = total + units[layer + 1] @ network.weights[layer].T
    if layer > 0:
        total = total + units[layer - 1] @ network.weights[layer - 1]
    return jnp.broadcast_to(total, units[layer].shape)


def free_sweeps(
    key: Key, network: Network, units: tuple[jax.Array, ...], steps: int
) -> tuple[jax.Array, ...]:
    """Return layers (rows, units) after Gibbs sweeps without documents, layer 1 first."""

    def sweep(i: Any, units: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        now, layers = random.fold(key, i), list(units)
        for layer, h in enumerate(layers):
            uniform = (random.bits(now, h.shape, layer) >> 8).astype(jnp.float32) * 2.0**-24
            on = uniform < jax.nn.sigmoid(logits(network, layers, layer))
            layers[layer] = on.astype(jnp.float32)
        return tuple(layers)

    return jax.lax.fori_loop(0, steps, sweep, units)


def statistics(units: tuple[jax.Array, ...]) -> Network:
    """Average the products of neighbouring layers, and the layers, over rows."""
    rows = len(units[0])
    weights = tuple(a.T @ b / rows for a, b in pairwise(units))
    return Network(weights, tuple(h.mean(0) for h in units))


def contrastive_divergence(
    key: Key, network: Network, units: tuple[Any, ...], steps: int
) -> Network:
    """Estimate the gradient of the mean log likelihood of a document."""
    data = tuple(jnp.asarray(h, jnp.float32) for h in units)
    free = free_sweeps(key, network, data, steps)
    return jax.tree.map(jnp.subtract, statistics(data), statistics(free))


@partial(jax.jit, static_argnames="update")
def _finish_step(
    key: Key, state: ContrastiveDivergenceState, units: tuple[Any, ...], *, update: Any
):
    key = random.fold(key, state.step_index)
    grads = contrastive_divergence(key, state.position, units, update.steps)
    updates, optimiser = update.optimiser.update(
        jax.tree.map(jnp.negative, grads), state.optimiser, state.position
    )
    position: Any = optax.apply_updates(state.position, updates)
    return ContrastiveDivergenceState(position, optimiser, state.step_index + 1)

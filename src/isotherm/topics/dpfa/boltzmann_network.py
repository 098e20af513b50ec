r"""How the weights of a deep Boltzmann machine move: contrastive divergence.

The gradient of the log likelihood of a document is a difference of two means, $\mathrm E[h^{(\ell)}h^{(\ell+1)\top}]$ given the document less the same of the machine by
itself, and likewise $h^{(\ell)}$ for the biases. The first is taken over layers that were swept with the documents. The second has
no closed form. Contrastive divergence takes it over layers that start where the first ended and make $k$ Gibbs sweeps without tokens, layer 1 first:

$$ \hat g_{W^{(\ell)}} = \frac1M\sum_{m=1}^M\bigl(h^{(\ell)}_mh^{(\ell+1)\top}_m - \tilde h^{(\ell)}_m\tilde h^{(\ell+1)\top}_m\bigr),
   \qquad \tilde h_m \sim K^k(h_m, \cdot). $$

It is not the gradient of anything for finite $k$ and tends to the right one as $k \to \infty$. Where the layers of documents already follow the machine it is 0 on average, for any $k$.
This gives a point, no draw: an optimiser follows it, by default with rate 0.01, momentum 0.5 and weight decay 0.005 (not of biases).

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
from isotherm.topics.dpfa.belief_network import Network, Opened
from isotherm.topics.topic_updates import noise_key
from isotherm.types import Key


def _only_weights(network: Network) -> Network:
    return Network(
        jax.tree.map(lambda _: True, network.weights), jax.tree.map(lambda _: False, network.biases)
    )


OPTIMISER = optax.chain(
    optax.add_decayed_weights(0.005, _only_weights), optax.sgd(0.01, momentum=0.5)
)
"""The authors' settings for Wikipedia."""


class DivergenceState(NamedTuple):
    """Weights, the optimiser's memory, and how many steps they have had."""

    position: Network
    optimiser: Any
    step_index: Any


@dataclass(frozen=True)
class ContrastiveDivergence:
    """A move of the weights, in the place of `isotherm.topics.dpfa.belief_network.NetworkMove`."""

    steps: int = 1
    """$k$."""
    optimiser: optax.GradientTransformation = field(default=OPTIMISER)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"`divergence_steps` must be at least 1, got {self.steps}.")

    def start(self, network: Network) -> DivergenceState:
        """Start at these weights."""
        return DivergenceState(network, self.optimiser.init(network), np.zeros((), np.int32))

    def open(self, seed: int, state: DivergenceState) -> Opened:
        """Sweep where the weights stand."""
        del seed
        return Opened(state, jax.tree.map(np.asarray, state.position))

    def close(
        self, seed: int, opened: Opened, units: tuple[np.ndarray, ...], data_size: float
    ) -> DivergenceState:
        """Take layers (kept, documents, units) and go one step."""
        del data_size  # a rate per document
        flat = tuple(x.reshape(-1, x.shape[-1]) for x in units)
        return _close(noise_key(seed, stream=3), opened.inside, flat, move=self)


def logits(network: Network, units: Any, layer: int) -> jax.Array:
    """Compute the logits of a layer given its neighbours, (rows, units)."""
    found = network.biases[layer][None]
    if layer + 1 < len(units):
        found = found + units[layer + 1] @ network.weights[layer].T
    if layer > 0:
        found = found + units[layer - 1] @ network.weights[layer - 1]
    return jnp.broadcast_to(found, units[layer].shape)


def free_sweeps(
    key: Key, network: Network, units: tuple[jax.Array, ...], steps: int
) -> tuple[jax.Array, ...]:
    """Sweep layers (rows, units) without documents, layer 1 first."""

    def again(i: Any, units: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        now, layers = random.fold(key, i), list(units)
        for layer, h in enumerate(layers):
            uniform = (random.bits(now, h.shape, layer) >> 8).astype(jnp.float32) * 2.0**-24
            on = uniform < jax.nn.sigmoid(logits(network, layers, layer))
            layers[layer] = on.astype(jnp.float32)
        return tuple(layers)

    return jax.lax.fori_loop(0, steps, again, units)


def statistics(units: tuple[jax.Array, ...]) -> Network:
    """Average products of neighbouring layers, and layers, over rows."""
    rows = len(units[0])
    weights = tuple(a.T @ b / rows for a, b in pairwise(units))
    return Network(weights, tuple(h.mean(0) for h in units))


def divergence(key: Key, network: Network, units: tuple[Any, ...], steps: int) -> Network:
    """Estimate the gradient of the mean log likelihood of a document."""
    data = tuple(jnp.asarray(h, jnp.float32) for h in units)
    free = free_sweeps(key, network, data, steps)
    return jax.tree.map(jnp.subtract, statistics(data), statistics(free))


@partial(jax.jit, static_argnames="move")
def _close(key: Key, state: DivergenceState, units: tuple[Any, ...], *, move: Any):
    key, downhill = random.fold(key, state.step_index), jnp.negative
    grads = divergence(key, state.position, units, move.steps)
    updates, memory = move.optimiser.update(
        jax.tree.map(downhill, grads), state.optimiser, state.position
    )
    position = optax.apply_updates(state.position, updates)
    return DivergenceState(position, memory, state.step_index + 1)  # type: ignore[arg-type]

r"""How the weights of the binary layers move, by any sampler of the core.

Position: $W^{(\ell)}, c^{(\ell)}$ of all layers, with standard normal priors. Given binary layers $h$ of a batch $S$, kept in $M$ sweeps,

$$ \hat g_{W^{(\ell)}} = \frac{J}{|S|M}\sum_{j \in S}\sum_{m=1}^M
   \bigl(h^{(\ell)}_{jm} - \sigma(\psi^{(\ell)}_{jm})\bigr)\,h^{(\ell+1)\top}_{jm} - W^{(\ell)}, \qquad
   \psi^{(\ell)} = W^{(\ell)}h^{(\ell+1)} + c^{(\ell)}, $$

and likewise for $c$ with 1 in the place of $h^{(\ell+1)}$: the gradient of the log posterior of $J$ documents (Fisher's identity). The layers are
drawn where the sampler wants the gradient. With `inner_steps` above 1 the sampler goes on with the same layers, but with a fresh gradient at every step.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.topics.topic_updates import noise_key
from isotherm.types import Key, Sampler


class Network(NamedTuple):
    """Weights and biases of all layers, as `isotherm.topics.dpfa.model.Parameters` has them."""

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]


class Opened(NamedTuple):
    """A step that waits for binary layers."""

    inside: Any
    network: Network
    """Where they are wanted, in NumPy."""


@dataclass(frozen=True)
class NetworkMove:
    """A sampler of the core on weights and biases. Its own `grad_fn` is not used and may be `None`."""

    sampler: Sampler
    layers: tuple[int, ...]
    inner_steps: int = 1
    start_scale: float = 0.1

    def __post_init__(self) -> None:
        if self.sampler.halves is None:
            raise ValueError(
                f"{self.sampler.traits.name} with integrator {self.sampler.traits.integrator!r} does "
                "not have exactly one gradient per step, but a batch is swept once."
            )
        if self.inner_steps < 1:
            raise ValueError(f"`inner_steps` must be at least 1, got {self.inner_steps}.")

    def start(self, seed: int) -> Any:
        """Draw small weights; biases are zero."""
        key = random.fold(jax.random.key(seed), 4)
        shapes = zip(self.layers[:-1], self.layers[1:], strict=True)
        zeros = tuple(jnp.zeros(shape) for shape in shapes)
        noise = random.gaussian(random.fold(key, 1), zeros)
        weights = jax.tree.map(lambda x: self.start_scale * x, noise)
        biases = tuple(jnp.zeros(size) for size in self.layers)
        return self.sampler.init(Network(weights, biases), random.fold(key, 2))

    def open(self, seed: int, state: Any) -> Opened:
        """Go to where the gradient is wanted."""
        inside = _open(noise_key(seed, stream=3), state, move=self)
        return Opened(inside, jax.tree.map(np.asarray, inside.position))

    def close(
        self, seed: int, opened: Opened, units: tuple[np.ndarray, ...], data_size: float
    ) -> Any:
        """Take layers (kept, documents, units) and finish the step, and inner steps after it."""
        flat = tuple(x.reshape(-1, x.shape[-1]) for x in units)
        scale = np.float32(data_size / len(flat[0]))
        return _close(noise_key(seed, stream=3), opened.inside, flat, scale, move=self)


def gradient(network: Network, units: tuple[Any, ...], scale: Any) -> Network:
    """Compute the gradient of the log posterior from layers (rows, units); rows count `scale` times."""
    weights, biases = [], []
    h = [jnp.asarray(x, jnp.float32) for x in units]
    for layer, c in enumerate(network.biases):
        logits = jnp.broadcast_to(c[None], h[layer].shape)
        if layer < len(network.weights):
            w = network.weights[layer]
            logits = h[layer + 1] @ w.T + c[None]
            error = h[layer] - jax.nn.sigmoid(logits)
            weights.append(scale * error.T @ h[layer + 1] - w)
        error = h[layer] - jax.nn.sigmoid(logits)
        biases.append(scale * error.sum(0) - c)
    return Network(tuple(weights), tuple(biases))


@partial(jax.jit, static_argnames="move")
def _open(key: Key, state: Any, *, move: NetworkMove):
    return move.sampler.halves.open(random.fold(key, state.step_index), state)  # type: ignore[union-attr]


@partial(jax.jit, static_argnames="move")
def _close(key: Key, inside: Any, units: tuple[Any, ...], scale: Any, *, move: NetworkMove):
    halves = move.sampler.halves
    assert halves is not None

    def finish(inside: Any) -> Any:
        grads = gradient(inside.position, units, scale)
        return halves.close(random.fold(key, inside.step_index), inside, grads)[0]

    def again(_: Any, state: Any) -> Any:
        return finish(halves.open(random.fold(key, state.step_index), state))

    return jax.lax.fori_loop(1, move.inner_steps, again, finish(inside))

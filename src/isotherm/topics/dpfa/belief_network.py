r"""Updates of the weights of a sigmoid belief network, by any sampler of the core.

The position is $W^{(\ell)}, c^{(\ell)}$ of all layers, with standard normal priors. Given binary
layers $h$ of a batch $S$, kept in $M$ sweeps,

$$ \hat g_{W^{(\ell)}} = \frac{J}{|S|M}\sum_{j \in S}\sum_{m=1}^M
   \bigl(h^{(\ell)}_{jm} - \sigma(\psi^{(\ell)}_{jm})\bigr)\,h^{(\ell+1)\top}_{jm} - W^{(\ell)},
   \qquad \psi^{(\ell)} = W^{(\ell)}h^{(\ell+1)} + c^{(\ell)}, $$

and likewise for $c$ with 1 instead of $h^{(\ell+1)}$: the gradient of the log posterior of $J$
documents (Fisher's identity). The layers are drawn at the position where the sampler evaluates its
gradient. With `inner_steps` above 1 the sampler takes more steps with the same layers, each with a
new gradient.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.topics.topic_updates import halves_of, noise_key, require_one_gradient
from isotherm.types import Key, Sampler


class Network(NamedTuple):
    """Weights and biases of all layers, as in `isotherm.topics.dpfa.model.Parameters`."""

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]


class NetworkHalfStep(NamedTuple):
    """A step that needs binary layers of a batch to be finished."""

    state: Any
    """What `finish_step` continues with."""
    network: Network
    """Weights and biases at which to draw the layers, in NumPy."""


@dataclass(frozen=True)
class NetworkUpdate:
    """A sampler of the core for weights and biases. Its own `grad_fn` is not used."""

    sampler: Sampler
    layers: tuple[int, ...]
    inner_steps: int = 1
    init_scale: float = 0.1

    def __post_init__(self) -> None:
        require_one_gradient(self.sampler)
        if self.inner_steps < 1:
            raise ValueError(f"`inner_steps` must be at least 1, got {self.inner_steps}.")

    def init(self, seed: int) -> Any:
        """Return the initial state: small random weights, zero biases."""
        key = random.fold(jax.random.key(seed), 4)
        shapes = zip(self.layers[:-1], self.layers[1:], strict=True)
        zeros = tuple(jnp.zeros(shape) for shape in shapes)
        noise = random.gaussian(random.fold(key, 1), zeros)
        weights = jax.tree.map(lambda x: self.init_scale * x, noise)
        biases = tuple(jnp.zeros(size) for size in self.layers)
        return self.sampler.init(Network(weights, biases), random.fold(key, 2))

    def begin_step(self, seed: int, state: Any) -> NetworkHalfStep:
        """Advance to the position at which the gradient is needed."""
        inside = _begin_step(noise_key(seed, stream=3), state, update=self)
        return NetworkHalfStep(inside, jax.tree.map(np.asarray, inside.position))

    def finish_step(
        self, seed: int, half: NetworkHalfStep, units: tuple[np.ndarray, ...], data_size: float
    ) -> Any:
        """Finish the step with layers (kept, documents, units), and take the inner steps."""
        flat = tuple(x.reshape(-1, x.shape[-1]) for x in units)
        scale = np.float32(data_size / len(flat[0]))
        return _finish_step(noise_key(seed, stream=3), half.state, flat, scale, update=self)


def gradient(network: Network, units: tuple[Any, ...], scale: Any) -> Network:
    """Compute the gradient of the log posterior; each row of `units` has weight `scale`."""
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


@partial(jax.jit, static_argnames="update")
def _begin_step(key: Key, state: Any, *, update: NetworkUpdate):
    return halves_of(update.sampler).open(random.fold(key, state.step_index), state)


@partial(jax.jit, static_argnames="update")
def _finish_step(
    key: Key, inside: Any, units: tuple[Any, ...], scale: Any, *, update: NetworkUpdate
):
    halves = halves_of(update.sampler)

    def finish(inside: Any) -> Any:
        grads = gradient(inside.position, units, scale)
        return halves.close(random.fold(key, inside.step_index), inside, grads)[0]

    def full_step(_: Any, state: Any) -> Any:
        return finish(halves.open(random.fold(key, state.step_index), state))

    return jax.lax.fori_loop(1, update.inner_steps, full_step, finish(inside))

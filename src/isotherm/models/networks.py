r"""Networks as plain pytrees, with a prior over their weights and a likelihood on top.

$$ f(x, \theta) = W_L^\top g(\cdots g(W_1^\top x + b_1) \cdots) + b_L, \qquad
   \theta \sim \mathcal N(0, s^2) \text{ for every weight and bias.} $$

`likelihood="categorical"` takes $f$ for the logits of classes 0, 1, …; `"gaussian"` for the mean of
$y \sim \mathcal N(f, \sigma^2)$. Nothing here is needed to sample a network made elsewhere
(`isotherm.interop`): a sampler only wants `log_likelihood` and `log_prior` of some pytree.

    network = mlp((784, 100, 100, 10))
    grad_fn = network.gradient(data_size=60_000)
    sampler = isotherm.msgnht(grad_fn, step_size=1e-4, diffusion=5.0)
    run = isotherm.sample(key, sampler, network.init(start_key), batches, ...)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.gradients.minibatch import MinibatchGradient, minibatch_gradient
from isotherm.models.convolution import convolve, max_pool
from isotherm.types import ArrayTree, Key

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


class Layer(NamedTuple):
    """An affine map or a convolution."""

    weights: jax.Array
    """(in, out), or (row, column, channel in, channel out)."""
    bias: jax.Array
    """(out,)."""


@dataclass(frozen=True)
class Network:
    """A function with weights, a prior over them, and what its outputs mean."""

    apply: Callable[[ArrayTree, jax.Array], jax.Array]
    """`(position, x) -> outputs`, one row per row of `x`."""
    init: Callable[[Key], ArrayTree]
    """Draw weights to start from."""
    likelihood: str = "categorical"
    prior_sd: float = 1.0
    """$s$."""
    noise_sd: float = 1.0
    r"""$\sigma$, for a Gaussian likelihood."""

    def log_prior(self, position: ArrayTree) -> jax.Array:
        r"""Evaluate $\log\mathcal N(\theta; 0, s^2)$ up to its constant."""
        squares = [jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(position)]
        return -0.5 / self.prior_sd**2 * jnp.sum(jnp.stack(squares))

    def log_likelihood(self, position: ArrayTree, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        r"""Evaluate $\log p(y \mid x, \theta)$ of each row of `(x, y)`."""
        x, y = batch
        outputs = self.apply(position, x)
        if self.likelihood == "categorical":
            return categorical_log_likelihood(outputs, y)
        residual = (y.reshape(outputs.shape) - outputs) / self.noise_sd
        constant = jnp.log(2 * jnp.pi * self.noise_sd**2)
        return -0.5 * jnp.sum(residual**2 + constant, axis=-1)

    def predict(self, position: ArrayTree, x: jax.Array) -> jax.Array:
        """Give the probability of each class, or the mean of $y$."""
        outputs = self.apply(position, x)
        return jax.nn.softmax(outputs) if self.likelihood == "categorical" else outputs

    def gradient(self, data_size: int) -> MinibatchGradient:
        """Build the minibatch gradient of the log posterior of `data_size` rows."""
        return minibatch_gradient(self.log_likelihood, self.log_prior, data_size)


def categorical_log_likelihood(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Evaluate the log probability of the label of each row."""
    scores = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(scores, labels.astype(jnp.int32)[:, None], axis=1)[:, 0]


def mlp(
    sizes: Sequence[int],
    *,
    activation: str = "relu",
    likelihood: str = "categorical",
    prior_sd: float = 1.0,
    noise_sd: float = 1.0,
) -> Network:
    r"""Build a feed-forward network.

    Weights start at $\mathcal N(0, 2/n_{in})$ for ReLU (He et al. 2015) and
    $\mathcal N(0, 2/(n_{in} + n_{out}))$ otherwise (Glorot & Bengio 2010), biases at zero.

    Parameters
    ----------
    sizes
        Numbers of inputs, of hidden units layer by layer, and of outputs.
    activation
        `"relu"`, `"sigmoid"` or `"tanh"`.
    likelihood
        `"categorical"` or `"gaussian"`.
    prior_sd
        $s$, of every weight and bias.
    noise_sd
        $\sigma$ of a Gaussian likelihood.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> network = mlp((4, 8, 3))
    >>> weights = network.init(jax.random.key(0))
    >>> network.predict(weights, jnp.ones((5, 4))).shape
    (5, 3)
    """
    sizes = tuple(int(size) for size in sizes)
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"`sizes` must be at least two positive numbers, got {sizes}.")
    act = _activation(activation)

    def apply(position: Sequence[Layer], x: jax.Array) -> jax.Array:
        *hidden, last = position
        for weights, bias in hidden:
            x = act(x @ weights + bias[None])
        return x @ last.weights + last.bias[None]

    def init(key: Key) -> tuple[Layer, ...]:
        shapes = pairwise(sizes)
        return tuple(
            _layer(random.fold(key, i), shape, activation) for i, shape in enumerate(shapes)
        )

    return Network(apply, init, _likelihood(likelihood), prior_sd, noise_sd)


def lenet(
    side: int = 28,
    channels: Sequence[int] = (32, 64),
    hidden: Sequence[int] = (200, 200),
    num_classes: int = 10,
    *,
    activation: str = "relu",
    prior_sd: float = 1.0,
) -> Network:
    """Build the paper's convolutional network, for flat rows of `side * side` pixels.

    Two layers of 5 x 5 convolutions, each followed by the activation and by pooling, then dense
    layers.

    Parameters
    ----------
    side
        Rows and columns of an image, of which 4 go at each convolution and half at each pooling.
    channels
        Of the two convolutions.
    hidden
        Units of the dense layers.
    num_classes
        How many outputs.
    activation
        `"relu"`, `"sigmoid"` or `"tanh"`.
    prior_sd
        $s$, of every weight and bias.
    """
    act = _activation(activation)
    first, second = channels
    inner = (side - 4) / 2
    outer = (inner - 4) / 2
    if not (outer >= 1 and outer == int(outer)):
        raise ValueError(
            f"`side` must be 4 k + 12 for pooling to come out even, got {side}; 28 does."
        )
    dense = (int(outer) ** 2 * second, *hidden, num_classes)
    shapes = [(5, 5, 1, first), (5, 5, first, second), *pairwise(dense)]

    def apply(position: Sequence[Layer], x: jax.Array) -> jax.Array:
        x = x.reshape(-1, side, side, 1)
        for weights, bias in position[:2]:
            # The largest of the activations is the activation of the largest, on a quarter.
            x = act(max_pool(convolve(x, weights)) + bias[None, None, None])
        x = x.reshape(x.shape[0], -1)
        for weights, bias in position[2:-1]:
            x = act(x @ weights + bias[None])
        return x @ position[-1].weights + position[-1].bias[None]

    def init(key: Key) -> tuple[Layer, ...]:
        return tuple(
            _layer(random.fold(key, i), shape, activation) for i, shape in enumerate(shapes)
        )

    return Network(apply, init, "categorical", prior_sd)


def _layer(key: Key, shape: tuple[int, ...], activation: str) -> Layer:
    *window, fan_in, fan_out = shape
    for size in window:
        fan_in, fan_out = fan_in * size, fan_out * size
    variance = 2 / fan_in if activation == "relu" else 2 / (fan_in + fan_out)
    weights = random.gaussian(key, jnp.zeros(shape)) * variance**0.5
    return Layer(weights, jnp.zeros(shape[-1]))


def _activation(name: str) -> Callable[[jax.Array], jax.Array]:
    if name not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {tuple(ACTIVATIONS)}, got {name!r}.")
    return ACTIVATIONS[name]


def _likelihood(name: str) -> str:
    allowed = ("categorical", "gaussian")
    if name not in allowed:
        raise ValueError(f"`likelihood` must be one of {allowed}, got {name!r}.")
    return name

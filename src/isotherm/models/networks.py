r"""Feed-forward and convolutional networks as pytrees, with a prior and a likelihood.

$$ f(x, \theta) = W_L^\top g(\cdots g(W_1^\top x + b_1) \cdots) + b_L, \qquad
   \theta \sim \mathcal N(0, s^2) \text{ for every weight and bias.} $$

With `likelihood="categorical"` the outputs $f$ are the logits of classes 0, 1, …; with `"gaussian"`
they are the mean of $y \sim \mathcal N(f, \sigma^2)$. A network of another library
(`isotherm.interop`) does not need this module: a sampler needs only `log_likelihood` and
`log_prior` of a pytree.

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
from isotherm.models.logistic import categorical_log_likelihood
from isotherm.types import ArrayTree, Key

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


class Layer(NamedTuple):
    """Weights and bias of an affine map or a convolution."""

    weights: jax.Array
    """(in, out), or (row, column, channel in, channel out)."""
    bias: jax.Array
    """(out,)."""


@dataclass(frozen=True)
class Network:
    """A network with a prior over its weights and a likelihood of its outputs."""

    apply: Callable[[ArrayTree, jax.Array], jax.Array]
    """`(position, x) -> outputs`, one row per row of `x`."""
    init: Callable[[Key], ArrayTree]
    """Return random initial weights."""
    likelihood: str = "categorical"
    prior_sd: float = 1.0
    """$s$."""
    noise_sd: float = 1.0
    r"""$\sigma$, for a Gaussian likelihood."""

    def log_prior(self, position: ArrayTree) -> jax.Array:
        r"""Return $\log\mathcal N(\theta; 0, s^2)$ up to a constant."""
        squares = [jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(position)]
        return -0.5 / self.prior_sd**2 * jnp.sum(jnp.stack(squares))

    def log_likelihood(self, position: ArrayTree, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        r"""Return $\log p(y \mid x, \theta)$ of each row of `(x, y)`."""
        x, y = batch
        outputs = self.apply(position, x)
        if self.likelihood == "categorical":
            return categorical_log_likelihood(outputs, y)
        residual = (y.reshape(outputs.shape) - outputs) / self.noise_sd
        constant = jnp.log(2 * jnp.pi * self.noise_sd**2)
        return -0.5 * jnp.sum(residual**2 + constant, axis=-1)

    def predict(self, position: ArrayTree, x: jax.Array) -> jax.Array:
        """Return the probability of each class, or the mean of $y$."""
        outputs = self.apply(position, x)
        return jax.nn.softmax(outputs) if self.likelihood == "categorical" else outputs

    def gradient(self, data_size: int) -> MinibatchGradient:
        """Build the minibatch gradient of the log posterior of `data_size` rows."""
        return minibatch_gradient(self.log_likelihood, self.log_prior, data_size)


def affine(layer: Layer, x: jax.Array) -> jax.Array:
    """Return the outputs of a dense layer for each row of `x`."""
    return x @ layer.weights + layer.bias[None]


def feed_forward(
    layers: Sequence[Layer],
    x: jax.Array,
    activation: Callable[[jax.Array], jax.Array],
    affine: Callable[[Layer, jax.Array], jax.Array] = affine,
) -> jax.Array:
    """Return the outputs of a feed-forward network.

    Parameters
    ----------
    layers
        Dense layers, the output layer last.
    x
        (rows, inputs).
    activation
        Applied after every layer but the last.
    affine
        `(layer, x) -> outputs` of one layer, for weights that are stored in other units.
    """
    *hidden, last = layers
    for layer in hidden:
        x = activation(affine(layer, x))
    return affine(last, x)


def mlp(
    sizes: Sequence[int],
    *,
    activation: str = "relu",
    likelihood: str = "categorical",
    prior_sd: float = 1.0,
    noise_sd: float = 1.0,
) -> Network:
    r"""Build a feed-forward network.

    `init` draws weights from $\mathcal N(0, 2/n_{in})$ for ReLU (He et al. 2015) and
    $\mathcal N(0, 2/(n_{in} + n_{out}))$ otherwise (Glorot & Bengio 2010); biases are zero.

    Parameters
    ----------
    sizes
        Number of inputs, of units of each hidden layer, and of outputs.
    activation
        `"relu"`, `"sigmoid"` or `"tanh"`.
    likelihood
        `"categorical"` or `"gaussian"`.
    prior_sd
        $s$, the prior standard deviation of every weight and bias.
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
        return feed_forward(position, x, act)

    def init(key: Key) -> tuple[Layer, ...]:
        return _initial_layers(key, list(pairwise(sizes)), activation)

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
    """Build the paper's convolutional network, for rows of `side * side` pixels.

    Two 5 x 5 convolutions, each followed by the activation and 2 x 2 max pooling, then dense
    layers.

    Parameters
    ----------
    side
        Number of rows and columns of an image: a convolution removes 4, pooling halves the rest.
    channels
        Number of channels of the two convolutions.
    hidden
        Number of units of each hidden dense layer.
    num_classes
        Number of outputs.
    activation
        `"relu"`, `"sigmoid"` or `"tanh"`.
    prior_sd
        $s$, the prior standard deviation of every weight and bias.
    """
    act = _activation(activation)
    first, second = channels
    inner = (side - 4) / 2
    outer = (inner - 4) / 2
    if not (outer >= 1 and outer == int(outer)):
        raise ValueError(
            f"`side` must be 4 k + 12 for some k >= 1 (28, for example), so that pooling divides "
            f"evenly; got {side}."
        )
    dense = (int(outer) ** 2 * second, *hidden, num_classes)
    shapes = [(5, 5, 1, first), (5, 5, first, second), *pairwise(dense)]

    def apply(position: Sequence[Layer], x: jax.Array) -> jax.Array:
        x = x.reshape(-1, side, side, 1)
        for weights, bias in position[:2]:
            # Activations are increasing: pooling first is the same, on a quarter of the pixels.
            x = act(max_pool(convolve(x, weights)) + bias[None, None, None])
        return feed_forward(position[2:], x.reshape(x.shape[0], -1), act)

    def init(key: Key) -> tuple[Layer, ...]:
        return _initial_layers(key, shapes, activation)

    return Network(apply, init, "categorical", prior_sd)


def _initial_layers(
    key: Key, shapes: Sequence[tuple[int, ...]], activation: str
) -> tuple[Layer, ...]:
    return tuple(
        _initial_layer(random.fold(key, i), shape, activation) for i, shape in enumerate(shapes)
    )


def _initial_layer(key: Key, shape: tuple[int, ...], activation: str) -> Layer:
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

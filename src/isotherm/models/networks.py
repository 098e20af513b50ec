r"""Feed-forward and convolutional networks as pytrees, with a prior and a likelihood.

$$ f(x, \theta) = W_L^\top g(\cdots g(W_1^\top x + b_1) \cdots) + b_L, \qquad
   \theta \sim \mathcal N(0, s^2) \text{ for every weight and bias.} $$

With `likelihood="categorical"` the outputs $f$ are the logits of classes 0, 1, …; with `"gaussian"`
they are the mean of $y \sim \mathcal N(f, \sigma^2)$. `isotherm.models.likelihoods` has others, and
`isotherm.models.priors` other priors; `build_network` combines them with any function of weights
and inputs. A sampler does not need this module: it needs only `log_likelihood` and `log_prior` of a
pytree.

    network = mlp((784, 100, 100, 10))
    grad_fn = network.gradient(data_size=60_000)
    sampler = isotherm.msgnht(grad_fn, step_size=1e-4, diffusion=5.0)
    run = isotherm.sample(key, sampler, network.init(start_key), batches, ...)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.diagnostics.mixtures import Mixture
from isotherm.diagnostics.predictions import joined_draws
from isotherm.gradients.minibatch import MinibatchGradient, minibatch_gradient
from isotherm.models.convolution import convolve, max_pool
from isotherm.models.likelihoods import Gaussian, Likelihood, as_likelihood
from isotherm.models.priors import NormalPrior, Prior
from isotherm.tree import is_traced
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


LikelihoodLike = str | Likelihood | Callable[[jax.Array, jax.Array], jax.Array]
"""A likelihood by name, as an object, or as a function `(outputs, y) -> (rows,)`."""


@dataclass(frozen=True)
class Network:
    """A network with a prior over its weights and a likelihood of its outputs."""

    apply: Callable[[ArrayTree, jax.Array], jax.Array]
    """`(position, x) -> outputs`, one row per row of `x`."""
    init: Callable[[Key], ArrayTree]
    """Return random initial weights."""
    likelihood: LikelihoodLike = "categorical"
    """A name, an object or a function (`isotherm.models.likelihoods`)."""
    prior_sd: float = 1.0
    """$s$, if there is no `prior`."""
    noise_sd: float = 1.0
    r"""$\sigma$, for `"gaussian"`; other likelihoods have it themselves."""
    prior: Prior | None = None
    r"""A prior of positions instead of $\mathcal N(0, s^2)$; `build_network` sets it."""

    def __post_init__(self) -> None:
        likelihood = self.output_likelihood
        if self.likelihood != "gaussian" and _is_not_one(self.noise_sd):
            raise ValueError(
                "`noise_sd` is for the likelihood 'gaussian' only, got "
                f"{type(likelihood).__name__}. Give it to the likelihood, as in "
                "`isotherm.models.Gaussian(0.5)`."
            )
        if self.prior is not None and _is_not_one(self.prior_sd):
            raise ValueError("`prior_sd` must not be given together with `prior`.")

    @property
    def output_likelihood(self) -> Likelihood:
        """The likelihood as an object."""
        if self.likelihood == "gaussian":
            return Gaussian(self.noise_sd)
        return as_likelihood(self.likelihood)

    def log_prior(self, position: ArrayTree) -> jax.Array:
        r"""Return the log prior density; without a `prior`, up to a constant."""
        if self.prior is not None:
            return self.prior.log_prior(position)
        squares = [jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(position)]
        return -0.5 / self.prior_sd**2 * jnp.sum(jnp.stack(squares))

    def sample_prior(self, key: Key) -> ArrayTree:
        """Draw a position from the prior."""
        prior = NormalPrior(self.prior_sd, None) if self.prior is None else self.prior
        return prior.sample(key, jax.eval_shape(self.init, key))

    def log_likelihood(self, position: ArrayTree, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        r"""Return $\log p(y \mid x, \theta)$ of each row of `(x, y)`."""
        x, y = batch
        return self.output_likelihood.log_likelihood(self.apply(position, x), y)

    def predict(self, position: ArrayTree, x: jax.Array) -> jax.Array:
        """Return the probability of each class, or the mean of $y$."""
        return self.output_likelihood.predict(self.apply(position, x))

    def predictive(self, draws: ArrayTree, x: Any, *, draws_per_block: int = 16) -> Mixture:
        """Return the predictive distribution of real targets: a mixture over draws.

        It has log densities, quantiles, intervals, samples and the CRPS of each row.

        Parameters
        ----------
        draws
            `run.draws`, with leading axes `(chain, draw)`.
        x
            Inputs.
        draws_per_block
            Draws whose outputs are computed at the same time.
        """

        def outputs(flat: ArrayTree) -> jax.Array:
            return jax.lax.map(lambda w: self.apply(w, x), flat, batch_size=draws_per_block)

        return self.output_likelihood.predictive(jax.jit(outputs)(joined_draws(draws)))

    def gradient(self, data_size: int) -> MinibatchGradient:
        """Build the minibatch gradient of the log posterior of `data_size` rows."""
        return minibatch_gradient(self.log_likelihood, self.log_prior, data_size)


def build_network(
    apply: Callable[[ArrayTree, jax.Array], jax.Array],
    init: Callable[[Key], ArrayTree],
    *,
    likelihood: LikelihoodLike = "categorical",
    prior: Prior | None = None,
    prior_sd: float = 1.0,
    noise_sd: float = 1.0,
) -> Network:
    r"""Combine a network of any library with a likelihood and a prior.

    The position of the result is that of the prior: the weights themselves, or
    `{"weights": …, "log_scales": …}` if scales are learned. If the likelihood has shared parameters
    (a learned noise, cutpoints) it is `{"network": …, "shared": …}` with that inside.

    Parameters
    ----------
    apply
        `(weights, x) -> outputs`, (rows, columns): with the columns that the likelihood needs.
    init
        Return random initial weights, or those of a trained network.
    likelihood
        A name, an object or a function (`isotherm.models.likelihoods`).
    prior
        A prior of the weights (`isotherm.models.priors`); by default $\mathcal N(0, s^2)$.
    prior_sd
        $s$, without a `prior`.
    noise_sd
        $\sigma$ of the likelihood `"gaussian"`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from isotherm.models import Gaussian, HalfCauchy, LearnedScales
    >>> network = build_network(
    ...     lambda w, x: x @ w, lambda key: jnp.ones((3, 1)),
    ...     likelihood=Gaussian(HalfCauchy(1.0)), prior=LearnedScales(),
    ... )
    >>> position = network.init(jax.random.key(0))
    >>> sorted(position), network.apply(position, jnp.ones((2, 3))).round(4).tolist()
    (['network', 'shared'], [[3.0, 0.0], [3.0, 0.0]])
    """
    plain = Network(apply, init, likelihood, prior_sd, noise_sd, prior)
    model = plain.output_likelihood
    if not model.num_shared and prior is None:
        return plain
    weight_prior = NormalPrior(prior_sd, None) if prior is None else prior
    if not model.num_shared:

        def outputs(position: ArrayTree, x: jax.Array) -> jax.Array:
            return apply(weight_prior.weights(position), x)

        return replace(plain, apply=outputs, init=lambda key: weight_prior.position(init(key)))
    joint = SharedParametersPrior(weight_prior, model)

    def with_shared(position: ArrayTree, x: jax.Array) -> jax.Array:
        columns = apply(joint.weights(position), x)
        shared = position["shared"].astype(columns.dtype)[None]
        shared = jnp.broadcast_to(shared, (columns.shape[0], model.num_shared))
        return jnp.concatenate([columns, shared], axis=1)

    return Network(with_shared, lambda key: joint.position(init(key)), likelihood, prior=joint)


@dataclass(frozen=True, eq=False)
class SharedParametersPrior:
    """The prior of weights, and that of the shared parameters of a likelihood."""

    network: Prior
    likelihood: Likelihood

    def log_prior(self, position: ArrayTree) -> jax.Array:
        """Return the joint log density."""
        shared = self.likelihood.shared_log_prior(position["shared"])
        return self.network.log_prior(position["network"]) + shared

    def sample(self, key: Key, like: ArrayTree) -> ArrayTree:
        """Draw a position with the structure, shapes and dtypes of `like`."""
        network = self.network.sample(random.fold(key, 0), like["network"])
        shared = self.likelihood.sample_shared(random.fold(key, 1)).astype(like["shared"].dtype)
        return {"network": network, "shared": shared}

    def weights(self, position: ArrayTree) -> ArrayTree:
        """Return the weights of the network at a position."""
        return self.network.weights(position["network"])

    def position(self, weights: ArrayTree) -> ArrayTree:
        """Return a position that has these weights."""
        return {
            "network": self.network.position(weights),
            "shared": self.likelihood.shared_start(),
        }


def _is_not_one(value: Any) -> bool:
    """Return whether a setting differs from its default; a traced one does."""
    return is_traced(value) or value != 1.0


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
    likelihood: LikelihoodLike = "categorical",
    prior_sd: float = 1.0,
    noise_sd: float = 1.0,
    prior: Prior | None = None,
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
        A name, an object or a function (`isotherm.models.likelihoods`): `"categorical"`,
        `"gaussian"`, `Gaussian(HalfCauchy(1.0))`, …
    prior_sd
        $s$, the prior standard deviation of every weight and bias.
    noise_sd
        $\sigma$ of the likelihood `"gaussian"`.
    prior
        Another prior (`isotherm.models.priors`) instead of `prior_sd`.

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

    network = build_network(
        apply, init, likelihood=likelihood, prior=prior, prior_sd=prior_sd, noise_sd=noise_sd
    )
    needed = network.output_likelihood.num_outputs
    if needed not in (None, sizes[-1]):
        raise ValueError(f"`sizes` must end with {needed} outputs, got {sizes}.")
    return network


def lenet(
    side: int = 28,
    channels: Sequence[int] = (32, 64),
    hidden: Sequence[int] = (200, 200),
    num_classes: int = 10,
    *,
    activation: str = "relu",
    likelihood: LikelihoodLike = "categorical",
    prior_sd: float = 1.0,
    prior: Prior | None = None,
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
    likelihood, prior_sd, prior
        As in `mlp`.
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

    return build_network(apply, init, likelihood=likelihood, prior=prior, prior_sd=prior_sd)


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

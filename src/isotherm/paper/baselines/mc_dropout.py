r"""Dropout, at training and at prediction.

$$ \theta = M \odot \text{mask}/k, \qquad \text{row } j \text{ of a weight matrix is kept with
   probability } k = 1 - r \text{ and zero otherwise} $$

To drop an input of a layer is to zero its row of the weight matrix (for a convolution: a channel), so
a draw is a position, and the draws form a distribution $q_M(\theta)$ that training moves. Its loss is
$-\tfrac1N\mathbb E_q[\log p(\theta, \text{data})]$, estimated with fresh masks at every step: up to the entropy
of $q$, which hardly depends on $M$, the variational bound of Gal & Ghahramani, whose $L_2$ penalty
$k\lVert M/k\rVert^2$ is the mean of the Gaussian log prior over masks. Biases are kept. The spread of $q$
follows from $r$ and is not learned: it does not shrink with more data.

For a linear model with squared loss the answer is known: ridge regression with the penalty
$\tfrac rk\sum_i x_{ij}^2$ on coefficient $j$, which the tests check.

References
----------
Gal & Ghahramani (2016), *Dropout as a Bayesian approximation: representing model uncertainty in deep
learning*, ICML. Their $p$ is our $k$. Wager, Wang & Liang (2013), *Dropout training as adaptive
regularization*, NIPS: the linear case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isotherm import random
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.models.networks import Layer
from isotherm.paper.baselines.training import (
    Training,
    check_num_draws,
    check_training,
    momentum_optimizer,
    train,
)
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, ScalarOrSchedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dropout:
    """Weights whose rows come and go, with the interface of draws."""

    position: ArrayTree
    """$M$."""
    losses: jax.Array
    """The loss at every step."""
    rates: tuple[float, ...] = field(metadata={"static": True})
    """$r$ of every layer's inputs."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions with masked rows, with leading axes `(1, num_draws)`."""
        check_num_draws(num_draws)
        return _sample(key, self.position, self.rates, num_draws)


@partial(jax.jit, static_argnames=["rates", "num_draws"])
def _sample(key: Key, position: ArrayTree, rates: tuple[float, ...], num_draws: int) -> ArrayTree:
    keys = jax.vmap(lambda i: random.fold(key, i))(jnp.arange(num_draws))
    draws = jax.vmap(lambda k: masked(k, position, rates))(keys)
    return jax.tree.map(lambda leaf: leaf[None], draws)


def mc_dropout(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_steps: int,
    rates: float | Sequence[float] = 0.2,
    masks_per_batch: int = 10,
    step_size: ScalarOrSchedule = 0.03,
    momentum: float = 0.9,
    optimizer: optax.GradientTransformation | None = None,
    progress: bool | None = None,
) -> Dropout:
    r"""Train a network with dropout, to predict with dropout.

    Parameters
    ----------
    key
        For batches and masks.
    grad_fn
        `network.gradient(data_size)`.
    position
        Where to start: `network.init(key)` of an `mlp` or a `lenet`, or any tree of
        `isotherm.models.networks.Layer`.
    batches
        The data, usually `isotherm.shuffled_batches((x, y), 100)`.
    num_steps
        How many updates.
    rates
        $r$, the chance that an input of a layer is dropped: one number for all layers but the
        first, whose inputs are the data and are kept, or one number per layer.
    masks_per_batch
        How many masks share a batch, each with an equal part of its rows, so it must divide the
        batch size. 1 is cheapest and noisiest (large steps then diverge or stall); the batch size
        is one mask per row, as dropout layers do it, and several times the price.
    step_size, momentum, optimizer, progress
        As in `isotherm.paper.baselines.sgd.sgd`.

    Raises
    ------
    FloatingPointError
        If the descent diverged.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> from isotherm.models.networks import mlp
    >>> x, y = jnp.eye(6), jnp.arange(6) % 2
    >>> network, key = mlp((6, 20, 2)), jax.random.key(0)
    >>> fit = mc_dropout(key, network.gradient(6), network.init(key), isotherm.full_batch((x, y)),
    ...                  num_steps=50, masks_per_batch=2)
    >>> fit.sample(key, num_draws=7)[1].weights.shape
    (1, 7, 20, 2)
    """
    check_training(grad_fn, batches, num_steps)
    if not masks_per_batch >= 1:
        raise ValueError(f"`masks_per_batch` must be at least 1, got {masks_per_batch}.")
    position = as_position(position)
    each = _rates(position, rates)

    def loss(key: Key, position: ArrayTree, batch: Batch) -> jax.Array:
        def part(key: Key, rows: Batch) -> jax.Array:
            return grad_fn.log_density(masked(key, position, each), rows)

        if masks_per_batch == 1:
            return -part(key, batch) / grad_fn.data_size
        keys = jax.vmap(lambda i: random.fold(key, i))(jnp.arange(masks_per_batch))
        return -jnp.mean(jax.vmap(part)(keys, _dealt(batch, masks_per_batch))) / grad_fn.data_size

    training = Training("MC dropout", loss, momentum_optimizer(step_size, momentum, optimizer))
    position, losses = train(key, training, position, batches, num_steps, progress)
    return Dropout(position, losses, each)


def masked(key: Key, position: ArrayTree, rates: Sequence[float]) -> ArrayTree:
    """Drop inputs of layers: zero rows of their weights, and scale up the others."""
    layers, structure = jax.tree.flatten(position, is_leaf=_is_layer)
    drawn = [
        layer if rate == 0 else _drop(random.fold(key, i), layer, rate)
        for i, (layer, rate) in enumerate(zip(layers, rates, strict=True))
    ]
    return jax.tree.unflatten(structure, drawn)


def _drop(key: Key, layer: Layer, rate: float) -> Layer:
    inputs = layer.weights.shape[-2]
    kept = random.bits(key, (inputs, 1)) >= np.uint32(round(rate * 2**32))
    factor = jnp.where(kept, 1 / (1 - rate), 0).astype(layer.weights.dtype)
    shape = (1,) * (layer.weights.ndim - 2) + (inputs, 1)
    return Layer(layer.weights * factor.reshape(shape), layer.bias)


def _is_layer(node: object) -> bool:
    return isinstance(node, Layer)


def _dealt(batch: Batch, parts: int) -> Batch:
    """Cut the rows of a batch into equal parts."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    if rows % parts:
        raise ValueError(f"`masks_per_batch` must divide the {rows} rows of a batch, got {parts}.")
    return jax.tree.map(lambda leaf: leaf.reshape(parts, rows // parts, *leaf.shape[1:]), batch)


def _rates(position: ArrayTree, rates: float | Sequence[float]) -> tuple[float, ...]:
    """Give every layer its rate; refuse what is not made of layers."""
    layers = jax.tree.leaves(position, is_leaf=_is_layer)
    if not all(map(_is_layer, layers)):
        raise ValueError(
            "`position` must be made of `isotherm.models.networks.Layer`, as that of an mlp is: "
            "dropout has to know which axis of a weight matrix is that of the inputs."
        )
    if isinstance(rates, int | float):
        each = (0.0,) + (float(rates),) * (len(layers) - 1)
    else:
        each = tuple(float(rate) for rate in rates)
    if len(each) != len(layers):
        raise ValueError(
            f"`rates` must be one number or one per layer, so {len(layers)}, got {len(each)}."
        )
    if not all(0 <= rate < 1 for rate in each):
        raise ValueError(f"`rates` must be at least 0 and below 1, got {rates}.")
    return each

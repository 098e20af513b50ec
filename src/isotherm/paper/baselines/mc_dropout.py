r"""Dropout, at training and at prediction.

$$ \theta = M \odot \text{mask}/k, \qquad \text{row } j \text{ of a weight matrix is kept with
   probability } k = 1 - r \text{ and zero otherwise} $$

Dropping an input of a layer is setting its row of the weight matrix to zero (for a convolution: its
channel). So a draw is a position, and the draws have a distribution $q_M(\theta)$. Training
minimizes $-\tfrac1N\mathbb E_q[\log p(\theta, \text{data})]$, estimated with new masks at every
step. Up to the entropy of $q$, which hardly depends on $M$, this is the variational bound of Gal &
Ghahramani: their $L_2$ penalty $k\lVert M/k\rVert^2$ is the mean of the Gaussian log prior over
masks. Biases and a learned noise are never dropped. The spread of $q$ follows from $r$ and is not
learned: it does not shrink with more data.

For a linear model with squared loss the result is ridge regression with the penalty
$\tfrac rk\sum_i x_{ij}^2$ on coefficient $j$, which the tests check.

References
----------
Gal & Ghahramani (2016), *Dropout as a Bayesian approximation: representing model uncertainty in
deep learning*, ICML. Their $p$ is our $k$. Wager, Wang & Liang (2013), *Dropout training as
adaptive regularization*, NIPS: the linear case.
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
from isotherm.paper.baselines.gaussian import check_count
from isotherm.paper.baselines.training import (
    Training,
    check_training,
    momentum_optimizer,
    train,
)
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, ScalarOrSchedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dropout:
    """Weights, and the rates at which their rows are dropped; `sample` draws masked weights."""

    position: ArrayTree
    """$M$."""
    losses: jax.Array
    """The loss at every step."""
    rates: tuple[float, ...] = field(metadata={"static": True})
    """$r$ of every layer's inputs."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions with masked rows, with leading axes `(1, num_draws)`."""
        check_count("num_draws", num_draws)
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
    r"""Train a network with dropout; draws of the fit have dropped units too.

    Parameters
    ----------
    key
        For batches and masks.
    grad_fn
        `network.gradient(data_size)`.
    position
        Where to start: `network.init(key)` of an `mlp` or a `lenet`, or any tree with
        `isotherm.models.networks.Layer` in it.
    batches
        The data, usually `isotherm.shuffled_batches((x, y), 100)`.
    num_steps
        Number of updates.
    rates
        $r$, the probability that an input of a layer is dropped: one number for all layers but the
        first, whose inputs are the data and are kept, or one number per layer.
    masks_per_batch
        Number of masks per batch. Each is used for an equal part of the rows, so it must divide
        the batch size. 1 is cheapest and noisiest (large steps then diverge or stall); the batch
        size means one mask per row, as in dropout layers, and costs several times as much.
    step_size, momentum, optimizer, progress
        As in `isotherm.paper.baselines.sgd.sgd`.

    Raises
    ------
    FloatingPointError
        If a loss or a parameter is not finite.

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
    check_count("masks_per_batch", masks_per_batch)
    position = as_position(position)
    layer_rates = _layer_rates(position, rates)
    loss = _Loss(grad_fn, layer_rates, masks_per_batch)
    training = Training("MC dropout", loss, momentum_optimizer(step_size, momentum, optimizer))
    position, losses = train(key, training, position, batches, num_steps, progress)
    return Dropout(position, losses, layer_rates)


@dataclass(frozen=True)
class _Loss:
    """The loss per datum with random masks; equal losses share a compiled program."""

    grad_fn: MinibatchGradient
    rates: tuple[float, ...]
    masks_per_batch: int

    def __call__(self, key: Key, position: ArrayTree, batch: Batch) -> jax.Array:
        def part(key: Key, rows: Batch) -> jax.Array:
            return self.grad_fn.log_density(masked(key, position, self.rates), rows)

        num_masks, data_size = self.masks_per_batch, self.grad_fn.data_size
        if num_masks == 1:
            return -part(key, batch) / data_size
        keys = jax.vmap(lambda i: random.fold(key, i))(jnp.arange(num_masks))
        return -jnp.mean(jax.vmap(part)(keys, _split_rows(batch, num_masks))) / data_size


def masked(key: Key, position: ArrayTree, rates: Sequence[float]) -> ArrayTree:
    """Drop inputs of layers: set rows of their weights to zero and scale up the others."""
    nodes, structure = jax.tree.flatten(position, is_leaf=_is_layer)
    numbers = [i for i, node in enumerate(nodes) if _is_layer(node)]
    for i, (number, rate) in enumerate(zip(numbers, rates, strict=True)):
        if rate > 0:
            nodes[number] = _drop(random.fold(key, i), nodes[number], rate)
    return jax.tree.unflatten(structure, nodes)


def _drop(key: Key, layer: Layer, rate: float) -> Layer:
    inputs = layer.weights.shape[-2]
    kept = random.bits(key, (inputs, 1)) >= np.uint32(round(rate * 2**32))
    factor = jnp.where(kept, 1 / (1 - rate), 0).astype(layer.weights.dtype)
    shape = (1,) * (layer.weights.ndim - 2) + (inputs, 1)
    return Layer(layer.weights * factor.reshape(shape), layer.bias)


def _is_layer(node: object) -> bool:
    return isinstance(node, Layer)


def _split_rows(batch: Batch, parts: int) -> Batch:
    """Split the rows of a batch into equal parts, along a new first axis."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    if rows % parts:
        raise ValueError(f"`masks_per_batch` must divide the {rows} rows of a batch, got {parts}.")
    return jax.tree.map(lambda leaf: leaf.reshape(parts, rows // parts, *leaf.shape[1:]), batch)


def _layer_rates(position: ArrayTree, rates: float | Sequence[float]) -> tuple[float, ...]:
    """Return the rate of every layer; raise if the position is not made of layers."""
    layers = list(filter(_is_layer, jax.tree.leaves(position, is_leaf=_is_layer)))
    if not layers:
        raise ValueError(
            "`position` must be made of `isotherm.models.networks.Layer`, as that of an `mlp` is: "
            "dropout needs to know which axis of a weight matrix belongs to the inputs."
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

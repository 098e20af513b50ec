r"""Laplace approximation: a Gaussian with the curvature of the posterior at a mode.

$$ q(\theta) = \mathcal N\bigl(\hat\theta, T\,(G + s^{-2} I)^{-1}\bigr), \qquad
   G = \sum_{i=1}^N J_i^\top \Lambda_i J_i $$

with $J_i$ the derivative of the network's outputs in row $i$ and $\Lambda_i$ the curvature of its
likelihood there (`baselines.output_curvature`): $\operatorname{diag}(p_i) - p_i p_i^\top$ for
classes, $\sigma^{-2} I$ for a Gaussian (a learned $\sigma$ is fixed at its mode). $G$ is
the generalised Gauss–Newton matrix, which is the Fisher information here and, unlike the Hessian,
has no negative eigenvalues. Of its $d^2$ entries these are kept:

- `"diagonal"`: the diagonal. Cheap, and wrong where weights are correlated. Its draws perturb all
  layers at once and often predict worse than the mode; the usual remedy is a temperature below 1.
- `"last-layer"`: all entries of the last layer, the others fixed at the mode. A network is linear
  in its last layer, so there $G$ is the Hessian, and the approximation is as good as in logistic
  regression.

For a linear model with known Gaussian noise `"last-layer"` is the exact posterior. Any Gaussian
prior of the weights will do: in place of $s^{-2}$ stands the second derivative of its log density.

The diagonal is a sum over rows and outputs of squared gradients, which automatic differentiation
does not give at the cost of one gradient. Random signs do: with $\epsilon_{ic} = \pm1$ and any root
$\Lambda_i = S_i S_i^\top$, $\mathbb E\bigl[(\sum_i J_i^\top S_i\epsilon_i)_j^2\bigr] = G_{jj}$,
since mixed terms have mean zero. The sum is over small groups of rows, with one gradient each. With
$N/b$ groups of $b$ rows the relative error of a variance is about $\sqrt{2b/N}$ and the cost is
that of an epoch with batches of $b$.

References
----------
MacKay (1992), *A practical Bayesian framework for backpropagation networks*. Daxberger et al.
(2021), *Laplace redux: effortless Bayesian deep learning*, NeurIPS. Kristiadi, Hein & Hennig
(2020), *Being Bayesian, even just a bit, fixes overconfidence in ReLU networks*, ICML: the last
layer.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.gradients.full_data import sum_over_rows
from isotherm.models.networks import Layer, Network, SharedParametersPrior
from isotherm.models.priors import LearnedScales
from isotherm.paper.baselines.gaussian import GaussianApproximation, check_count
from isotherm.paper.baselines.output_curvature import (
    check_likelihood,
    output_curvature,
    root_times,
)
from isotherm.schedules import require_positive
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, Key

CHUNK_ROWS = 500
"""Rows per chunk when the curvature of the last layer is summed."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LastLayer:
    """A Gaussian over the last layer; all else is fixed at the mode."""

    mode: ArrayTree
    """The mode of all layers."""
    last: GaussianApproximation
    """The last layer, weights before bias."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions, with leading axes `(1, num_draws)` as in a run of one chain."""
        last = self.last.sample(key, num_draws)
        copies = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (1, num_draws, *leaf.shape)), self.mode
        )
        return _replace_last(copies, last)


def laplace(
    key: Key,
    network: Network,
    mode: ArrayTree,
    data: Batch,
    *,
    structure: str = "last-layer",
    curvature: str = "ggn",
    prior_sd: float | None = None,
    temperature: float = 1.0,
    rows_per_group: int = 10,
    num_sweeps: int = 1,
) -> GaussianApproximation | LastLayer:
    r"""Approximate the posterior by a Gaussian around a mode.

    Parameters
    ----------
    key
        For the random signs of the diagonal; the last layer needs no random numbers.
    network
        From `mlp` or `lenet`, with a categorical or Gaussian likelihood.
    mode
        $\hat\theta$: `sgd(...).position`, or the result of `isotherm.find_mode`.
    data
        `(x, y)`, all rows.
    structure
        `"last-layer"` or `"diagonal"`.
    curvature
        `"ggn"`: $G$ as above. For the diagonal also `"fisher"`: the empirical Fisher matrix
        $\sum_i g_i g_i^\top$ with the gradients $g_i$ of the log likelihood at the labels, which is
        too small where the network fits its data well.
    prior_sd
        $s$, the same for all weights; the network's own prior if not given.
    temperature
        $T$: 1 approximates the posterior, 0 is the mode.
    rows_per_group, num_sweeps
        $b$, and the number of passes over the data, to estimate the diagonal.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from isotherm.models.networks import mlp
    >>> network, key = mlp((1, 1), likelihood="gaussian", noise_sd=0.5), jax.random.key(0)
    >>> x, y = jnp.array([[1.0], [-1.0], [2.0], [-2.0]]), jnp.zeros((4, 1))
    >>> q = laplace(key, network, jax.tree.map(jnp.zeros_like, network.init(key)), (x, y))
    >>> jnp.diag(1 / q.last.covariance).round().tolist()  # 10 / 0.25 + 1 and 4 / 0.25 + 1
    [41.0, 17.0]
    """
    if structure not in ("last-layer", "diagonal"):
        raise ValueError(f"`structure` must be 'last-layer' or 'diagonal', got {structure!r}.")
    if curvature not in ("ggn", "fisher"):
        raise ValueError(f"`curvature` must be 'ggn' or 'fisher', got {curvature!r}.")
    if curvature == "fisher" and structure == "last-layer":
        raise ValueError(
            "`curvature` 'fisher' needs `structure` 'diagonal'; for 'last-layer' use 'ggn', "
            "which is exact there."
        )
    if not 0 <= temperature < np.inf:
        raise ValueError(f"`temperature` must not be negative, got {temperature}.")
    check_count("rows_per_group", rows_per_group)
    check_count("num_sweeps", num_sweeps)
    check_likelihood(network)
    if structure == "diagonal" and network.output_likelihood.num_shared:
        raise ValueError("`structure` 'diagonal' needs a likelihood without shared parameters.")
    mode, data = as_position(mode), jax.tree.map(jnp.asarray, data)
    if prior_sd is None:
        prior_precision = gaussian_prior_precision(network, mode)
    else:
        require_positive("prior_sd", prior_sd)
        prior_precision = jax.tree.map(lambda leaf: jnp.full_like(leaf, prior_sd**-2), mode)
    if structure == "last-layer":
        return _around_last_layer(network, mode, data, prior_precision, temperature)
    squares = curvature_diagonal(key, network, mode, data, curvature, rows_per_group, num_sweeps)
    precision = ravel_pytree(jax.tree.map(jnp.add, squares, prior_precision))[0]
    return GaussianApproximation(mode, jnp.sqrt(temperature / precision), jnp.zeros(0))


def curvature_diagonal(
    key: Key,
    network: Network,
    position: ArrayTree,
    data: Batch,
    curvature: str = "ggn",
    rows_per_group: int = 10,
    num_sweeps: int = 1,
) -> ArrayTree:
    """Estimate the diagonal of $G$ by random signs, shaped like the position."""
    size = jax.tree.leaves(data)[0].shape[0]
    sweep = partial(
        _sweep, network=network, curvature=curvature, group_size=min(rows_per_group, size)
    )
    sums = [sweep(random.fold(key, i), position, data) for i in range(num_sweeps)]
    return jax.tree.map(lambda *each: sum(each) / num_sweeps, *sums)


@partial(jax.jit, static_argnames=["network", "curvature", "group_size"])
def _sweep(
    key: Key,
    position: ArrayTree,
    data: Batch,
    *,
    network: Network,
    curvature: str,
    group_size: int,
) -> ArrayTree:
    """Estimate the diagonal of $G$ in one pass over the data."""

    def group(key: Key, rows: Batch) -> ArrayTree:
        outputs, pull = jax.vjp(lambda w: network.apply(w, rows[0]), position)
        signs = jnp.where(random.bits(key, outputs.shape) >> 31 == 1, 1.0, -1.0)
        if curvature == "ggn":
            direction = root_times(network, outputs, signs)
        else:
            score = jax.grad(lambda f: jnp.sum(_outputs_likelihood(network, f, rows[1])))(outputs)
            direction = score * signs[:, :1]
        (gradient,) = pull(direction.astype(outputs.dtype))
        return jax.tree.map(lambda g: g * g, gradient)

    size, b = jax.tree.leaves(data)[0].shape[0], group_size
    groups = size // b

    def add(i: jax.Array, total: ArrayTree) -> ArrayTree:
        rows = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, i * b, b), data)
        return jax.tree.map(jnp.add, total, group(random.fold(key, i), rows))

    total = jax.lax.fori_loop(0, groups, add, jax.tree.map(jnp.zeros_like, position))
    if size > groups * b:
        rest = jax.tree.map(lambda a: a[groups * b :], data)
        total = jax.tree.map(jnp.add, total, group(random.fold(key, groups), rest))
    return total


def _outputs_likelihood(network: Network, outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Evaluate the log likelihood of outputs, by a network whose outputs are its position."""
    return replace(network, apply=lambda position, x: position).log_likelihood(outputs, (y, y))


def gaussian_prior_precision(network: Network, position: ArrayTree) -> ArrayTree:
    """Return minus the second derivative of the log prior for every weight.

    Raises a `ValueError` if the position has other coordinates than the weights themselves.
    """
    prior = network.prior.network if isinstance(network.prior, SharedParametersPrior) else None
    if isinstance(network.prior if prior is None else prior, LearnedScales):
        raise ValueError("`network` must have a prior with given scales, got LearnedScales.")
    ones = jax.tree.map(jnp.ones_like, position)
    _, second = jax.jvp(jax.grad(network.log_prior), (position,), (ones,))
    return jax.tree.map(jnp.negative, second)


def is_layer(node: object) -> bool:
    """Return whether a node of a position is a layer."""
    return isinstance(node, Layer)


def _replace_last(mode: ArrayTree, layer: Layer) -> ArrayTree:
    """Return a position with another last layer."""
    nodes, structure = jax.tree.flatten(mode, is_leaf=is_layer)
    number = max(i for i, node in enumerate(nodes) if is_layer(node))
    return jax.tree.unflatten(structure, [*nodes[:number], layer, *nodes[number + 1 :]])


def _last_layer(mode: ArrayTree) -> Layer:
    layers = [node for node in jax.tree.leaves(mode, is_leaf=is_layer) if is_layer(node)]
    if not layers or layers[-1].weights.ndim != 2:
        raise ValueError(
            "`mode` must be made of `isotherm.models.networks.Layer`, the last of them dense."
        )
    return layers[-1]


def _around_last_layer(
    network: Network, mode: ArrayTree, data: Batch, prior_precision: ArrayTree, temperature: float
) -> LastLayer:
    last = _last_layer(mode)
    information = _last_information(network, mode, data)
    prior = np.asarray(ravel_pytree(_last_layer(prior_precision))[0], np.float64)
    precision = information + np.diag(prior)
    factor = np.linalg.cholesky(temperature * np.linalg.inv(precision)) if temperature else 0
    scale = jnp.asarray(factor * np.ones_like(precision), last.weights.dtype)
    return LastLayer(mode, GaussianApproximation(last, scale, jnp.zeros(0)))


def _last_information(network: Network, mode: ArrayTree, data: Batch) -> np.ndarray:
    r"""Compute $G$ of the last layer: its weights in order, then its bias."""
    inputs, outputs = _last_layer(mode).weights.shape
    rows = jax.tree.leaves(data)[0].shape[0]
    chunk = partial(_information_of_rows, network=network)
    total = sum_over_rows(chunk, mode, data, rows, CHUNK_ROWS)
    size = (inputs + 1) * outputs
    return np.asarray(jnp.moveaxis(total, 0, 1).reshape(size, size), np.float64)


@partial(jax.jit, static_argnames="network")
def _information_of_rows(position: ArrayTree, rows: Batch, *, network: Network) -> jax.Array:
    """Compute $G$ of the last layer for some rows: (output, input, input and output).

    With the identity as its last layer a network returns the inputs of that layer.
    """
    last = _last_layer(position)
    width = last.weights.shape[0]
    identity = Layer(jnp.eye(width, dtype=last.weights.dtype), jnp.zeros_like(last.weights[:, 0]))
    inputs = network.apply(_replace_last(position, identity), rows[0])[:, :width]
    inputs = jnp.concatenate([inputs, jnp.ones_like(inputs[:, :1])], axis=1)
    curvature = output_curvature(network, network.apply(position, rows[0]))

    def block(weight: jax.Array) -> jax.Array:  # one row of every Lambda
        both = inputs[:, :, None] * weight[:, None, :]
        return inputs.T @ both.reshape(len(inputs), -1)

    return jax.lax.map(block, jnp.moveaxis(curvature, 1, 0))

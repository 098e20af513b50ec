r"""Laplace approximation: a Gaussian with the curvature of the posterior at a mode.

$$ q(\theta) = \mathcal N\bigl(\hat\theta, T\,(G + s^{-2} I)^{-1}\bigr), \qquad
   G = \sum_{i=1}^N J_i^\top \Lambda_i J_i $$

with $J_i$ the derivative of the network's outputs in row $i$ and $\Lambda_i$ the curvature of its
likelihood there: $\operatorname{diag}(p_i) - p_i p_i^\top$ for classes, $\sigma^{-2} I$ for a
Gaussian. $G$ is the generalised Gauss–Newton matrix, which is the Fisher information here and,
unlike the Hessian, has no negative eigenvalues. Of its $d^2$ entries these are kept:

- `"diagonal"`: the diagonal. Cheap, and wrong where weights are correlated. Its draws perturb all
  layers at once and often predict worse than the mode; the usual remedy is a temperature below 1.
- `"last-layer"`: all entries of the last layer, the others fixed at the mode. A network is linear
  in its last layer, so there $G$ is the Hessian, and the approximation is as good as in logistic
  regression.

For a linear model with Gaussian noise `"last-layer"` is the exact posterior.

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
from isotherm.models.networks import Layer, Network
from isotherm.paper.baselines.gaussian import GaussianApproximation, check_count
from isotherm.schedules import require_positive
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, Key

CHUNK_ROWS = 500
"""Rows per chunk when the curvature of the last layer is summed."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LastLayer:
    """A Gaussian over the last layer; the other layers are fixed."""

    fixed: tuple[Layer, ...]
    """All layers but the last."""
    last: GaussianApproximation
    """The last one, weights before bias."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions, with leading axes `(1, num_draws)` as in a run of one chain."""
        last = self.last.sample(key, num_draws)
        copies = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (1, num_draws, *leaf.shape)), self.fixed
        )
        return (*copies, last)


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
        From `mlp` or `lenet`.
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
        $s$; the network's own if not given.
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
    if network.likelihood not in ("categorical", "gaussian") or network.prior is not None:
        raise ValueError(
            "`network` must have the likelihood 'categorical' or 'gaussian', by name, and the "
            "prior of `prior_sd`."
        )
    prior_sd = network.prior_sd if prior_sd is None else prior_sd
    require_positive("prior_sd", prior_sd)
    mode, data = as_position(mode), jax.tree.map(jnp.asarray, data)
    if structure == "last-layer":
        return _around_last_layer(network, mode, data, prior_sd, temperature)
    squares = curvature_diagonal(key, network, mode, data, curvature, rows_per_group, num_sweeps)
    precision = ravel_pytree(squares)[0] + prior_sd**-2
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
            direction = _root_times(network, outputs, signs)
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


def _root_times(network: Network, outputs: jax.Array, signs: jax.Array) -> jax.Array:
    r"""Multiply a root of $\Lambda$ by signs, row by row.

    $S = \operatorname{diag}(\sqrt p) - p\sqrt p^\top$ has
    $SS^\top = \operatorname{diag}(p) - pp^\top$.
    """
    if network.likelihood == "gaussian":
        return signs / network.noise_sd
    p = jax.nn.softmax(outputs)
    mixed = jnp.sqrt(p) * signs
    return mixed - p * jnp.sum(mixed, axis=-1, keepdims=True)


def _outputs_likelihood(network: Network, outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Evaluate the log likelihood of outputs, by a network whose outputs are its position."""
    return replace(network, apply=lambda position, x: position).log_likelihood(outputs, (y, y))


def _around_last_layer(
    network: Network, mode: ArrayTree, data: Batch, prior_sd: float, temperature: float
) -> LastLayer:
    *fixed, last = mode
    if not isinstance(last, Layer) or last.weights.ndim != 2:
        raise ValueError(
            "`mode` must be a sequence of `isotherm.models.networks.Layer`, the last of them dense."
        )
    information = _last_information(network, tuple(fixed), last, data)
    precision = information + prior_sd**-2 * np.eye(len(information))
    factor = np.linalg.cholesky(temperature * np.linalg.inv(precision)) if temperature else 0
    scale = jnp.asarray(factor * np.ones_like(precision), last.weights.dtype)
    return LastLayer(tuple(fixed), GaussianApproximation(last, scale, jnp.zeros(0)))


def _last_information(
    network: Network, fixed: tuple[Layer, ...], last: Layer, data: Batch
) -> np.ndarray:
    r"""Compute $G$ of the last layer: its weights in order, then its bias."""
    inputs, outputs = last.weights.shape
    rows = jax.tree.leaves(data)[0].shape[0]
    chunk = partial(_information_of_rows, network=network)
    total = sum_over_rows(chunk, (*fixed, last), data, rows, CHUNK_ROWS)
    size = (inputs + 1) * outputs
    return np.asarray(jnp.moveaxis(total, 0, 1).reshape(size, size), np.float64)


@partial(jax.jit, static_argnames="network")
def _information_of_rows(
    position: tuple[Layer, ...], rows: Batch, *, network: Network
) -> jax.Array:
    """Compute $G$ of the last layer for some rows: (output, input, input and output).

    With the identity as its last layer a network returns the inputs of that layer.
    """
    *fixed, last = position
    width = last.weights.shape[0]
    identity = Layer(jnp.eye(width, dtype=last.weights.dtype), jnp.zeros_like(last.weights[:, 0]))
    inputs = network.apply((*fixed, identity), rows[0])
    inputs = jnp.concatenate([inputs, jnp.ones_like(inputs[:, :1])], axis=1)
    curvature = _output_curvature(network, network.apply(position, rows[0]))

    def block(weight: jax.Array) -> jax.Array:  # one row of every Lambda
        both = inputs[:, :, None] * weight[:, None, :]
        return inputs.T @ both.reshape(len(inputs), -1)

    return jax.lax.map(block, jnp.moveaxis(curvature, 1, 0))


def _output_curvature(network: Network, outputs: jax.Array) -> jax.Array:
    r"""Compute $\Lambda$ of every row, (row, output, output)."""
    if network.likelihood == "gaussian":
        one = jnp.eye(outputs.shape[1], dtype=outputs.dtype) / network.noise_sd**2
        return jnp.broadcast_to(one, (len(outputs), *one.shape))
    p = jax.nn.softmax(outputs)
    return jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]

r"""Kronecker-factored Laplace approximation of all layers, with the prior scale of each layer.

$$ q(\theta) = \mathcal N\bigl(\hat\theta, (G + \delta P)^{-1}\bigr), \qquad
   G = \sum_{i=1}^N J_i^\top \Lambda_i J_i $$

with the generalised Gauss–Newton matrix $G$ (`baselines.laplace`), the curvature $P$ of the
network's Gaussian log prior, and one factor $\delta_l$ for each layer $l$. Everything is in units
of the prior, $u = P^{1/2}\theta$, where the prior is $\mathcal N(0, I/\delta)$.

*Structure.* Layers are independent. The weights of a layer with its bias as a further row are an
$m \times n$ matrix, and the contribution of row $i$ and output $c$ to $G$ is the outer product of
the matrix $G_{ic} = J_i^\top S_{ic}$ with itself, $\Lambda_i = S_i S_i^\top$. The eigenvectors of

$$ A = \sum_{ic} G_{ic} G_{ic}^\top, \qquad B = \sum_{ic} G_{ic}^\top G_{ic} $$

give an orthonormal basis $U_A \otimes U_B$ (for a dense layer $A$ and $B$ are the covariances of
inputs and of gradients at the outputs), in which $G$ is taken as diagonal with its exact entries

$$ \lambda_{jk} = \sum_{ic} (U_A^\top G_{ic} U_B)_{jk}^2 . $$

This is EK-FAC (George et al. 2018); it is at least as close to $G$ as $A \otimes B$ (KFAC, Ritter
et al. 2018). For a linear model with Gaussian noise it is exact.

*Prior scale by marginal likelihood* (MacKay 1992; Immer et al. 2021). Laplace's approximation of
the evidence is a sum over layers,

$$ \log p(\text{data} \mid \delta) \approx \log p(\text{data} \mid \hat\theta) + \tfrac12\sum_l
   \Bigl[d_l\log\delta_l - \delta_l\lVert\hat u_l\rVert^2
   - \sum_{jk}\log(\lambda_{ljk} + \delta_l)\Bigr], $$

and each $\delta_l$ maximizes its part after training.

*Predictions* are those of the network linearised at the mode, $f(x, \hat\theta) + J(x)(\theta -
\hat\theta)$: the Gauss–Newton matrix is the Hessian of that model, and draws of it predict far
better than the network at random weights (Immer, Korzepa & Bauer 2021). `sample` gives weights,
`outputs` the linearised predictions.

References
----------
Ritter, Botev & Barber (2018), *A scalable Laplace approximation for neural networks*, ICLR. George
et al. (2018), *Fast approximate natural gradient descent in a Kronecker-factored eigenbasis*,
NeurIPS. Immer, Bauer, Fortuin, Rätsch & Khan (2021), *Scalable marginal likelihood estimation for
model selection in deep learning*, ICML. Immer, Korzepa & Bauer (2021), *Improving predictions of
Bayesian neural nets via local linearization*, AISTATS.
"""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from isotherm import random
from isotherm.coordinates.kronecker import as_matrix
from isotherm.models.networks import Layer, Network
from isotherm.paper.baselines.gaussian import check_count
from isotherm.paper.baselines.laplace import gaussian_prior_precision, is_layer
from isotherm.paper.baselines.output_curvature import (
    check_likelihood,
    root_times,
    weighted_outputs,
)
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, Key

GROUPS_AT_ONCE = 64
"""Groups of rows whose gradients are in memory at the same time."""
WIDEST_FACTOR = 1e6
r"""Prior factors $\delta$ are searched between its inverse and it."""

Matrices = list[jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Block:
    """The approximation of one layer, in the eigenbasis and in units of the prior."""

    left: jax.Array
    """$U_A$, (m, m)."""
    right: jax.Array
    """$U_B$, (n, n)."""
    curvature: jax.Array
    r"""$\lambda$, (m, n)."""
    prior_sd: jax.Array
    """$P^{-1/2}$, (m, n)."""
    factor: jax.Array
    r"""$\delta$, a number."""

    def draw(self, noise: jax.Array) -> jax.Array:
        """Map standard normal noise (m, n) to a deviation from the mode."""
        return self.prior_sd * (self.left @ self._scaled(noise) @ self.right.T)

    def _scaled(self, noise: jax.Array) -> jax.Array:
        return noise * (self.curvature + self.factor) ** -0.5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KroneckerLaplace:
    """A Gaussian around a mode, with a Kronecker eigenbasis per layer."""

    mode: ArrayTree
    blocks: tuple[Block, ...]
    """One per layer, in the order of the position."""
    log_evidence: jax.Array
    """The approximation of the log marginal likelihood."""
    num_shared: int = field(metadata={"static": True})

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions, with leading axes `(1, num_draws)` as in a run of one chain."""
        deviations = self._deviations(key, num_draws)
        return jax.tree.map(lambda m, d: (m[None] + d)[None], self.mode, deviations)

    def outputs(self, key: Key, network: Network, x: jax.Array, num_draws: int) -> jax.Array:
        """Draw outputs of the linearised network, (draw, row, column)."""
        mean, push = jax.linearize(lambda w: network.apply(w, x), self.mode)
        return mean[None] + jax.vmap(push)(self._deviations(key, num_draws))

    def _deviations(self, key: Key, num_draws: int) -> ArrayTree:
        check_count("num_draws", num_draws)
        return _draw(key, self, num_draws)


@partial(jax.jit, static_argnames="num_draws")
def _draw(key: Key, fit: KroneckerLaplace, num_draws: int) -> ArrayTree:
    """Draw deviations from the mode, with a leading axis over draws."""

    def one(i: jax.Array) -> ArrayTree:
        noise = random.gaussian(
            random.fold(key, i), [jnp.zeros_like(b.prior_sd) for b in fit.blocks]
        )
        drawn = [block.draw(z) for block, z in zip(fit.blocks, noise, strict=True)]
        return from_matrices(drawn, fit.mode, fit.num_shared)

    return jax.vmap(one)(jnp.arange(num_draws))


def kfac_laplace(
    key: Key,
    network: Network,
    mode: ArrayTree,
    data: Batch,
    *,
    prior: str = "evidence",
    rows_per_group: int = 1,
) -> KroneckerLaplace:
    r"""Approximate the posterior of all layers by a Gaussian around a mode.

    Parameters
    ----------
    key
        For the random signs, if there are several rows per group.
    network
        Any network with a categorical or Gaussian likelihood and a Gaussian prior of given scales.
        A learned noise is fixed at its mode.
    mode
        $\hat\theta$: `sgd(...).position`, or the result of `isotherm.find_mode`.
    data
        `(x, y)`, all rows.
    prior
        `"evidence"`: choose $\delta$ of each layer by the marginal likelihood; `"network"`:
        $\delta = 1$.
    rows_per_group
        1: all $G_{ic}$ one by one. More: sums over groups of rows with random signs, which have the
        right expectation and cost less.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from isotherm.models.networks import mlp
    >>> network, key = mlp((1, 1), likelihood="gaussian", noise_sd=0.5), jax.random.key(0)
    >>> x, y = jnp.array([[1.0], [-1.0], [2.0], [-2.0]]), jnp.zeros((4, 1))
    >>> mode = jax.tree.map(jnp.zeros_like, network.init(key))
    >>> q = kfac_laplace(key, network, mode, (x, y), prior="network")
    >>> sorted((q.blocks[0].curvature + 1).ravel().tolist())  # 4 / 0.25 + 1 and 10 / 0.25 + 1
    [17.0, 41.0]
    """
    if prior not in ("evidence", "network"):
        raise ValueError(f"`prior` must be 'evidence' or 'network', got {prior!r}.")
    check_count("rows_per_group", rows_per_group)
    check_likelihood(network)
    mode, data = as_position(mode), jax.tree.map(jnp.asarray, data)
    num_shared = network.output_likelihood.num_shared
    precision = to_matrices(gaussian_prior_precision(network, mode), num_shared)
    prior_sd = [p**-0.5 for p in precision]
    sums = partial(_sums, key, mode, data[0], prior_sd, network=network, group=rows_per_group)
    outer = sums(None)
    bases = [(_eigenvectors(a), _eigenvectors(b)) for a, b in outer]
    curvatures = sums(bases)
    log_evidence = jnp.sum(network.log_likelihood(mode, data))
    blocks = []
    for (left, right), curvature, sd, at_mode in zip(
        bases, curvatures, prior_sd, to_matrices(mode, num_shared), strict=True
    ):
        norm = float(jnp.sum((at_mode / sd) ** 2))
        factor, evidence = _prior_factor(np.asarray(curvature, np.float64), norm, prior)
        log_evidence += evidence
        blocks.append(Block(left, right, curvature, sd, jnp.asarray(factor, sd.dtype)))
    return KroneckerLaplace(mode, tuple(blocks), log_evidence, num_shared)


def to_matrices(position: ArrayTree, num_shared: int) -> Matrices:
    """Return a matrix per layer, its bias as the last row; other leaves are matrices themselves."""
    tree = position["network"] if num_shared else position
    nodes = jax.tree.leaves(tree, is_leaf=is_layer)
    return [
        jnp.concatenate([as_matrix(node.weights), node.bias[None]])
        if is_layer(node)
        else as_matrix(node)
        for node in nodes
    ]


def from_matrices(matrices: Matrices, like: ArrayTree, num_shared: int) -> ArrayTree:
    """Return the position of matrices; shared parameters are zero."""
    tree = like["network"] if num_shared else like
    nodes, structure = jax.tree.flatten(tree, is_leaf=is_layer)
    parts = [
        Layer(matrix[:-1].reshape(node.weights.shape), matrix[-1])
        if is_layer(node)
        else matrix.reshape(node.shape)
        for matrix, node in zip(matrices, nodes, strict=True)
    ]
    whole = jax.tree.unflatten(structure, parts)
    return {"network": whole, "shared": jnp.zeros_like(like["shared"])} if num_shared else whole


@partial(jax.jit, static_argnames=["network", "group"])
def _sums(
    key: Key,
    mode: ArrayTree,
    x: jax.Array,
    prior_sd: Matrices,
    bases: list | None,
    *,
    network: Network,
    group: int,
) -> list:
    r"""Sum over rows $A$ and $B$ of every layer or, given bases, $\lambda$."""
    rows, num_shared = x.shape[0], network.output_likelihood.num_shared
    num_groups = -(-rows // group)
    chunk = min(GROUPS_AT_ONCE, num_groups)
    num_chunks = -(-num_groups // chunk)

    def gradients(number: jax.Array) -> Matrices:
        """Return matrices (vector, m, n) of one group; rows beyond the last have weight zero."""
        index = number * group + jnp.arange(group)
        inputs = x[jnp.minimum(index, rows - 1)]
        outputs, pull = jax.vjp(lambda w: network.apply(w, inputs), mode)
        columns = weighted_outputs(network, outputs).shape[-1]
        if group == 1:
            vectors = jnp.eye(columns)[:, None]
        else:
            signs = random.bits(random.fold(key, number), (1, group, columns)) >> 31
            vectors = jnp.where(signs == 1, 1.0, -1.0)
        vectors = jnp.where((index < rows)[None, :, None], vectors, 0.0)
        shared = jnp.zeros((*vectors.shape[:2], num_shared))

        def matrices(vector: jax.Array, rest: jax.Array) -> Matrices:
            direction = jnp.concatenate([root_times(network, outputs, vector), rest], axis=-1)
            (grads,) = pull(direction.astype(outputs.dtype))
            return [g * sd for g, sd in zip(to_matrices(grads, num_shared), prior_sd, strict=True)]

        return jax.vmap(matrices)(vectors, shared)

    def summed(first: jax.Array) -> list:
        each = jax.vmap(gradients)(first + jnp.arange(chunk))
        flat = [g.reshape(-1, *g.shape[2:]) for g in each]
        if bases is None:
            return [
                (jnp.einsum("imn,ikn->mk", g, g), jnp.einsum("imn,imk->nk", g, g)) for g in flat
            ]
        return [
            jnp.sum((left.T[None] @ g @ right[None]) ** 2, axis=0)
            for g, (left, right) in zip(flat, bases, strict=True)
        ]

    def add(i: jax.Array, total: list) -> list:
        return jax.tree.map(jnp.add, total, summed(i * chunk))

    return jax.lax.fori_loop(1, num_chunks, add, summed(jnp.zeros((), jnp.int32)))


def _eigenvectors(matrix: jax.Array) -> jax.Array:
    _, vectors = np.linalg.eigh(np.asarray(matrix, np.float64))
    return jnp.asarray(vectors, matrix.dtype)


def _prior_factor(curvature: np.ndarray, norm: float, prior: str) -> tuple[float, float]:
    r"""Return $\delta$ of a layer and its part of the log evidence."""

    def evidence(log_factor: float) -> float:
        factor = np.exp(log_factor)
        volume = curvature.size * log_factor - np.sum(np.log(curvature + factor))
        return float(0.5 * (volume - factor * norm))

    if prior == "network":
        return 1.0, evidence(0.0)
    widest = np.log(WIDEST_FACTOR)
    best = optimize.minimize_scalar(lambda t: -evidence(t), bounds=(-widest, widest))
    return float(np.exp(best.x)), evidence(best.x)

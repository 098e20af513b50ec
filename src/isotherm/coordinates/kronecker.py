r"""Natural coordinates for networks: a Kronecker-factored eigenbasis per layer.

The curvature of a layer with weights $W$, an $m \times n$ matrix, is an $mn \times mn$ matrix: too
large to diagonalise, but close to a Kronecker product $L \otimes R$ of the covariances of the
inputs of the layer and of the gradients at its outputs. Its eigenvectors are then products of the
eigenvectors of $L$ and $R$,

$$ W = c + U_L\,(S \odot Q)\,U_R^\top, \qquad S_{ij} = \Lambda_{ij}^{-1/2}, $$

and the curvature $\Lambda_{ij}$ along each of them is measured, not taken from the factors (George
et al. 2018, EK-FAC; Vyas et al. 2024, SOAP). Both are estimated from minibatch gradients $\hat g$
at one point:

- their noise has covariance $\frac Nn F$ with $F$ the (empirical) Fisher information, so
  $F = \frac nN \operatorname{Cov}\hat g$;
- $U_L, U_R$ are the eigenvectors of $\mathrm E\,GG^\top$ and $\mathrm E\,G^\top G$, where $G$ is
  the noise of a layer's gradient;
- $\Lambda_{ij} = \frac nN \mathrm E\,(U_L^\top G U_R)_{ij}^2 + $ the curvature of the prior.

The noise is then (nearly) uncorrelated between the coordinates, and the step size is dimensionless.
The kernel of a convolution is a matrix of (window and input channel) by (output channel); for a
bias only one side is rotated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from isotherm.batches.in_memory import InMemoryBatches
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.types import ArrayTree, Key

BLOCK_SIZE = 16
"""Number of pairs of minibatch gradients in memory at once."""
LARGEST_SIDE = 4096
"""Longest side of a matrix that is rotated."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sides:
    """The coordinates of one leaf as a matrix; a side that is `None` is not rotated."""

    left: jax.Array | None
    right: jax.Array | None
    scale: jax.Array

    def rotate(self, matrix: jax.Array) -> jax.Array:
        r"""Return $U_L^\top G U_R$."""
        if self.left is not None:
            matrix = self.left.T @ matrix
        return matrix if self.right is None else matrix @ self.right

    def push(self, direction: jax.Array) -> jax.Array:
        r"""Return $U_L (S \odot v) U_R^\top$."""
        matrix = self.scale * as_matrix(direction)
        if self.left is not None:
            matrix = self.left @ matrix
        if self.right is not None:
            matrix = matrix @ self.right.T
        return matrix.reshape(direction.shape)

    def pull(self, grads: jax.Array) -> jax.Array:
        r"""Return $S \odot U_L^\top g U_R$."""
        return (self.scale * self.rotate(as_matrix(grads))).reshape(grads.shape)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kronecker:
    """Two rotations and one scale per weight, for every leaf of the position."""

    leaves: tuple[Sides, ...]

    def momentum_like(self, position: ArrayTree) -> ArrayTree:
        """Return the position."""
        return position

    def push(self, direction: ArrayTree) -> ArrayTree:
        """Map a direction to the coordinates of the position, leaf by leaf."""
        return self._each(Sides.push, direction)

    def pull(self, grads: ArrayTree) -> ArrayTree:
        """Map a gradient to the coordinates of the momentum, leaf by leaf."""
        return self._each(Sides.pull, grads)

    def _each(self, fn: Callable[[Sides, jax.Array], jax.Array], tree: ArrayTree) -> ArrayTree:
        values, structure = jax.tree.flatten(tree)
        return structure.unflatten(
            [fn(sides, value) for sides, value in zip(self.leaves, values, strict=True)]
        )


def as_matrix(leaf: jax.Array) -> jax.Array:
    """Return a leaf as a matrix whose columns are its last axis; a vector is one row."""
    return leaf.reshape(-1, leaf.shape[-1]) if leaf.ndim else leaf.reshape(1, 1)


def kronecker_eigenbasis(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches,
    *,
    num_batches: int = 512,
    floor: float = 1e-6,
    more_positions: Sequence[ArrayTree] = (),
) -> Kronecker:
    r"""Estimate a Kronecker eigenbasis from minibatch gradients at one or several points.

    The point should be typical of the posterior, or a mode without a perfect fit: where every
    training row is predicted with certainty, the gradients carry no information on the curvature.

    Parameters
    ----------
    key
        For drawing the batches.
    grad_fn
        From `isotherm.minibatch_gradient`.
    position
        The point, a pytree of arrays.
    batches
        The batch policy that the sampler will use.
    num_batches
        Number of minibatch gradients, rounded up to a multiple of 32.
    floor
        Curvatures below this fraction of a leaf's largest are raised to it.
    more_positions
        Further points: the curvature is averaged over all. In a network the directions that are
        stiff change from place to place.
    """
    positions = (position, *more_positions)
    share = batches.batch_size / grad_fn.data_size
    rotations = _rotations(_noise(key, grad_fn, positions, batches, num_batches))
    squares: list[Any] = []
    count = 0
    for block in _noise(key, grad_fn, positions, batches, num_batches):
        leaves = jax.tree.leaves(block)
        count += leaves[0].shape[0]
        more = [_squares(sides, leaf) for sides, leaf in zip(rotations, leaves, strict=True)]
        squares = more if not squares else [a + b for a, b in zip(squares, more, strict=True)]
    ones = jax.tree.map(jnp.ones_like, position)
    prior = jax.jvp(jax.grad(grad_fn.log_prior), (position,), (ones,))[1]
    leaves = []
    for sides, total, second in zip(rotations, squares, jax.tree.leaves(prior), strict=True):
        curvature = share * total / count - jnp.mean(second)
        curvature = jnp.maximum(curvature, floor * jnp.max(curvature))
        leaves.append(Sides(sides.left, sides.right, curvature**-0.5))
    return Kronecker(tuple(leaves))


def _noise(
    key: Key,
    grad_fn: MinibatchGradient,
    positions: Sequence[ArrayTree],
    batches: InMemoryBatches,
    num_batches: int,
) -> Iterator[ArrayTree]:
    r"""Yield the noise of minibatch gradients, in blocks, at each position in turn.

    $(\hat g_1 - \hat g_2)/\sqrt2$ of two batches has the covariance of $\hat g$ and mean zero.
    """
    num_blocks = max(-(-num_batches // (2 * BLOCK_SIZE)), len(positions))
    for i in range(num_blocks):
        position = positions[i % len(positions)]
        yield _block(key, position, batches, i * BLOCK_SIZE, grad_fn=grad_fn)


@partial(jax.jit, static_argnames="grad_fn")
def _block(
    key: Key,
    position: ArrayTree,
    batches: InMemoryBatches,
    first: int,
    *,
    grad_fn: MinibatchGradient,
) -> ArrayTree:
    def one(i: jax.Array) -> ArrayTree:
        a, b = (grad_fn(position, batches.batch(key, 2 * i + j)) for j in (0, 1))
        return jax.tree.map(lambda x, y: (x - y) / jnp.sqrt(2.0), a, b)

    return jax.lax.map(one, first + jnp.arange(BLOCK_SIZE))


def _rotations(blocks: Iterator[ArrayTree]) -> list[Sides]:
    totals: list[tuple[Any, Any]] = []
    shapes: list[tuple[int, ...]] = []
    for block in blocks:
        leaves = jax.tree.leaves(block)
        shapes = [as_matrix(leaf[0]).shape for leaf in leaves]
        more = [_products(leaf) for leaf in leaves]
        totals = more if not totals else jax.tree.map(jnp.add, totals, more)
    return [
        Sides(_axes(left), _axes(right), jnp.ones(shape))
        for (left, right), shape in zip(totals, shapes, strict=True)
    ]


@jax.jit
def _products(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum $GG^T$ and $G^T G$ over a block; a side that is not rotated gives an empty array."""
    matrices = jax.vmap(as_matrix)(leaf)
    _, m, n = matrices.shape
    tall, wide = matrices.reshape(-1, n), jnp.swapaxes(matrices, 0, 1).reshape(m, -1)
    return (
        wide @ wide.T if 1 < m <= LARGEST_SIDE else jnp.zeros(0),
        tall.T @ tall if 1 < n <= LARGEST_SIDE else jnp.zeros(0),
    )


def _axes(covariance: jax.Array) -> jax.Array | None:
    """Return the eigenvectors, or `None` for a side that is not rotated."""
    if covariance.size == 0:
        return None
    if not bool(jnp.isfinite(covariance).all()):
        raise FloatingPointError("`grad_fn` returns gradients that are not finite at `position`.")
    with threadpool_limits(1):  # faster on a busy machine
        _, vectors = np.linalg.eigh(np.asarray(covariance, np.float64))
    return jnp.asarray(vectors, covariance.dtype)


@jax.jit
def _squares(sides: Sides, leaf: jax.Array) -> jax.Array:
    return jnp.sum(jax.vmap(lambda g: sides.rotate(as_matrix(g)) ** 2)(leaf), axis=0)

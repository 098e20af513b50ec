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

**Sides.** A leaf with more than two axes is read as a matrix by one letter per axis (`leaf_sides`):
`l` for the left side (inputs, window), `r` for the right side (outputs, heads), `.` for the left
side without rotation (rows of an embedding, of which a batch sees few), and `s` for a stack of
layers, each of which has a basis of its own. Letters are inferred from names and shapes:

| leaf | axes | letters |
| --- | --- | --- |
| `kernel` (Flax), `w` (Haiku), `weights` | (window, in, out) | `l…lr` |
| `weight` (Equinox, PyTorch) | (out, in, window) | `rl…l` |
| `kernel` in `query`, `key`, `value` | (in, heads, size) | `lrr` |
| a leaf in a path with `embed` and without a bias | (rows, size) | `.r` |
| a vector, a number | | `r`, none |

Leading axes that a bias shares with the kernel beside it are stacked (`s`), and so are those of
layers without a bias in the same block. Where this is wrong, pass the letters of a leaf by its
name; `Kronecker.summary` shows them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from isotherm.batches.in_memory import InMemoryBatches
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.tree import leaf_names
from isotherm.types import ArrayTree, Key

BLOCK_SIZE = 16
"""Number of pairs of minibatch gradients in memory at once."""
LARGEST_SIDE = 4096
"""Longest side of a matrix that is rotated."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sides:
    """The coordinates of one leaf as a matrix; a side that is `None` is not rotated.

    With stacked axes there is one matrix per layer, in the first axis of every array.
    """

    left: jax.Array | None
    right: jax.Array | None
    scale: jax.Array
    letters: str = field(metadata={"static": True})
    """The side of every axis of the leaf."""

    @property
    def has_basis(self) -> bool:
        """Whether the leaf is rotated or stretched, and not only multiplied by a number."""
        rotated = self.left is not None or self.right is not None
        return rotated or bool(jnp.max(self.scale) > jnp.min(self.scale))

    def rotate(self, matrix: jax.Array) -> jax.Array:
        r"""Return $U_L^\top G U_R$."""
        if self.left is not None:
            matrix = jnp.swapaxes(self.left, -1, -2) @ matrix
        return matrix if self.right is None else matrix @ self.right

    def push(self, direction: jax.Array) -> jax.Array:
        r"""Return $U_L (S \odot v) U_R^\top$."""
        matrix = self.scale * as_sides(direction, self.letters)
        if self.left is not None:
            matrix = self.left @ matrix
        if self.right is not None:
            matrix = matrix @ jnp.swapaxes(self.right, -1, -2)
        return _as_leaf(matrix, self.letters, direction.shape)

    def pull(self, grads: jax.Array) -> jax.Array:
        r"""Return $S \odot U_L^\top g U_R$."""
        matrix = self.scale * self.rotate(as_sides(grads, self.letters))
        return _as_leaf(matrix, self.letters, grads.shape)


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

    def summary(self, position: ArrayTree) -> str:
        """Return a table: leaf, shape, letter of every axis, condition number of the curvature.

        A leaf without a basis is in units of its prior, or of the width of its posterior.
        """
        rows = [("leaf", "shape", "sides", "condition", "units")]
        values = jax.tree.leaves(position)
        for name, leaf, sides in zip(leaf_names(position), values, self.leaves, strict=True):
            condition = float(jnp.max(sides.scale) / jnp.min(sides.scale)) ** 2
            shape = " x ".join(map(str, jnp.shape(leaf))) or "number"
            units = "basis" if sides.has_basis else "prior"
            rows.append((name, shape, sides.letters or "-", f"{condition:.3g}", units))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)

    def _each(self, fn: Callable[[Sides, jax.Array], jax.Array], tree: ArrayTree) -> ArrayTree:
        values, structure = jax.tree.flatten(tree)
        return structure.unflatten(
            [fn(sides, value) for sides, value in zip(self.leaves, values, strict=True)]
        )


def as_matrix(leaf: jax.Array) -> jax.Array:
    """Return a leaf as a matrix whose columns are its last axis; a vector is one row."""
    return leaf.reshape(-1, leaf.shape[-1]) if leaf.ndim else leaf.reshape(1, 1)


def as_sides(leaf: jax.Array, letters: str) -> jax.Array:
    """Return a leaf as a matrix of its left by its right axes, or as a stack of matrices."""
    sizes = _side_sizes(letters, leaf.shape)
    shape = sizes if "s" in letters else sizes[1:]
    return leaf.transpose(_order(letters)).reshape(shape)


def _as_leaf(matrix: jax.Array, letters: str, shape: tuple[int, ...]) -> jax.Array:
    """Undo `as_sides`."""
    order = _order(letters)
    moved = matrix.reshape([shape[axis] for axis in order])
    return moved.transpose([order.index(axis) for axis in range(len(order))])


def _order(letters: str) -> list[int]:
    """Return the axes of a leaf in the order stacked, left, right."""
    return sorted(
        range(len(letters)), key=lambda axis: "sl.r".index(letters[axis].replace(".", "l"))
    )


def _side_sizes(letters: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the number of layers, rows and columns."""
    stacked, left, right = (
        math.prod(n for n, letter in zip(shape, letters, strict=True) if letter in side)
        for side in ("s", "l.", "r")
    )
    return stacked, left, right


def leaf_sides(tree: ArrayTree, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the side of every axis of every leaf by name, by the rules of the module.

    Parameters
    ----------
    tree
        Weights: arrays, or anything with shapes.
    overrides
        Letters that replace the rule, by name: one of `l`, `r`, `.` and `s` per axis.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> layer = {"kernel": jnp.zeros((6, 8, 16)), "bias": jnp.zeros((6, 16))}
    >>> leaf_sides({"scanned": layer, "linear": {"weight": jnp.zeros((10, 50))}})
    {'linear.weight': 'rl', 'scanned.bias': 'sr', 'scanned.kernel': 'slr'}
    """
    shapes = {
        name: jnp.shape(leaf)
        for name, leaf in zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)
    }
    found = {name: _letters(name, shape, shapes) for name, shape in shapes.items()}
    for name, letters in (overrides or {}).items():
        if name not in found:
            raise ValueError(f"`sides` has {name!r}, but the leaves are {list(found)}.")
        if len(letters) != len(shapes[name]) or set(letters) - set("lr.s"):
            raise ValueError(
                f"`sides` of {name!r} must have a letter of 'l', 'r', '.' and 's' for each of "
                f"{len(shapes[name])} axes, got {letters!r}."
            )
        if "l" in letters and "." in letters:
            raise ValueError(f"`sides` of {name!r} has both 'l' and '.', got {letters!r}.")
        found[name] = letters
    return found


def _letters(name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Infer the side of every axis of a leaf."""
    path = name.split(".")
    while path and path[-1] in ("value", "raw_value"):  # of a box around the array
        path.pop()
    kind = path[-1] if path else ""
    if len(shape) < 2:
        return "r" * len(shape)
    stacked = _num_stacked(name, shape, shapes)
    rest = len(shape) - stacked
    beside = _beside(name, shapes)
    if kind in ("bias", "scale") or (kind == "b" and "w" in beside) or rest < 2:
        return "s" * stacked + "r" * rest
    named_embedding = any("embed" in part.lower() for part in path)
    if named_embedding and kind != "kernel" and not {"bias", "b"} & set(beside):
        return "s" * stacked + "." * (rest - 1) + "r"
    if kind == "weight":
        return "s" * stacked + "r" + "l" * (rest - 1)
    if _has_heads(path) and rest > 2:
        return "s" * stacked + "l" * (rest - 2) + "rr"
    return "s" * stacked + "l" * (rest - 1) + "r"


def _num_stacked(name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of leading axes of stacked layers, from the bias beside a leaf.

    Without one it is that of the nearest leaf with a bias, if the sizes of these axes agree.
    """
    beside = _beside(name, shapes)
    if "bias" in beside or "w" in beside:
        bias = _without_ones(beside.get("bias", beside.get("b", ())))
        stacked = max(len(bias) - (2 if _has_heads(name.split(".")) else 1), 0)
        return stacked if bias[:stacked] == shape[:stacked] and stacked <= len(shape) else 0
    parts = name.split(".")
    for depth in range(len(parts) - 2, 0, -1):
        inside = ".".join(parts[:depth]) + "."
        for other, its_shape in shapes.items():
            if other.startswith(inside) and other.endswith(".bias"):
                stacked = _num_stacked(other, its_shape, shapes)
                same = its_shape[:stacked] == shape[:stacked]
                return stacked if same and stacked < len(shape) else 0
    return 0


def _has_heads(path: Sequence[str]) -> bool:
    """Return whether a leaf belongs to a projection of attention onto heads."""
    return any(part in ("query", "key", "value") for part in path[:-1])


def _beside(name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the leaves of the same layer, by the last part of their names."""
    return {other.rpartition(".")[2]: s for other, s in shapes.items() if _same(name, other)}


def _same(name: str, other: str) -> bool:
    """Return whether two leaves belong to the same layer."""
    return name.rpartition(".")[0] == other.rpartition(".")[0]


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the axes of size 1 at its end, as biases of convolutions have."""
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def kronecker_eigenbasis(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches,
    *,
    num_batches: int = 512,
    floor: float = 1e-6,
    more_positions: Sequence[ArrayTree] = (),
    sides: Mapping[str, str] | None = None,
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
    sides
        Letters of the axes of leaves, by name, where the rules of the module are wrong.
    """
    letters = list(leaf_sides(position, sides).values())
    positions = (position, *more_positions)
    share = batches.batch_size / grad_fn.data_size
    rotations = _rotations(_noise(key, grad_fn, positions, batches, num_batches), letters)
    squares: list[Any] = []
    count = 0
    for block in _noise(key, grad_fn, positions, batches, num_batches):
        leaves = jax.tree.leaves(block)
        count += leaves[0].shape[0]
        more = [_squares(each, leaf) for each, leaf in zip(rotations, leaves, strict=True)]
        squares = more if not squares else [a + b for a, b in zip(squares, more, strict=True)]
    ones = jax.tree.map(jnp.ones_like, position)
    prior = jax.jvp(jax.grad(grad_fn.log_prior), (position,), (ones,))[1]
    leaves = []
    for each, total, second in zip(rotations, squares, jax.tree.leaves(prior), strict=True):
        curvature = share * total / count - jnp.mean(second)
        largest = jnp.max(curvature, axis=(-2, -1), keepdims=True)
        leaves.append(replace(each, scale=jnp.maximum(curvature, floor * largest) ** -0.5))
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


def _rotations(blocks: Iterator[ArrayTree], letters: Sequence[str]) -> list[Sides]:
    totals: list[tuple[Any, Any]] = []
    shapes: list[tuple[int, ...]] = []
    for block in blocks:
        leaves = jax.tree.leaves(block)
        shapes = [leaf.shape[1:] for leaf in leaves]
        more = [_products(leaf, each) for leaf, each in zip(leaves, letters, strict=True)]
        totals = more if not totals else jax.tree.map(jnp.add, totals, more)
    return [
        Sides(_axes(left), _axes(right), jnp.ones(_side_sizes(each, shape)), each)
        for (left, right), shape, each in zip(totals, shapes, letters, strict=True)
    ]


@partial(jax.jit, static_argnames="letters")
def _products(leaf: jax.Array, letters: str) -> tuple[jax.Array, jax.Array]:
    """Sum $GG^T$ and $G^T G$ over a block; a side that is not rotated gives an empty array."""
    matrices = jax.vmap(lambda g: as_sides(g, letters))(leaf)
    m, n = matrices.shape[-2:]
    left = 1 < m <= LARGEST_SIDE and "." not in letters
    return (
        jnp.einsum("b...mn,b...kn->...mk", matrices, matrices) if left else jnp.zeros(0),
        jnp.einsum("b...mn,b...mk->...nk", matrices, matrices)
        if 1 < n <= LARGEST_SIDE
        else jnp.zeros(0),
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
    return jnp.sum(jax.vmap(lambda g: sides.rotate(as_sides(g, sides.letters)) ** 2)(leaf), axis=0)

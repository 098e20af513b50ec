r"""Natural coordinates: an invertible linear change of variables $\theta = c + M q$.

A thermostat per coordinate is exact only if the gradient noise is uncorrelated between the
coordinates, and one step size suits all directions only if they have equal curvature. Both hold in
the eigenbasis of the curvature $H = V\Lambda V^\top$, with $M = V\Lambda^{-1/2}$:
there the posterior is nearly a standard normal, minibatch noise (nearly proportional to $H$) is
nearly isotropic, and the same $D$ and $\mu$ fit every problem.

A sampler only needs two products: `push` maps a direction from $q$ to $\theta$ ($M v$), `pull` maps
a gradient from $\theta$ to $q$ ($M^\top g$). The centre $c$ does not enter the dynamics.
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm.types import ArrayTree


class Coordinates(Protocol):
    """A linear map between the coordinates of the momentum and those of the position."""

    def momentum_like(self, position: ArrayTree) -> ArrayTree:
        """Return a tree with the shapes of a momentum for this position."""
        ...

    def push(self, direction: ArrayTree) -> ArrayTree:
        r"""Map a direction to the coordinates of the position: $M v$."""
        ...

    def pull(self, grads: ArrayTree) -> ArrayTree:
        r"""Map a gradient to the coordinates of the momentum: $M^\top g$."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Identity:
    """No change of variables: $M = I$."""

    def momentum_like(self, position: ArrayTree) -> ArrayTree:
        """Return the position."""
        return position

    def push(self, direction: ArrayTree) -> ArrayTree:
        """Return the direction."""
        return direction

    def pull(self, grads: ArrayTree) -> ArrayTree:
        """Return the gradient."""
        return grads


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Diagonal:
    r"""One scale per coordinate: $M = \operatorname{diag}(s)$; $s$ is a tree like the position."""

    scale: ArrayTree

    def momentum_like(self, position: ArrayTree) -> ArrayTree:
        """Return the position."""
        return position

    def push(self, direction: ArrayTree) -> ArrayTree:
        r"""Scale the direction: $s \odot v$."""
        return jax.tree.map(jnp.multiply, self.scale, direction)

    def pull(self, grads: ArrayTree) -> ArrayTree:
        r"""Scale the gradient: $s \odot g$."""
        return jax.tree.map(jnp.multiply, self.scale, grads)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dense:
    r"""A matrix: column $j$ of $M$ is the direction of coordinate $q_j$ in $\theta$.

    The momentum is a flat vector with one entry per column.
    """

    basis: jax.Array
    like: ArrayTree

    def momentum_like(self, position: ArrayTree) -> jax.Array:
        """Return a vector with one entry per column of the basis."""
        del position
        return self.basis[0]

    def push(self, direction: jax.Array) -> ArrayTree:
        """Multiply by the basis and return the result in the structure of the position."""
        _, unravel = ravel_pytree(self.like)
        return unravel((self.basis @ direction).astype(_flat_dtype(self.like)))

    def pull(self, grads: ArrayTree) -> jax.Array:
        """Flatten the gradient and multiply it by the transposed basis."""
        return self.basis.T @ ravel_pytree(grads)[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LowRank:
    r"""Stretched along few directions: $M = I + U\operatorname{diag}(s - 1)U^\top$.

    The columns of $U$ are orthonormal. Along column $k$ directions are multiplied by $s_k$, all
    others stay as they are. A product costs $4dr$ operations for $d$ numbers and rank $r$.
    """

    basis: jax.Array
    """$U$, (numbers in the position, rank)."""
    stretch: jax.Array
    """$s$, (rank,)."""

    def momentum_like(self, position: ArrayTree) -> ArrayTree:
        """Return the position."""
        return position

    def push(self, direction: ArrayTree) -> ArrayTree:
        """Stretch the direction."""
        flat, unravel = ravel_pytree(direction)
        along = (self.stretch - 1) * (flat @ self.basis)
        return unravel(flat + (self.basis @ along).astype(flat.dtype))

    def pull(self, grads: ArrayTree) -> ArrayTree:
        """Stretch the gradient: $M$ is symmetric."""
        return self.push(grads)


def as_coordinates(coordinates: Coordinates | None) -> Coordinates:
    """Return the coordinates, or the identity for `None`; raise if they cannot push and pull."""
    if coordinates is None:
        return Identity()
    if not (hasattr(coordinates, "push") and hasattr(coordinates, "pull")):
        raise ValueError(
            "`coordinates` must come from `isotherm.warm_start` or be built by "
            "`isotherm.coordinates.eigenbasis`, `isotherm.coordinates.diagonal` or "
            f"`isotherm.coordinates.kronecker_eigenbasis`, got {coordinates!r}."
        )
    return coordinates


def _flat_dtype(tree: ArrayTree) -> jnp.dtype:
    return jnp.result_type(*jax.tree.leaves(tree))


def diagonal(curvature: ArrayTree, floor: float = 1e-6) -> Diagonal:
    r"""Return coordinates scaled by the curvature of each: $s_i = \lambda_i^{-1/2}$.

    Parameters
    ----------
    curvature
        Diagonal of the Hessian of $-\log\pi$ (or of the Fisher information), a tree like the
        position.
    floor
        Curvatures below this fraction of the largest one are raised to it.
    """
    largest = max(float(jnp.max(leaf)) for leaf in jax.tree.leaves(curvature))
    _require_curvature(largest)
    return Diagonal(jax.tree.map(lambda c: jnp.maximum(c, floor * largest) ** -0.5, curvature))


def eigenbasis(curvature: jax.Array | np.ndarray, like: ArrayTree, floor: float = 1e-6) -> Dense:
    r"""Return the eigenbasis of a curvature: $M = V\Lambda^{-1/2}$ for $H = V\Lambda V^\top$.

    The symmetric root $H^{-1/2} = V\Lambda^{-1/2}V^\top$ also whitens, but it rotates back, so that
    the gradient noise of different coordinates is correlated again. A thermostat per coordinate
    needs the unsymmetric root.

    Parameters
    ----------
    curvature
        Hessian of $-\log\pi$ or Fisher information, a symmetric matrix over the flattened position.
    like
        The position; its structure and dtypes are used.
    floor
        Eigenvalues below this fraction of the largest are raised to it, so that a Hessian that is
        slightly indefinite away from the mode can be used.
    """
    curvature = np.asarray(curvature, np.float64)
    size = ravel_pytree(like)[0].size
    if curvature.shape != (size, size):
        raise ValueError(
            f"`curvature` must be a {size} x {size} matrix, one row per number in the position, "
            f"got shape {curvature.shape}."
        )
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    largest = float(values[-1])
    _require_curvature(largest)
    basis = vectors * np.maximum(values, floor * largest) ** -0.5
    return Dense(jnp.asarray(basis, jnp.promote_types(_flat_dtype(like), jnp.float32)), like)


def low_rank(factor: jax.Array | np.ndarray, rank: int) -> LowRank:
    r"""Return coordinates in which the stiffest directions are as stiff as the next one.

    $H = I + G^\top G$ has the eigenvalues $\lambda_1 \ge \lambda_2 \ge \dots$. The first $r$
    directions are stretched by $s_k = (\lambda_{r+1}/\lambda_k)^{1/2}$, so that the largest
    curvature in these coordinates is $\lambda_{r+1}$. Flat directions stay as they are, because
    they may be stiff elsewhere in the posterior of a network.

    Parameters
    ----------
    factor
        $G$, (rows, numbers in the position): a root of the curvature of the log likelihood, such as
        gradients of single rows times a constant. The prior has curvature 1.
    rank
        $r$; it must be below the number of rows and of columns.
    """
    factor = np.asarray(factor, np.float64)
    if not 0 < rank < min(factor.shape):
        raise ValueError(f"`rank` must be between 1 and {min(factor.shape) - 1}, got {rank}.")
    # The eigenvectors of the smaller product are enough.
    values, vectors = np.linalg.eigh(factor @ factor.T)
    _require_curvature(float(values[-1]))
    first = slice(-1, -1 - rank, -1)
    basis = np.linalg.qr(factor.T @ vectors[:, first])[0]
    stretch = np.sqrt((1 + max(values[-1 - rank], 0.0)) / (1 + np.maximum(values[first], 0.0)))
    return LowRank(jnp.asarray(basis, jnp.float32), jnp.asarray(stretch, jnp.float32))


def _require_curvature(largest: float) -> None:
    if not largest > 0:
        raise ValueError(
            f"`curvature` must have a positive eigenvalue, but the largest is {largest}. Check "
            "that it is the Hessian of the negative log density, at a position near a mode."
        )

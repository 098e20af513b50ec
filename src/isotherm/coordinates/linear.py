r"""Natural coordinates: an invertible linear change of variables $\theta = c + M q$.

A per-coordinate thermostat is right only where gradient noise is uncorrelated between the
coordinates it sits on, and one step size suits all directions only where they are equally stiff.
Both hold in the eigenbasis of the curvature $H = V\Lambda V^\top$, with $M = V\Lambda^{-1/2}$: there the
posterior is nearly a standard normal, minibatch noise (nearly proportional to $H$) is nearly
isotropic, and the same $D$ and $\mu$ fit every problem.

A sampler only needs two products: `push` sends a direction from $q$ to $\theta$ ($M v$), `pull` a
gradient from $\theta$ to $q$ ($M^\top g$). The centre $c$ does not enter the dynamics.
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm.types import ArrayTree


class Coordinates(Protocol):
    """A linear map between the space of the momentum and the space of the position."""

    def momentum_like(self, position: ArrayTree) -> ArrayTree:
        """Give anything shaped like a momentum for this position."""
        ...

    def push(self, direction: ArrayTree) -> ArrayTree:
        r"""Carry a direction to the position's space: $M v$."""
        ...

    def pull(self, grads: ArrayTree) -> ArrayTree:
        r"""Carry a gradient to the momentum's space: $M^\top g$."""
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
    r"""A scale per coordinate: $M = \operatorname{diag}(s)$; $s$ is shaped like the position."""

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
    r"""Any matrix: column $j$ of $M$ is the direction, in $\theta$, of coordinate $q_j$.

    The momentum is a flat vector with one entry per column.
    """

    basis: jax.Array
    like: ArrayTree

    def momentum_like(self, position: ArrayTree) -> jax.Array:
        """Return a vector with one entry per column of the basis."""
        del position
        return self.basis[0]

    def push(self, direction: jax.Array) -> ArrayTree:
        """Multiply by the basis and give the result the position's structure."""
        _, unravel = ravel_pytree(self.like)
        return unravel((self.basis @ direction).astype(_flat_dtype(self.like)))

    def pull(self, grads: ArrayTree) -> jax.Array:
        """Flatten the gradient and multiply by the transposed basis."""
        return self.basis.T @ ravel_pytree(grads)[0]


def as_coordinates(coordinates: Coordinates | None) -> Coordinates:
    """Take the identity for nothing; refuse what cannot push and pull."""
    if coordinates is None:
        return Identity()
    if not (hasattr(coordinates, "push") and hasattr(coordinates, "pull")):
        raise ValueError(
            "`coordinates` must come from isotherm.warm_start, isotherm.coordinates.eigenbasis or "
            f"isotherm.coordinates.diagonal, got {coordinates!r}."
        )
    return coordinates


def _flat_dtype(tree: ArrayTree) -> jnp.dtype:
    return jnp.result_type(*jax.tree.leaves(tree))


def diagonal(curvature: ArrayTree, floor: float = 1e-6) -> Diagonal:
    r"""Scale each coordinate by its curvature: $s_i = \lambda_i^{-1/2}$.

    Parameters
    ----------
    curvature
        Diagonal of the Hessian of $-\log\pi$ (or of the Fisher information), shaped like the
        position.
    floor
        Curvatures below this fraction of the largest one are raised to it.
    """
    largest = max(float(jnp.max(leaf)) for leaf in jax.tree.leaves(curvature))
    _require_curvature(largest)
    return Diagonal(jax.tree.map(lambda c: jnp.maximum(c, floor * largest) ** -0.5, curvature))


def eigenbasis(curvature: jax.Array | np.ndarray, like: ArrayTree, floor: float = 1e-6) -> Dense:
    r"""Sit on the principal axes of the curvature: $M = V\Lambda^{-1/2}$ for $H = V\Lambda V^\top$.

    The *unsymmetric* root matters: $H^{-1/2} = V\Lambda^{-1/2}V^\top$ also whitens, but mixes the axes
    again, and with them the gradient noise that a per-coordinate thermostat must see separately.

    Parameters
    ----------
    curvature
        Hessian of $-\log\pi$ or Fisher information, a symmetric matrix over the flattened position.
    like
        The position (for its structure and dtypes).
    floor
        Eigenvalues below this fraction of the largest are raised to it (so a Hessian that is
        slightly indefinite away from the mode still gives coordinates).
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


def _require_curvature(largest: float) -> None:
    if not largest > 0:
        raise ValueError(
            f"`curvature` must have a positive direction, its largest value is {largest}. "
            "Is this the Hessian of the *negative* log density, and is the position near a mode?"
        )

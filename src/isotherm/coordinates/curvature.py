r"""Curvature of a log posterior over all data: Newton's method, scales, the largest eigenvalue.

Sums over rows are computed in chunks of rows, so that memory does not grow with the data.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.coordinates.linear import Coordinates, Diagonal, diagonal
from isotherm.coordinates.newton import newton_ascent, solve_positive
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.gradients.full_data import sum_over_rows
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.tree import leaf_sizes
from isotherm.types import ArrayTree, Batch, Key

LARGEST_EXACT = 1000
"""Numbers of a position up to which the diagonal of the Hessian is computed exactly."""
NUM_PROBES = 64
"""Products with random signs from which it is estimated beyond that."""
ROUGH_STEPS = 60
"""Largest number of steps of conjugate gradients."""


class WholeData:
    """The log posterior over all data and its derivatives, each compiled once."""

    def __init__(
        self, grad_fn: MinibatchGradient, data: Batch, position: ArrayTree, chunk_size: int
    ) -> None:
        _, unravel = ravel_pytree(position)
        self.log_prior, self.size = grad_fn.log_prior, grad_fn.data_size
        self.data, self.chunk_size = data, chunk_size
        likelihood = grad_fn.log_likelihood_sum

        def outer_products(x: jax.Array, batch: Batch) -> jax.Array:
            each = jax.jacrev(lambda x: grad_fn.log_likelihood(unravel(x), batch))(x)
            return each.T @ each

        def squares(x: ArrayTree, batch: Batch) -> ArrayTree:
            each = jax.jacrev(grad_fn.log_likelihood)(x, batch)
            return jax.tree.map(lambda g: jnp.sum(g * g, axis=0), each)

        def times(x_and_v: tuple, batch: Batch) -> ArrayTree:
            x, v = x_and_v
            return jax.jvp(lambda y: jax.grad(likelihood)(y, batch), (x,), (v,))[1]

        def prior_times(x: ArrayTree, v: ArrayTree) -> ArrayTree:
            return jax.jvp(jax.grad(self.log_prior), (x,), (v,))[1]

        def weighted(key: Key, x: ArrayTree, batch: Batch) -> ArrayTree:
            def total(y: ArrayTree) -> jax.Array:
                rows = grad_fn.log_likelihood(y, batch)
                return jnp.sum(random.gaussian(key, rows) * rows)

            return jax.grad(total)(x)

        self._weighted = jax.jit(weighted)
        self._value, self._prior = jax.jit(likelihood), jax.jit(self.log_prior)
        self._prior_gradient = jax.jit(jax.grad(self.log_prior))
        self._prior_times = jax.jit(prior_times)
        self._gradient = jax.jit(jax.grad(likelihood))
        self._hessian = jax.jit(jax.hessian(lambda x, b: likelihood(unravel(x), b)))
        self._prior_hessian = jax.jit(jax.hessian(lambda x: self.log_prior(unravel(x))))
        self._outer, self._squares, self._times = map(jax.jit, (outer_products, squares, times))

    def _sum(self, fn: Callable[[Any, Batch], Any], argument: Any) -> Any:
        return sum_over_rows(fn, argument, self.data, self.size, self.chunk_size)

    def log_density(self, position: ArrayTree) -> float:
        """Return the log posterior density, up to a constant; NaN where it is not defined.

        Distributions of NumPyro raise an error there, unless they are compiled.
        """
        return float(self._sum(self._value, position) + self._prior(position))

    def gradient(self, position: ArrayTree) -> np.ndarray:
        """Return the gradient of the log posterior, flat and in double precision."""
        prior = self._prior_gradient(position)
        total = jax.tree.map(jnp.add, prior, self._sum(self._gradient, position))
        return np.asarray(ravel_pytree(total)[0], np.float64)

    def hessian(self, position: ArrayTree) -> np.ndarray:
        """Return the Hessian of minus the log density."""
        flat, _ = ravel_pytree(position)
        return -np.asarray(self._sum(self._hessian, flat) + self._prior_hessian(flat), np.float64)

    def fisher(self, position: ArrayTree) -> np.ndarray:
        """Return the empirical Fisher information plus the Hessian of minus the log prior."""
        flat, _ = ravel_pytree(position)
        return np.asarray(self._sum(self._outer, flat) - self._prior_hessian(flat), np.float64)

    def hessian_diagonal(self, key: Key, position: ArrayTree) -> ArrayTree:
        r"""Return the diagonal of `hessian`, of a large position by Hutchinson's estimate.

        It is the mean of $v \odot Hv$ over vectors $v$ of random signs, at least the curvature of
        the prior, which must then be a product over coordinates.
        """
        if int(leaf_sizes(position).sum()) <= LARGEST_EXACT:
            flat, unravel = ravel_pytree(position)
            return unravel(jnp.asarray(np.diag(self.hessian(position)), flat.dtype))
        total = jax.tree.map(jnp.zeros_like, position)
        for i in range(NUM_PROBES):
            signs = jax.tree.map(jnp.sign, random.gaussian(random.fold(key, i), position))
            products = self.hessian_times(position, signs)
            total = jax.tree.map(lambda a, s, p: a + s * p / NUM_PROBES, total, signs, products)
        return jax.tree.map(jnp.maximum, total, self.prior_diagonal(position))

    def weighted_gradient(self, key: Key, position: ArrayTree) -> ArrayTree:
        """Return the sum of the gradients of all rows with independent normal weights."""
        chunks = count()

        def part(x: ArrayTree, batch: Batch) -> ArrayTree:
            return self._weighted(random.fold(key, next(chunks)), x, batch)

        return self._sum(part, position)

    def prior_diagonal(self, position: ArrayTree) -> ArrayTree:
        """Return minus the second derivatives of a log prior that is a sum over coordinates."""
        ones = jax.tree.map(jnp.ones_like, position)
        return jax.tree.map(jnp.negative, self._prior_times(position, ones))

    def fisher_diagonal(self, position: ArrayTree) -> ArrayTree:
        """Return the diagonal of `fisher`; the prior must be a product over coordinates."""
        squares = self._sum(self._squares, position)
        return jax.tree.map(jnp.add, squares, self.prior_diagonal(position))

    def hessian_times(self, position: ArrayTree, direction: ArrayTree) -> ArrayTree:
        """Multiply the Hessian of minus the log density by a direction."""
        prior = self._prior_times(position, direction)
        likelihood = self._sum(self._times, (position, direction))
        return jax.tree.map(lambda a, b: -(a + b), likelihood, prior)


def newton(
    whole: WholeData, matrix: Callable[[ArrayTree], np.ndarray], position: ArrayTree
) -> ArrayTree:
    """Return a mode near `position`, found by Newton (or natural-gradient) steps.

    Iteration stops after 20 steps, or when a step gains less than a thousandth in log density.

    Parameters
    ----------
    whole
        The log posterior over all data.
    matrix
        The curvature: `whole.hessian` or `whole.fisher`.
    position
        The first position.
    """
    flat, unravel = ravel_pytree(position)

    def as_tree(vector: np.ndarray) -> ArrayTree:
        return unravel(jnp.asarray(vector, flat.dtype))

    mode = newton_ascent(
        lambda x: whole.log_density(as_tree(x)),
        lambda x: whole.gradient(as_tree(x)),
        lambda x: matrix(as_tree(x)),
        np.asarray(flat, np.float64),
        solve=solve_positive,
        factors=(1.0, 0.5, 0.25, 0.1, 0.01),
        max_steps=20,
        min_gain=1e-3,
        accept_equal=False,
        dtype=flat.dtype,
    )
    return as_tree(mode)


def diagonal_coordinates(
    key: Key, whole: WholeData, position: ArrayTree, curvature: str
) -> Diagonal:
    """Return coordinates that scale every coordinate by its own curvature."""
    if curvature == "fisher":
        return diagonal(whole.fisher_diagonal(position))
    return diagonal(whole.hessian_diagonal(key, position))


def stiffness_in(key: Key, whole: WholeData, position: ArrayTree, space: Coordinates) -> float:
    """Return the largest curvature of minus the log density in the given coordinates."""

    def times(direction: ArrayTree) -> ArrayTree:
        return space.pull(whole.hessian_times(position, space.push(direction)))

    start = random.gaussian(key, space.momentum_like(position))
    return float(largest_eigenvalue(times, start, 30, compiled=False))


def rough_draw(key: Key, whole: WholeData, mode: ArrayTree) -> ArrayTree | None:
    r"""Draw from the Gaussian approximation at a mode without a matrix; `None` if there is none.

    With independent $\varepsilon \sim \mathcal N(0, 1)$, one for every row and every coordinate,
    $z = \sum_i \varepsilon_i g_i + \Lambda_0^{1/2}\varepsilon$ has the covariance of the Fisher
    matrix plus the precision $\Lambda_0$ of the prior, which is nearly that of the Hessian $H$. So
    $H^{-1} z$, by conjugate gradients with that prior as preconditioner, is nearly a draw. Where
    the curvature is negative the approximation does not exist.

    Parameters
    ----------
    key
        For the random numbers.
    whole
        The log posterior over all data.
    mode
        The mode.
    """
    flat, unravel = ravel_pytree(mode)
    prior = np.asarray(ravel_pytree(whole.prior_diagonal(mode))[0], np.float64)
    prior = np.where(prior > 0, prior, 1.0)
    noise = random.gaussian(random.fold(key, 0), flat)
    rows = ravel_pytree(whole.weighted_gradient(random.fold(key, 1), mode))[0]
    residual = np.asarray(rows, np.float64) + np.sqrt(prior) * np.asarray(noise, np.float64)
    found, direction = np.zeros_like(residual), residual / prior
    size = first = float(residual @ direction)
    for _ in range(ROUGH_STEPS):
        tangent = unravel(jnp.asarray(direction, flat.dtype))
        product = np.asarray(ravel_pytree(whole.hessian_times(mode, tangent))[0], np.float64)
        curvature = direction @ product
        if not curvature > 0:
            return None
        found = found + size / curvature * direction
        residual = residual - size / curvature * product
        previous, size = size, residual @ (residual / prior)
        if size < 1e-6 * first:
            break
        direction = residual / prior + size / previous * direction
    return unravel(flat + jnp.asarray(found, flat.dtype))

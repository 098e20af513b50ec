r"""Thermostats: friction that is fixed, a scalar, one per tensor or coordinate, or a matrix.

| kind | $\xi$ | driven by | algorithm |
| --- | --- | --- | --- |
| `"fixed"` | a constant | nothing | SGHMC |
| `"scalar"` | one number | mean of $p^2$ over all coordinates | SGNHT |
| `"per_tensor"` | one number per leaf | mean of $p^2$ over the leaf | |
| `"per_coordinate"` | shaped like $p$ | $p\odot p$ | mSGNHT |
| `"full_matrix"` | symmetric $d\times d$ | $p\,p^\top$ | for small problems |

All obey $d\xi = (\text{kinetic} - T)/\mu\,dt$ with thermostat mass $\mu$, and leave
$\exp[-(U + \tfrac12 p^2 + \tfrac{\mu'}2(\xi - D)^2)/T]$ invariant, with $\mu' = \mu$ times the
number of coordinates that share the $\xi$. An adaptive thermostat settles at $E[\xi] = D + B$ if
the gradient has white noise of covariance $2B$ per unit time, and so absorbs noise that is not
estimated. This is exact only for noise of a certain form: isotropic for a scalar, uncorrelated
between coordinates for one $\xi$ per coordinate, any covariance for the matrix.

**Start.** Without gradient noise every $\xi$ has the law $\mathcal N(D, T/\mu')$, independent of
momenta. With all $\xi = D$ instead, those of fast coordinates rise first, so that the mean of $p^2$
falls by $2t^2/\mu$ at the beginning: with $\mu = D^{-2}$, as for networks, a chain is up to 10 %
too cold for about $5/D$ units of time, then as much too hot. `scatter` draws from the law.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.fast_math import exp, mean_decay
from isotherm.tree import add_increment
from isotherm.types import ArrayTree, Key, Scalar

STATIONARY = "stationary"
"""Initial thermostats that have the law of a chain in equilibrium."""


class Thermostat(NamedTuple):
    """A friction law: its initial value, its flow, and its effect on the momentum."""

    kind: str
    adaptive: bool
    start: Callable[[ArrayTree, Scalar], ArrayTree]
    """`start(momentum, value) -> xi`."""
    heat: Callable[[ArrayTree, ArrayTree, Scalar, Scalar], ArrayTree]
    """`heat(xi, momentum, temperature, t) -> xi`: the flow `D`."""
    drag: Callable[[ArrayTree, ArrayTree], ArrayTree]
    r"""`drag(xi, momentum)` $= \xi\odot p$, for the Euler step."""
    damp: Callable[[ArrayTree, ArrayTree, Scalar], ArrayTree]
    """`damp(xi, momentum, t) -> momentum`: the flow `B`."""
    relax: Callable[[ArrayTree, ArrayTree, ArrayTree, Scalar, Scalar], ArrayTree]
    """`relax(xi, momentum, noise, strength, t) -> momentum`: the flow `O`."""


def _mean_square(p: jax.Array) -> jax.Array:
    return jnp.mean(p * p)


def _mean_square_of_all(momentum: ArrayTree) -> jax.Array:
    leaves = jax.tree.leaves(momentum)
    total = jnp.sum(jnp.stack([jnp.sum(p * p) for p in leaves]))
    return total / sum(p.size for p in leaves)


def _elementwise(
    kind: str,
    mass: Scalar,
    measure: Callable[[ArrayTree], ArrayTree] | None,
    expand: Callable[[ArrayTree, ArrayTree], ArrayTree],
) -> Thermostat:
    """Build a thermostat whose friction multiplies the momentum elementwise.

    `measure` returns the kinetic temperature in the shape of xi; `expand` returns xi in a shape
    that broadcasts against the momentum, leaf by leaf.
    """

    def start(momentum: ArrayTree, value: Scalar) -> ArrayTree:
        like = jnp.zeros(()) if measure is None else measure(momentum)
        return jax.tree.map(lambda m: jnp.full(m.shape, value, m.dtype), like)

    def heat(xi: ArrayTree, momentum: ArrayTree, temperature: Scalar, t: Scalar) -> ArrayTree:
        if measure is None:
            return xi
        return jax.tree.map(
            lambda x, m: add_increment(x, (m - temperature) * (t / mass)), xi, measure(momentum)
        )

    def drag(xi: ArrayTree, momentum: ArrayTree) -> ArrayTree:
        return jax.tree.map(lambda x, p: x * p, expand(xi, momentum), momentum)

    def damp(xi: ArrayTree, momentum: ArrayTree, t: Scalar) -> ArrayTree:
        return jax.tree.map(
            lambda x, p: (exp(-x * t) * p).astype(p.dtype), expand(xi, momentum), momentum
        )

    def relax(
        xi: ArrayTree, momentum: ArrayTree, noise: ArrayTree, strength: Scalar, t: Scalar
    ) -> ArrayTree:
        def solve(x: jax.Array, p: jax.Array, r: jax.Array) -> jax.Array:
            decay = exp(-x * t)
            scale = jnp.sqrt(2 * strength * t * mean_decay(2 * x * t, decay * decay))
            return (decay * p + scale * r).astype(p.dtype)

        return jax.tree.map(solve, expand(xi, momentum), momentum, noise)

    return Thermostat(kind, measure is not None, start, heat, drag, damp, relax)


def _shared(xi: jax.Array, momentum: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda p: xi.astype(p.dtype), momentum)


def _own(xi: ArrayTree, momentum: ArrayTree) -> ArrayTree:
    del momentum
    return xi


def fixed(mass: Scalar = 1.0) -> Thermostat:
    """Build a constant friction: underdamped Langevin dynamics, SGHMC."""
    return _elementwise("fixed", mass, None, _shared)


def scalar(mass: Scalar = 1.0) -> Thermostat:
    """Build one friction for all coordinates, driven by their mean kinetic temperature."""
    return _elementwise("scalar", mass, _mean_square_of_all, _shared)


def per_tensor(mass: Scalar = 1.0) -> Thermostat:
    """Build one friction per leaf of the momentum."""
    return _elementwise("per_tensor", mass, lambda p: jax.tree.map(_mean_square, p), _own)


def per_coordinate(mass: Scalar = 1.0) -> Thermostat:
    """Build one friction per coordinate: the thermostat of the paper."""
    return _elementwise("per_coordinate", mass, lambda p: jax.tree.map(jnp.square, p), _own)


def _exponential_action(xi: jax.Array, p: jax.Array, t: Scalar) -> jax.Array:
    r"""Return $e^{-\Xi t} p$ up to rounding error, by products with $\Xi$ only.

    The interval is divided into $m$ pieces such that $\lVert\Xi\rVert\,t/m \le 1/2$; the error of
    ten Taylor terms is then below $10^{-11}$.
    """
    pieces = jnp.ceil(2 * jnp.abs(t) * jnp.linalg.norm(xi)).astype(jnp.int32)
    # The norm of a diverged matrix is not finite; the result is then NaN.
    pieces = jnp.clip(pieces, 1, 10_000)
    dt = (t / pieces).astype(p.dtype)

    def piece(_: int, p: jax.Array) -> jax.Array:
        term, total = p, p
        for order in range(1, 11):
            term = -(xi @ term) * (dt / order)
            total = total + term
        return total

    return jax.lax.fori_loop(0, pieces, piece, p)


def full_matrix(mass: Scalar = 1.0) -> Thermostat:
    r"""Build a friction that is a symmetric matrix: $d\Xi = (p\,p^\top - T I)/\mu\,dt$.

    It absorbs gradient noise of any covariance, and needs $O(d^2)$ memory and $O(d^2)$ work per
    step ($O(d^3)$ for words with the letter `O`, which needs the eigenvectors of $\Xi$).
    """

    def start(momentum: ArrayTree, value: Scalar) -> jax.Array:
        flat, _ = ravel_pytree(momentum)
        return jnp.eye(flat.size, dtype=flat.dtype) * value

    def heat(xi: jax.Array, momentum: ArrayTree, temperature: Scalar, t: Scalar) -> jax.Array:
        p, _ = ravel_pytree(momentum)
        excess = jnp.outer(p, p) - temperature * jnp.eye(p.size, dtype=p.dtype)
        return add_increment(xi, excess * (t / mass))

    def drag(xi: jax.Array, momentum: ArrayTree) -> ArrayTree:
        p, unravel = ravel_pytree(momentum)
        return unravel(xi @ p)

    def damp(xi: jax.Array, momentum: ArrayTree, t: Scalar) -> ArrayTree:
        p, unravel = ravel_pytree(momentum)
        return unravel(_exponential_action(xi, p, jnp.asarray(t, p.dtype)))

    def relax(
        xi: jax.Array, momentum: ArrayTree, noise: ArrayTree, strength: Scalar, t: Scalar
    ) -> ArrayTree:
        p, unravel = ravel_pytree(momentum)
        r, _ = ravel_pytree(noise)
        rates, axes = jnp.linalg.eigh(xi)
        decay = jnp.exp(-rates * t)
        scale = jnp.sqrt(2 * strength * t * mean_decay(2 * rates * t, decay * decay))
        solved = decay * (axes.T @ p) + scale * (axes.T @ r)
        return unravel((axes @ solved).astype(p.dtype))

    return Thermostat("full_matrix", True, start, heat, drag, damp, relax)


def scatter(key: Key, xi: ArrayTree, momentum: ArrayTree, variance: Scalar) -> ArrayTree:
    r"""Add $\mathcal N(0, T/\mu')$ to thermostats, with $T/\mu$ the given variance."""
    sizes, leaves = [p.size for p in jax.tree.leaves(momentum)], jax.tree.leaves(xi)
    shared = sizes if len(leaves) == len(sizes) else [sum(sizes)]
    numbers = jax.tree.unflatten(jax.tree.structure(xi), shared)

    def one(x: jax.Array, r: jax.Array, n: int) -> jax.Array:
        return x + (jnp.sqrt(variance * x.size / n) * r).astype(x.dtype)

    return jax.tree.map(one, xi, random.gaussian(key, xi), numbers)


THERMOSTATS = {
    "fixed": fixed,
    "scalar": scalar,
    "per_tensor": per_tensor,
    "per_coordinate": per_coordinate,
    "full_matrix": full_matrix,
}


def check_thermostat(name: str, allowed: tuple[str, ...] = tuple(THERMOSTATS)) -> str:
    """Return the name of a thermostat; raise a `ValueError` if it is not an allowed one."""
    if not isinstance(name, str) or name not in allowed:
        raise ValueError(f"`thermostat` must be one of {allowed}, got {name!r}.")
    return name

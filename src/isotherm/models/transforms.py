r"""Constrained parameters as functions of unconstrained ones, with the logarithm of the Jacobian.

A sampler moves real numbers. A parameter $x = T(z)$ that is positive, ordered or a distribution has
the log density

$$ \log\pi_z(z) = \log\pi_x(T(z)) + \log|\det \partial T/\partial z| . $$

| name | object | $x$ |
| --- | --- | --- |
| `"real"` | `Real()` | any number: $x = z$ |
| `"positive"` | `Positive()` | $x = e^z$ |
| | `Interval(a, b)` | $x = a + (b - a)/(1 + e^{-z})$ |
| `"ordered"` | `Ordered()` | $x_1 < x_2 < \dots$: $x_1 = z_1$, $x_k = x_{k-1} + e^{z_k}$ |
| `"simplex"` | `Simplex()` | $x_k > 0$, $\sum x_k = 1$, by breaking a stick |

The last two act on the last axis; a simplex of $K$ numbers has $K - 1$ unconstrained ones, and its
density is that of the first $K - 1$. At $z = 0$ it is uniform:
$x_k = (1 - \sum_{j<k} x_j)\,u_k$, $u_k = 1/(1 + (K - k)\,e^{-z_k})$.

`Constraints` applies transforms to the leaves of a pytree:

    constraints = Constraints({"weights": "real", "noise": "positive"})
    log_prior = constraints.log_prior(lambda values: ...)     # of constrained values
    position = constraints.unconstrain({"weights": w, "noise": 1.0})
    values = jax.vmap(jax.vmap(constraints.constrain))(run.draws)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from isotherm.types import ArrayTree


class Transform:
    """A smooth bijection from unconstrained numbers."""

    def constrain(self, z: jax.Array) -> jax.Array:
        """Return $x = T(z)$."""
        raise NotImplementedError

    def unconstrain(self, x: jax.Array) -> jax.Array:
        """Return $z = T^{-1}(x)$."""
        raise NotImplementedError

    def log_jacobian(self, z: jax.Array) -> jax.Array:
        r"""Return $\log|\det\partial T/\partial z|$, a number: summed over all entries of $z$."""
        raise NotImplementedError


@dataclass(frozen=True)
class Real(Transform):
    """Unconstrained numbers, as they are."""

    def constrain(self, z: jax.Array) -> jax.Array:
        """Return $z$."""
        return z

    def unconstrain(self, x: jax.Array) -> jax.Array:
        """Return $x$."""
        return x

    def log_jacobian(self, z: jax.Array) -> jax.Array:
        """Return zero."""
        return jnp.zeros((), z.dtype)


@dataclass(frozen=True)
class Positive(Transform):
    """Positive numbers: $x = e^z$.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Positive().constrain(jnp.zeros(2)).tolist(), float(Positive().log_jacobian(jnp.ones(2)))
    ([1.0, 1.0], 2.0)
    """

    def constrain(self, z: jax.Array) -> jax.Array:
        """Return $e^z$."""
        return jnp.exp(z)

    def unconstrain(self, x: jax.Array) -> jax.Array:
        r"""Return $\log x$."""
        return jnp.log(x)

    def log_jacobian(self, z: jax.Array) -> jax.Array:
        r"""Return $\sum z$."""
        return jnp.sum(z)


@dataclass(frozen=True)
class Interval(Transform):
    """Numbers between `low` and `high`, by the logistic function."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"`low` must be below `high`, got {self.low} and {self.high}.")

    def constrain(self, z: jax.Array) -> jax.Array:
        r"""Return $a + (b - a)/(1 + e^{-z})$."""
        return self.low + (self.high - self.low) * jax.nn.sigmoid(z)

    def unconstrain(self, x: jax.Array) -> jax.Array:
        r"""Return $\log\frac{x - a}{b - x}$."""
        return jnp.log(x - self.low) - jnp.log(self.high - x)

    def log_jacobian(self, z: jax.Array) -> jax.Array:
        """Return the sum of the logarithms of the slopes."""
        slopes = jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z)
        return jnp.sum(slopes + jnp.log(self.high - self.low))


@dataclass(frozen=True)
class Ordered(Transform):
    """Increasing numbers along the last axis.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Ordered().constrain(jnp.array([-1.0, 0.0, 0.0])).tolist()
    [-1.0, 0.0, 1.0]
    """

    def constrain(self, z: jax.Array) -> jax.Array:
        """Return the running sum of the first number and the exponentials of the others."""
        return jnp.cumsum(jnp.concatenate([z[..., :1], jnp.exp(z[..., 1:])], axis=-1), axis=-1)

    def unconstrain(self, x: jax.Array) -> jax.Array:
        """Return the first number, and the logarithms of the differences."""
        return jnp.concatenate([x[..., :1], jnp.log(jnp.diff(x, axis=-1))], axis=-1)

    def log_jacobian(self, z: jax.Array) -> jax.Array:
        """Return the sum of all but the first numbers."""
        return jnp.sum(z[..., 1:])


@dataclass(frozen=True)
class Simplex(Transform):
    """Positive numbers with sum 1 along the last axis, one more than unconstrained numbers.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Simplex().constrain(jnp.zeros(3)).round(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def constrain(self, z: jax.Array) -> jax.Array:
        """Return the pieces of the stick."""
        logit = z - self._offset(z)
        left = self._log_left(logit)
        pieces = jnp.exp(left[..., :-1] + jax.nn.log_sigmoid(logit))
        return jnp.concatenate([pieces, jnp.exp(left[..., -1:])], axis=-1)

    def unconstrain(self, x: jax.Array) -> jax.Array:
        """Return the unconstrained numbers."""
        x = jnp.asarray(x)
        left = jnp.cumsum(x[..., ::-1], axis=-1)[..., ::-1][..., 1:]  # of the stick, after a piece
        logit = jnp.log(x[..., :-1]) - jnp.log(left)
        return logit + self._offset(logit)

    def log_jacobian(self, z: jax.Array) -> jax.Array:
        """Return the log determinant for the first $K - 1$ pieces."""
        logit = z - self._offset(z)
        slopes = jax.nn.log_sigmoid(logit) + jax.nn.log_sigmoid(-logit)
        return jnp.sum(slopes + self._log_left(logit)[..., :-1])

    def _offset(self, z: jax.Array) -> jax.Array:
        """Return the log number of pieces after each piece, which makes zeros uniform."""
        after = jnp.arange(z.shape[-1], 0, -1, dtype=z.dtype)
        return jnp.broadcast_to(jnp.log(after), z.shape)

    def _log_left(self, logit: jax.Array) -> jax.Array:
        """Return the log length of the stick before each piece, and at the end."""
        left = jnp.cumsum(jax.nn.log_sigmoid(-logit), axis=-1)
        return jnp.concatenate([jnp.zeros_like(left[..., :1]), left], axis=-1)


TRANSFORMS: dict[str, Transform] = {
    "real": Real(),
    "positive": Positive(),
    "ordered": Ordered(),
    "simplex": Simplex(),
}


@dataclass(frozen=True, eq=False)
class Constraints:
    """Transforms of the leaves of a pytree.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> constraints = Constraints({"noise": "positive", "shares": Simplex()})
    >>> position = {"noise": jnp.array(0.0), "shares": jnp.zeros(1)}
    >>> constraints.constrain(position)["shares"].tolist()
    [0.5, 0.5]
    >>> round(float(constraints.log_jacobian(position)), 4)  # log 1 + log 1/4
    -1.3863
    """

    transforms: Any
    """A pytree of transforms or their names; each is for a leaf, or for all leaves of a subtree."""

    def __post_init__(self) -> None:
        for each in jax.tree.leaves(self.transforms, is_leaf=_is_transform):
            if not isinstance(each, Transform) and each not in TRANSFORMS:
                raise ValueError(
                    f"`transforms` must be objects such as `Interval(0, 1)`, or names of "
                    f"{tuple(TRANSFORMS)}, got {each!r}."
                )

    def constrain(self, position: ArrayTree) -> ArrayTree:
        """Return the constrained values; `jax.vmap` it over draws."""
        return self._map(lambda transform, z: transform.constrain(jnp.asarray(z)), position)

    def unconstrain(self, values: ArrayTree) -> ArrayTree:
        """Return the position of constrained values, for example as the start of a chain."""
        return self._map(lambda transform, x: transform.unconstrain(jnp.asarray(x)), values)

    def log_jacobian(self, position: ArrayTree) -> jax.Array:
        """Return the sum over leaves of the log Jacobians."""
        each = self._map(lambda transform, z: transform.log_jacobian(jnp.asarray(z)), position)
        return jnp.sum(jnp.stack(jax.tree.leaves(each)))

    def log_prior(
        self, log_density: Callable[[ArrayTree], jax.Array]
    ) -> Callable[[ArrayTree], jax.Array]:
        """Return the log density of positions, given that of constrained values."""

        def log_prior(position: ArrayTree) -> jax.Array:
            return log_density(self.constrain(position)) + self.log_jacobian(position)

        return log_prior

    def _map(self, function: Callable[[Transform, Any], Any], tree: ArrayTree) -> ArrayTree:
        def part(transform: Any, subtree: ArrayTree) -> ArrayTree:
            named = transform if isinstance(transform, Transform) else TRANSFORMS[transform]
            return jax.tree.map(lambda leaf: function(named, leaf), subtree)

        return jax.tree.map(part, self.transforms, tree, is_leaf=_is_transform)


def _is_transform(node: Any) -> bool:
    return node is None or isinstance(node, str | Transform)

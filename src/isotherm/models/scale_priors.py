r"""Priors of a positive scale $s$, as densities of $t = \log s$.

They are for the noise of a likelihood and for the scales of weights. The density of $t$ is that of
$s$ times the Jacobian $s$; it is normalised.

| object | density of $s$ |
| --- | --- |
| `HalfCauchy(c)` | $\frac{2}{\pi c}\,(1 + s^2/c^2)^{-1}$ |
| `HalfNormal(c)` | $\sqrt{2/\pi}\,c^{-1} e^{-s^2/2c^2}$ |
| `Gamma(a, b)` | $\frac{b^a}{\Gamma(a)}\,s^{a-1} e^{-bs}$ |
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from isotherm.schedules import require_positive
from isotherm.types import Key


class ScalePrior:
    """A distribution of a positive number."""

    def log_density(self, t: jax.Array) -> jax.Array:
        r"""Return the log density of $t = \log s$, entry by entry."""
        raise NotImplementedError

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> jax.Array:
        r"""Draw $t = \log s$."""
        raise NotImplementedError


@dataclass(frozen=True)
class _FoldedAtZero(ScalePrior):
    """The absolute value of a symmetric variable times `scale`."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive("scale", self.scale)

    def log_density(self, t: jax.Array) -> jax.Array:
        r"""Return the log density of $t = \log s$, entry by entry."""
        return self._unit_log_density(t - math.log(self.scale))

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> jax.Array:
        r"""Draw $t = \log s$."""
        return math.log(self.scale) + jnp.log(jnp.abs(self._unit_sample(key, shape)))

    def _unit_log_density(self, t: jax.Array) -> jax.Array:
        """Return the log density for a scale of 1."""
        raise NotImplementedError

    def _unit_sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Draw the symmetric variable."""
        raise NotImplementedError


@dataclass(frozen=True)
class HalfCauchy(_FoldedAtZero):
    """The half-Cauchy distribution: median `scale`, and heavy tails.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> round(float(jnp.exp(HalfCauchy(1.0).log_density(jnp.array(0.0)))), 4)  # 1 / pi
    0.3183
    """

    def _unit_log_density(self, t: jax.Array) -> jax.Array:
        return math.log(2 / math.pi) + t - jnp.logaddexp(jnp.zeros_like(t), 2 * t)

    def _unit_sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.cauchy(key, shape)


@dataclass(frozen=True)
class HalfNormal(_FoldedAtZero):
    """The half-normal distribution: the absolute value of a Gaussian with this scale."""

    def _unit_log_density(self, t: jax.Array) -> jax.Array:
        return 0.5 * math.log(2 / math.pi) + t - 0.5 * jnp.exp(2 * t)

    def _unit_sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(key, shape)


@dataclass(frozen=True)
class Gamma(ScalePrior):
    """The gamma distribution, with mean `shape / rate`; `shape` above 1 keeps $s$ off zero."""

    shape: float = 2.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        require_positive("shape", self.shape)
        require_positive("rate", self.rate)

    def log_density(self, t: jax.Array) -> jax.Array:
        r"""Return the log density of $t = \log s$, entry by entry."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return constant + self.shape * t - self.rate * jnp.exp(t)

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> jax.Array:
        r"""Draw $t = \log s$."""
        return jax.random.loggamma(key, self.shape, shape) - math.log(self.rate)

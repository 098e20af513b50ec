r"""Predictive distributions that are mixtures over posterior draws.

With a likelihood that is Gaussian, or Student-t with $\nu$ degrees of freedom, the posterior
predictive distribution of a target is a mixture with one component per draw $s$,

$$ F(y) = \sum_{s=1}^S w_s\,G\!\left(\frac{y - m_s}{\sigma_s}\right), \qquad
   p(y) = \sum_{s=1}^S \frac{w_s}{\sigma_s}\,g\!\left(\frac{y - m_s}{\sigma_s}\right), \qquad
   w_s = 1/S . $$

It is not a Gaussian: where draws disagree it has heavier tails, or several modes, and a Gaussian
with its mean and variance predicts worse. All functions are of the mixture itself.

**Quantiles** solve $F(y) = q$ by Newton's method inside a bracket. The smallest and the largest
$q$-quantile of the components bracket that of the mixture. A Newton step that leaves the bracket,
or that does not halve the error, is replaced by a bisection, so that gaps between modes, where the
density is zero, do no harm.

**CRPS** of a Gaussian mixture, exactly (Grimit et al. 2006): with
$A(m, v) = 2\sqrt v\,\varphi(m/\sqrt v) + m\,(2\Phi(m/\sqrt v) - 1)$, the mean of
$|\mathcal N(m, v)|$,

$$ \text{CRPS}(F, y) = \sum_s w_s A(y - m_s, \sigma_s^2)
   - \tfrac12\sum_{s,r} w_s w_r A(m_s - m_r, \sigma_s^2 + \sigma_r^2) . $$

References
----------
Grimit, Gneiting, Berrocal & Johnson (2006), *The continuous ranked probability score for circular
variables and its application to mesoscale forecast ensemble verification*, QJRMS.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy import special

from isotherm.types import Key

MOST_ENTRIES = 2**16
"""Components times targets that are evaluated at the same time: they stay in the cache."""
MOST_ITERATIONS = 200
"""A bisection in double precision needs fewer."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of Gaussian or Student-t components for each of several targets.

    Build it with `gaussian_mixture` or `student_t_mixture`. Everything is computed in double
    precision with NumPy. Targets `y` have the shape of the components without their first axis.
    """

    location: np.ndarray
    """$m_s$, (components, …)."""
    scale: np.ndarray
    r"""$\sigma_s$, of the same shape."""
    df: np.ndarray | None = None
    r"""$\nu$ of Student-t components, of the same shape; `None` if they are Gaussian."""
    weights: np.ndarray | None = None
    """$w_s$, (components,); `None` if they are equal."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the targets."""
        return self.location.shape[1:]

    @property
    def num_components(self) -> int:
        """Number of components."""
        return len(self.location)

    @property
    def mean(self) -> np.ndarray:
        r"""Mean of each target; NaN where $\nu \le 1$."""
        finite = True if self.df is None else self.df > 1
        return self._average(np.where(finite, self.location, np.nan))

    @property
    def variance(self) -> np.ndarray:
        r"""Variance of each target; NaN where it is not finite, $\nu \le 2$."""
        ratio = np.float64(1.0)
        if self.df is not None:
            ratio = np.where(self.df > 2, self.df / np.where(self.df > 2, self.df - 2, 1), np.nan)
        spread = (self.location - self._average(self.location)) ** 2
        return self._average(ratio * self.scale**2 + spread)

    def log_density(self, y: Any) -> np.ndarray:
        r"""Return $\log p(y)$ of each target."""
        y, log_weights = self._targets(y), np.log(self._weights)

        def evaluate(part: Mixture, y: np.ndarray) -> np.ndarray:
            z = (y - part.location) / part.scale
            terms = part._unit_log_density(z) - np.log(part.scale)
            return np.asarray(special.logsumexp(terms + log_weights[:, None], axis=0))

        return self._in_blocks(evaluate, y)

    def cdf(self, y: Any) -> np.ndarray:
        """Return $F(y)$ of each target: its PIT value, uniform if the prediction is right."""
        return self._in_blocks(Mixture._cdf, self._targets(y))

    def quantile(self, q: Any) -> np.ndarray:
        """Return quantiles of each target.

        Parameters
        ----------
        q
            Probabilities in (0, 1): a number, or a vector.

        Returns
        -------
        An array of shape `(*shape of q, *shape of the targets)`.
        """
        q = np.asarray(q, np.float64)
        if q.ndim > 1 or not np.all((q > 0) & (q < 1)):
            raise ValueError(f"`q` must be a number or a vector in (0, 1), got {q}.")
        each = [
            self._in_blocks(Mixture._quantile, np.full(self.shape, value)) for value in q.ravel()
        ]
        return np.stack(each).reshape((*q.shape, *self.shape))

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends of central intervals with this probability."""
        check_level(level)
        lower, upper = self.quantile(np.array([0.5 - level / 2, 0.5 + level / 2]))
        return lower, upper

    def sample(self, key: Key, num_samples: int = 1) -> np.ndarray:
        """Draw from the posterior predictive distribution, jointly for all targets.

        All targets of one sample come from the same component, as they come from the same
        parameters: sums and differences of targets have the right distribution too.

        Parameters
        ----------
        key
            A typed key.
        num_samples
            Number of samples.

        Returns
        -------
        An array of shape `(num_samples, *shape of the targets)`.
        """
        rng = generator(key)
        index = rng.choice(self.num_components, num_samples, p=self._weights)
        if self.df is None:
            z = rng.standard_normal((num_samples, *self.shape))
        else:
            z = rng.standard_t(self.df[index])
        return self.location[index] + self.scale[index] * z

    def crps(self, y: Any) -> np.ndarray:
        r"""Return the exact CRPS of each target, in the units of the target; small is good.

        The time is proportional to the square of the number of components; use every tenth draw if
        it is too long. Only for Gaussian components; for others use `isotherm.diagnostics.crps` of
        samples.
        """
        if self.df is not None:
            raise ValueError(
                "`crps` is exact for Gaussian components only. Use "
                "`isotherm.diagnostics.crps(mixture.sample(key, 1000), y)`."
            )
        return self._in_blocks(Mixture._crps, self._targets(y))

    @property
    def _weights(self) -> np.ndarray:
        if self.weights is None:
            return np.full(self.num_components, 1 / self.num_components)
        return self.weights

    def _average(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(np.tensordot(self._weights, values, axes=1))

    def _targets(self, y: Any) -> np.ndarray:
        y = np.asarray(y, np.float64)
        if y.shape != self.shape:
            raise ValueError(f"`y` must have shape {self.shape}, got {y.shape}.")
        return y

    def _in_blocks(
        self, evaluate: Callable[["Mixture", np.ndarray], np.ndarray], values: np.ndarray
    ) -> np.ndarray:
        """Evaluate a function of some targets and their values for blocks of targets."""
        flat = values.ravel()
        pieces = [evaluate(part, flat[block]) for block, part in self._blocks()]
        return np.concatenate([np.zeros(0), *pieces]).reshape(self.shape)

    def _blocks(self) -> Iterator[tuple[slice, "Mixture"]]:
        size = self.num_components
        location, scale = self.location.reshape(size, -1), self.scale.reshape(size, -1)
        df = None if self.df is None else self.df.reshape(size, -1)
        flat, width = Mixture(location, scale, df, self.weights), max(1, MOST_ENTRIES // size)
        for start in range(0, location.shape[1], width):
            block = slice(start, start + width)
            yield block, flat._select(block)

    def _unit_log_density(self, z: np.ndarray) -> np.ndarray:
        if self.df is None:
            return -0.5 * z**2 - 0.5 * np.log(2 * np.pi)
        half = 0.5 * (self.df + 1)
        constant = special.gammaln(half) - special.gammaln(0.5 * self.df)
        return constant - 0.5 * np.log(np.pi * self.df) - half * np.log1p(z**2 / self.df)

    def _cdf(self, y: np.ndarray) -> np.ndarray:
        z = (y - self.location) / self.scale
        return self._average(special.ndtr(z) if self.df is None else special.stdtr(self.df, z))

    def _density(self, y: np.ndarray) -> np.ndarray:
        z = (y - self.location) / self.scale
        return self._average(np.exp(self._unit_log_density(z)) / self.scale)

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        """Solve $F(y) = q$ for a vector of targets."""
        unit = special.ndtri(q) if self.df is None else special.stdtrit(self.df, q)
        ends = self.location + self.scale * unit
        low, high = ends.min(0), ends.max(0)
        y, step = 0.5 * (low + high), high - low
        active = np.flatnonzero(high > low)
        for _ in range(MOST_ITERATIONS):
            if not active.size:
                break
            part = self._select(active)
            excess = part._cdf(y[active]) - q[active]
            high[active] = np.where(excess >= 0, y[active], high[active])
            low[active] = np.where(excess <= 0, y[active], low[active])
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                newton = y[active] - excess / part._density(y[active])
            inside = (newton > low[active]) & (newton < high[active])
            shrinks = np.abs(newton - y[active]) < 0.5 * step[active]
            middle = 0.5 * (low[active] + high[active])
            new = np.where(inside & shrinks, newton, middle)
            step[active] = np.abs(new - y[active])
            y[active] = new
            tolerance = 4 * np.finfo(np.float64).eps * np.maximum(np.abs(new), part.scale.min(0))
            active = active[step[active] > tolerance]
        return y

    def _select(self, targets: np.ndarray | slice) -> "Mixture":
        df = None if self.df is None else self.df[:, targets]
        return Mixture(self.location[:, targets], self.scale[:, targets], df, self.weights)

    def _crps(self, y: np.ndarray) -> np.ndarray:
        w, variance = self._weights[:, None], self.scale**2
        score = np.sum(w * _mean_absolute(y - self.location, variance), axis=0)
        score -= 0.5 * np.sum(w**2 * _mean_absolute(np.float64(0.0), 2 * variance), axis=0)
        for s in range(1, self.num_components):  # pairs with the components before
            distance, sums = self.location[:s] - self.location[s], variance[:s] + variance[s]
            score -= w[s] * np.sum(w[:s] * _mean_absolute(distance, sums), axis=0)
        return score


def gaussian_mixture(mean: Any, sd: Any, *, weights: Any = None) -> Mixture:
    r"""Build the mixture of $\mathcal N(m_s, \sigma_s^2)$ over draws $s$, for each target.

    Parameters
    ----------
    mean
        $m_s$, (draws, …): the first axis is that of the draws, the others are those of the targets.
    sd
        $\sigma_s > 0$, with the noise of the targets: a number, one per draw (draws,), or of the
        shape of `mean`.
    weights
        Weights of the draws, positive, (draws,); by default they are equal.

    Examples
    --------
    >>> mixture = gaussian_mixture([[-1.0], [1.0]], 0.5)
    >>> mixture.quantile([0.25, 0.5]).round(3).tolist(), mixture.crps([0.0]).round(3).tolist()
    ([[-1.0], [0.0]], [0.367])
    """
    return _mixture(mean, sd, None, weights, "mean", "sd")


def student_t_mixture(location: Any, scale: Any, df: Any, *, weights: Any = None) -> Mixture:
    r"""Build the mixture of $m_s + \sigma_s t_{\nu_s}$ over draws $s$, for each target.

    Parameters
    ----------
    location
        $m_s$, (draws, …).
    scale
        $\sigma_s > 0$, as `sd` in `gaussian_mixture`. The standard deviation of a component is
        $\sigma_s\sqrt{\nu_s/(\nu_s - 2)}$.
    df
        $\nu_s > 0$, degrees of freedom, in any of the shapes of `scale`.
    weights
        As in `gaussian_mixture`.

    Examples
    --------
    >>> lower, upper = student_t_mixture([[0.0], [0.0]], 1.0, 4.0).interval(0.9)
    >>> upper.round(4).tolist()
    [2.1318]
    """
    return _mixture(location, scale, df, weights, "location", "scale")


def check_level(level: float) -> None:
    """Check the probability of an interval."""
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, got {level}.")


def generator(key: Key) -> np.random.Generator:
    """Return NumPy's generator with the words of a typed key as its seed."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


def _mean_absolute(mean: Any, variance: np.ndarray) -> np.ndarray:
    r"""Return $A(m, v)$, the mean of the absolute value of $\mathcal N(m, v)$."""
    sd = np.sqrt(variance)
    z = mean / sd
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return 2 * sd * density + mean * special.erf(z / np.sqrt(2))


def _mixture(
    location: Any, scale: Any, df: Any, weights: Any, location_name: str, scale_name: str
) -> Mixture:
    location = np.asarray(location, np.float64)
    if location.ndim < 1 or not len(location) or not np.isfinite(location).all():
        raise ValueError(
            f"`{location_name}` must be finite, with the draws on its first axis and at least one "
            f"draw; got shape {location.shape}."
        )
    scale = _spread(scale_name, scale, location)
    df = None if df is None else _spread("df", df, location)
    if weights is not None:
        weights = np.asarray(weights, np.float64)
        if weights.shape != location.shape[:1] or not np.all(weights > 0):
            raise ValueError(
                f"`weights` must be positive, one per draw, shape {location.shape[:1]}, got shape "
                f"{weights.shape}."
            )
        weights = weights / weights.sum()
    return Mixture(location, scale, df, weights)


def _spread(name: str, values: Any, like: np.ndarray) -> np.ndarray:
    """Return one positive number per component and target."""
    values = np.asarray(values, np.float64)
    if values.shape == like.shape[:1]:
        values = values.reshape(-1, *[1] * (like.ndim - 1))
    elif values.shape not in ((), like.shape):
        raise ValueError(
            f"`{name}` must be a number, one per draw {like.shape[:1]}, or of shape {like.shape}; "
            f"got shape {values.shape}."
        )
    if not (np.all(values > 0) and np.isfinite(values).all()):
        raise ValueError(f"`{name}` must be positive and finite everywhere.")
    return np.broadcast_to(values, like.shape)

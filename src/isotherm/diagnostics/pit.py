r"""Probability integral transforms: where observed values fall in their predictive distributions.

If $y_i \sim F_i$ with a continuous $F_i$, the PIT values $u_i = F_i(y_i)$ are uniform on [0, 1].
A histogram shows what is wrong otherwise: a U if predictions are too narrow, a hump if they are too
wide, a slope if they are biased. For a Gaussian or Student-t mixture $u_i$ is `mixture.cdf(y)`; for
draws, counts and classes it is drawn uniformly from the jump of $F_i$ at $y_i$, which makes it
exactly uniform again (Czado, Gneiting & Held 2009).

References
----------
Dawid (1984), *Statistical theory: the prequential approach*, JRSS A. Gneiting, Balabdaoui & Raftery
(2007), *Probabilistic forecasts, calibration and sharpness*, JRSS B. Czado, Gneiting & Held (2009),
*Predictive model assessment for count data*, Biometrics.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from isotherm.diagnostics.mixtures import check_level, generator
from isotherm.diagnostics.proper_scores import check_draws
from isotherm.tree import count
from isotherm.types import Key


@dataclass(frozen=True)
class PITHistogram:
    """Counts of PIT values in bins of equal width, and what calibrated predictions would give."""

    edges: np.ndarray
    """Edges of the bins, from 0 to 1."""
    count: np.ndarray
    """Number of values in each bin."""
    band: tuple[int, int]
    """Counts between which all bins of calibrated predictions lie with the stated probability."""
    p_value: float
    """Of the chi-square test of equal counts: small if predictions are not calibrated."""

    @property
    def density(self) -> np.ndarray:
        """Height of each bin; 1 everywhere for calibrated predictions."""
        return self.count * len(self.count) / self.count.sum()


def pit_values(draws: Any, targets: Any, key: Key) -> np.ndarray:
    r"""Return PIT values of targets from draws of their predictive distributions.

    With $b$ draws below $y$ and $e$ equal to it, $u = (b + U)/(S + 1)$ with a uniform
    $U \in [0, e + 1]$: exactly uniform if $y$ and the $S$ draws are exchangeable.

    Parameters
    ----------
    draws, targets
        As in `isotherm.diagnostics.crps`.
    key
        A typed key, for $U$.

    Examples
    --------
    >>> import jax
    >>> u = pit_values([[0.0], [1.0], [2.0]], [1.5], jax.random.key(0))
    >>> bool(0.5 < u[0] < 0.75)
    True
    """
    x, y = check_draws(draws, targets)
    below, equal = np.sum(x < y, axis=0), np.sum(x == y, axis=0)
    return randomized_pit(below / (len(x) + 1), (below + equal + 1) / (len(x) + 1), key)


def randomized_pit(cdf_before: Any, cdf: Any, key: Key) -> np.ndarray:
    r"""Return PIT values of counts or classes: uniform between $F(y - 1)$ and $F(y)$.

    Parameters
    ----------
    cdf_before, cdf
        Predictive probabilities that the target is smaller than $y$, and at most $y$; averaged
        over draws.
    key
        A typed key.
    """
    low, high = np.asarray(cdf_before, np.float64), np.asarray(cdf, np.float64)
    ordered = low.shape == high.shape and np.all((low >= 0) & (low <= high) & (high <= 1 + 1e-6))
    if not ordered:
        raise ValueError(
            "`cdf_before` and `cdf` must have one shape and satisfy 0 <= cdf_before <= cdf <= 1."
        )
    uniform = generator(key).random(low.shape)
    return np.minimum(low + uniform * (high - low), 1.0)


def pit_histogram(values: Any, *, num_bins: int = 10, level: float = 0.95) -> PITHistogram:
    """Return the histogram of PIT values, with a band for all bins and a test.

    Parameters
    ----------
    values
        PIT values of rows, of any shape. The band and the test hold for independent rows.
    num_bins
        Number of bins.
    level
        Probability (at least) that all bins of calibrated predictions are inside the band:
        binomial quantiles, with a Bonferroni correction over bins.

    Examples
    --------
    >>> histogram = pit_histogram((np.arange(1000) + 0.5) / 1000)
    >>> histogram.count.tolist()[:3], histogram.band
    ([100, 100, 100], (74, 128))
    """
    check_level(level)
    num_bins = count("num_bins", num_bins, 2)
    u = np.asarray(values, np.float64).ravel()
    if not u.size or not np.all((u >= 0) & (u <= 1)):
        raise ValueError("`values` must be from 0 to 1, and at least one.")
    counts, edges = np.histogram(u, bins=num_bins, range=(0.0, 1.0))
    tail = 0.5 * (1 - level) / num_bins
    low, high = (_binomial_quantile(q, len(u), 1 / num_bins) for q in (tail, 1 - tail))
    expected = len(u) / num_bins
    statistic = np.sum((counts - expected) ** 2 / expected)
    p_value = float(special.chdtrc(num_bins - 1, statistic))
    return PITHistogram(edges, counts, (low, high), p_value)


def _binomial_quantile(q: float, size: int, probability: float) -> int:
    """Return the smallest count whose distribution function is at least `q`."""
    nearest = int(np.ceil(special.bdtrik(q, size, probability)))
    below = nearest > 0 and special.bdtr(nearest - 1, size, probability) >= q
    return nearest - 1 if below else nearest

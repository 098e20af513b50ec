r"""Proper scores of predictive distributions: CRPS, interval score, log predictive density.

For draws $x_1, \dots, x_S$ of a target with the distribution function $F$ and an observed $y$,

$$ \text{CRPS}(F, y) = \int (F(t) - [t \ge y])^2\,dt
   = \mathbb E|X - y| - \tfrac12\mathbb E|X - X'| . $$

For a central interval $[l, u]$ of probability $1 - \alpha$,

$$ \text{IS}_\alpha = (u - l) + \tfrac2\alpha (l - y)_+ + \tfrac2\alpha (y - u)_+ , $$

and for log likelihoods $\ell_{si} = \log p(y_i \mid \theta_s)$ of row $i$ given draw $s$,

$$ \text{lppd} = \sum_i \log\Bigl(\frac1S\sum_s e^{\ell_{si}}\Bigr) . $$

All but the last are small for good predictions. All functions accept NumPy or JAX arrays and
compute in double precision with NumPy. `isotherm.diagnostics.Mixture` has the exact CRPS, log
density and intervals of mixtures.

References
----------
Gneiting & Raftery (2007), *Strictly proper scoring rules, prediction, and estimation*, JASA. Zamo &
Naveau (2018), *Estimation of the continuous ranked probability score with limited information*:
the fair estimate. Vehtari, Gelman & Gabry (2017), *Practical Bayesian model evaluation using
leave-one-out cross-validation and WAIC*: lppd and its standard error.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from isotherm.diagnostics.mixtures import check_level


class PredictiveDensity(NamedTuple):
    """The log predictive density of rows."""

    rows: np.ndarray
    """Log predictive density of each row."""

    @property
    def total(self) -> float:
        """Sum over rows: the lppd."""
        return float(self.rows.sum())

    @property
    def total_standard_error(self) -> float:
        """Standard error of the sum over rows drawn from their population."""
        return len(self.rows) * self.standard_error

    @property
    def mean(self) -> float:
        """Mean over rows: minus the NLL."""
        return float(self.rows.mean())

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over rows; NaN for a single row."""
        if len(self.rows) < 2:
            return float("nan")
        return float(self.rows.std(ddof=1) / np.sqrt(len(self.rows)))


def crps(draws: Any, targets: Any, *, fair: bool = False) -> np.ndarray:
    r"""Return the CRPS of each target, from draws of its predictive distribution.

    By sorting, in time $S\log S$: with $x_{(1)} \le \dots \le x_{(S)}$,
    $\sum_{s,r}|x_s - x_r| = 2\sum_s (2s - S - 1)\,x_{(s)}$.

    Parameters
    ----------
    draws
        Draws of new observations, noise included, (draws, …).
    targets
        Observed values, of the shape of one draw.
    fair
        Whether to divide $\sum|x_s - x_r|$ by $S(S - 1)$ instead of $S^2$: an unbiased estimate of
        the CRPS of the distribution behind independent draws, instead of the CRPS of the draws.

    Examples
    --------
    >>> crps([[0.0], [1.0]], [0.0]).tolist(), crps([[0.0], [1.0]], [0.0], fair=True).tolist()
    ([0.25], [0.0])
    """
    x, y = check_draws(draws, targets, 1 + fair)
    size = len(x)
    order = 2 * np.arange(1, size + 1) - size - 1.0
    differences = 2 * np.tensordot(order, np.sort(x, axis=0), axes=1)
    pairs = size * (size - 1) if fair else size**2
    return np.abs(x - y).mean(0) - 0.5 * differences / pairs


def interval_score(lower: Any, upper: Any, targets: Any, *, level: float = 0.9) -> np.ndarray:
    r"""Return the interval score of each target.

    Parameters
    ----------
    lower, upper
        $l \le u$, the ends of central intervals.
    targets
        Observed values, of the same shape.
    level
        $1 - \alpha$, the probability of the intervals.

    Examples
    --------
    >>> interval_score([0.0, 0.0], [1.0, 1.0], [0.5, 1.5], level=0.8).round(6).tolist()
    [1.0, 6.0]
    """
    check_level(level)
    low, high, y = check_intervals(lower, upper, targets)
    outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    return high - low + 2 / (1 - level) * outside


def lppd(log_likelihoods: Any) -> PredictiveDensity:
    r"""Return the log predictive density of rows, averaged over draws.

    Parameters
    ----------
    log_likelihoods
        $\ell_{si}$, (…, rows): all axes but the last are draws, for example (chain, draw, row).

    Returns
    -------
    An object with `total` (the lppd), `mean`, the standard errors `total_standard_error` and
    `standard_error` over rows, and `rows`.

    Examples
    --------
    >>> score = lppd(np.log([[0.5, 0.2], [0.7, 0.4]]))
    >>> round(score.total, 4), round(score.total_standard_error, 4)
    (-1.7148, 0.6931)
    """
    values = np.asarray(log_likelihoods, np.float64)
    if values.ndim < 2 or not values.size:
        raise ValueError(
            "`log_likelihoods` must have shape (…, rows) with at least one axis of draws, got "
            f"{values.shape}."
        )
    if np.isnan(values).any() or np.any(values == np.inf):
        raise ValueError("`log_likelihoods` must not be NaN or infinite.")
    values = values.reshape(-1, values.shape[-1])
    return PredictiveDensity(logsumexp(values, axis=0) - np.log(len(values)))


def check_draws(draws: Any, targets: Any, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and targets as float64; raise if they do not fit together."""
    x, y = np.asarray(draws, np.float64), np.asarray(targets, np.float64)
    if x.ndim < 1 or x.shape[1:] != y.shape or len(x) < least:
        raise ValueError(
            f"`draws` must have shape (draws, …) with the shape {y.shape} of `targets` after the "
            f"first axis, and at least {least} draws; got {x.shape}."
        )
    return x, y


def check_intervals(
    lower: Any, upper: Any, targets: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ends and targets as float64; raise if they do not fit together."""
    low, high, y = (np.asarray(a, np.float64) for a in (lower, upper, targets))
    if not low.shape == high.shape == y.shape or not y.size:
        raise ValueError(
            "`lower`, `upper` and `targets` must have one shape and at least one entry, got "
            f"{low.shape}, {high.shape} and {y.shape}."
        )
    if not np.all(low <= high):  # written so that NaN fails
        raise ValueError("`lower` must not exceed `upper`, and neither may be NaN.")
    if np.isnan(y).any():
        raise ValueError("`targets` must not be NaN.")
    return low, high, y

r"""Split-conformal prediction: intervals and sets with a guaranteed coverage.

A *score* measures how badly an observation fits its prediction. With scores $s_1, \dots, s_n$ of
*calibration rows*, which the model has not seen, and $k = \lceil (n + 1)(1 - \alpha)\rceil$,
predict every value whose score is at most $\hat q = s_{(k)}$, the $k$-th smallest. If calibration
rows and new rows are exchangeable, then for any model and any data

$$ 1 - \alpha \le P(\text{the new value is in its set}) = \frac{k}{n + 1}
   \le 1 - \alpha + \frac1{n + 1} , $$

where the equality holds if scores have no ties (with ties the coverage is larger). The probability
is over calibration rows *and* the new row; given the calibration rows, the coverage varies around
it as $\text{Beta}(k, n + 1 - k)$: with 1000 rows and $\alpha = 0.1$ by 0.95 %.

- `"quantile"` (CQR): the score is $\max(l - y, y - u)$ for the interval $[l, u]$ of the model, and
  the result $[l - \hat q, u + \hat q]$;
- `"normalized"`: $|y - m|/s$ for mean $m$ and standard deviation $s$ of the model, and
  $[m - \hat q s, m + \hat q s]$;
- `"lac"`: $1 - p_y$, and the classes with $p_c \ge 1 - \hat q$;
- `"aps"`: $\sum_{c: p_c > p_y} p_c + U p_y$, and the most probable classes up to a total
  probability.

LAC has the smallest sets on average; APS adapts them to the difficulty of the row.

References
----------
Vovk, Gammerman & Shafer (2005), *Algorithmic learning in a random world*. Lei et al. (2018),
*Distribution-free predictive inference for regression*, JASA. Romano, Patterson & Candès (2019),
*Conformalized quantile regression*, NeurIPS. Sadinle, Lei & Wasserman (2019), *Least ambiguous
set-valued classifiers with bounded error levels*, JASA. Romano, Sesia & Candès (2020),
*Classification with valid and adaptive coverage*, NeurIPS.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from isotherm.diagnostics.calibration import check_distributions, check_probabilities
from isotherm.diagnostics.mixtures import Mixture, check_level, gaussian_mixture, generator
from isotherm.diagnostics.proper_scores import check_intervals
from isotherm.types import Key

Prediction = Mixture | tuple[Any, Any]
"""A mixture over draws, or mean and standard deviation of each target."""


@dataclass(frozen=True)
class ConformalIntervals:
    """Intervals with a guaranteed coverage, from `conformal_intervals`."""

    level: float
    """Probability that an interval contains the target, at least."""
    method: str
    threshold: float
    r"""$\hat q$: what to add at both ends, or the multiple of the standard deviation."""
    num_rows: int
    """Number of calibration rows."""

    def interval(self, prediction: Prediction) -> tuple[np.ndarray, np.ndarray]:
        r"""Return lower and upper ends for new rows; an interval may be empty if $\hat q < 0$."""
        if self.method == "quantile":
            lower, upper = _central(prediction, self.level)
            return lower - self.threshold, upper + self.threshold
        mean, sd = _moments(prediction)
        return mean - self.threshold * sd, mean + self.threshold * sd


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes with a guaranteed coverage, from `conformal_sets`."""

    level: float
    """Probability that a set contains the label, at least."""
    method: str
    threshold: float
    r"""$\hat q$."""
    num_rows: int
    """Number of calibration rows."""

    def sets(self, probabilities: Any, key: Key | None = None) -> np.ndarray:
        """Return for each new row which classes are in its set: booleans, (rows, classes).

        Parameters
        ----------
        probabilities
            (rows, classes).
        key
            For `"aps"` that was calibrated with a key: another one.
        """
        return _class_scores(check_distributions(probabilities), self.method, key) <= self.threshold


def conformal_intervals(
    prediction: Prediction, targets: Any, *, level: float = 0.9, method: str = "quantile"
) -> ConformalIntervals:
    r"""Calibrate intervals of any predictive distribution on rows that the model has not seen.

    Parameters
    ----------
    prediction
        Predictions of the calibration rows: a `Mixture`, or `(mean, sd)` as
        `predict(X, return_std=True)` returns them.
    targets
        Observed values of the calibration rows, at least $1/(1 - level) - 1$ of them.
    level
        Coverage, $1 - \alpha$.
    method
        `"quantile"` moves the ends of central intervals; `"normalized"` multiplies the standard
        deviation.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=1000)
    >>> narrow = (np.zeros(1000), np.full(1000, 0.5))  # the true standard deviation is 1
    >>> fitted = conformal_intervals(narrow, y, method="normalized")
    >>> lower, upper = fitted.interval(narrow)
    >>> bool(1.5 < upper[0] < 1.8)  # 1.645 is exact
    True
    """
    check_level(level)
    if method == "quantile":
        low, high, y = check_intervals(*_central(prediction, level), targets)
        scores = np.maximum(low - y, y - high)
    elif method == "normalized":
        mean, sd = _moments(prediction)
        low, high, y = check_intervals(mean - sd, mean + sd, targets)
        scores = np.abs(y - mean) / sd
    else:
        raise ValueError(f"`method` must be 'quantile' or 'normalized', got {method!r}.")
    return ConformalIntervals(level, method, _threshold(scores, level), scores.size)


def conformal_sets(
    probabilities: Any,
    labels: Any,
    *,
    level: float = 0.9,
    method: str = "lac",
    key: Key | None = None,
) -> ConformalSets:
    r"""Calibrate sets of classes on rows that the model has not seen.

    Parameters
    ----------
    probabilities
        Predictions of the calibration rows, (rows, classes).
    labels
        Class numbers, (rows,).
    level
        Coverage, $1 - \alpha$.
    method
        `"lac"` or `"aps"`.
    key
        For `"aps"`: with a key $U$ is uniform, and sets are as small as the coverage allows;
        without, $U = 1$. Calibrate and predict both with a key, or both without.

    Examples
    --------
    >>> p = np.tile([0.6, 0.3, 0.1], (100, 1))
    >>> labels = np.repeat([0, 1, 2], [60, 30, 10])
    >>> conformal_sets(p, labels, level=0.8).sets(p[:1]).tolist()
    [[True, True, False]]
    """
    check_level(level)
    p, y = check_probabilities(probabilities, labels)
    scores = _class_scores(p, method, key)[np.arange(len(y)), y]
    return ConformalSets(level, method, _threshold(scores, level), len(y))


def _threshold(scores: np.ndarray, level: float) -> float:
    r"""Return $s_{(k)}$, $k = \lceil (n + 1)(1 - \alpha)\rceil$."""
    size = scores.size
    k = int(np.ceil((size + 1) * level - 1e-9))
    if k > size:
        least = int(np.ceil(level / (1 - level) - 1e-9))
        raise ValueError(
            f"`targets` or `labels` must have at least {least} rows for `level` {level}, got "
            f"{size}."
        )
    return float(np.partition(scores.ravel(), k - 1)[k - 1])


def _central(prediction: Prediction, level: float) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(prediction, Mixture):
        return prediction.interval(level)
    mean, sd = _moments(prediction)
    return gaussian_mixture(mean[None], sd[None]).interval(level)


def _moments(prediction: Prediction) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(prediction, Mixture):
        return prediction.mean, np.sqrt(prediction.variance)
    mean, sd = (np.asarray(a, np.float64) for a in prediction)
    if mean.shape != sd.shape or not np.all(sd > 0):
        raise ValueError(
            "`prediction` must be a `Mixture` or a pair (mean, sd) of one shape, with positive sd."
        )
    return mean, sd


def _class_scores(p: np.ndarray, method: str, key: Key | None) -> np.ndarray:
    """Return the score of every class in every row."""
    if method == "lac":
        return 1 - p
    if method != "aps":
        raise ValueError(f"`method` must be 'lac' or 'aps', got {method!r}.")
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    uniform = 1.0 if key is None else generator(key).random((len(p), 1))
    scores = np.cumsum(ranked, axis=1) - ranked + uniform * ranked
    result = np.empty_like(scores)
    np.put_along_axis(result, order, scores, axis=1)
    return result

r"""Risk against coverage: predictions that may abstain where they are not confident.

Predict only for the share $c$ of rows with the highest confidence; the *risk* at this coverage is
the mean loss of those rows. The area under the curve is (Geifman & El-Yaniv 2017)

$$ \text{AURC} = \frac1n\sum_{k=1}^n \frac1k \sum_{j \le k} \ell_{(j)} $$

with losses in order of decreasing confidence. It is small if losses are small *and* the confidence
says which. Rows of equal confidence have no order; the curve is its mean over all their orders.

References
----------
Geifman & El-Yaniv (2017), *Selective classification for deep neural networks*, NeurIPS; Geifman,
Uziel & El-Yaniv (2019), *Bias-reduced uncertainty estimation for deep neural classifiers*, ICLR:
the excess over the best order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from isotherm.diagnostics.calibration import check_probabilities


@dataclass(frozen=True)
class RiskCoverage:
    """A risk-coverage curve."""

    coverage: np.ndarray
    """Shares of rows, 1/n, 2/n, …, 1."""
    risk: np.ndarray
    """Mean loss of that share of rows."""
    best: np.ndarray
    """The same if confidence ordered rows by their loss."""

    @property
    def area(self) -> float:
        """AURC: the mean risk over coverages."""
        return float(self.risk.mean())

    @property
    def excess(self) -> float:
        """E-AURC: the area above that of the best order."""
        return float(self.risk.mean() - self.best.mean())


def risk_coverage(confidence: Any, losses: Any) -> RiskCoverage:
    """Return the risk-coverage curve of any confidence and any loss.

    Parameters
    ----------
    confidence
        Higher is more confident, (rows,): the probability of the predicted class, minus the
        entropy, minus a predictive standard deviation.
    losses
        (rows,): 0 for correct and 1 for wrong predictions, squared errors, or any other.

    Examples
    --------
    >>> risk_coverage([0.9, 0.8, 0.7], [0.0, 1.0, 0.0]).risk.round(3).tolist()
    [0.0, 0.5, 0.333]
    """
    confidence, losses = np.asarray(confidence, np.float64), np.asarray(losses, np.float64)
    if confidence.ndim != 1 or confidence.shape != losses.shape or not losses.size:
        raise ValueError(
            "`confidence` and `losses` must have the same shape (rows,) and at least one row, got "
            f"{confidence.shape} and {losses.shape}."
        )
    if np.isnan(confidence).any() or not np.isfinite(losses).all():
        raise ValueError("`confidence` must not be NaN, and `losses` must be finite.")
    _, group, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    means = np.bincount(group, losses) / size
    rows = np.arange(1, len(losses) + 1)
    risk = np.cumsum(np.repeat(means, size)) / rows
    return RiskCoverage(rows / len(rows), risk, np.cumsum(np.sort(losses)) / rows)


def aurc(probabilities: Any, labels: Any) -> float:
    """Return the area under the risk-coverage curve of a classifier, with the 0-1 loss.

    Parameters
    ----------
    probabilities
        (rows, classes); the confidence is that of the predicted class.
    labels
        Class numbers, (rows,).
    """
    p, y = check_probabilities(probabilities, labels)
    return risk_coverage(p.max(1), p.argmax(1) != y).area

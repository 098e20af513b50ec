r"""Scores and calibration of predictions.

For probabilities $p_{ic}$ of classes $c$ in rows $i$ and labels $y_i$, with the confidence
$\max_c p_{ic}$ of the predicted class:

$$ \text{NLL} = -\tfrac1n\sum_i \log p_{i y_i}, \qquad
   \text{Brier} = \tfrac1n\sum_i\sum_c (p_{ic} - [c = y_i])^2, \qquad
   \text{ECE} = \sum_b \tfrac{n_b}n\,\lvert \text{accuracy}_b - \text{confidence}_b \rvert $$

over bins $b$ of the confidence. With probabilities $\bar p = \tfrac1S\sum_s p^{(s)}$ averaged over
draws the entropy of a prediction has two parts, $H[\bar p] = \tfrac1S\sum_s H[p^{(s)}] + I$: the
mean entropy of the draws (*aleatoric*: noise in the labels), and the mutual information $I \ge 0$
between label and weights (*epistemic*: it decreases with more data). All logarithms are natural.

All functions accept NumPy or JAX arrays and compute in double precision with NumPy.

References
----------
Guo, Pleiss, Sun & Weinberger (2017), *On calibration of modern neural networks*, ICML: ECE with 15
bins. Nguyen & O'Connor (2015), *Posterior calibration and exploratory analysis for natural language
processing models*: bins of equal mass. Nixon et al. (2019), *Measuring calibration in deep
learning*: all classes. Houlsby et al. (2011), *Bayesian active learning for
classification and preference learning*: the two parts. Gneiting & Raftery (2007), *Strictly proper
scoring rules, prediction, and estimation*, JASA: CRPS.
"""

from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np

FLOOR = float(np.finfo(np.float32).tiny)
"""Smaller probabilities are replaced by this: 1.2e-38, or 87.3 nats."""


@dataclass(frozen=True)
class Reliability:
    """A reliability curve: confidence and accuracy in bins of the confidence."""

    edges: np.ndarray
    """Edges of the bins; a bin is open below and closed above."""
    confidence: np.ndarray
    """Mean confidence in each bin; NaN if it is empty."""
    accuracy: np.ndarray
    """Share of correct predictions in each bin; NaN if it is empty."""
    count: np.ndarray
    """Number of rows in each bin."""

    @property
    def error(self) -> float:
        """Mean distance of the curve from the diagonal, weighted by rows: the ECE."""
        full = self.count > 0
        gaps = np.abs(self.accuracy[full] - self.confidence[full])
        return float(np.sum(self.count[full] * gaps) / np.sum(self.count))


def accuracy(probabilities: Any, labels: Any) -> float:
    """Return the share of rows whose most probable class is the label (ties: the first class)."""
    p, y = check_probabilities(probabilities, labels)
    return float(np.mean(p.argmax(1) == y))


def negative_log_likelihood(probabilities: Any, labels: Any) -> float:
    r"""Return the mean over rows of $-\log p$ of the labels; probabilities are at least 1.2e-38.

    Examples
    --------
    >>> round(negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    p, y = check_probabilities(probabilities, labels)
    return float(-np.mean(np.log(np.maximum(p[np.arange(len(y)), y], FLOOR))))


def brier_score(probabilities: Any, labels: Any) -> float:
    """Return the mean squared distance of probabilities from the label, from 0 to 2."""
    p, y = check_probabilities(probabilities, labels)
    one_hot = np.eye(p.shape[1])[y]
    return float(np.mean(np.sum((p - one_hot) ** 2, axis=1)))


def reliability(
    probabilities: Any, labels: Any, *, num_bins: int = 15, bins: str = "equal-width"
) -> Reliability:
    """Return the reliability curve: accuracy against confidence, in bins of the confidence.

    Parameters
    ----------
    probabilities
        (rows, classes).
    labels
        Class numbers, (rows,).
    num_bins
        Number of bins.
    bins
        `"equal-width"` divides [0, 1] into equal parts; `"equal-mass"` divides at quantiles of the
        confidence, so that bins hold about the same number of rows. Rows of the same confidence
        are in the same bin, and bins with equal edges are merged.

    Examples
    --------
    >>> curve = reliability([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], num_bins=2)
    >>> curve.count.tolist(), round(curve.error, 4)
    ([0, 3], 0.1)
    """
    p, y = check_probabilities(probabilities, labels)
    return _binned(p.max(1), p.argmax(1) == y, num_bins, bins)


def _binned(confidence: np.ndarray, correct: np.ndarray, num_bins: int, bins: str) -> Reliability:
    """Return the reliability curve of confidences and outcomes, one of each per row."""
    if not num_bins >= 1:
        raise ValueError(f"`num_bins` must be at least 1, got {num_bins}.")
    if bins not in ("equal-width", "equal-mass"):
        raise ValueError(f"`bins` must be 'equal-width' or 'equal-mass', got {bins!r}.")
    edges = np.linspace(0, 1, num_bins + 1)
    if bins == "equal-mass":
        tops = np.unique(np.quantile(confidence, edges[1:], method="inverted_cdf"))
        edges = np.concatenate([[0.0], tops])
    size = len(edges) - 1
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, size - 1)
    count = np.bincount(index, minlength=size)
    with np.errstate(invalid="ignore"):  # an empty bin has no mean
        means = [np.bincount(index, each, size) / count for each in (confidence, correct)]
    return Reliability(edges, means[0], means[1], count)


def expected_calibration_error(
    probabilities: Any, labels: Any, *, num_bins: int = 15, bins: str = "equal-width"
) -> float:
    r"""Return the weighted mean over bins of $|\text{accuracy} - \text{confidence}|$.

    It is biased upwards in small samples: with $n$ rows a calibrated classifier has about
    $n^{-1/2}$ instead of zero, and more with more bins.
    """
    return reliability(probabilities, labels, num_bins=num_bins, bins=bins).error


def adaptive_calibration_error(probabilities: Any, labels: Any, *, num_bins: int = 15) -> float:
    r"""Return the adaptive calibration error (ACE): all classes, bins of equal mass.

    $\text{ACE} = \tfrac1K\sum_c \sum_b \tfrac{n_{cb}}n |\text{frequency}_{cb} - \bar p_{cb}|$ over
    classes $c$ and bins $b$ of $p_{ic}$ at its quantiles (Nixon et al. 2019). Unlike
    `expected_calibration_error(..., bins="equal-mass")`, which sees the predicted class only, it
    also sees the probabilities of the others. Most of these are near zero if there are many
    classes, which makes the value small: compare it only for the same number of classes.

    Parameters
    ----------
    probabilities, labels, num_bins
        As in `reliability`.
    """
    p, y = check_probabilities(probabilities, labels)
    errors = [_binned(p[:, c], y == c, num_bins, "equal-mass").error for c in range(p.shape[1])]
    return float(np.mean(errors))


def predictive_entropy(probabilities: Any) -> np.ndarray:
    """Return the entropy of every row, in nats: the total uncertainty of a prediction.

    Examples
    --------
    >>> predictive_entropy([[0.5, 0.5], [1.0, 0.0]]).round(4)
    array([0.6931, 0.    ])
    """
    p = check_distributions(probabilities)
    return np.sum(-p * np.log(np.where(p > 0, p, 1.0)), axis=1) + 0.0  # avoid -0


def mutual_information(probabilities: Any, mean_entropy: Any) -> np.ndarray:
    r"""Return the mutual information of every row: $I = H[\bar p] - \tfrac1S\sum_s H[p^{(s)}]$.

    It is the epistemic part of the entropy.

    Parameters
    ----------
    probabilities
        $\bar p$, averaged over draws, (rows, classes).
    mean_entropy
        The mean over draws of the entropy of each row, (rows,): `"entropy"` of
        `isotherm.collect.probabilities`. Values of $I$ below zero, by rounding, are set to zero.
    """
    total, mean_entropy = predictive_entropy(probabilities), np.asarray(mean_entropy, np.float64)
    if mean_entropy.shape != total.shape:
        raise ValueError(
            f"`mean_entropy` must have one value per row, shape {total.shape}, got shape "
            f"{mean_entropy.shape}."
        )
    lowest = np.min(total - mean_entropy)
    if not lowest > -1e-3:
        raise ValueError(
            "`mean_entropy` must not exceed the entropy of the mean, but does so by "
            f"{-lowest:.3g}. It must be the mean over draws of the entropy of each draw, in nats."
        )
    return np.maximum(total - mean_entropy, 0)


def auroc(inside: Any, outside: Any) -> float:
    r"""Return the area under the ROC curve for separating two sets by a score.

    This is the probability that a row from `outside` has the higher score, with ties counted as
    half (the Mann-Whitney statistic): 1 for perfect separation, 0.5 for chance.

    Parameters
    ----------
    inside, outside
        Scores of rows like the training data and of other rows; higher means less like the
        training data: entropy, mutual information, or one minus the confidence.

    Examples
    --------
    >>> auroc(inside=[0.1, 0.2, 0.3], outside=[0.2, 0.9])
    0.75
    """
    scores = {"inside": np.asarray(inside, np.float64), "outside": np.asarray(outside, np.float64)}
    for name, values in scores.items():
        if values.ndim != 1 or not values.size or np.isnan(values).any():
            raise ValueError(f"`{name}` must have shape (rows,), at least one row and no NaN.")
    low = np.sort(scores["inside"])
    below = np.searchsorted(low, scores["outside"], side="left").astype(np.float64)
    not_above = np.searchsorted(low, scores["outside"], side="right")
    return float(np.mean(0.5 * (below + not_above)) / len(low))


def classifier_scores(
    probabilities: Any, labels: Any, mean_entropy: Any = None, *, num_bins: int = 15
) -> dict[str, float]:
    """Return all scores of a classifier.

    Parameters
    ----------
    probabilities, labels, num_bins
        As in `reliability`.
    mean_entropy
        As in `mutual_information`; without it `epistemic` is not computed.

    Returns
    -------
    `accuracy`, `nll`, `brier`, `ece`, `ece_equal_mass`, `entropy` (mean over rows) and, with
    `mean_entropy`, `epistemic` (mean mutual information).
    """
    scores = {
        "accuracy": accuracy(probabilities, labels),
        "nll": negative_log_likelihood(probabilities, labels),
        "brier": brier_score(probabilities, labels),
        "ece": expected_calibration_error(probabilities, labels, num_bins=num_bins),
        "ece_equal_mass": expected_calibration_error(
            probabilities, labels, num_bins=num_bins, bins="equal-mass"
        ),
        "entropy": float(np.mean(predictive_entropy(probabilities))),
    }
    if mean_entropy is not None:
        scores["epistemic"] = float(np.mean(mutual_information(probabilities, mean_entropy)))
    return scores


def regressor_scores(mean: Any, sd: Any, targets: Any) -> dict[str, float]:
    r"""Return all scores of a regressor that predicts $\mathcal N(m_i, s_i^2)$.

    Parameters
    ----------
    mean, sd
        $m_i$ and $s_i > 0$; $s_i$ includes the noise of the targets.
    targets
        Observed values, of the same shape.

    Returns
    -------
    `rmse`; `nll` and `crps`, means over targets; and `coverage_50`, `coverage_90`, the shares of
    targets in the central intervals of 50 and 90 %.
    """
    m, s, y = (np.asarray(a, np.float64) for a in (mean, sd, targets))
    if not m.shape == s.shape == y.shape or not m.size:
        raise ValueError(
            "`mean`, `sd` and `targets` must have one shape and at least one entry, got "
            f"{m.shape}, {s.shape} and {y.shape}."
        )
    for name, values in {"mean": m, "sd": s, "targets": y}.items():
        if not np.isfinite(values).all() or (name == "sd" and not np.all(values > 0)):
            rule = "positive and finite" if name == "sd" else "finite"
            raise ValueError(f"`{name}` must be {rule} everywhere.")
    z = (y - m) / s
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    symmetric = np.vectorize(erf, otypes=[float])(z / np.sqrt(2))  # 2 Phi(z) - 1
    return {
        "rmse": float(np.sqrt(np.mean((y - m) ** 2))),
        "nll": float(np.mean(0.5 * z**2 + np.log(s) + 0.5 * np.log(2 * np.pi))),
        "crps": float(np.mean(s * (z * symmetric + 2 * density - 1 / np.sqrt(np.pi)))),
        "coverage_50": float(np.mean(np.abs(symmetric) <= 0.5)),
        "coverage_90": float(np.mean(np.abs(symmetric) <= 0.9)),
    }


def check_distributions(probabilities: Any) -> np.ndarray:
    """Return rows of probabilities as float64; raise if they are not."""
    p = np.asarray(probabilities, np.float64)
    if p.ndim != 2 or p.shape[0] < 1 or p.shape[1] < 2:
        raise ValueError(
            "`probabilities` must have shape (rows, classes), at least one row and two classes, "
            f"got {p.shape}."
        )
    # Written so that NaN fails.
    if not (np.all(p >= 0) and np.all(np.abs(p.sum(1) - 1) < 1e-3)):
        raise ValueError("`probabilities` must not be negative, and every row must sum to 1.")
    return p


def check_probabilities(probabilities: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities and labels as arrays; raise if they do not fit together."""
    p, y = check_distributions(probabilities), np.asarray(labels)
    if y.shape != p.shape[:1]:
        raise ValueError(
            f"`labels` must have one class number per row, shape {p.shape[:1]}, got shape "
            f"{y.shape}."
        )
    if not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"`labels` must be integers, got dtype {y.dtype}.")
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(
            f"`labels` must be from 0 to {p.shape[1] - 1}, got {y.min()} to {y.max()}."
        )
    return p, y

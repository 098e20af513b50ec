r"""The smooth calibration error, which has no bins.

For confidences $f_i \in [0, 1]$ and outcomes $c_i \in \{0, 1\}$ the residuals $c_i - f_i$ are
smoothed with a Gaussian kernel that is reflected at 0 and 1,

$$ r_\sigma(t) = \frac1n\sum_i K_\sigma(t, f_i)\,(c_i - f_i), \qquad
   \text{smECE}_\sigma = \int_0^1 |r_\sigma(t)|\,dt , $$

and the width is the one that equals the error: $\text{smECE}_{\sigma} = \sigma$, which has one
solution because the left side decreases with $\sigma$. The result changes continuously with the
confidences, unlike errors with bins, and is within constant factors of the distance to the nearest
calibrated predictor (between half of it and twice its square root).

The reflected Gaussian is the heat kernel of [0, 1],
$K_\sigma(t, f) = 1 + 2\sum_{k\ge1} e^{-(\pi k\sigma)^2/2}\cos(\pi k t)\cos(\pi k f)$. So $r_\sigma$
is a cosine series whose coefficients $\tfrac1n\sum_i (c_i - f_i)\cos(\pi k f_i)$ are computed once
for all $\sigma$, to rounding error, without binning confidences.

References
----------
Błasiok & Nakkiran (2024), *Smooth ECE: principled reliability diagrams via kernel smoothing*, ICLR.
"""

from typing import Any

import numpy as np
from scipy import fft

from isotherm.diagnostics.calibration import check_probabilities

SMALLEST_ERROR = 2.0**-13
"""Errors below this, 1.2e-4, are not resolved further."""
TERMS_TIMES_SIGMA = 2.75
r"""$k\sigma$ from which terms of the series are below rounding error."""


def smooth_calibration_error(probabilities: Any, labels: Any) -> float:
    r"""Return the smooth calibration error (smECE) of the predicted class.

    Parameters
    ----------
    probabilities, labels
        As in `reliability`.

    Examples
    --------
    >>> p = np.full((1000, 2), 0.5)
    >>> labels = (np.arange(1000) % 10 >= 6).astype(int)  # class 0 in six of ten rows
    >>> round(smooth_calibration_error(p, labels), 3)
    0.1
    """
    p, y = check_probabilities(probabilities, labels)
    confidence, correct = p.max(1), p.argmax(1) == y
    residual = correct - confidence
    sigma = 2.0**-5
    coefficients = _cosine_coefficients(confidence, residual, sigma)
    while _error(coefficients, sigma) < sigma:  # find a width that is too small; usually at once
        if sigma <= SMALLEST_ERROR:
            return _error(coefficients, sigma)
        sigma *= 0.5
        coefficients = _cosine_coefficients(confidence, residual, sigma)
    low, high = sigma, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        if _error(coefficients, middle) >= middle:
            low = middle
        else:
            high = middle
    return low


def _cosine_coefficients(confidence: np.ndarray, residual: np.ndarray, sigma: float) -> np.ndarray:
    r"""Return $\tfrac1n\sum_i r_i\cos(\pi k f_i)$ for all $k$ that matter at this width."""
    num_terms = int(np.ceil(TERMS_TIMES_SIGMA / sigma)) + 1
    angle = np.pi * confidence
    rows_per_block = max(1, 2**21 // num_terms)
    total = np.zeros(num_terms)
    for start in range(0, len(angle), rows_per_block):
        block = slice(start, start + rows_per_block)
        total += residual[block] @ np.cos(np.outer(angle[block], np.arange(num_terms)))
    return total / len(angle)


def _error(coefficients: np.ndarray, sigma: float) -> float:
    r"""Return $\int|r_\sigma|$ by the midpoint rule on eight points per period of the last term."""
    k = np.arange(len(coefficients))
    damped = coefficients * np.exp(-0.5 * (np.pi * k * sigma) ** 2)
    padded = np.zeros(max(2048, 4 * len(k)))
    padded[: len(k)] = damped
    # scipy's type 3: x_0 + 2 sum_k x_k cos(pi k (j + 1/2) / N), the series at midpoints.
    return float(np.mean(np.abs(np.asarray(fft.dct(padded, type=3)))))

"""The smooth calibration error solves its equation, by the kernel itself; others do not."""

import numpy as np
import pytest
from scipy import stats

from isotherm.diagnostics import adaptive_calibration_error, smooth_calibration_error
from marks import slow

RNG = np.random.default_rng(2)


def predictions(rows, sharpness=1.0):
    """Probabilities of two classes, and labels from probabilities with another sharpness."""
    logits = RNG.normal(0, 2, rows)
    p, q = (1 / (1 + np.exp(-z)) for z in (sharpness * logits, logits))
    return np.stack([1 - p, p], axis=1), (RNG.random(rows) < q).astype(int)


def reflected(p, labels, sigma, points=20_001):
    """The error at one width, with mirror images of the Gaussian and the trapezoidal rule."""
    confidence, correct = p.max(1), p.argmax(1) == labels
    t = np.linspace(0, 1, points)
    total = np.zeros(points)
    for f, r in zip(confidence, correct - confidence, strict=True):
        images = [f + 2 * k for k in range(-4, 5)] + [-f + 2 * k for k in range(-4, 5)]
        total += r * stats.norm.pdf(t[:, None], images, sigma).sum(1)
    return np.trapezoid(np.abs(total / len(labels)), t)


@pytest.mark.parametrize(("rows", "sharpness"), [slow(60, 3.0), (40, 1.0)])
def test_the_error_is_the_width_at_which_it_equals_the_width(rows, sharpness):
    p, labels = predictions(rows, sharpness)
    error = smooth_calibration_error(p, labels)
    assert reflected(p, labels, error) == pytest.approx(error, rel=1e-5)
    for wrong in (0.9 * error, 1.1 * error):  # the mutants
        assert reflected(p, labels, wrong) != pytest.approx(wrong, rel=1e-2)


def test_known_values():
    # One confidence: the kernel spreads a residual of 0.2 over [0, 1] and loses nothing.
    p = np.tile([0.7, 0.3], (100, 1))
    assert smooth_calibration_error(p, np.repeat([0, 1], [50, 50])) == pytest.approx(0.2, abs=1e-6)
    assert smooth_calibration_error(p, np.repeat([0, 1], [70, 30])) == pytest.approx(0, abs=1e-6)
    certain = np.tile([1.0, 0.0], (10, 1))
    assert smooth_calibration_error(certain, np.zeros(10, int)) == 0
    assert smooth_calibration_error(certain, np.ones(10, int)) == pytest.approx(1, abs=1e-6)
    barely = np.tile([0.9999, 0.0001], (10, 1))
    assert smooth_calibration_error(barely, np.zeros(10, int)) < 2e-4


def test_continuous_in_the_confidences_unlike_bins():
    """Confidences 0.5 ± 1e-6, right and wrong: one bin averages them, the error does not jump."""
    p, labels = predictions(300, 2.0)
    moved = np.clip(p[:, 1] + 1e-6, 0, 1)
    near = smooth_calibration_error(np.stack([1 - moved, moved], axis=1), labels)
    assert near == pytest.approx(smooth_calibration_error(p, labels), abs=1e-4)


def test_calibrated_predictions_have_a_small_error_and_sharp_ones_a_large_one():
    calibrated, sharp = predictions(20_000), predictions(20_000, 2.0)
    assert smooth_calibration_error(*calibrated) < 0.02
    assert 0.05 < smooth_calibration_error(*sharp) < 0.2


def test_adaptive_error_by_hand_sees_all_classes():
    p = np.array([[0.6, 0.3, 0.1], [0.6, 0.1, 0.3]] * 50)
    labels = np.array([0, 0, 0, 1, 2] * 20)  # label 0 in 60 % of rows: its confidence is right
    shares = [[np.mean(labels[i::2] == c) for c in range(3)] for i in range(2)]
    one = abs(np.mean(labels == 0) - 0.6)
    two = 0.5 * (abs(shares[0][1] - 0.3) + abs(shares[1][1] - 0.1))
    three = 0.5 * (abs(shares[0][2] - 0.1) + abs(shares[1][2] - 0.3))
    value = adaptive_calibration_error(p, labels, num_bins=2)
    assert value == pytest.approx((one + two + three) / 3, abs=1e-12)
    assert value > 0.05 > smooth_calibration_error(p, labels)  # the mutant: only predicted classes

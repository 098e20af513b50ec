"""The log density of a logistic regression: gradient, curvature and mode."""

import numpy as np
import pytest

from isotherm.models.logistic_mode import logistic_log_density


@pytest.mark.parametrize("num_classes", [2, 4])
def test_gradient_curvature_and_mode_agree_with_finite_differences(num_classes):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)), rng.integers(0, num_classes, 50)
    density = logistic_log_density(x, y, np.array([0.5, 1.0, 2.0]), num_classes)
    mode = density.mode()
    size = 3 if num_classes == 2 else 3 * num_classes
    assert mode.shape == (size,)
    np.testing.assert_allclose(density.value_and_gradient(mode[None])[1], 0, atol=1e-6)
    steps, point = 1e-5 * np.eye(size), mode + rng.normal(size=size)
    above, below = (density.value_and_gradient(point + sign * steps) for sign in (1, -1))
    gradient = density.value_and_gradient(point[None])[1][0]
    np.testing.assert_allclose((above[0] - below[0]) / 2e-5, gradient, rtol=1e-5, atol=1e-5)
    above, below = (density.value_and_gradient(mode + sign * steps)[1] for sign in (1, -1))
    curvature = density.curvature(mode)
    np.testing.assert_allclose((below - above) / 2e-5, curvature, rtol=1e-5, atol=1e-5)

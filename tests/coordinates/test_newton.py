"""Newton's method finds modes, shortens steps that decrease the log density, and stops."""

import numpy as np
import pytest

from isotherm.coordinates.newton import newton_ascent, solve_positive

MATRIX = np.array([[3.0, 1.0], [1.0, 2.0]])
MODE = np.array([0.7, -1.2])


def quadratic(x):
    return -0.5 * (x - MODE) @ MATRIX @ (x - MODE)


def quadratic_gradient(x):
    return -MATRIX @ (x - MODE)


def test_one_step_finds_the_mode_of_a_gaussian():
    mode = newton_ascent(quadratic, quadratic_gradient, lambda x: MATRIX, np.zeros(2), max_steps=1)
    np.testing.assert_allclose(mode, MODE, rtol=1e-12)


def test_steps_that_decrease_the_log_density_are_shortened():
    """From 2 the full steps for -log cosh x diverge: x - sinh(2x)/2."""
    mode = newton_ascent(
        lambda x: -np.log(np.cosh(x[0])),
        lambda x: -np.tanh(x),
        lambda x: np.diag(np.cosh(x) ** -2.0),
        np.array([2.0]),
        min_decrement=1e-16,
    )
    assert mode[0] == pytest.approx(0, abs=1e-6)


def test_it_stops_at_the_start_if_no_step_is_accepted():
    start = np.array([1.0, 1.0])
    wrong = newton_ascent(quadratic, lambda x: -quadratic_gradient(x), lambda x: MATRIX, start)
    np.testing.assert_array_equal(wrong, start)
    flat = newton_ascent(
        lambda x: 0.0, quadratic_gradient, lambda x: MATRIX, start, accept_equal=False
    )
    np.testing.assert_array_equal(flat, start)


@pytest.mark.parametrize("rule", [{"min_gain": np.inf}, {"min_decrement": np.inf}])
def test_it_stops_after_a_step_with_a_small_gain_or_decrement(rule):
    evaluated = []

    def curvature(x):
        evaluated.append(x)
        return 2 * MATRIX

    newton_ascent(quadratic, quadratic_gradient, curvature, np.zeros(2), **rule)
    assert len(evaluated) == 1


def test_positions_have_the_precision_of_the_log_density():
    mode = newton_ascent(
        quadratic, quadratic_gradient, lambda x: MATRIX, np.zeros(2), max_steps=1, dtype=np.float32
    )
    np.testing.assert_array_equal(mode, MODE.astype(np.float32).astype(np.float64))


def test_an_indefinite_matrix_is_made_positive():
    step = solve_positive(np.diag([4.0, -2.0, 0.0]), np.ones(3), floor=0.25)
    np.testing.assert_allclose(step, [0.25, 0.5, 1.0])

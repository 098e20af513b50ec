"""UBU follows its exact law; symmetric sweeps sample a posterior in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import isotherm
from isotherm.paper.baselines.sms_ubu import noise_factors, sms_ubu, ubu
from isotherm.references.conjugate import linear_posterior
from laws import FALSE_ALARM, Gaussian, compiled_chains, gaussian_p_value, run_chains

TARGET = Gaussian(np.array([1.0, -1.0]), np.array([[2.0, 0.6], [0.6, 0.7]]))
START = np.array([-1.0, 2.0])


def free_flow(t, friction, temperature):
    """Return the matrix and the noise of the dynamics without force, by Van Loan's method.

    The covariance is the integral of exp(As) Q exp(A's), from one matrix exponential.
    """
    a = np.block([[np.zeros((2, 2)), np.eye(2)], [np.zeros((2, 2)), -friction * np.eye(2)]])
    q = np.zeros((4, 4))
    q[2:, 2:] = 2 * friction * temperature * np.eye(2)
    whole = linalg.expm(np.block([[-a, q], [np.zeros((4, 4)), a.T]]) * t)
    matrix = whole[4:, 4:].T
    return matrix, matrix @ whole[:4, 4:]


def law(h, friction, temperature, num_steps):
    mean = np.r_[START, 0, 0]
    cov = np.diag([0.0, 0, temperature, temperature])
    matrix, noise = free_flow(h / 2, friction, temperature)
    kick = np.eye(4)
    kick[2:, :2] = -h * TARGET.precision
    shift = np.r_[0, 0, h * TARGET.precision @ TARGET.mean]
    for _ in range(num_steps):
        mean = matrix @ (kick @ (matrix @ mean) + shift)
        cov = kick @ (matrix @ cov @ matrix.T + noise) @ kick.T
        cov = matrix @ cov @ matrix.T + noise
    return mean, cov


def test_ubu_follows_its_law(key):
    """Also with a temperature other than 1; wrong temperature and friction are detected."""

    def build(setting):
        h, friction, temperature = setting
        return ubu(TARGET.grad, h, friction, temperature=temperature)

    stops = (1, 3, 30)
    run = compiled_chains(build, jnp.asarray(START, jnp.float32), stops)
    right = [(0.5, 0.8, 1.0), (0.1, 3.0, 0.5)]
    wrong = [(0.5, 0.8, 1.1), (0.5, 1.0, 1.0)]
    results = run_chains(key, run, right + wrong)
    compared = [*right, right[0], right[0]]
    caught = [False] * 4
    for i, (states, setting) in enumerate(zip(results, compared, strict=True)):
        for state, num_steps in zip(states, stops, strict=True):
            draws = np.concatenate([state.position, state.momentum], axis=1)
            p = gaussian_p_value(draws, *law(*setting, num_steps))
            caught[i] |= p < FALSE_ALARM
    assert caught == [False, False, True, True]


@pytest.mark.parametrize("x", [1e-4, 0.01, 0.29, 0.31, 3.0])
def test_noise_factors(x):
    """Series and closed form agree with the covariance of the flow, to single precision."""
    _, covariance = free_flow(x, 1.0, 2.0)
    sd, shared, rest = (float(f) for f in noise_factors(jnp.array(x), 2.0))
    np.testing.assert_allclose(sd**2, covariance[2, 2], rtol=1e-5)
    np.testing.assert_allclose(sd * shared, covariance[0, 2], rtol=1e-5)
    np.testing.assert_allclose(shared**2 + rest**2, covariance[0, 0], rtol=1e-4)


@pytest.mark.slow
def test_symmetric_sweeps_sample_a_linear_regression(key):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(100, 2)).astype(np.float32)
    y = (x @ np.array([1.0, -1.0]) + 0.5 * rng.normal(size=100)).astype(np.float32)
    exact = linear_posterior(x, y, 1.0, 0.25)
    grad_fn = isotherm.minibatch_gradient(
        lambda w, rows: -2 * (rows[1] - rows[0] @ w) ** 2, lambda w: -0.5 * jnp.sum(w**2), 100
    )
    settings = {"friction": 20.0, "num_draws": 400, "num_chains": 20}
    run = sms_ubu(
        key,
        grad_fn,
        jnp.asarray(exact.mean, jnp.float32),
        isotherm.symmetric_batches((x, y), 50),
        step_size=0.01,
        thin=8,
        burn_in=200,
        **settings,
    )
    draws = np.asarray(run.draws).reshape(-1, 2)
    np.testing.assert_allclose(draws.mean(0), exact.mean, atol=0.1 * exact.sd.max())
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=0.06)
    with pytest.raises(ValueError, match=r"`batches` must come from isotherm\.symm"):
        sms_ubu(
            key,
            grad_fn,
            jnp.zeros(2),
            isotherm.shuffled_batches((x, y), 50),
            step_size=0.01,
            **settings,
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"friction": 0.0}, "`friction` must be positive"),
        ({"step_size": 0.0}, "`step_size` must be positive"),
        ({"temperature": -1.0}, "`temperature` must not be negative"),
    ],
)
def test_bad_settings_raise(settings, message):
    given = {"step_size": 0.1, "friction": 1.0} | settings
    with pytest.raises(ValueError, match=message):
        ubu(jax.grad(lambda x: -(x**2)), **given)

"""The gradient variance is measured correctly, and C has the effects that are documented."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, optimize, stats

import isotherm
from isotherm import random
from isotherm.diagnostics.noise import (
    euler_lifetime,
    gradient_noise,
    largest_step_size,
    noise_ratio,
)
from marks import slow

FALSE_ALARM = 1e-4  # probability that one statistical test fails on correct code
KEY = jax.random.key(0)
ROWS = jax.random.normal(jax.random.key(1), (50, 3)) * jnp.array([[1.0, 2.0, 5.0]]) + 100.0


def batch_fn(key, size=5):
    return ROWS[jax.random.randint(key, (size,), 0, len(ROWS))]


def grad_fn(position, batch):
    return {"w": len(ROWS) * (batch.mean(0) - position["w"]), "b": -position["b"]}


POSITION = {"w": jnp.zeros(3), "b": jnp.ones((2, 2))}


def test_it_equals_the_variance_over_the_same_batches():
    measure = jax.jit(partial(gradient_noise, grad_fn=grad_fn, batch_fn=batch_fn, num_batches=40))
    variance = measure(KEY, position=POSITION)
    keys = jax.random.split(KEY, 40)
    grads = jax.vmap(lambda k: grad_fn(POSITION, batch_fn(k))["w"])(keys)
    np.testing.assert_allclose(variance["w"], np.var(grads, 0, ddof=1), rtol=1e-3)
    np.testing.assert_array_equal(variance["b"], np.zeros((2, 2)))


@pytest.mark.parametrize(("mutant", "passes"), [(1.0, True), (1.1, False), (0.9, False)])
def test_variance_follows_chi_square(mutant, passes):
    """(n - 1)s²/σ² is chi-square; false alarms 1e-4; with 20 000 batches 10 % is 9 sd."""
    variance = gradient_noise(
        KEY, lambda x, z: -x + 2.0 * z, jnp.zeros(()), jax.random.normal, 20_000
    )
    q = 19_999 * float(variance) / (4.0 * mutant)
    p = 2 * min(stats.chi2.cdf(q, 19_999), stats.chi2.sf(q, 19_999))
    assert (p > FALSE_ALARM) == passes


def test_the_variance_of_a_minibatch_gradient():
    """N²·var/n with replacement. Relative sd of s² is 1.4 % at 10 000 batches: 5 of them."""
    got = gradient_noise(KEY, grad_fn, POSITION, batch_fn, 10_000)["w"]
    np.testing.assert_allclose(got, 50**2 * np.var(ROWS, 0) / 5, rtol=0.07)


def test_half_precision_is_summed_in_single_precision():
    position = jnp.zeros(4, jnp.bfloat16)
    draw = partial(jax.random.normal, shape=(4,), dtype=jnp.bfloat16)
    got = gradient_noise(KEY, jnp.add, position, draw, 2000)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, 1.0, rtol=0.2)


def test_noise_ratio_per_leaf():
    variance = {"a": jnp.array([[1.0, 3.0]]), "b": jnp.array(8.0)}
    ratio = jax.jit(noise_ratio)(jnp.float32(0.5), variance)
    np.testing.assert_allclose(ratio.max, [0.1875, 0.5])
    np.testing.assert_allclose(ratio.mean, [0.125, 0.5])
    np.testing.assert_allclose(noise_ratio(0.5, variance, temperature=0.5).max, [0.375, 1.0])


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_largest_step_size_meets_its_ratio(temperature):
    variance = {"a": jnp.array([1.0, 30.0]), "b": jnp.array(8.0)}
    h = largest_step_size(variance, 0.1, temperature=temperature)
    assert noise_ratio(h, variance, temperature=temperature).max.max() == pytest.approx(0.1)
    assert largest_step_size(jnp.zeros(3)) == jnp.inf


# The effect of C on a sampler: stationary covariances Σ = AΣAᵀ + qqᵀ of the linear recursion for a
# spring of stiffness k ≪ 1/h² with gradient noise, damped so that E[p²] = 1. h is 1 throughout.
STIFFNESS = 1e-4


def covariance(scheme, a, C, injected=0.0):
    drift = np.array([[1.0, 1.0 if scheme == "euler" else 0.5], [0.0, 1.0]])
    push = {"euler": 1.0, "aboba": np.sqrt(a), "nogin": (1 + a) / 2}[scheme]
    kick = np.array([[1.0, 0.0], [-push * STIFFNESS, a]])
    noise = np.diag([0.0, push**2 * 4 * C + injected])
    if scheme == "euler":
        return linalg.solve_discrete_lyapunov(kick @ drift, noise)
    return linalg.solve_discrete_lyapunov(drift @ kick @ drift, drift @ noise @ drift.T)


def temperature_at(scheme, C):
    """Return the configurational temperature if damping keeps momenta at temperature 1."""
    a = optimize.brentq(lambda a: covariance(scheme, a, C)[1, 1] - 1, 1e-6, 1 - 1e-6)
    return STIFFNESS * covariance(scheme, a, C)[0, 0]


@pytest.mark.parametrize("C", [0.05, 0.1, 0.2])
def test_euler_is_too_cold_by_c(C):
    assert temperature_at("euler", C) == pytest.approx((1 + np.sqrt(1 - 4 * C)) / 2, abs=1e-3)


def test_euler_has_no_solution_above_a_quarter():
    with pytest.raises(ValueError, match="different signs"):
        temperature_at("euler", 0.26)


@pytest.mark.parametrize(("C", "hot"), [(0.1, 0.005), (0.25, 0.029), (1.0, 0.272), (2.0, 0.600)])
def test_aboba_is_too_hot_by_half_c_squared(C, hot):
    assert np.cosh(0.5 * np.arcsinh(2 * C)) - 1 == pytest.approx(hot, abs=1e-3)
    assert temperature_at("aboba", C) - 1 == pytest.approx(hot, abs=1e-3)


@pytest.mark.parametrize("C", [0.1, 0.5, 0.9])
def test_nogin_is_exact_up_to_one(C):
    a = 0.9 * (1 - C) / (1 + C)
    injected = (1 + a) * (1 - a - (1 + a) * C)
    assert injected > 0
    assert STIFFNESS * covariance("nogin", a, C, injected)[0, 0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise_ratio(-0.001, jnp.ones(2)), "`step_size` must be positive, got -0.001"),
        (lambda: noise_ratio(float("nan"), jnp.ones(2)), "`step_size` must be positive, got nan"),
        (lambda: noise_ratio(0.1, jnp.ones(2), temperature=0), "`temperature` must be positive"),
        (lambda: largest_step_size(jnp.ones(2), 0.0), "`ratio` must be positive, got 0.0"),
        (
            lambda: gradient_noise(KEY, grad_fn, POSITION, batch_fn, 1),
            "`num_batches` must be at least 2, got 1",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("diffusion", [0.0, 3.0])
@pytest.mark.parametrize(("kick", "h"), [(1.2, 0.02), slow(5.0, 0.005)])
def test_the_lifetime_of_euler(key, kick, h, diffusion):
    """A flat density with gradient noise in 200 independent coordinates; nothing is fitted."""
    sigma = kick / h
    expected = float(euler_lifetime(h, sigma**2, diffusion=diffusion))
    sampler = isotherm.msgnht(lambda x, noise: sigma * noise, h, diffusion, integrator="euler")
    batches = isotherm.generated_batches(lambda key, t: random.gaussian(key, jnp.zeros(200)))
    thin = max(int(expected / 100), 1)
    draws, _ = isotherm.run_chain(key, sampler, jnp.zeros(200), batches, num_draws=300, thin=thin)
    lifetimes = np.isfinite(draws).sum(0) * thin
    assert lifetimes.max() < 300 * thin
    assert np.median(lifetimes) / expected == pytest.approx(1, abs=0.1)


def test_the_lifetime_is_infinite_with_little_noise():
    assert np.isinf(euler_lifetime(0.01, 99.0**2))
    assert euler_lifetime(1.0, 1e6) == pytest.approx(4 / 3e6, rel=1e-5)
    assert euler_lifetime(1.0, 1e6, thermostat_mass=10.0) == pytest.approx(4 / 3e5, rel=1e-5)

"""SGLD, pSGLD and SGRLD follow the exact law of their recursion.

Each comparison fails on correct code with probability `laws.FALSE_ALARM` (1e-4) per seed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isotherm.coordinates.linear import Dense
from isotherm.samplers.psgld import psgld
from isotherm.samplers.sgld import sgld
from isotherm.samplers.sgrld import sgrld
from laws import (
    FALSE_ALARM,
    Gaussian,
    compiled_chains,
    final_states,
    gaussian_p_value,
    moment_p_value,
    noise_paths,
    run_chains,
)

TARGET = Gaussian(np.array([1.0, -1.0]), np.array([[2.0, 0.6], [0.6, 0.7]]))
START = np.array([-1.0, 2.0])
X0 = jnp.asarray(START, jnp.float32)


def sgld_law(h, temperature, num_steps, preconditioner):
    mean, cov = START, np.zeros((2, 2))
    a = np.eye(2) - h * preconditioner @ TARGET.precision
    for _ in range(num_steps):
        mean = mean + h * preconditioner @ TARGET.precision @ (TARGET.mean - mean)
        cov = a @ cov @ a.T + 2 * h * temperature * preconditioner
    return mean, cov


def test_sgld_follows_the_euler_law_in_any_coordinates(key):
    def build(setting):
        temperature, basis = setting
        coordinates = Dense(basis, jnp.zeros(2))
        return sgld(TARGET.grad, 0.3, temperature=temperature, coordinates=coordinates)

    stops = (1, 3, 40)
    run = compiled_chains(build, X0, stops)
    for basis in (np.eye(2), np.array([[0.9, -0.5], [0.3, 1.1]])):
        settings = [(temperature, jnp.asarray(basis, jnp.float32)) for temperature in (1, 0.5, 1.1)]
        one, half, mutant = run_chains(key, run, settings)
        for i, num_steps in enumerate(stops):
            for temperature, states in ((1.0, one), (0.5, half)):
                law = sgld_law(0.3, temperature, num_steps, basis @ basis.T)
                assert gaussian_p_value(states[i].position, *law) > FALSE_ALARM
            law = sgld_law(0.3, 1.0, num_steps, basis @ basis.T)
            assert gaussian_p_value(mutant[i].position, *law) < FALSE_ALARM


def test_sgld_with_a_schedule_uses_each_step_size_once(key):
    h = np.array([0.3, 0.1, 0.05])
    schedule = optax.piecewise_constant_schedule(0.3, {1: 1 / 3, 2: 1 / 2})
    mean, cov = START, np.zeros((2, 2))
    for step_size in h:
        a = np.eye(2) - step_size * TARGET.precision
        mean = TARGET.mean + a @ (mean - TARGET.mean)
        cov = a @ cov @ a.T + 2 * step_size * np.eye(2)

    def build(delay):
        return sgld(TARGET.grad, lambda t: schedule(t + delay))

    run = compiled_chains(build, X0, 3, optimized=False)
    (states,), (late,) = (run_chains(key, run, [delay]) for delay in (0, 1))
    assert gaussian_p_value(states.position, mean, cov) > FALSE_ALARM
    assert gaussian_p_value(late.position, mean, cov) < FALSE_ALARM


def test_zero_temperature_is_optax_sgd(key):
    position = {"w": jnp.arange(3.0), "b": jnp.array(0.5)}
    grad = jax.grad(lambda p, batch: -jnp.sum(p["w"] ** 2) - p["b"] ** 2)
    sampler = sgld(grad, step_size=0.1, temperature=0.0)
    state, _ = sampler.step(key, sampler.init(position), None)
    loss_grads = jax.tree.map(jnp.negative, grad(position, None))
    updates, _ = optax.sgd(0.1).update(loss_grads, optax.sgd(0.1).init(position))
    expected = optax.apply_updates(position, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), state.position, expected)


def squares(x):
    x = np.asarray(x, np.float64)
    return np.concatenate([x, x**2], axis=1)


def psgld_moments(h, temperature, num_steps, freeze_after, decay=0.9, damping=0.2):
    paths = noise_paths(2 * num_steps, 3)
    x, v = np.tile(START, (len(paths.weights), 1)), 0.0
    for t, r in enumerate(np.split(paths.numbers, num_steps, axis=1)):
        g = (TARGET.mean - x) @ TARGET.precision.T
        if t < freeze_after:
            v, count = decay * v + (1 - decay) * g**2, t + 1
        precondition = 1 / (damping + np.sqrt(v / (1 - decay**count)))
        x = x + h * precondition * g + np.sqrt(2 * h * temperature * precondition) * r
    f = squares(x)
    mean = paths.weights @ f
    return mean, paths.weights @ f**2 - mean**2


@pytest.mark.parametrize("freeze_after", [2, 100])
def test_psgld_follows_its_law(key, freeze_after):
    def build(temperature):
        return psgld(
            TARGET.grad,
            0.3,
            decay=0.9,
            damping=0.2,
            temperature=temperature,
            noise="three-point",
            freeze_after=freeze_after,
        )

    run = compiled_chains(build, X0, 4, optimized=False)
    one, half, mutant = run_chains(key, run, [1.0, 0.5, 1.1])
    assert (
        moment_p_value(squares(one.position), *psgld_moments(0.3, 1.0, 4, freeze_after))
        > FALSE_ALARM
    )
    assert (
        moment_p_value(squares(half.position), *psgld_moments(0.3, 0.5, 4, freeze_after))
        > FALSE_ALARM
    )
    assert (
        moment_p_value(squares(mutant.position), *psgld_moments(0.3, 1.0, 4, freeze_after))
        < FALSE_ALARM
    )
    other = 100 if freeze_after == 2 else 2
    assert moment_p_value(squares(one.position), *psgld_moments(0.3, 1.0, 4, other)) < FALSE_ALARM


COUNTS = np.array([4.0, 1.0, 0.0])
PHI = np.array([0.5, 0.2, 0.05])  # near zero, so that the reflection acts


def counts_gradient(phi, batch):
    return COUNTS - phi / jnp.sum(phi) * COUNTS.sum()


def sgrld_moments(h, temperature, num_steps, prior=0.5, reflect=True):
    paths = noise_paths(3 * num_steps, 3)
    x = np.tile(PHI, (len(paths.weights), 1))
    for r in np.split(paths.numbers, num_steps, axis=1):
        g = COUNTS - x / x.sum(1, keepdims=True) * COUNTS.sum()
        x = x + h / 2 * (prior - 1 + temperature - x + g) + np.sqrt(h * temperature * x) * r
        x = np.abs(x) if reflect else np.maximum(x, 0)
    f = squares(x)
    mean = paths.weights @ f
    return mean, paths.weights @ f**2 - mean**2


def test_sgrld_follows_its_law(key):
    def build(temperature):
        return sgrld(counts_gradient, 0.2, 0.5, temperature=temperature, noise="three-point")

    start = jnp.asarray(PHI, jnp.float32)
    run = compiled_chains(build, start, 3, optimized=False)
    one, half, mutant = run_chains(key, run, [1.0, 0.5, 1.1])
    assert moment_p_value(squares(one.position), *sgrld_moments(0.2, 1.0, 3)) > FALSE_ALARM
    assert moment_p_value(squares(half.position), *sgrld_moments(0.2, 0.5, 3)) > FALSE_ALARM
    assert moment_p_value(squares(mutant.position), *sgrld_moments(0.2, 1.0, 3)) < FALSE_ALARM
    clipped = sgrld_moments(0.2, 1.0, 3, reflect=False)
    assert moment_p_value(squares(one.position), *clipped) < FALSE_ALARM


def test_sgrld_without_data_samples_its_gamma_prior(key):
    """Many small steps: mean and variance of a Gamma(3, 1) are both 3."""

    def build(h):
        return sgrld(lambda phi, batch: jnp.zeros_like(phi), h, 3.0)

    (states,) = final_states(key, build, [0.02], jnp.array([3.0]), 1000, num_chains=20_000)
    draws = np.asarray(states.position, np.float64)
    assert abs(draws.mean() - 3) < 5 * np.sqrt(3 / 20_000) + 0.02
    assert abs(draws.var() - 3) < 5 * np.sqrt((3 * 9 + 18 - 9) / 20_000) + 0.06  # plus O(h)

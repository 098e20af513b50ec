"""One step of the code has the order that the algebra proves for its word; mutants do not."""

from collections import Counter
from math import factorial, prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy

from isotherm import random
from isotherm.dynamics import flows, measured_order, thermostats
from isotherm.dynamics.integrators import Integrator, parse_integrator
from isotherm.dynamics.langevin import langevin
from isotherm.dynamics.measured_order import local_errors, power_law, time_average
from isotherm.dynamics.order import THERMOSTATS, local_order
from isotherm.models import double_well
from marks import slow

STEP_SIZES = (0.002, 0.004, 0.008)
WORDS = [
    parse_integrator(word, symmetric=False)
    for word in ("euler", "ADBKN", "ABOBA", "BADODAB", "OBABO")
]


def wells(x):
    return jnp.sum(double_well.log_density(x)) - 0.1 * jnp.sum(x[:-1] ** 2 * x[1:])


def order_of(letters):
    errors = local_errors([Integrator("word", letters)], "per_coordinate", wells, STEP_SIZES)
    return power_law(STEP_SIZES, errors)[0][0, 0] - 1


@pytest.mark.parametrize(
    "thermostat", [kind if kind == "per_coordinate" else slow(kind) for kind in THERMOSTATS]
)
def test_slopes_are_the_order_plus_one_with_either_noise(thermostat):
    errors = local_errors(WORDS, thermostat, wells, STEP_SIZES)
    slopes, _ = power_law(STEP_SIZES, errors)
    expected = np.array([word.order + 1 for word in WORDS])
    np.testing.assert_allclose(slopes, np.stack([expected, expected], 1), atol=0.05)


def symbol_of_the_error(word, noise):
    """Return the leading error by the algebra, at the state where it is measured."""
    with jax.enable_x64(True):
        start = measured_order._start("per_coordinate")
        state = measured_order._flat(*start)
        wave = measured_order._numbers(state.size, 4)
        jets = measured_order._derivatives(wells, state[:2])
    names = ["theta1", "theta2", "p1", "p2", "xi1", "xi2"]
    k = dict(zip(names, 1j * wave, strict=True))
    sigma = (2 * measured_order.DIFFUSION * measured_order.TEMPERATURE) ** 0.5
    numbers = {"sigma": sigma, "T": measured_order.TEMPERATURE, "mu": measured_order.MASS, **jets}
    numbers |= dict(zip(names, state.tolist(), strict=True))
    total = 0
    for moment, error in local_order(word.letters, noise=noise).leading_error.items():
        powers = Counter(moment.split())
        value = complex(sympy.sympify(error).subs(numbers))
        total += value * prod(k[x] ** n / factorial(n) for x, n in powers.items())
    return abs(total)


@pytest.mark.parametrize(
    "word",
    [word if word.name == "ABOBA" else slow(word) for word in WORDS],
    ids=[word.name for word in WORDS],
)
def test_the_error_of_the_code_equals_the_leading_error_of_the_algebra(word):
    h = 0.0005
    errors = local_errors([word], "per_coordinate", wells, [h])[0, :, 0]
    for error, noise in zip(errors, measured_order.NODES, strict=True):
        assert error == pytest.approx(
            symbol_of_the_error(word, noise) * h ** (word.order + 1), rel=0.01
        )


@pytest.mark.parametrize(
    ("letters", "order"),
    [("ADBKNBD", 1), slow("AADBKNBDA", 1), slow("ADKNDA", 0)],
    ids=["half a drift lost", "drift in thirds", "no damping"],
)
def test_mutant_words_have_a_lower_order(letters, order):
    assert order_of(letters) == pytest.approx(order, abs=0.05)


@pytest.mark.parametrize(
    ("module", "name", "mutant", "letters", "order"),
    [
        slow(thermostats, "mean_decay", lambda x, decay: jnp.ones_like(x), "KADODAK", 1),
        slow(flows, "diffuse", lambda p, r, s, t: p + jnp.sqrt(s * t) * r, "ADBKNBDA", 0),
        (flows, "kick", lambda p, g, t: p + 0.99 * g * t, "ADBKNBDA", 0),
    ],
    ids=["noise not damped", "noise too weak", "kick too weak"],
)
def test_mutant_flows_have_a_lower_order(monkeypatch, module, name, mutant, letters, order):
    """These errors are in the code and not in the word, so that the algebra cannot find them."""
    monkeypatch.setattr(module, name, mutant)
    assert order_of(letters) == pytest.approx(order, abs=0.05)


def test_time_average_is_the_mean_over_the_steps(key):
    sampler = langevin(double_well.noisy_gradient(0.1), 0.1, 1.0, thermostat="per_coordinate")
    average = time_average(key, sampler, jnp.zeros(()), lambda s: s.position, 5, burn_in=3)
    noise_key, batch_key, start_key = (random.fold(key, i) for i in range(3))
    state, positions = sampler.init(jnp.zeros(()), start_key), []
    for t in range(8):
        state, _ = sampler.step(random.fold(noise_key, t), state, random.fold(batch_key, t))
        positions.append(float(state.position))
    assert float(average) == pytest.approx(np.mean(positions[3:]), rel=1e-5)


def test_power_law_recovers_exponents_and_their_errors():
    """The sd over 2000 repetitions is known to 2 %; 10 % are six standard errors."""
    x, rng = np.array([1.0, 2.0, 4.0, 8.0]), np.random.default_rng(0)
    error = np.array([0.01, 0.02, 0.03, 0.05]) * x**1.5
    y = x**1.5 + error * rng.standard_normal((2000, 4))
    exponents, errors = power_law(x, y, error)
    assert exponents.mean() == pytest.approx(1.5, abs=0.005)
    assert errors.mean() == pytest.approx(exponents.std(), rel=0.1)

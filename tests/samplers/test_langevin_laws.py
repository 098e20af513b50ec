"""SGHMC, SGNHT and mSGNHT follow the exact law of their recursion, for every thermostat and word.

Each comparison fails on correct code with probability `laws.FALSE_ALARM` (1e-4) per seed. The
tests also have power: they detect a temperature that is 10 % off for every thermostat and word,
and the omission of any letter of any word.

Every thermostat and word is compiled once. Temperature, noise and omitted letters are arguments.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isotherm import random
from isotherm.coordinates.linear import Dense, Diagonal
from isotherm.dynamics.integrators import NAMED_WORDS, parse_integrator
from isotherm.dynamics.langevin import langevin
from isotherm.samplers.sghmc import sghmc
from laws import (
    FALSE_ALARM,
    SPELLED,
    Gaussian,
    Thermostatted,
    compiled_chains,
    gaussian_law,
    gaussian_p_value,
    moment_p_value,
    observables,
    run_chains,
)
from marks import slow

WORDS = sorted(set(SPELLED) - {"BAOAB"})  # the same letters as BADODAB
KINDS = ("fixed", "scalar", "per_tensor", "per_coordinate", "full_matrix")
NODES = {"three-point": 3, "gaussian": 7}
"""Quadrature nodes: exact for three-point noise, and for Gaussian noise within 1e-3 standard errors
of the Monte Carlo means (the differences to 15 nodes, or to 11 with six noise numbers)."""
MIX = np.array([[1.5, 0.4, 0.0], [0.4, 1.0, -0.3], [0.0, -0.3, 0.8]])


def is_quick(word):
    """Return whether a word has a name."""
    return word == "euler" or word in NAMED_WORDS


def pairs(words):
    """Parametrise by thermostat and word.

    Quick are one thermostat with all named words, and all thermostats with one word.
    """
    cases = [
        (kind, word)
        if (is_quick(word) and kind == "per_coordinate") or word == "ABOBA"
        else slow(kind, word)
        for kind in KINDS
        for word in words
    ]
    return pytest.mark.parametrize(("kind", "word"), cases)


class Setting(NamedTuple):
    """The arguments of a compiled program."""

    temperature: jax.Array
    is_gaussian: jax.Array
    durations: jax.Array
    """Factors of the durations of the letters: 0 omits a letter."""


def setting(word, temperature, noise="three-point", omitted=None):
    durations = np.ones(len(SPELLED[word]), np.float32)
    if omitted is not None:
        durations[omitted] = 0
    return Setting(jnp.float32(temperature), jnp.asarray(noise == "gaussian"), durations)


def problem(kind):
    d = 3 if kind == "per_tensor" else 2  # the smallest numbers that distinguish the kinds
    target = Gaussian(np.array([0.5, -0.3, 0.2])[:d], MIX[:d, :d])
    return target, np.array([1.0, -0.5, 0.8])[:d], np.array([0.6, -1.2, 0.4])[:d]


def as_tree(v):
    """Split a vector into two tensors: the first coordinate and the others."""
    return {"a": jnp.asarray(v[:1], jnp.float32), "b": jnp.asarray(v[1:], jnp.float32)}


def as_rows(tree):
    leaves = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves, axis=1)


def tree_gradient(target):
    def grad(tree, batch):
        flat = target.grad(jnp.concatenate([tree["a"], tree["b"]]))
        return {"a": flat[:1], "b": flat[1:]}

    return grad


def with_durations(word, factors):
    """Return the integrator of a word whose letters last `factors` times as long."""
    integrator = parse_integrator(word)
    assert integrator.letters == SPELLED[word]
    integrator.__dict__["segments"] = tuple(
        tuple((letter, fraction * factors[i], i) for letter, fraction, i in segment)
        for segment in integrator.segments
    )
    return integrator


@cache
def program(kind, word):
    """Compile one and two steps of chains with all settings of a thermostat and a word."""
    target, x, p = problem(kind)

    def build(setting):
        def noise(key, like):
            gaussian, three_point = random.gaussian(key, like), random.three_point(key, like)
            choose = lambda a, b: jnp.where(setting.is_gaussian, a, b)  # noqa: E731
            return jax.tree.map(choose, gaussian, three_point)

        return langevin(
            tree_gradient(target),
            0.4,
            0.9,
            thermostat=kind,
            thermostat_mass=1.7,
            noise=noise,
            integrator=with_durations(word, setting.durations),
            temperature=setting.temperature,
        )

    return compiled_chains(build, as_tree(x), (1, 2), as_tree(p), optimized=False)


def chains(key, kind, word, settings, num_steps):
    """Return the observables of the states of the sampler, one array per setting."""
    runs = run_chains(key, program(kind, word), settings)
    states = [run[num_steps - 1] for run in runs]
    return [observables(*map(as_rows, (s.position, s.momentum, s.thermostat))) for s in states]


@cache
def exact_moments(kind, word, noise, temperature, num_steps):
    target, x, p = problem(kind)
    law = Thermostatted(word, kind, target, 0.4, 0.9, temperature, mass=1.7)
    return law.moments(x, p, num_steps, NODES[noise])


@pairs(WORDS)
def test_states_follow_the_law_and_a_wrong_temperature_is_detected(key, kind, word):
    settings = [setting(word, temperature) for temperature in (1.0, 0.6, 1.1)]
    one, cold, mutant = chains(key, kind, word, settings, 2)
    assert moment_p_value(one, *exact_moments(kind, word, "three-point", 1.0, 2)) > FALSE_ALARM
    assert moment_p_value(cold, *exact_moments(kind, word, "three-point", 0.6, 2)) > FALSE_ALARM
    assert moment_p_value(mutant, *exact_moments(kind, word, "three-point", 1.0, 2)) < FALSE_ALARM


@pairs(["euler", "ABOBA", "BADODAB", "OBABO"])
def test_states_with_gaussian_noise_follow_their_law(key, kind, word):
    steps = 1 if kind == "per_tensor" or word == "OBABO" else 2  # at most six noise numbers
    settings = [setting(word, temperature, "gaussian") for temperature in (0.8, 0.88)]
    draws, mutant = chains(key, kind, word, settings, steps)
    exact = exact_moments(kind, word, "gaussian", 0.8, steps)
    assert moment_p_value(draws, *exact) > FALSE_ALARM
    assert moment_p_value(mutant, *exact) < FALSE_ALARM


@pytest.mark.parametrize("word", [word if is_quick(word) else slow(word) for word in WORDS])
def test_the_omission_of_any_letter_is_detected(key, word):
    kind, number = "per_coordinate", len(SPELLED[word])
    exact = exact_moments(kind, word, "three-point", 1.0, 2)
    for omitted in range(number):
        (mutant,) = chains(key, kind, word, [setting(word, 1.0, omitted=omitted)], 2)
        assert moment_p_value(mutant, *exact) < FALSE_ALARM, (SPELLED[word], omitted)


LONG = Gaussian(np.array([1.0, -1.0]), np.array([[2.0, 0.6], [0.6, 0.7]]))
START = np.array([-1.0, 2.0])
STOPS = (1, 3, 40)


@cache
def sghmc_program(word):
    """Compile SGHMC; the setting is `(step_size, friction, temperature)`."""

    def build(setting):
        step_size, friction, temperature = setting
        return sghmc(LONG.grad, step_size, friction, integrator=word, temperature=temperature)

    return compiled_chains(build, jnp.asarray(START, jnp.float32), STOPS)


def long_p_value(states, word, temperature, num_steps):
    law = {"h": 0.5, "friction": 0.8, "temperature": temperature, "num_steps": num_steps}
    mean, cov = gaussian_law(word, LONG, START, **law)
    draws = np.concatenate([states.position, states.momentum], axis=1)
    random_ = np.diag(cov) > 1e-9  # the first position of Euler does not depend on the noise
    np.testing.assert_allclose(draws[:, ~random_].std(0), 0, atol=1e-5)
    return gaussian_p_value(draws[:, random_], mean[random_], cov[random_][:, random_])


@pytest.mark.parametrize("word", [word if word == "ABOBA" else slow(word) for word in WORDS])
def test_sghmc_follows_its_gaussian_law_over_40_steps(key, word):
    settings = [(0.5, 0.8, 1.0), (0.5, 0.8, 0.5)]
    runs = run_chains(key, sghmc_program(word), settings)
    for temperature, states in zip([1.0, 0.5], runs, strict=True):
        for num_steps, state in zip(STOPS, states, strict=True):
            assert long_p_value(state, word, temperature, num_steps) > FALSE_ALARM


@pytest.mark.parametrize(
    "mutant", [(0.5, 0.8, 1.1), (0.5, 0.7, 1.0), (0.45, 0.8, 1.0)], ids=["T", "friction", "h"]
)
def test_wrong_settings_of_sghmc_are_detected(key, mutant):
    ((_, states, _),) = run_chains(key, sghmc_program("ABOBA"), [mutant])
    assert long_p_value(states, "ABOBA", 1.0, 3) < FALSE_ALARM


@pytest.mark.parametrize(
    ("kind", "basis"),
    [
        slow("scalar", "diagonal"),
        slow("scalar", "dense"),
        ("per_coordinate", "diagonal"),
        ("per_coordinate", "dense"),
        slow("full_matrix", "diagonal"),
        ("full_matrix", "dense"),
    ],
)
def test_the_law_holds_in_any_coordinates(key, kind, basis):
    target = Gaussian(np.array([0.5, -0.3]), MIX[:2, :2])
    x, p = np.array([1.0, -0.5]), np.array([0.6, -1.2])
    matrix = np.array([[0.9, -0.5], [0.3, 1.1]])
    coordinates = Dense(jnp.asarray(matrix, jnp.float32), jnp.zeros(2))
    if basis == "diagonal":
        matrix, coordinates = np.diag([0.7, 1.3]), Diagonal(jnp.array([0.7, 1.3]))

    def build(temperature):
        return langevin(
            target.grad,
            0.4,
            0.9,
            thermostat=kind,
            thermostat_mass=1.7,
            noise="three-point",
            coordinates=coordinates,
            temperature=temperature,
        )

    start, momentum = jnp.asarray(x, jnp.float32), jnp.asarray(p, jnp.float32)
    run = compiled_chains(build, start, 2, momentum, optimized=False)
    for temperature, state in zip([1.0, 0.6], run_chains(key, run, [1.0, 0.6]), strict=True):
        law = Thermostatted("ABOBA", kind, target, 0.4, 0.9, temperature, 1.7, basis=matrix)
        draws = observables(*map(np.asarray, (state.position, state.momentum, state.thermostat)))
        assert moment_p_value(draws, *law.moments(x, p, 2, 3)) > FALSE_ALARM
        wrong = law._replace(basis=matrix * 1.05)
        assert moment_p_value(draws, *wrong.moments(x, p, 2, 3)) < FALSE_ALARM


STIFF = {"diffusion": 2.0, "thermostat_mass": 0.25, "integrator": "ABOBA"}


@pytest.mark.parametrize("kind", ["scalar", "per_tensor", "per_coordinate"])
def test_stationary_thermostats_have_their_law(kind):
    """Of the mean and the variance over 400 chains, five standard errors."""
    sampler = langevin(
        lambda x, batch: jax.tree.map(jnp.negative, x),
        0.05,
        thermostat=kind,
        initial_thermostat="stationary",
        temperature=1.5,
        **STIFF,
    )
    position = {"a": jnp.zeros(3), "b": jnp.zeros(5)}
    keys = jax.vmap(lambda i: random.fold(jax.random.key(0), i))(jnp.arange(400))
    states = jax.vmap(lambda key: sampler.init(position, key))(keys)
    shares = {"scalar": [8], "per_tensor": [3, 5], "per_coordinate": [1, 1]}[kind]
    for leaf, share in zip(jax.tree.leaves(states.thermostat), shares, strict=True):
        values = np.asarray(leaf, np.float64)
        expected = 1.5 / (0.25 * share)
        assert abs(values.mean() - 2.0) < 5 * (expected / values.size) ** 0.5
        assert abs(values.var() / expected - 1) < 5 * (2 / values.size) ** 0.5


def test_stationary_thermostats_do_not_cool_a_chain_at_first():
    """2000 oscillators in equilibrium, in the first unit of time."""

    def early(initial):
        sampler = langevin(
            lambda x, batch: -x,
            0.05,
            thermostat="per_coordinate",
            initial_thermostat=initial,
            **STIFF,
        )
        key = jax.random.key(0)
        state = sampler.init(random.gaussian(random.fold(key, 7), jnp.zeros(2000)), key)
        squares = []
        for i in range(20):
            state, _ = sampler.step(random.fold(random.fold(key, 8), i), state, None)
            squares.append(float(jnp.mean(state.momentum**2)))
        return np.mean(squares)

    assert early(None) < 0.93
    assert abs(early("stationary") - 1) < 0.05


def test_a_word_for_the_thermostat_is_checked():
    for kind, initial in (
        ("fixed", "stationary"),
        ("full_matrix", "stationary"),
        ("scalar", "hot"),
    ):
        with pytest.raises(ValueError, match="`initial_thermostat` must be a number"):
            langevin(lambda x, b: -x, 0.1, 1.0, thermostat=kind, initial_thermostat=initial)

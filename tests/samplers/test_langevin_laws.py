"""SGHMC, SGNHT and mSGNHT follow the exact law of their own recursion, in every combination.

Each comparison fails on correct code with probability `laws.FALSE_ALARM` (1e-4) per fresh seed.
Every test also shows that a mutant is caught: a temperature 10 % off for every thermostat and
word, and every single sub-step of every word forgotten.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isotherm.coordinates.linear import Dense, Diagonal
from isotherm.dynamics import integrators
from isotherm.dynamics.langevin import langevin
from isotherm.samplers.sghmc import sghmc
from laws import (
    FALSE_ALARM,
    SPELLED,
    Gaussian,
    Thermostatted,
    final_states,
    gaussian_law,
    gaussian_p_value,
    moment_p_value,
    observables,
)

WORDS = sorted(set(SPELLED) - {"BAOAB"})  # the same letters as BADODAB
KINDS = ("fixed", "scalar", "per_tensor", "per_coordinate", "full_matrix")
NODES = {"three-point": 3, "gaussian": 15}
MIX = np.array([[1.5, 0.4, 0.0], [0.4, 1.0, -0.3], [0.0, -0.3, 0.8]])


def problem(kind):
    d = 3 if kind == "per_tensor" else 2  # enough to tell the kinds apart
    target = Gaussian(np.array([0.5, -0.3, 0.2])[:d], MIX[:d, :d])
    return target, np.array([1.0, -0.5, 0.8])[:d], np.array([0.6, -1.2, 0.4])[:d]


def as_tree(v):
    """Split a vector in two tensors, of one and of the other coordinates."""
    return {"a": jnp.asarray(v[:1], jnp.float32), "b": jnp.asarray(v[1:], jnp.float32)}


def as_rows(tree):
    leaves = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves, axis=1)


def tree_gradient(target):
    def grad(tree, batch):
        flat = target.grad(jnp.concatenate([tree["a"], tree["b"]]))
        return {"a": flat[:1], "b": flat[1:]}

    return grad


@cache
def exact_moments(kind, word, noise, temperature, num_steps):
    target, x, p = problem(kind)
    law = Thermostatted(word, kind, target, 0.4, 0.9, temperature, mass=1.7)
    return law.moments(x, p, num_steps, NODES[noise])


def chains(key, kind, word, noise, temperatures, num_steps):
    """Observables of the real sampler's states, one array per temperature."""
    target, x, p = problem(kind)

    def build(temperature):
        return langevin(
            tree_gradient(target),
            0.4,
            0.9,
            thermostat=kind,
            thermostat_mass=1.7,
            noise=noise,
            integrator=word,
            temperature=temperature,
        )

    runs = final_states(key, build, temperatures, as_tree(x), num_steps, momentum=as_tree(p))
    return [observables(*map(as_rows, (s.position, s.momentum, s.thermostat))) for s in runs]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("kind", KINDS)
def test_states_follow_the_law_and_a_wrong_temperature_is_caught(key, kind, word):
    one, cold, mutant = chains(key, kind, word, "three-point", [1.0, 0.6, 1.1], 2)
    assert moment_p_value(one, *exact_moments(kind, word, "three-point", 1.0, 2)) > FALSE_ALARM
    assert moment_p_value(cold, *exact_moments(kind, word, "three-point", 0.6, 2)) > FALSE_ALARM
    assert moment_p_value(mutant, *exact_moments(kind, word, "three-point", 1.0, 2)) < FALSE_ALARM


@pytest.mark.parametrize("word", ["euler", "ABOBA", "BADODAB", "OBABO"])
@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_noise_follows_its_law_too(key, kind, word):
    steps = 1 if kind == "per_tensor" or word == "OBABO" else 2
    nodes = "three-point" if kind == "per_tensor" and word == "OBABO" else "gaussian"
    seen, mutant = chains(key, kind, word, nodes, [0.8, 0.88], steps)
    exact = exact_moments(kind, word, nodes, 0.8, steps)
    assert moment_p_value(seen, *exact) > FALSE_ALARM
    assert moment_p_value(mutant, *exact) < FALSE_ALARM


def forgetful(word, number):
    """Leave one occurrence of a letter out of a word, the others as long as before."""
    parsed = integrators.Integrator(word, SPELLED[word])
    parsed.__dict__["segments"] = tuple(
        tuple(entry for entry in segment if entry[2] != number) for segment in parsed.segments
    )
    return parsed


@pytest.mark.parametrize(
    ("word", "number"), [(w, i) for w in WORDS for i in range(len(SPELLED[w]))]
)
def test_a_forgotten_sub_step_is_caught(key, word, number):
    kind = "per_coordinate"
    (seen,) = chains(key, kind, forgetful(word, number), "three-point", [1.0], 2)
    assert moment_p_value(seen, *exact_moments(kind, word, "three-point", 1.0, 2)) < FALSE_ALARM


LONG = Gaussian(np.array([1.0, -1.0]), np.array([[2.0, 0.6], [0.6, 0.7]]))
START = np.array([-1.0, 2.0])


def long_p_value(states, word, temperature, num_steps):
    law = {"h": 0.5, "friction": 0.8, "temperature": temperature, "num_steps": num_steps}
    mean, cov = gaussian_law(word, LONG, START, **law)
    draws = np.concatenate([states.position, states.momentum], axis=1)
    still = np.diag(cov) < 1e-9  # Euler's first position does not depend on the noise
    np.testing.assert_allclose(draws[:, still].std(0), 0, atol=1e-5)
    moving = ~still
    return gaussian_p_value(draws[:, moving], mean[moving], cov[moving][:, moving])


@pytest.mark.parametrize("word", WORDS)
def test_sghmc_follows_its_gaussian_law_for_long(key, word):
    def build(temperature):
        return sghmc(LONG.grad, 0.5, 0.8, integrator=word, temperature=temperature)

    stops = (1, 3, 40)
    runs = final_states(key, build, [1.0, 0.5], jnp.asarray(START, jnp.float32), stops)
    for temperature, states in zip([1.0, 0.5], runs, strict=True):
        for num_steps, state in zip(stops, states, strict=True):
            assert long_p_value(state, word, temperature, num_steps) > FALSE_ALARM


@pytest.mark.parametrize("mutant", [{"temperature": 1.1}, {"friction": 0.7}, {"step_size": 0.45}])
def test_the_gaussian_law_test_has_power(key, mutant):
    def build(_):
        return sghmc(LONG.grad, **{"step_size": 0.5, "friction": 0.8, **mutant})

    (states,) = final_states(key, build, [0.0], jnp.asarray(START, jnp.float32), 3)
    assert long_p_value(states, "ABOBA", 1.0, 3) < FALSE_ALARM


@pytest.mark.parametrize("basis", ["diagonal", "dense"])
@pytest.mark.parametrize("kind", ["scalar", "per_coordinate", "full_matrix"])
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
    for temperature, state in zip(
        [1.0, 0.6], final_states(key, build, [1.0, 0.6], start, 2, momentum=momentum), strict=True
    ):
        law = Thermostatted("ABOBA", kind, target, 0.4, 0.9, temperature, 1.7, basis=matrix)
        seen = observables(*map(np.asarray, (state.position, state.momentum, state.thermostat)))
        assert moment_p_value(seen, *law.moments(x, p, 2, 3)) > FALSE_ALARM
        wrong = law._replace(basis=matrix * 1.05)
        assert moment_p_value(seen, *wrong.moments(x, p, 2, 3)) < FALSE_ALARM

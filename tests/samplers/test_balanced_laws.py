"""Samplers with balanced gradients follow the exact law of their recursion, over all batches.

Three or four data are few enough to enumerate all batches, so that expected moments after two steps
are exact (`laws.Minibatches`), and every comparison fails on correct code with probability
`laws.FALSE_ALARM`. Data and step are such that some rows reach the bound of the weights. The draws
are also compared with the laws of wrong recursions, all of which must be rejected.
"""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.coordinates.linear import Dense
from isotherm.dynamics.langevin import langevin
from laws import (
    FALSE_ALARM,
    Minibatches,
    Thermostatted,
    balanced_weights,
    compiled_chains,
    moment_p_value,
    observables,
    run_chains,
)
from marks import slow

WORDS = ("ABDODBA", "ABOBA", "BADODAB", "OBABO", "OABAO", "euler")
QUICK = ("ABDODBA", "BADODAB", "euler")
SPLIT = ("ABDODBA", "BADODAB", "OBABO")
X, P = np.array([0.4, -0.7]), np.array([1.6, -1.2])
STEP_SIZE, DIFFUSION, MASS = 0.8, 0.9, 1.7
FACTORS = np.array([[1.6, 0.3], [-0.7, 1.4], [0.5, -1.1], [1.2, 0.9]])
OFFSETS = np.array([-0.9, 0.4, 1.3, 0.2])
CENTER = np.array([0.1, 0.3])
MATRIX = np.array([[0.9, -0.5], [0.3, 1.1]])
SETTINGS = ((0.7, np.eye(2)), (1.3, MATRIX))
"""Temperatures, and the matrices of the coordinates."""

THREE = Minibatches(FACTORS[:3], OFFSETS[:3], batch_size=3)
CONTROLLED = THREE._replace(center=CENTER)
SHARDED = Minibatches(FACTORS, OFFSETS, batch_size=4, num_shards=2)


def uncentred(slopes, strength):
    shards, each = slopes.shape[-2:]
    return 1 - np.tan(np.clip(strength / (shards * (each - 1)) * slopes, -np.pi / 4, np.pi / 4))


def linear(slopes, strength):
    """Return 1 - s, bounded at the same s."""
    return 1 - np.arctan(1 - balanced_weights(slopes, strength))


def unbounded(slopes, strength):
    shards, each = slopes.shape[-2:]
    centred = slopes - slopes.mean(-1, keepdims=True)
    return 1 - np.tan(strength / (shards * (each - 1)) * centred)


def divided_by_all_rows(slopes, strength):
    """Divide by the number of rows instead of the degrees of freedom."""
    each = slopes.shape[-1]
    return balanced_weights(slopes, strength * (each - 1) / each)


def centred_over_shards(slopes, strength):
    rows = slopes.reshape(*slopes.shape[:-2], 1, -1)
    return balanced_weights(rows, strength).reshape(slopes.shape)


MUTANTS = {
    "no weights": {"weights": lambda slopes, strength: np.ones_like(slopes)},
    "wrong sign": {"weights": lambda slopes, strength: 2 - balanced_weights(slopes, strength)},
    "half the friction": {"weights": lambda slopes, s: balanced_weights(slopes, s / 2)},
    "n instead of n - 1": {"weights": divided_by_all_rows},
    "no centring": {"weights": uncentred},
    "velocity after the kick": {"late": True},
}
"""Changes of the recursion. A word that cuts its kick and forgets that the other half follows has
half the friction."""

OF_THE_TANGENT = {"linear": {"weights": linear}, "no bound": {"weights": unbounded}}
"""Changes for rows with large weights, which are frequent enough with some words only."""


def minibatch_gradient(data):
    """Return the package's gradient for these data, and its batches."""

    def log_likelihood(x, batch):
        factors, offsets = batch
        u = factors @ x - offsets
        return -jnp.logaddexp(u, -u)

    rows = jnp.asarray(data.factors, jnp.float32), jnp.asarray(data.offsets, jnp.float32)
    gradient = isotherm.minibatch_gradient(
        log_likelihood, lambda x: -0.5 * jnp.sum(x**2), len(data.factors)
    )
    if data.center is not None:
        center = jnp.asarray(data.center, jnp.float32)
        gradient = isotherm.control_variates(gradient, center, rows)
    if data.num_shards > 1:
        return gradient, isotherm.sharded_batches(rows, data.batch_size, data.num_shards)
    return gradient, isotherm.independent_batches(rows, data.batch_size)


def program(data, kind, word):
    """Compile two steps; the setting is `(temperature, matrix)`."""
    gradient, batches = minibatch_gradient(data)

    def build(setting):
        temperature, matrix = setting
        return langevin(
            isotherm.balanced(gradient, num_shards=data.num_shards),
            STEP_SIZE,
            DIFFUSION,
            thermostat=kind,
            thermostat_mass=MASS,
            integrator=word,
            temperature=temperature,
            noise="three-point",
            coordinates=None if matrix is None else Dense(matrix, jnp.zeros(2)),
        )

    start, momentum = jnp.asarray(X, jnp.float32), jnp.asarray(P, jnp.float32)
    return compiled_chains(build, start, 2, momentum, optimized=False, batches=batches)


def draws(key, run, setting):
    """Return the observables of the states after two steps."""
    temperature, matrix = setting
    matrix = None if matrix is None else jnp.asarray(matrix, jnp.float32)
    (state,) = run_chains(key, run, [(jnp.float32(temperature), matrix)])
    return observables(*map(np.asarray, (state.position, state.momentum, state.thermostat)))


def law(data, kind, word, setting):
    """Return the exact means and variances of the observables after two steps."""
    temperature, matrix = setting
    recursion = Thermostatted(
        word, kind, data, STEP_SIZE, DIFFUSION, temperature, MASS, basis=matrix
    )
    return recursion.moments(X, P, 2, 3)


@cache
def program_of(kind, word):
    return program(THREE, kind, word)


@pytest.mark.parametrize(
    ("kind", "word"),
    [("per_coordinate", word) if word in QUICK else slow("per_coordinate", word) for word in WORDS]
    + [("fixed", word) if word == "ABDODBA" else slow("fixed", word) for word in WORDS],
)
def test_states_follow_the_law_at_any_temperature_in_any_coordinates(key, kind, word):
    for setting in SETTINGS:
        drawn = draws(key, program_of(kind, word), setting)
        assert moment_p_value(drawn, *law(THREE, kind, word, setting)) > FALSE_ALARM, setting


@pytest.mark.parametrize("word", [word if word in QUICK else slow(word) for word in WORDS])
def test_wrong_weights_and_velocities_are_detected(key, word):
    drawn = draws(key, program_of("per_coordinate", word), SETTINGS[0])
    for name, change in (MUTANTS | (OF_THE_TANGENT if word in SPLIT[:2] else {})).items():
        wrong = law(THREE._replace(**change), "per_coordinate", word, SETTINGS[0])
        assert moment_p_value(drawn, *wrong) < FALSE_ALARM, name


@pytest.mark.parametrize("word", [SPLIT[0], slow(SPLIT[1])])
def test_control_variates_follow_their_law(key, word):
    setting = (0.7, None)
    drawn = draws(key, program(CONTROLLED, "per_coordinate", word), setting)
    assert moment_p_value(drawn, *law(CONTROLLED, "per_coordinate", word, setting)) > FALSE_ALARM
    elsewhere = CONTROLLED._replace(center=CENTER + 0.1)
    for wrong in (
        THREE,
        elsewhere,
        *(CONTROLLED._replace(**change) for change in MUTANTS.values()),
    ):
        assert moment_p_value(drawn, *law(wrong, "per_coordinate", word, setting)) < FALSE_ALARM


@pytest.mark.parametrize("word", [SPLIT[0], slow(SPLIT[1])])
def test_rows_are_compared_with_others_of_their_shard(key, word):
    setting = (0.7, None)
    drawn = draws(key, program(SHARDED, "per_coordinate", word), setting)
    assert moment_p_value(drawn, *law(SHARDED, "per_coordinate", word, setting)) > FALSE_ALARM
    for change in (*MUTANTS.values(), {"weights": centred_over_shards}):
        wrong = SHARDED._replace(**change)
        assert moment_p_value(drawn, *law(wrong, "per_coordinate", word, setting)) < FALSE_ALARM


class FullGradient(Minibatches):
    """The gradient of all data, as the only batch."""

    def kicks(self, x, velocity, duration, temperature):
        return (self.rows(x).sum(1) - x)[:, None], np.ones(1)


@pytest.mark.parametrize("word", ["ABDODBA", "ABOBA", "OABAO", "euler"])
def test_the_effect_of_the_noise_is_a_generator_that_keeps_the_momenta(word):
    r"""To order $h^2$ it is $\frac12\operatorname{tr}(\Sigma f'') - p^\top\Sigma f'/2T$.

    This is a statement about the recursion: both laws are enumerated. In words that kick first the
    two halves of a kick follow each other directly, or with friction between them, as here.
    """
    h, temperature, rows = 1e-3, 0.7, THREE.rows(X)
    covariance = len(rows) ** 2 / THREE.batch_size * np.cov(rows.T, bias=True)
    friction = -covariance @ P / (2 * temperature)
    effect = np.zeros((2, 3, 2))  # on values and squares of position, momentum, thermostat
    effect[0, 1], effect[1, 1] = friction, np.diag(covariance) + 2 * P * friction

    def mean(target):
        law = Thermostatted(word, "per_coordinate", target, h, DIFFUSION, temperature, MASS)
        return law.moments(X, P, 1, 3)[0]

    full, size = mean(FullGradient(*THREE)), np.abs(effect).max()
    np.testing.assert_allclose((mean(THREE) - full) / h**2, effect.ravel(), atol=0.02 * size)
    plain = (mean(THREE._replace(**MUTANTS["no weights"])) - full) / h**2
    assert np.abs(plain - effect.ravel()).max() > 0.2 * size

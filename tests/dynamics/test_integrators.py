"""Words of integrators are parsed, and invalid words are refused with a reason."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.dynamics.integrators import NAMED_WORDS, is_palindrome, parse_integrator
from isotherm.dynamics.thermostats import _exponential_action
from isotherm.fast_math import mean_decay


@pytest.mark.parametrize("word", NAMED_WORDS)
def test_named_words_are_palindromes_with_one_gradient(word):
    integrator = parse_integrator(word)
    assert integrator.order == 2
    assert integrator.num_gradients == 1
    durations = {}
    for segment in integrator.segments:
        for letter, fraction, _ in segment:
            durations[letter] = durations.get(letter, 0) + fraction
    assert all(total == pytest.approx(1) for total in durations.values())


def test_number_of_gradients_per_step():
    assert parse_integrator("euler").num_gradients == 1
    assert parse_integrator("euler").order == 1
    assert parse_integrator("ADKBNBKDA").num_gradients == 1  # both kicks at the same position
    assert parse_integrator("KADBNBDAK").num_gradients == 1  # the last kick opens the next step
    assert parse_integrator("AKADODAKA").num_gradients == 2
    assert parse_integrator("ADBKN", symmetric=False).order == 1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ADBKN", "must be a palindrome"),
        ("AXA", r"unknown letters \['X'\]"),
        ("", "unknown letters"),
        ("ADBNBDA", "never kicks: it needs the letter K .*B is damping"),
        ("OABDBAO", "never kicks"),
        ("DBKNKBD", "never moves"),
        ("ADKNKDA", "never damps"),
        ("ADBKBDA", "never adds noise"),
        ("AOKBKOA", "damps or adds noise twice"),
        (7, "must be a word"),
    ],
)
def test_invalid_words_are_refused(word, message):
    with pytest.raises(ValueError, match=message):
        parse_integrator(word)


def test_only_a_fixed_friction_may_lack_the_letter_d():
    isotherm.sghmc(None, 0.1, integrator="KAOAK")
    with pytest.raises(ValueError, match="never updates the thermostat"):
        isotherm.msgnht(None, 0.1, integrator="KAOAK")


def test_palindromes_up_to_commuting_neighbours():
    assert is_palindrome("ADBKNBAD")
    assert is_palindrome("KANBNAK")
    assert not is_palindrome("ABDKNDBA"[:-1])
    assert not is_palindrome("ABKDNDKB")


def test_mean_decay_is_smooth_through_zero():
    x = np.array([-2.0, -0.4, -1e-3, -1e-5, 0.0, 1e-7, 1e-5, 1e-3, 0.49, 0.51, 3.0, 40.0])
    with np.errstate(invalid="ignore"):
        exact = np.where(x == 0, 1.0, -np.expm1(-x) / np.where(x == 0, 1, x))
    single = jnp.asarray(x, jnp.float32)
    np.testing.assert_allclose(mean_decay(single, jnp.exp(-single)), exact, rtol=1e-6)


@pytest.mark.parametrize("size", [0.1, 3.0, 40.0])
def test_exponential_action_is_the_matrix_exponential(key, size):
    root = jax.random.normal(key, (5, 5))
    xi = size * (root + root.T) / 2
    vector = jnp.arange(1.0, 6.0)
    expected = jax.scipy.linalg.expm(-0.1 * xi) @ vector
    np.testing.assert_allclose(
        _exponential_action(xi, vector, jnp.float32(0.1)), expected, rtol=2e-4
    )

"""The order experiment covers every word; claims hold, and fail for wrong numbers."""

import sys

import jax
import numpy as np
import pytest

from isotherm.dynamics.integrators import NAMED_WORDS, is_palindrome, parse_integrator
from isotherm.paper.experiments import order, runner
from isotherm.paper.report.document import FIELDS


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    return runner.execute("order", smoke=True, out=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def result():
    """Return the result of a perfect run of the default configuration."""
    config = order.Config()
    expected = np.array([parse_integrator(word, symmetric=False).order for word in config.words])
    orders = [[order._expected(word, name) for word in config.words] for name in order.SETTINGS]
    table = np.broadcast_to(expected[:, None], (len(config.thermostats), len(expected), 2))
    long_runs = np.array(orders, float)
    return {"symbolic": table.copy(), "local_order": 1.0 * table, "stationary_order": long_runs}


def failed(result):
    return [claim.claim for claim in order.check(order.Config(), result) if not claim.holds]


@pytest.mark.slow
def test_claims_hold_in_the_smoke_run(document):
    assert set(document) == FIELDS
    assert document["claims"] and all(claim["holds"] for claim in document["claims"])
    assert {figure["name"] for figure in document["figures"]} == {"local_error", "stationary_bias"}


@pytest.mark.slow
def test_rows_have_the_same_keys(document):
    config = order.SMOKE
    assert len(document["rows"]) == len(config.words) * len(config.thermostats)
    assert len({tuple(row) for row in document["rows"]}) == 1
    paper = {row["word"]: row["paper"] for row in document["rows"]}
    assert paper == {"euler": 1, "ADBKN": None, "ABOBA": 2}


def test_words_include_all_named_ones_and_an_asymmetric_one():
    letters = {parse_integrator(word, symmetric=False).letters for word in order.Config().words}
    assert letters >= set(NAMED_WORDS.values())
    assert any(not is_palindrome(word) and "E" not in word for word in letters)
    assert order._label("BADODAB") == "BAOAB = BADODAB"


def test_claims_hold_for_perfect_numbers(result):
    assert failed(result) == []


@pytest.mark.parametrize(
    ("array", "index", "value", "failing"),
    [
        ("symbolic", (0, 0, 0), 2, "Euler is of order 1 (Lemma 1): algebra"),
        ("local_order", (3, 4, 0), 1.7, "Palindromes are of order 2 (Lemma 2): local error"),
        ("stationary_order", (0, 2), 1.7, "Palindromes are of order 2 (Lemma 2): stationary bias"),
        ("symbolic", (1, 5, 1), 1, "Three-point noise keeps order 2: algebra"),
        ("local_order", (2, 1, 0), 2.0, "An asymmetric word is of order 1: local error"),
        (
            "stationary_order",
            (5, 3),
            1.1,
            "Balanced minibatches leave palindromes at order 2: stationary bias",
        ),
    ],
)
def test_one_wrong_number_fails_its_claim(result, array, index, value, failing):
    result[array][index] = value
    assert failed(result) == [failing]


def test_gradient_noise_reduces_the_order_of_words_that_split_the_kick():
    orders = {word: order._expected(word, "noisy gradient") for word in order.Config().words}
    assert {word for word, value in orders.items() if value == 2} == {"ABOBA", "OABAO"}


def test_the_variance_of_minibatches_depends_on_the_position_alone(key):
    x, keys = jax.numpy.array([-3.0, 0.0, 2.0]), jax.random.split(key, 20_000)
    draw = jax.vmap(jax.vmap(order._gradient("rows", 0.1), (0, None)), (None, 0))
    grads = np.asarray(draw(x, keys))
    exact = np.asarray(order.double_well.gradient(x, None))
    deviation, sd = grads - exact, order.ROW_NOISE * np.abs(exact)
    np.testing.assert_allclose(deviation.mean(0), 0, atol=5 * sd.max() / 20_000**0.5)
    np.testing.assert_allclose(deviation.std(0), sd, rtol=0.03, atol=1e-5)


def test_length_of_a_bias_and_its_error():
    """One component has mean 2 and sd 1, so the standard error is 1/sqrt(n), known to 1 %."""
    rng = np.random.default_rng(0)
    averages = np.array([2.0, 0.0, 0.0]) + rng.standard_normal((10_000, 3)) * [1.0, 0.1, 0.1]
    length, error = order._length(averages)
    assert length == pytest.approx(2, abs=5 * error)
    assert error == pytest.approx(0.01, rel=0.05)


def test_missing_sympy_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(ImportError, match=r"pip install 'isotherm\[order\]'"):
        order.run(order.SMOKE, jax.random.key(0), lambda message: None)

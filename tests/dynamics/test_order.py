"""The algebra finds known orders, agrees with explicit steps, and detects mutants."""

import sys
from itertools import product
from math import factorial

import mpmath
import pytest
import sympy

from isotherm.dynamics.order import THERMOSTATS, local_order
from marks import slow

EULER = "AED"
ABOBA = "ADBKNKBDA"
PALINDROMES = [ABOBA, "KADODAK", "OKADAKO", "ADKOKDA", "KDAOADK", "NBKADAKBN"]
QUICK = ("fixed", "scalar", "per_coordinate")
"""Thermostats whose algebra takes less than half a second."""


@pytest.mark.parametrize(
    ("word", "noise", "thermostat"),
    [
        case if case[1] == "gaussian" and (case[0] == ABOBA or case[2] in QUICK) else slow(*case)
        for case in product(PALINDROMES, ["gaussian", "three-point"], THERMOSTATS)
    ],
)
def test_palindromes_are_exactly_second_order(word, noise, thermostat):
    result = local_order(word, thermostat, noise=noise)
    assert result.order == 2
    assert result.leading_error


@pytest.mark.parametrize(
    "thermostat", [kind if kind in QUICK else slow(kind) for kind in THERMOSTATS]
)
@pytest.mark.parametrize("word", [EULER, "ADBKN", "ADKO", "DAOKAD"])
def test_euler_and_asymmetric_words_are_first_order(word, thermostat):
    assert local_order(word, thermostat).order == 1


@pytest.mark.parametrize(
    ("mutant", "order"),
    [
        ("ADBKNKBD", 1),  # the second half of the drift is lost, the first takes a whole step
        ("ADKNKBDA", 1),  # the same with the damping
        ("AADBKNKBDA", 1),  # drift in thirds, two before and one after
        ("ADKNKDA", 0),  # no damping
        ("ADBKBDA", 0),  # no noise
        ("ABKNKBA", 0),  # no heating
        ("OBKADAKBO", 0),  # damped twice
    ],
)
def test_mutants_have_a_lower_order(mutant, order):
    assert local_order(mutant).order == order


def test_a_fixed_friction_needs_no_heating():
    assert local_order("ABKNKBA", "fixed") == local_order(ABOBA, "fixed")


def test_kick_and_noise_commute():
    assert local_order("ADBKNBDA") == local_order("ADBNKBDA") == local_order(ABOBA)


def test_three_point_noise_differs_from_the_sixth_moment_on():
    gaussian, three_point = (local_order(ABOBA, noise=x) for x in ("gaussian", "three-point"))
    sixth = {" ".join([p] * 6): (9 - 15) * sympy.Symbol("sigma") ** 6 for p in ("p1", "p2")}
    assert three_point.leading_error == gaussian.leading_error | sixth


@pytest.mark.parametrize("word", PALINDROMES[:2])
def test_two_point_noise_loses_an_order(word):
    result = local_order(word, noise={2: 1, 4: 1, 6: 1}, dimension=1)
    assert result.order == 1
    assert result.leading_error == {"p p p p": (1 - 3) * sympy.Symbol("sigma") ** 4}


def test_the_leading_error_of_euler():
    g, p, xi, sigma = sympy.symbols("g p xi sigma")
    euler = local_order(EULER, dimension=1)
    assert sympy.expand(euler.leading_error["theta"] + (g - xi * p) / 2) == 0
    assert euler.leading_error["theta p"] == -(sigma**2) / 2
    assert euler.leading_error["p p"] == sigma**2 * xi


def test_thermostats_agree_in_one_dimension():
    results = [local_order(ABOBA, thermostat, dimension=1) for thermostat in THERMOSTATS[1:]]
    assert all(result == results[0] for result in results)


def test_an_order_above_max_order_is_a_lower_bound():
    assert local_order(ABOBA, max_order=1) == (2, {})


POINT = {"theta": "0.3", "p": "-0.7", "xi": "1.1", "T": "0.9", "mu": "1.3", "sigma": "0.8"}


def force(theta):
    return 1 - 2 * theta + theta**2 / 3 - theta**3 / 5


def move(letter, state, dt, noise, *, T, mu, sigma):
    theta, p, xi = state
    decay, kick = mpmath.exp(-xi * dt), sigma * mpmath.sqrt(dt) * noise
    spread = sigma * mpmath.sqrt((1 - decay**2) / (2 * xi))
    return {
        "A": (theta + p * dt, p, xi),
        "D": (theta, p, xi + (p**2 - T) / mu * dt),
        "B": (theta, decay * p, xi),
        "K": (theta, p + force(theta) * dt, xi),
        "N": (theta, p + kick, xi),
        "O": (theta, decay * p + spread * noise, xi),
        "E": (theta, p + (force(theta) - xi * p) * dt + kick, xi),
    }[letter]


def mean_after_a_step(f, word, point, h):
    """Return the exact mean: three-point noise has finitely many paths."""
    root = mpmath.sqrt(3)
    three_points = [(-root, mpmath.mpf(1) / 6), (0, mpmath.mpf(2) / 3), (root, mpmath.mpf(1) / 6)]
    *state, T, mu, sigma = point.values()
    paths = [(tuple(state), mpmath.mpf(1))]
    for letter in word:
        dt = h / word.count(letter)
        paths = [
            (move(letter, x, dt, noise, T=T, mu=mu, sigma=sigma), weight * chance)
            for x, weight in paths
            for noise, chance in (three_points if letter in "NOE" else [(0, 1)])
        ]
    return mpmath.fsum(weight * f(*x) for x, weight in paths)


def generator(f):
    theta, p, xi, T, mu, sigma = sympy.symbols("theta p xi T mu sigma")
    drift = p * f.diff(theta) + (force(theta) - xi * p) * f.diff(p) + sigma**2 / 2 * f.diff(p, 2)
    return drift + (p**2 - T) / mu * f.diff(xi)


def at(point, expression):
    """Evaluate in high precision, with the derivatives of the force substituted."""
    theta = sympy.Symbol("theta")
    jets = {"g" + "'" * n: force(theta).diff(theta, n) for n in range(3)}
    return sympy.lambdify([*point], expression.subs(jets), "mpmath")(*point.values())


@pytest.mark.parametrize("observable", ["theta*p", "p**6", "exp(theta*xi) + p**2*xi"])
@pytest.mark.parametrize("word", [EULER, ABOBA, *map(slow, [*PALINDROMES[1:3], "ADKO"])])
def test_the_leading_error_equals_that_of_an_explicit_step(word, observable):
    result = local_order(word, noise="three-point", dimension=1)
    term = sympy.sympify(observable)
    f = sympy.lambdify(["theta", "p", "xi"], term, "mpmath")
    with mpmath.workdps(80):
        h = mpmath.mpf(10) ** -15
        point = {name: mpmath.mpf(value) for name, value in POINT.items()}
        error = mean_after_a_step(f, word, point, h)
        for k in range(result.order + 2):
            error -= at(point, term) * h**k / factorial(k)
            term = generator(term)
        predicted = at(point, result.on(observable))
        assert abs(error / h ** (result.order + 1) - predicted) < 1e-10


def test_a_missing_sympy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(ImportError, match=r"pip install 'isotherm\[order\]'"):
        local_order(EULER)


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        ("word", "AXD"),
        ("thermostat", "nose"),
        ("noise", "uniform"),
        ("noise", {2: 1, 4: 3}),
        ("max_order", 0),
        ("dimension", 0),
    ],
)
def test_messages_name_the_bad_argument(argument, bad):
    with pytest.raises(ValueError, match=f"`{argument}` must be"):
        local_order(**{"word": EULER, argument: bad})

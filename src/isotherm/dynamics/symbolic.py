r"""Symbols of differential operators as polynomials, for `dynamics/order.py`.

An operator $P$ on functions of $x = (\theta, p, \xi)$ is represented by
$e^{-k\cdot x} P\, e^{k\cdot x}$, a polynomial with rational coefficients in $s = \sqrt h$, the
noise numbers, the state, the derivatives of the force at $\theta$, and $k$.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from math import factorial, prod
from types import ModuleType
from typing import Any

import numpy as np

from isotherm.imports import require

THERMOSTATS = ("fixed", "scalar", "per_tensor", "per_coordinate", "full_matrix")

Poly = Any
"""An element of a sympy polynomial ring."""


class Algebra:
    """The ring of symbols for one thermostat, and the operators of the dynamics and of a word."""

    def __init__(self, thermostat: str, dimension: int, max_order: int):
        sympy = load_sympy()
        patterns, jets = _patterns(thermostat, dimension), force_jets(dimension, max_order)
        self.degree = 2 * max_order + 2
        self.theta, self.p, noise = (_numbered(x, dimension) for x in ("theta", "p", "R"))
        self.xi = _numbered("xi", len(patterns))
        self.coordinates = self.theta + self.p + self.xi
        names = ["s", *noise, "sigma", "T", "1/mu", *self.p, *self.xi, *jets.values()]
        names += ["k " + x for x in self.coordinates]
        symbols = [1 / sympy.Symbol("mu") if x == "1/mu" else sympy.Symbol(x) for x in names]
        self.ring, *variables = sympy.ring(symbols, sympy.QQ)
        var = self.variable = dict(zip(names, variables, strict=True))

        self.noise = np.array([var[x] for x in noise])
        self.momentum = np.array([var[x] for x in self.p])
        self.force = np.array([var[jets[i,]] for i in range(dimension)])
        self.friction = np.sum([m * var[x] for m, x in zip(patterns, self.xi, strict=True)], axis=0)
        excess = np.outer(self.momentum, self.momentum) - np.eye(dimension, dtype=int) * var["T"]
        speed = var["1/mu"] * (thermostat != "fixed")
        self.heating = np.array([(m * excess).sum() / int(m.sum()) for m in patterns]) * speed

        self.chain_rule = {x: {var[x]: self.ring.one} for x in self.p + self.xi}
        for i, x in enumerate(self.theta):
            known = [(jets[a], jets.get(tuple(sorted((*a, i))))) for a in jets]
            self.chain_rule[x] = {var[g]: var[dg] for g, dg in known if dg}

    def derivative(self, f: Poly, x: str) -> Poly:
        """Differentiate f exp(k x) with respect to coordinate x, and divide by the exponential."""
        inner = (slope * f.diff(v) for v, slope in self.chain_rule[x].items())
        return sum(inner, self.variable["k " + x] * f)

    def generator(self, f: Poly) -> Poly:
        """Apply the generator of the dynamics."""
        drift = [*self.momentum, *(self.force - self.friction @ self.momentum), *self.heating]
        gradient = [self.derivative(f, x) for x in self.coordinates]
        laplacian = sum(self.derivative(self.derivative(f, x), x) for x in self.p)
        return np.dot(drift, gradient) + self.variable["sigma"] ** 2 * laplacian / 2

    def semigroup(self) -> Poly:
        """Return the symbol of the dynamics after a time h."""
        term = total = self.ring.one
        for n in range(1, self.degree // 2 + 1):
            term = self.generator(term) * self.variable["s"] ** 2 / n
            total += term
        return total

    def word(self, word: Sequence[str], moments: Mapping[int, Any]) -> Poly:
        """Return the symbol of one step; the last letter is the first to act on f."""
        symbol = self.ring.one
        for letter in reversed(word):
            parts = word.count(letter)
            symbol = self.expand(symbol, self.increments(letter, parts), self.degree)
            symbol = self.average(symbol, {n: m / parts ** (n // 2) for n, m in moments.items()})
        return symbol

    def increments(self, letter: str, parts: int) -> list[tuple[str, Poly]]:
        """Return the increments of a letter in a time h / parts; R has the variance 1 / parts."""
        h = self.variable["s"] ** 2 / parts
        p, angle = self.momentum, self.friction * -h
        noise = self.noise * (self.variable["sigma"] * self.variable["s"])
        exp, root = _damping_series(self.degree // 2)
        damping = _apply(exp, angle, p) - p
        names, increments = {
            "A": (self.theta, p * h),
            "D": (self.xi, self.heating * h),
            "B": (self.p, damping),
            "K": (self.p, self.force * h),
            "N": (self.p, noise),
            "O": (self.p, damping + _apply(root, angle, noise)),
            "E": (self.p, (self.force - self.friction @ p) * h + noise),
        }[letter]
        return list(zip(names, increments, strict=True))

    def expand(self, f: Poly, increments: list[tuple[str, Poly]], degree: int) -> Poly:
        """Return the Taylor expansion of f(x + increments) through s^degree."""
        if not increments:
            return f
        (x, increment), *rest = increments
        lowest = min((monomial[0] for monomial in increment.monoms()), default=degree + 1)
        total, power = self.ring.zero, self.ring.one
        for n in range(degree // lowest + 1):
            room = degree - n * lowest
            f = self.truncate(f, room)
            total += self.truncate(power * self.expand(f, rest, room), degree)
            power = self.truncate(power * increment / (n + 1), degree)
            f = self.derivative(f, x)
        return total

    def truncate(self, f: Poly, degree: int) -> Poly:
        """Drop the powers of s above `degree`."""
        return self.ring.from_dict({m: c for m, c in f.iterterms() if m[0] <= degree})

    def average(self, f: Poly, moments: Mapping[int, Any]) -> Poly:
        """Replace the powers of the noise, the variables next to s, by their moments."""
        end = 1 + len(self.noise)
        terms = Counter()
        for monomial, coefficient in f.iterterms():
            mean = prod(moments.get(n, 0) for n in monomial[1:end])
            terms[monomial[0], *[0] * (end - 1), *monomial[end:]] += coefficient * mean
        return self.ring.from_dict(terms)

    def moments(self, f: Poly, degree: int) -> dict[str, Any]:
        """Return the moments of the increment from the coefficient of s^degree in a symbol."""
        end = -len(self.coordinates)
        parts = defaultdict(dict)
        for monomial, coefficient in f.iterterms():
            if monomial[0] == degree:
                powers = monomial[end:]
                rest = (0, *monomial[1:end], *[0] * len(powers))
                parts[powers][rest] = coefficient * prod(map(factorial, powers))
        moments = {}
        for powers in sorted(sorted(parts, reverse=True), key=sum):
            names = Counter(dict(zip(self.coordinates, powers, strict=True))).elements()
            moments[" ".join(names)] = self.ring.from_dict(parts[powers]).as_expr()
        return moments


def _patterns(thermostat: str, dimension: int) -> list[np.ndarray]:
    """Return, for each thermostat variable, a mask of its entries in the friction matrix."""
    axes = np.eye(dimension, dtype=int)
    units = [np.outer(e, e) for e in axes]
    match thermostat:
        case "fixed" | "scalar":
            return [axes]
        case "per_tensor":
            return [m for m in (axes - units[-1], units[-1]) if m.any()]
        case "per_coordinate":
            return units
        case "full_matrix":
            pairs = combinations_with_replacement(axes, 2)
            return [np.outer(e, f) | np.outer(f, e) for e, f in pairs]
    raise ValueError(f"`thermostat` must be one of {THERMOSTATS}, got {thermostat!r}.")


def force_jets(dimension: int, max_order: int) -> dict[tuple[int, ...], str]:
    """Return names of the derivatives of -U by their indices; a term h^n has at most n of them."""
    axes = range(dimension)
    orders = range(1, max_order + 2)
    indices = [index for n in orders for index in combinations_with_replacement(axes, n)]
    if dimension == 1:
        return {index: "g" + "'" * (len(index) - 1) for index in indices}
    return {index: "g_" + "".join(str(i + 1) for i in index) for index in indices}


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}{i + 1}" for i in range(count)]


def _damping_series(degree: int) -> tuple[list[Any], list[Any]]:
    r"""Return the series of $e^z$ and $\sqrt{(e^{2z} - 1)/2z}$: damping and noise of letter `O`."""
    rational = load_sympy().QQ
    root = [rational(1)]
    for n in range(1, degree + 1):
        square = rational(2**n, factorial(n + 1))
        root.append((square - sum(root[i] * root[n - i] for i in range(1, n))) / 2)
    return [rational(1, factorial(n)) for n in range(degree + 1)], root


def _apply(series: list[Any], matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return a power series of a matrix applied to a vector, by Horner's rule."""
    total = vector * 0
    for coefficient in reversed(series):
        total = matrix @ total + vector * coefficient
    return total


def even_moments(noise: str | Mapping[int, int], highest: int) -> dict[int, Any]:
    """Return the moments of order 0, 2, ..., `highest`; the odd ones vanish."""
    orders = range(0, highest + 1, 2)
    if noise == "gaussian":
        noise = {n: factorial(n) // (2 ** (n // 2) * factorial(n // 2)) for n in orders}
    elif noise == "three-point":
        noise = {n: 3 ** (n // 2) // 3 for n in orders}
    if isinstance(noise, str) or not {0, *noise}.issuperset(orders):
        known = f"'gaussian', 'three-point' or the moments {[*orders[1:]]}"
        raise ValueError(f"`noise` must be {known}, got {noise!r}.")
    return {n: load_sympy().QQ(noise[n] if n else 1) for n in orders}


def load_sympy() -> ModuleType:
    """Import and return sympy, an optional dependency."""
    return require("sympy", "order", "The order of a word")

r"""The local weak order of a word of flows, found by algebra.

One step of the word $w_1 w_2 \dots w_m$ is a product of Markov operators, and the dynamics it
imitates is a semigroup:

$$
\mathbb E[f(X_1) \mid X_0 = x] = (P_{w_1} P_{w_2} \cdots P_{w_m} f)(x), \qquad
e^{h\mathcal L} f = \sum_n \frac{h^n}{n!} \mathcal L^n f,
$$

$$
\mathcal L = p\cdot\partial_\theta + (g - \Xi p)\cdot\partial_p + \tfrac12\sigma^2 \Delta_p
  + \tfrac1\mu \langle p p^\top - T I\rangle \cdot\partial_\xi ,
\qquad g = -\nabla U, \quad \sigma^2 = 2 D T .
$$

The word has *order* $K$ when the two agree through $h^K$ on every smooth $f$; what is left is
$h^{K+1}\mathcal E f$ with a differential operator $\mathcal E \ne 0$, the leading error.

**No basis of test functions is needed.** The coefficient of each $h^n$ is a differential operator
in $x = (\theta, p, \xi)$, and a differential operator is determined by its symbol, that is by what
it does to $f = e^{k\cdot x}$. So we compare $e^{-k\cdot x} P\, e^{k\cdot x}$ with
$e^{-k\cdot x} e^{h\mathcal L} e^{k\cdot x}$, two polynomials with rational coefficients: they are
the generating functions of the moments $\mathbb E[\Delta^\beta]$ of the increment
$\Delta = X_1 - x$, and equality for all $k$ is equality on all $f$. A letter that moves $x$ to
$x + \delta$ with $\delta = O(\sqrt h)$ acts by
$P f = \sum_\beta \mathbb E[\delta^\beta]\, \partial^\beta f / \beta!$, a finite sum through
$h^{K+1}$, where next to the exponential $\partial$ reads $\partial + k$.

**No potential is chosen either.** $g$ and its derivatives at $\theta$ enter as independent
symbols, so nothing cancels by accident.

**A thermostat says which entries of the friction matrix $\Xi$ are one variable**: the whole
diagonal (`scalar`; `fixed` if nothing heats it), the diagonal of each tensor (`per_tensor`), each
diagonal entry (`per_coordinate`), each pair $\Xi_{ij} = \Xi_{ji}$ (`full_matrix`). Each variable is
heated by the mean of $p p^\top - T I$ over its entries. The check runs in two coordinates with a
coupled potential, in three for `per_tensor` (tensors of sizes 2 and 1). For palindromes of exact
flows the order holds in any dimension, since $\log(P_{w_1} \cdots P_{w_m})$ is odd in $h$ (Strang).

References
----------
Chen, Ding & Carin (2015), *On the convergence of stochastic gradient MCMC algorithms with
high-order integrators*. Milstein & Tretyakov (2004), *Stochastic numerics for mathematical
physics*, chapter 2: moments of increments, three-point noise. Leimkuhler & Shang (2016), *Adaptive
thermostats for noisy gradient systems*: BADODAB.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from math import factorial, prod
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

THERMOSTATS = ("fixed", "scalar", "per_tensor", "per_coordinate", "full_matrix")
LETTERS = "ADBKNOE"

Poly = Any
"""An element of a sympy polynomial ring."""


class LocalOrder(NamedTuple):
    r"""The order $K$ of a word and its error $h^{K+1}\mathcal E$.

    Attributes
    ----------
    order
        $K$; one more than `max_order` stands for «at least that».
    leading_error
        By what factor of $h^{K+1}$ the word gets the moments of the increment wrong: the entry
        `"theta p p"` belongs to $\mathbb E[\Delta\theta\,\Delta p\,\Delta p]$. Moments it gets
        right are absent. The force and its derivatives read `g`, `g'`, `g''` in one dimension; in
        more, `g_12` is $-\partial_1\partial_2 U$.
    """

    order: int
    leading_error: dict[str, Any]

    def on(self, observable: str) -> Any:
        r"""Return $\mathcal E f$ for an observable such as `"theta*p"` or `"cos(theta)"`."""
        f = _sympy().sympify(observable)
        total = 0 * f
        for moment, error in self.leading_error.items():
            names = moment.split()
            total += error * f.diff(*names) / prod(map(factorial, Counter(names).values()))
        return total.expand()


def local_order(
    word: Sequence[str],
    thermostat: str = "per_coordinate",
    *,
    noise: str | Mapping[int, int] = "gaussian",
    max_order: int = 2,
    dimension: int | None = None,
) -> LocalOrder:
    r"""Find the local weak order of a word.

    Parameters
    ----------
    word
        Letters in the order in which they act, each for $h$ divided by its number of occurrences:
        `A` drift, `D` heating, `B` damping, `K` kick, `N` noise, `O` damping and noise solved
        together, `E` the explicit Euler step of the momentum.
    thermostat
        One of `THERMOSTATS`.
    noise
        `"gaussian"`, `"three_point"` ($0, \pm\sqrt3$ with probabilities 2/3, 1/6, 1/6) or the even
        moments of a symmetric variable, `{2: 1, 4: 3, 6: 9}`.
    max_order
        Terms through $h^{\text{max\_order} + 1}$ are compared, so that an order up to `max_order`
        comes with its leading error.
    dimension
        Number of coordinates; by default the smallest that tells the thermostats apart.

    Raises
    ------
    ImportError
        If sympy is missing: `pip install 'isotherm[order]'`.
    ValueError
        If a letter, the thermostat or the noise is unknown, or a count is not positive.

    Examples
    --------
    >>> local_order("ADBKNKBDA", "scalar").order
    2
    >>> euler = local_order("AED", dimension=1)
    >>> euler.order, euler.leading_error["theta"], euler.leading_error["theta p"]
    (1, -g/2 + p*xi/2, -sigma**2/2)
    >>> euler.on("theta**2")
    -g*theta + p*theta*xi
    """
    if unknown := set(word) - set(LETTERS):
        raise ValueError(f"`word` must be spelled in {LETTERS}, got {sorted(unknown)}.")
    if dimension is None:
        dimension = 3 if thermostat == "per_tensor" else 2
    for name, count in (("max_order", max_order), ("dimension", dimension)):
        if not count >= 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")
    algebra = _Algebra(thermostat, dimension, max_order)
    error = algebra.word(word, _even_moments(noise, 2 * max_order + 2)) - algebra.semigroup()
    if not error:
        return LocalOrder(max_order + 1, {})
    degree = min(monomial[0] for monomial in error.monoms())
    return LocalOrder(degree // 2 - 1, algebra.moments(error, degree))


class _Algebra:
    r"""Symbols of operators: polynomials in $s = \sqrt h$, the noise, the state, $g$ and $k$."""

    def __init__(self, thermostat: str, dimension: int, max_order: int):
        sympy = _sympy()
        patterns, jets = _patterns(thermostat, dimension), _jets(dimension, max_order)
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
        """Differentiate f exp(k x) by the coordinate x, and divide by the exponential."""
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
        """Return how a letter moves the state in a time h / parts; R has the variance 1 / parts."""
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
        """Expand f(x + increments) by Taylor's formula through s^degree."""
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
        """Read the moments of the increment off the factor of s^degree in a symbol."""
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
    """For each thermostat variable, the entries of the friction matrix where it stands."""
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


def _jets(dimension: int, max_order: int) -> dict[tuple[int, ...], str]:
    """Name the derivatives of -U by their indices: in a term h^n they have at most n."""
    axes = range(dimension)
    orders = range(1, max_order + 2)
    indices = [index for n in orders for index in combinations_with_replacement(axes, n)]
    if dimension == 1:
        return {index: "g" + "'" * (len(index) - 1) for index in indices}
    return {index: "g_" + "".join(str(i + 1) for i in index) for index in indices}


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}{i + 1}" for i in range(count)]


def _damping_series(degree: int) -> tuple[list[Any], list[Any]]:
    r"""Expand $e^z$ and $\sqrt{(e^{2z} - 1)/2z}$, the damping and the spread of letter `O`."""
    rational = _sympy().QQ
    root = [rational(1)]
    for n in range(1, degree + 1):
        square = rational(2**n, factorial(n + 1))
        root.append((square - sum(root[i] * root[n - i] for i in range(1, n))) / 2)
    return [rational(1, factorial(n)) for n in range(degree + 1)], root


def _apply(series: list[Any], matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Apply a power series of a matrix to a vector, by Horner's rule."""
    total = vector * 0
    for coefficient in reversed(series):
        total = matrix @ total + vector * coefficient
    return total


def _even_moments(noise: str | Mapping[int, int], highest: int) -> dict[int, Any]:
    """Return the moments of order 0, 2, ..., `highest`; the odd ones vanish."""
    orders = range(0, highest + 1, 2)
    if noise == "gaussian":
        noise = {n: factorial(n) // (2 ** (n // 2) * factorial(n // 2)) for n in orders}
    elif noise == "three_point":
        noise = {n: 3 ** (n // 2) // 3 for n in orders}
    if isinstance(noise, str) or not {0, *noise}.issuperset(orders):
        known = f"'gaussian', 'three_point' or the moments {[*orders[1:]]}"
        raise ValueError(f"`noise` must be {known}, got {noise!r}.")
    return {n: _sympy().QQ(noise[n] if n else 1) for n in orders}


def _sympy() -> ModuleType:
    try:
        import sympy
    except ImportError as error:
        message = "The order of a word needs sympy: pip install 'isotherm[order]'."
        raise ImportError(message) from error
    return sympy

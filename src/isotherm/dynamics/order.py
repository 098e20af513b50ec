r"""The local weak order of a word of flows, computed by algebra.

One step of the word $w_1 w_2 \dots w_m$ is a product of Markov operators, and the dynamics that it
approximates is a semigroup:

$$
\mathbb E[f(X_1) \mid X_0 = x] = (P_{w_1} P_{w_2} \cdots P_{w_m} f)(x), \qquad
e^{h\mathcal L} f = \sum_n \frac{h^n}{n!} \mathcal L^n f,
$$

$$
\mathcal L = p\cdot\partial_\theta + (g - \Xi p)\cdot\partial_p + \tfrac12\sigma^2 \Delta_p
  + \tfrac1\mu \langle p p^\top - T I\rangle \cdot\partial_\xi ,
\qquad g = -\nabla U, \quad \sigma^2 = 2 D T .
$$

The word has *order* $K$ if the two agree through $h^K$ on every smooth $f$; the difference is
$h^{K+1}\mathcal E f$ with a differential operator $\mathcal E \ne 0$, the leading error.

**No basis of test functions is needed.** The coefficient of each $h^n$ is a differential operator
in $x = (\theta, p, \xi)$, and a differential operator is determined by its symbol, that is by what
it does to $f = e^{k\cdot x}$. So we compare $e^{-k\cdot x} P\, e^{k\cdot x}$ with
$e^{-k\cdot x} e^{h\mathcal L} e^{k\cdot x}$, two polynomials with rational coefficients: they are
the generating functions of the moments $\mathbb E[\Delta^\beta]$ of the increment
$\Delta = X_1 - x$, and equality for all $k$ is equality on all $f$. A letter that moves $x$ to
$x + \delta$ with $\delta = O(\sqrt h)$ acts by
$P f = \sum_\beta \mathbb E[\delta^\beta]\, \partial^\beta f / \beta!$, a finite sum through
$h^{K+1}$, in which $\partial$ becomes $\partial + k$ because of the exponential.

**No potential is chosen.** $g$ and its derivatives at $\theta$ are independent symbols, so no
terms cancel by accident.

**A thermostat determines which entries of the friction matrix $\Xi$ are one variable**: the whole
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

from collections import Counter
from collections.abc import Mapping, Sequence
from math import factorial, prod
from typing import Any, NamedTuple

from isotherm.dynamics.symbolic import THERMOSTATS, Algebra, even_moments, load_sympy

__all__ = ["LETTERS", "THERMOSTATS", "LocalOrder", "local_order"]

LETTERS = "ADBKNOE"


class LocalOrder(NamedTuple):
    r"""The order $K$ of a word and its error $h^{K+1}\mathcal E$.

    Attributes
    ----------
    order
        $K$; `max_order + 1` means at least that.
    leading_error
        The coefficient of $h^{K+1}$ in the error of each moment of the increment: the entry
        `"theta p p"` belongs to $\mathbb E[\Delta\theta\,\Delta p\,\Delta p]$. Moments without
        error are absent. The force and its derivatives are `g`, `g'`, `g''` in one dimension; in
        more, `g_12` is $-\partial_1\partial_2 U$.
    """

    order: int
    leading_error: dict[str, Any]

    def on(self, observable: str) -> Any:
        r"""Return $\mathcal E f$ for an observable such as `"theta*p"` or `"cos(theta)"`."""
        f = load_sympy().sympify(observable)
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
    r"""Return the local weak order of a word and its leading error.

    Parameters
    ----------
    word
        Letters in the order in which they act, each for $h$ divided by its number of occurrences:
        `A` drift, `D` heating, `B` damping, `K` kick, `N` noise, `O` damping and noise solved
        together, `E` the explicit Euler step of the momentum.
    thermostat
        One of `THERMOSTATS`.
    noise
        `"gaussian"`, `"three-point"` ($0, \pm\sqrt3$ with probabilities 2/3, 1/6, 1/6) or the even
        moments of a symmetric variable, `{2: 1, 4: 3, 6: 9}`.
    max_order
        Terms through $h^{\text{max\_order} + 1}$ are compared, so that an order up to `max_order`
        comes with its leading error.
    dimension
        Number of coordinates; by default the smallest that distinguishes the thermostats.

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
        raise ValueError(f"`word` must be made of the letters {LETTERS}, got {sorted(unknown)}.")
    if dimension is None:
        dimension = 3 if thermostat == "per_tensor" else 2
    for name, count in (("max_order", max_order), ("dimension", dimension)):
        if not count >= 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")
    algebra = Algebra(thermostat, dimension, max_order)
    error = algebra.word(word, even_moments(noise, 2 * max_order + 2)) - algebra.semigroup()
    if not error:
        return LocalOrder(max_order + 1, {})
    degree = min(monomial[0] for monomial in error.monoms())
    return LocalOrder(degree // 2 - 1, algebra.moments(error, degree))

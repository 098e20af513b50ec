r"""Pólya-Gamma variables in Numba, for the weights of the binary layers.

$\mathrm{PG}(1, z)$ is $J^*(1, |z|/2)/4$, whose density is an alternating series. The proposal is an
inverse Gaussian below $t = 0.64$ and an exponential above, and the partial sums of the series
decide whether to accept it, without error (Polson, Scott & Windle 2013, after Devroye). Each
variable has its own random stream (`isotherm.topics.counter_rng`), so its value does not depend on
the order of evaluation. Numba compiles again only if this file has changed: after a change in
`counter_rng.py`, touch this file.
"""

import math

import numpy as np
from numba import njit

from isotherm.topics import counter_rng
from isotherm.topics.counter_rng import increment, uniform53

_CUT = 0.64
"""$t$, where the proposal changes."""
_ROOT = math.sqrt(2.0)


def polya_gamma(rng: np.random.Generator, tilt: np.ndarray) -> np.ndarray:
    r"""Draw from $\mathrm{PG}(1, z)$ for each number $z$ of an array.

    Parameters
    ----------
    rng
        Random generator; one integer is drawn from it.
    tilt
        The numbers $z$.

    Examples
    --------
    >>> drawn = polya_gamma(np.random.default_rng(0), np.full(100_000, 2.0))
    >>> round(float(drawn.mean()), 2), round(float(np.tanh(1.0) / 4), 2)
    (0.19, 0.19)
    """
    key = np.uint64(rng.integers(2**64, dtype=np.uint64))
    numbers = counter_rng.as_uint64(np.arange(tilt.size))
    drawn = np.empty(tilt.size)
    _draw_all(counter_rng.fold(counter_rng.as_uint64(key), numbers), np.ravel(tilt), drawn)
    return drawn.reshape(tilt.shape)


@njit(cache=True, nogil=True)
def _draw_all(starts, tilt, out):
    for i in range(len(tilt)):
        out[i] = 0.25 * _draw(0.5 * abs(tilt[i]), starts[i], increment(starts[i]))


@njit
def _uniform(state):
    """Return a uniform number on (0, 1)."""
    return uniform53(state) + 2.0**-54


@njit
def _normal_cdf(x):
    return 0.5 * math.erfc(-x / _ROOT)


@njit
def _exponential_share(z):
    """Return the probability that a proposal is from the exponential part."""
    rate = 0.125 * math.pi**2 + 0.5 * z * z
    root = math.sqrt(1.0 / _CUT)
    low = _normal_cdf(root * (_CUT * z - 1.0))
    high = _normal_cdf(-root * (_CUT * z + 1.0))
    # exp(2z) * high and its factor exp(-z) are combined, since exp(2z) may overflow.
    right = math.pi / (2.0 * rate) * math.exp(-rate * _CUT)
    left = 2.0 * (math.exp(-z) * low + (math.exp(z) * high if z < 300.0 else 0.0))
    return right / (right + left)


@njit
def _term(n, x):
    """Return term `n` of the series of the density at `x`."""
    c = n + 0.5
    if x > _CUT:
        return math.pi * c * math.exp(-0.5 * (c * math.pi) ** 2 * x)
    return math.pi * c * (2.0 / (math.pi * x)) ** 1.5 * math.exp(-2.0 * c * c / x)


@njit
def _draw(z, state, gamma):
    """Draw from $J^*(1, z)$ with the random stream at `state`."""
    share, rate = _exponential_share(z), 0.125 * math.pi**2 + 0.5 * z * z
    while True:
        state += gamma
        if _uniform(state) < share:
            state += gamma
            x = _CUT - math.log(_uniform(state)) / rate
        else:
            x, state = _small_inverse_gaussian(z, state, gamma)
        total = _term(0, x)
        state += gamma
        level, n = _uniform(state) * total, 0
        while True:
            n += 1
            if n % 2 == 1:
                total -= _term(n, x)
                if level <= total:
                    return x
            else:
                total += _term(n, x)
                if level > total:
                    break


@njit
def _small_inverse_gaussian(z, state, gamma):
    """Draw an inverse Gaussian variable of mean 1/z and shape 1 below the cut."""
    if z * _CUT < 1.0:
        while True:  # from the tail of a chi-squared variable, which z = 0 has
            while True:
                state += gamma
                first = -math.log(_uniform(state))
                state += gamma
                second = -math.log(_uniform(state))
                if first * first <= 2.0 * second / _CUT:
                    break
            x = _CUT / (1.0 + _CUT * first) ** 2
            state += gamma
            if _uniform(state) <= math.exp(-0.5 * z * z * x):
                return x, state
    mean = 1.0 / z
    while True:
        state += gamma
        radius = math.sqrt(-2.0 * math.log(_uniform(state)))
        state += gamma
        y = (radius * math.cos(2.0 * math.pi * _uniform(state))) ** 2
        half = 0.5 * mean * y
        # The smaller root, written without cancellation.
        x = mean / (1.0 + half + math.sqrt(2.0 * half + half * half))
        state += gamma
        if _uniform(state) > mean / (mean + x):
            x = mean * mean / x
        if x <= _CUT:
            return x, state

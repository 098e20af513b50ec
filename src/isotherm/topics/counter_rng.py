r"""Random numbers for discrete latent variables: a key, a counter and a 64-bit hash.

Every number is a pure function of *(seed, purpose, step, document, counter)*:

$$ s = f(f(f(f(0, \text{seed}), \text{purpose}), \text{step}), \text{document}), \qquad
   \operatorname{bits}_i = m(s + i\,g), \quad g = m(s \oplus c) \lor 1, $$

with the bijective finalizer $m$ of SplitMix64 and $f(k, n) = m(k + (n + 1)G)$, $G$ odd. Each
document has its own stream, independent of the thread that processes it and of the other documents
in its batch, so results do not depend on the number of threads. The odd increment $g$ is a hash of
the start $s$. Two streams have the same increment with probability $2^{-63}$, so they are not
shifted copies of each other. Different values of `purpose` give a Gibbs sampler and a token split
independent streams from the same seed.

The functions below work on NumPy arrays of `uint64`; compiled code calls the same `mix`,
`increment`, `uniform24` and `uniform53` with scalars. `isotherm.random` is the JAX counterpart with
32 bits.

References
----------
Steele, Lea & Flood (2014), *Fast splittable pseudorandom number generators*, OOPSLA.
"""

from typing import Any, Literal

import numpy as np
from numba.extending import register_jitable

_30, _27, _31, ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN, _INCREMENT_SALT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_11, _40, _UNIT = np.uint64(11), np.uint64(40), np.float32(2.0**-24)

Purpose = Literal["gibbs", "collapsed", "completion", "documents", "batch", "topics", "rates"]
_PURPOSES: tuple[Purpose, ...] = (
    "gibbs",
    "collapsed",
    "completion",
    "documents",
    "batch",
    "topics",
    "rates",
)


@register_jitable(inline="always")
def mix(x: Any) -> Any:
    """Return a bijective hash of 64 bits."""
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


def fold(key: Any, number: Any) -> Any:
    """Derive a key from a key and a number; different numbers give different keys."""
    return mix(key + (number + ONE) * _GOLDEN)


@register_jitable(inline="always")
def increment(start: Any) -> Any:
    """Return the odd increment of the stream that starts at `start`."""
    return mix(start ^ _INCREMENT_SALT) | ONE


@register_jitable(inline="always")
def uniform24(state: Any) -> Any:
    """Return a uniform number in [0, 1) with 24 bits from the state of a stream."""
    return np.float32(mix(state) >> _40) * _UNIT


@register_jitable(inline="always")
def uniform53(state: Any) -> Any:
    """Return a uniform number in [0, 1) with 53 bits from the state of a stream."""
    return np.float64(mix(state) >> _11) * 2.0**-53


def as_uint64(numbers: Any) -> np.ndarray:
    """Convert integers, also negative ones, to a `uint64` array, modulo $2^{64}$."""
    if isinstance(numbers, int):
        numbers = numbers & (2**64 - 1)
    return np.atleast_1d(np.asarray(numbers)).astype(np.uint64)


def purpose_key(seed: int, purpose: Purpose) -> np.uint64:
    """Derive the key for one purpose of a seed.

    Examples
    --------
    >>> bool(purpose_key(0, "gibbs") == purpose_key(0, "completion"))
    False
    """
    key = fold(fold(as_uint64(0), as_uint64(int(seed))), as_uint64(_PURPOSES.index(purpose)))
    return key[0]


def streams(key: np.uint64, step: int, documents: np.ndarray) -> np.ndarray:
    """Return the start of each document's stream at a step."""
    return fold(fold(as_uint64(key), as_uint64(int(step))), as_uint64(documents))


def generator(seed: int, purpose: Purpose, step: int = 0) -> np.random.Generator:
    """Build a NumPy generator for one purpose of a seed at one step."""
    key = streams(purpose_key(seed, purpose), step, np.zeros(1, np.int64))
    return np.random.Generator(np.random.PCG64(int(key[0])))

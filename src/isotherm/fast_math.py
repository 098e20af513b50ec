r"""Elementary functions in single precision that compile to short vector code without branches.

The general functions have branches for infinities and for the last digits, which keep XLA from
vectorising the loops they are fused into: on a CPU they cost a thermostat more than its memory
traffic. The functions here have no branches and a stated error bound. For other
precisions they call the general functions.
"""

import jax
import jax.numpy as jnp
import numpy as np


def polynomial(x: jax.Array, coefficients: tuple[float, ...]) -> jax.Array:
    """Evaluate a polynomial by Estrin's scheme: half the sequential depth of Horner's rule."""
    terms = [jnp.asarray(c, x.dtype) for c in coefficients]
    while len(terms) > 1:
        pairs = [a + x * b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms, x = pairs + terms[2 * len(pairs) :], x * x
    return terms[0]


def exp(x: jax.Array) -> jax.Array:
    r"""Return $e^x = 2^k e^f$ with $|f| \le \tfrac12\log 2$, with a relative error below 4e-7.

    Below -87 the result is 1.6e-38, above 88 it is 1.7e38; NaN gives NaN.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> [f"{value:.4f}" for value in exp(jnp.array([0.0, 1.0, -2.0]))]
    ['1.0000', '2.7183', '0.1353']
    """
    if x.dtype != jnp.float32:
        return jnp.exp(x)
    x = jnp.clip(x, -87, 88)
    k = jnp.round(x * np.float32(np.log2(np.e)))
    # log 2 in two parts: the first has few digits, so its product with k is exact.
    f = (x - k * np.float32(0.693359375)) + k * np.float32(2.12194440e-4)
    power = jax.lax.bitcast_convert_type((k.astype(jnp.int32) + 127) << 23, jnp.float32)
    return power * polynomial(f, _EXP)


def mean_decay(x: jax.Array, decay: jax.Array) -> jax.Array:
    r"""Return the mean of $e^{-xs}$ for $s$ in $[0, 1]$: $(1 - e^{-x})/x$, with error below 1e-6.

    The error is relative, for $x$ of any sign between -87 and 87; the result is 1 at 0.

    Parameters
    ----------
    x
        $x$.
    decay
        $e^{-x}$, which the caller usually has.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> x = jnp.array([0.0, 1.0, -2.0])
    >>> [f"{value:.4f}" for value in mean_decay(x, jnp.exp(-x))]
    ['1.0000', '0.6321', '3.1945']
    """
    if x.dtype != jnp.float32:
        safe = jnp.where(jnp.abs(x) < 1e-4, 1.0, x)
        series = 1 - x / 2 + x * x / 6
        return jnp.where(jnp.abs(x) < 1e-4, series, -jnp.expm1(-safe) / safe)
    small = jnp.abs(x) < 0.5
    safe = jnp.where(small, np.float32(1), x)
    return jnp.where(small, polynomial(x, _MEAN_DECAY), (1 - decay) / safe)


def normal_quantile(x: jax.Array) -> jax.Array:
    r"""Return the normal quantile of a uniform number on (-1, 1): $q(x) = \Phi^{-1}((1 + x)/2)$.

    $q(x)/x$ is a smooth function of $w = -\log_2(1 - x^2)$, approximated by a polynomial; the
    relative error is below 1e-5 for $1 - |x| \ge 2^{-24}$.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> print(normal_quantile(jnp.array([0.0, 0.682689, -0.9973002])).round(4))
    [ 0.  1. -3.]
    """
    if x.dtype != jnp.float32:
        return jnp.asarray(np.sqrt(2.0), x.dtype) * jax.lax.erf_inv(x)
    image = jax.lax.bitcast_convert_type((1 - x) * (1 + x), jnp.int32)
    exponent = (image - 0x3F3504F3) >> 23  # so that m + 1 is in [sqrt(1/2), sqrt(2))
    m = jax.lax.bitcast_convert_type(image - (exponent << 23), jnp.float32) - 1
    w = -(exponent.astype(jnp.float32) + m * polynomial(m, _LOG2))
    return x * polynomial(w, _QUANTILE)


_EXP = (1.0, 1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720)
_MEAN_DECAY = (1.0, -1 / 2, 1 / 6, -1 / 24, 1 / 120, -1 / 720, 1 / 5040)
# Minimax polynomials. log2(1 + m) / m is _LOG2, within 3e-7 for sqrt(1/2) <= 1 + m <= sqrt(2);
# q(x) / x is _QUANTILE, a polynomial in w, with relative error 3.2e-6 for w in [0, 23.1].
_LOG2 = (1.4426997, -0.72137588, 0.48046502, -0.35896182, 0.29726264, -0.27269816, 0.17063458)
_QUANTILE = (
    1.2533174,
    0.22745034,
    7.7546234e-3,
    -9.8310609e-4,
    -1.0726567e-4,
    3.0180343e-5,
    -2.9697351e-6,
    1.6394976e-7,
    -5.3644804e-9,
    9.746122e-11,
    -7.5982531e-13,
)

r"""Kernel Stein discrepancy between draws and a target that is known by its score.

For $s = \nabla\log\pi$ and the inverse multiquadric kernel $k = q^\beta$,
$q(x, y) = 1 + \lVert x - y\rVert^2$, the Stein kernel

$$
\begin{aligned}
k_\pi(x, y) &= s(x)^\top s(y)\,k + s(x)^\top\nabla_y k + s(y)^\top\nabla_x k
  + \operatorname{tr}\nabla_x\nabla_y^\top k \\
&= s(x)^\top s(y)\,q^\beta + 2\beta\left[(x - y)^\top(s(y) - s(x)) - d\right] q^{\beta - 1}
  - 4\beta(\beta - 1)\lVert x - y\rVert^2 q^{\beta - 2}
\end{aligned}
$$

has mean zero over $y \sim \pi$ for every $x$. Over all $n^2$ pairs,

$$ \mathrm{KSD}^2 = \frac1{n^2}\sum_{i,j} k_\pi(x_i, x_j) \ge 0, $$

which tends to zero if and only if the draws tend to $\pi$ (for $-1 < \beta < 0$ and targets whose
tails are like a Gaussian's). Draws that follow $\pi$ exactly have
$\mathbb E\,\mathrm{KSD}^2 = \mathbb E\,k_\pi(x, x)/n$ if they are independent: the `ksd_floor`,
with which every value should be compared. Unlike effective sample size and R-hat, KSD detects the
bias of a step size and of noisy gradients. It does not detect wrong masses of distant modes.

Lengths are measured in units of `scale`, $x \to x/\ell$ and $s \to \ell s$; with one $\ell$ for
all coordinates this is the kernel $(\ell^2 + \lVert x - y\rVert^2)^\beta$, up to a factor.

References
----------
Gorham & Mackey (2017), *Measuring sample quality with kernels*, ICML. Their $c$ is our $\ell$.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from isotherm.tree import as_arrays


def ksd(
    draws: ArrayLike,
    scores: ArrayLike,
    *,
    scale: ArrayLike = 1.0,
    exponent: float = -0.5,
    block_size: int = 256,
) -> jax.Array:
    r"""Return the kernel Stein discrepancy of draws from the density with these scores.

    Time is $O(n^2 d)$, memory $O(n\,\cdot$ `block_size`$)$.

    Parameters
    ----------
    draws
        Shape `(n, d)`.
    scores
        $\nabla\log\pi$ at each draw, computed from all data; shape `(n, d)`.
    scale
        $\ell$: a length, or one per coordinate; the standard deviations of the target are a good
        choice. Use the same scale for values that are compared.
    exponent
        $\beta$, between -1 and 0.
    block_size
        Number of rows of the $n \times n$ matrix of pairs that are in memory at once.

    Examples
    --------
    >>> draws = jax.random.normal(jax.random.key(0), (1000, 3))
    >>> exact, hot = ksd(draws, -draws), ksd(2 * draws, -2 * draws)
    >>> print(f"{exact:.2f} {hot:.2f} floor {ksd_floor(-draws):.2f}")
    0.08 0.53 floor 0.08
    """
    x, s = as_arrays("draws", draws), as_arrays("scores", scores)
    if x.ndim != 2 or x.shape != s.shape:
        raise ValueError(
            f"`draws` and `scores` must have the same shape (n, d), got {x.shape} and {s.shape}."
        )
    if not len(x):
        raise ValueError("`draws` is empty: it must have at least one row.")
    if not -1 < exponent < 0:
        raise ValueError(f"`exponent` must be between -1 and 0, got {exponent}.")
    if not block_size > 0:
        raise ValueError(f"`block_size` must be positive, got {block_size}.")
    lengths = as_arrays("scale", scale)
    if lengths.shape not in ((), x.shape[1:], x.shape):
        raise ValueError(f"`scale` must be a number or have shape ({x.shape[1]},), got {scale!r}.")
    lengths = jnp.broadcast_to(lengths, x.shape)
    centred = (x - x.mean(0, keepdims=True)) / lengths
    pairs = _mean_over_pairs(centred, s * lengths, exponent, block_size)
    # Rounding can make the sum of squares negative.
    return jnp.sqrt(jnp.maximum(pairs + ksd_floor(s, scale, exponent) ** 2, 0))


def ksd_floor(scores: ArrayLike, scale: ArrayLike = 1.0, exponent: float = -0.5) -> jax.Array:
    r"""Return the root of the mean $\mathrm{KSD}^2$ of $n$ independent exact draws."""
    scores = jnp.asarray(scores) * jnp.broadcast_to(scale, jnp.shape(scores))
    n, d = scores.shape
    return jnp.sqrt((jnp.mean(jnp.sum(scores**2, 1)) - 2 * exponent * d) / n)


@partial(jax.jit, static_argnames="block_size")
def _mean_over_pairs(x: jax.Array, s: jax.Array, beta: float, block_size: int) -> jax.Array:
    """Return the sum of the Stein kernel over pairs of different draws, divided by `n**2`."""
    n, d = x.shape
    norms, dots = jnp.sum(x * x, 1), jnp.sum(x * s, 1)

    def row(i: jax.Array) -> jax.Array:
        r2 = jnp.maximum(norms + norms[i] - 2 * x @ x[i], 0)
        q = 1 + r2
        cross = x @ s[i] + s @ x[i] - dots - dots[i]  # (x - y) . (s(y) - s(x))
        stein = q**beta * (s @ s[i] + (2 * beta * (cross - d) - 4 * beta * (beta - 1) * r2 / q) / q)
        return jnp.mean(jnp.where(jnp.arange(n) == i, 0, stein))

    return jnp.mean(jax.lax.map(row, jnp.arange(n), batch_size=min(block_size, n)))

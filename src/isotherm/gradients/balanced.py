r"""Balanced minibatches: kicks that take out the noise they put in.

A kick of duration $t$ by a minibatch gradient adds noise of covariance $t^2\Sigma(\theta)$ to the
momentum. In a network $\Sigma$ depends on the weights, so a thermostat, which can absorb only the
average of the noise, leaves the chain too hot where $\Sigma$ is large and too cold elsewhere. The
friction $-\frac{t}{2T}\Sigma p$ in the same kick balances the noise at every $\theta$: noise and
friction that depend on the position alone leave $p \sim \mathcal N(0, T)$ invariant, so no
correction term is needed (Shang et al. 2015, who estimate the diagonal of $\Sigma$).

**The matrix is not needed.** Let $n$ rows be drawn with replacement out of $N$, let $g_i$ be the
gradient of the log likelihood of row $i$, and let $v$ be the velocity of the position ($v = Mp$ in
coordinates $M$). An unbiased estimate is

$$ \hat\Sigma v = \frac{N^2}{n(n-1)} \sum_i (g_i - \bar g)\,(g_i - \bar g)\cdot v, $$

and all $g_i\cdot v$ are *one* directional derivative of the $n$ log likelihoods along $v$. Friction
and force together are the ordinary gradient of a batch with weights $w_i$, which depend on the
*strength* $s_i$ of each row:

$$ s_i = \frac{tN}{2T(n-1)}\,\Bigl(g_i\cdot v - \tfrac1n\sum_j g_j\cdot v\Bigr), \qquad
   w_i = 1 - \tan s_i, \qquad
   \hat g = \nabla\log p(\theta) + \frac Nn\sum_i w_i\,g_i. $$

A row whose gradient pushes along the momentum counts a little less, a row that pulls against it a
little more. The cost is one forward-mode pass; memory is that of the activations of one batch.
Any $m$ rows of a batch estimate $\Sigma$ without bias: with $m$ for $n$ in $s_i$, only these rows
are weighted. If the position has 200 000 numbers or more, batches of 64 rows and more use half of
them, at half the cost; on a CPU the products of smaller networks take nearly as long for half of
the rows.

**Why the tangent.** With $w_i = 1 - \phi(s_i)$ let $x_i$ be the kick of row $i$ around the mean,
so that $s_i = x_i\cdot p/2T$. The energy that the row adds is, on average over
$p \sim \mathcal N(0, T)$, where $s_i \sim \mathcal N(0, |x_i|^2/4T)$,

$$ \tfrac12|x_i|^2\,\bigl(1 + \mathbb E\,\phi(s_i)^2\bigr) - 2T\,\mathbb E[s_i\phi(s_i)]
   = \tfrac12|x_i|^2\,\bigl(1 + \mathbb E\,\phi^2 - \mathbb E\,\phi'\bigr). $$

The linear $\phi(s) = s$ leaves the noise of the friction itself, $\mathbb E\,s_i^2$, unbalanced;
$\phi' = 1 + \phi^2$, hence $\phi = \tan$, balances both for rows of every size. It is bounded at
$|s_i| = \pi/4$, so that weights stay in $[0, 2]$; beyond, twice the noise of the row is left to the
thermostat. The share of the noise that is left,

$$ u = \frac{2\sum_i |x_i|^2\,P(|s_i| > \pi/4)}{\sum_i |x_i|^2}, $$

says whether a step is short enough. The variance of the noise does not: rare rows with large
gradients carry most of the noise of a classification. Coordinates with $C$ and friction $D$ are
heated by $u\,2C/(Dh + 2C)$ of the temperature (`unbalanced_heat`); below 0.01 the standard
deviations of a network are right within 1 or 2 % (`isotherm run network-exact`).

**Which integrator.** Let $C = t^2\sigma^2/4T$ along a direction with noise $\sigma^2$, and let
$\lambda$ be the curvature of the potential along it. The balanced kick is $p' = (1 - 2C)\,p +
t\,\hat g$. The word `"ABDODBA"` (half a kick, damping and noise, the other half by the same force)
suits balanced gradients. On a Gaussian target it is exact at any step size and any friction $D$ of
the rest of the step, as long as $C + h^2\lambda/4 < 1$: positions at the end of a step are at $T$,
and so are momenta in the middle of the kick, where its thermostat measures them. Momenta at the end
of a step are at $T/(1 - C - h^2\lambda/4)$.

With the other words and a fixed friction, positions are at $T$ for small $h$ and momenta beside the
kick are at $T/(1 - C)$. A thermostat that measures there, as in `"ABOBA"`, `"OABAO"`, `"BADODAB"`,
`"OBABO"` and `"euler"`, removes that excess, and positions are at $T(1 - C)$ to first order in $C$.
The default with a balanced gradient is `"AKDBNBDKA"`: ABDODBA with damping and noise split as in
ABOBA, which costs one exponential and differs by $(hD)^2/6$. Matthews & Weare (2018) found the
recursion of `"ABDODBA"`, with a known $\Sigma$, from the condition that positions be exact.

**Order.** The noise of minibatches does not depend on $h$, so $C$ is proportional to $h^2$. Let
$\mathcal L$ be the generator of the dynamics. A step with balanced kicks is
$e^{h(\mathcal L + h\mathcal S)} + O(h^3)$ with

$$ \mathcal S f = \tfrac12\operatorname{tr}(\Sigma\,\partial_p^2 f)
   - \tfrac1{2T}\,(\Sigma p)\cdot\partial_p f, $$

for every palindrome, also one that cuts the kick. $\mathcal S$ leaves $\mathcal N(0, T)$ invariant
at every $\theta$, so stationary averages have an error of order $h^2$. Plain kicks lack the second
term of $\mathcal S$. Their error is of order $h$, unless the noise is the same everywhere and a
thermostat absorbs it (`isotherm run order`).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, jaxpr_as_fun, subjaxprs
from numpy.typing import ArrayLike

from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.tree import count, leaf_sizes
from isotherm.types import ArrayTree, Batch, Scalar

LARGEST = np.pi / 4
"""Bound on $|s_i|$, at which the weight of a row is 0 or 2."""
LARGE_POSITION, ENOUGH_ROWS = 200_000, 64
"""Positions of at least this many numbers, and batches of at least this many rows: together they
estimate the noise from every second row."""


@dataclass(frozen=True)
class BalancedGradient:
    """A minibatch gradient that also needs the velocity, and takes its own noise out."""

    gradient: MinibatchGradient
    num_shards: int = 1

    def __call__(self, position: ArrayTree, batch: Batch) -> ArrayTree:
        """Return the plain minibatch gradient, for searches of a mode and measurements."""
        return self.gradient(position, batch)

    def at_velocity(
        self,
        position: ArrayTree,
        batch: Batch,
        velocity: ArrayTree,
        duration: Scalar,
        temperature: Scalar,
    ) -> ArrayTree:
        r"""Return the gradient of a kick: the balanced estimate.

        Parameters
        ----------
        position, batch
            As for a plain gradient.
        velocity
            $v$, the velocity of the position at the beginning of the kick.
        duration
            $t$, the whole duration of the kick.
        temperature
            $T > 0$.
        """
        weighted, others = self._split(position, batch)
        s = self._strengths(position, weighted, velocity, duration, temperature)
        weights = 1 - jnp.tan(jnp.clip(s, -LARGEST, LARGEST))

        def log_density(position: ArrayTree) -> jax.Array:
            rows = self.gradient.per_datum(position, weighted)
            total, number = jnp.sum(weights.astype(rows.dtype) * rows), rows.shape[0]
            if others is not None:
                more = self.gradient.per_datum(position, others)
                total, number = total + jnp.sum(more), number + more.shape[0]
            return self.gradient.log_prior(position) + self.gradient.data_size / number * total

        return jax.grad(log_density)(position)

    def strengths(
        self,
        position: ArrayTree,
        batch: Batch,
        velocity: ArrayTree,
        duration: Scalar,
        temperature: Scalar = 1.0,
    ) -> jax.Array:
        r"""Return $s_i$ of the rows that are weighted; it is proportional to the duration.

        Parameters
        ----------
        position, batch, velocity, duration, temperature
            As in `at_velocity`.
        """
        weighted, _ = self._split(position, batch)
        return self._strengths(position, weighted, velocity, duration, temperature)

    def _split(self, position: ArrayTree, batch: Batch) -> tuple[Batch, Batch | None]:
        """Return the rows that are weighted and, of a large network and batch, the other half."""
        if sum(leaf_sizes(position)) < LARGE_POSITION:
            return batch, None
        number = jax.eval_shape(self.gradient.per_datum, position, batch).shape[0]
        leaves = jax.tree.leaves(batch)
        of_rows = all(jnp.ndim(leaf) and leaf.shape[0] == number for leaf in leaves)
        if not of_rows or number < ENOUGH_ROWS or number % (2 * self.num_shards):
            return batch, None
        even, odd = (jax.tree.map(lambda leaf, i=i: leaf[i::2], batch) for i in (0, 1))
        return even, odd

    def _strengths(
        self,
        position: ArrayTree,
        batch: Batch,
        velocity: ArrayTree,
        duration: Scalar,
        temperature: Scalar,
    ) -> jax.Array:
        """Return $s_i$ of every row, centred within its shard."""
        velocity = jax.tree.map(lambda v, x: v.astype(x.dtype), velocity, position)
        slopes = self._slopes(position, batch, velocity)
        rows, shards = slopes.shape[0], self.num_shards
        if rows % shards or rows < 2 * shards:
            raise ValueError(
                "A balanced gradient estimates the noise of a batch from the differences between "
                f"its rows, so batches must have at least two rows{_from_each(shards)}, got {rows}."
            )
        slopes = slopes.astype(jnp.promote_types(slopes.dtype, jnp.float32)).reshape(shards, -1)
        centered = (slopes - jnp.mean(slopes, axis=1, keepdims=True)).reshape(rows)
        return duration * self.gradient.data_size / (2 * temperature * (rows - shards)) * centered

    def _slopes(self, position: ArrayTree, batch: Batch, velocity: ArrayTree) -> jax.Array:
        """Return the derivative of the log likelihood of every row along the velocity."""

        def slopes(x: ArrayTree, v: ArrayTree, batch: Batch) -> jax.Array:
            return jax.jvp(lambda x: self.gradient.per_datum(x, batch), (x,), (v,))[1]

        traced = jax.make_jaxpr(slopes)(position, velocity, batch)
        # JAX itself would raise a TypeError, but only when the whole step has been traced.
        if "custom_lin" in _primitives(traced.jaxpr):
            raise ValueError(
                "A balanced gradient needs forward-mode derivatives of `log_likelihood`, which "
                "uses a function with `jax.custom_vjp`. Define that function with "
                "`jax.custom_jvp`, or use the plain gradient."
            )
        return jaxpr_as_fun(traced)(*jax.tree.leaves((position, velocity, batch)))[0]


def _primitives(jaxpr: Jaxpr) -> set[str]:
    """Return the names of all primitives of a program and of the programs inside it."""
    names, seen, todo = set(), set(), [jaxpr]
    while todo:
        program = todo.pop()
        if id(program) not in seen:
            seen.add(id(program))
            names.update(equation.primitive.name for equation in program.eqns)
            todo.extend(subjaxprs(program))
    return names


def unbalanced_heat(
    strengths: ArrayLike, step_size: float, friction: float, dimension: int
) -> float:
    r"""Return the relative heat $u\,2C/(Dh + 2C)$ that the kicks of a step leave.

    Parameters
    ----------
    strengths
        `BalancedGradient.strengths` of kicks of duration 1, shape `(2, batches, rows)`: for every
        batch the values of two independent momenta, of which the second gives $|x_i|^2$. Further
        axes in front are positions, over which the heat is averaged: where it is large differs.
    step_size
        $h$.
    friction
        $D$.
    dimension
        Number of coordinates; $C$ is the mean over them.
    """
    given, tiny = np.asarray(strengths, np.float64), np.finfo(np.float64).tiny
    squares = given[..., 1, :, :] ** 2
    total = np.maximum(squares.sum((-2, -1)), tiny)
    too_strong = np.abs(given[..., 0, :, :]) * step_size > LARGEST
    left = 2 * np.sum(np.where(too_strong, squares, 0), axis=(-2, -1)) / total
    noise = 2 * step_size**2 * np.mean(squares, axis=(-2, -1)) * squares.shape[-1] / dimension
    return float(np.mean(left * noise / np.maximum(friction * step_size + noise, tiny)))


def _from_each(shards: int) -> str:
    return "" if shards == 1 else f" from each of the {shards} shards"


def balanced(grad_fn: MinibatchGradient, *, num_shards: int = 1) -> BalancedGradient:
    r"""Make a minibatch gradient that takes its own noise out, at the price of a forward pass.

    For `isotherm.msgnht`, `isotherm.sgnht`, `isotherm.sghmc` and `isotherm.langevin`, in any
    coordinates. Where the noise of minibatches depends on the position, as in networks, a
    thermostat alone is biased; with a balanced gradient it is not, and thermostats stay near $D$.
    The rows of a batch must be drawn independently, with replacement
    (`isotherm.independent_batches`, `isotherm.sharded_batches`).

    Parameters
    ----------
    grad_fn
        From `isotherm.minibatch_gradient` or `isotherm.control_variates`. Its log likelihood must
        support forward-mode differentiation.
    num_shards
        Number of shards of `isotherm.sharded_batches`: rows are then compared only with others of
        the same shard, because only these are exchangeable. At least two rows per shard.

    Examples
    --------
    >>> import isotherm, jax, jax.numpy as jnp
    >>> x = 3 + jax.random.normal(jax.random.key(0), (100,))
    >>> grad_fn = isotherm.minibatch_gradient(lambda m, x: -0.5 * (x - m)**2, lambda m: -m**2, 100)
    >>> sampler = isotherm.msgnht(balanced(grad_fn), step_size=0.02)
    >>> batches = isotherm.independent_batches(x, 10)
    >>> run = isotherm.sample(jax.random.key(1), sampler, 3.0, batches, num_draws=500, thin=10)
    >>> bool(abs(run.draws.mean() - x.sum() / 102) < 0.05)
    True
    """
    if isinstance(grad_fn, BalancedGradient):
        raise ValueError("`grad_fn` is balanced already.")
    if not isinstance(grad_fn, MinibatchGradient):
        raise ValueError(
            "`grad_fn` must come from isotherm.minibatch_gradient or isotherm.control_variates: "
            f"the log likelihood of every row is needed, got {grad_fn!r}."
        )
    return BalancedGradient(grad_fn, count("num_shards", num_shards, 1))

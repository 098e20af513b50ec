r"""IVON: the improved variational online Newton method, a diagonal Gaussian at the cost of Adam.

With $q = \mathcal N(m, \operatorname{diag}\sigma^2)$, the mean loss $\bar\ell(\theta) =
-\frac1n\sum_{i \in S}\log p(d_i \mid \theta)$ of a minibatch, $r(\theta) = -\frac1N\log p(\theta)$
and its curvature $\delta$ (for a prior $\mathcal N(0, s^2)$, $\delta = 1/Ns^2$):

$$ \begin{aligned}
\theta &= m + \sigma z, \quad z \sim \mathcal N(0, I), \qquad
   \hat g = \nabla\bar\ell(\theta), \qquad \hat h = \hat g\,z/\sigma, \\
g &\leftarrow \beta_1 g + (1 - \beta_1)\,\hat g, \qquad
h \leftarrow \beta_2 h + (1 - \beta_2)\,\hat h
   + \tfrac12(1 - \beta_2)^2\,\frac{(h - \hat h)^2}{h + \delta}, \\
m &\leftarrow m - \eta_t\,\frac{g/(1 - \beta_1^t) + \nabla r(m)}{h + \delta}, \qquad
\sigma = \frac{1}{\sqrt{N(h + \delta)}} .
\end{aligned} $$

It maximizes the bound of `baselines.gaussian` by natural gradients. $\hat h$ estimates the diagonal
of the Hessian without second derivatives (Stein's identity), and the last term of $h$ keeps
$h + \delta$ positive. At the optimum for a Gaussian posterior of precision $\Lambda$ the mean is
exact and $\sigma_i = \Lambda_{ii}^{-1/2}$.

The recursion is an optax transformation of $(m, \sigma)$: the gradient of
$\bar\ell(m + \sigma z)$ with respect to $\sigma$ is $\hat g z$.

References
----------
Shen, Daheim, Cong, Nickl, Marconi, Bazan, Yokota, Gurevych, Cremers, Khan & Möllenhoff (2024),
*Variational learning is effective for large deep networks*, ICML. Lin, Schmidt & Khan (2020),
*Handling the positive-definite constraint in the Bayesian learning rule*: the last term.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from isotherm import random
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.gaussian import (
    GaussianApproximation,
    check_count,
    flatten,
)
from isotherm.paper.baselines.training import Training, check_training, hashable, train
from isotherm.schedules import as_schedule, require_positive
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, ScalarOrSchedule

SMALLEST_DECAY = 1e-12
r"""Smallest $\delta$: a log prior that is not concave everywhere may have a negative one."""


class Parameters(NamedTuple):
    r"""$m$ and $\sigma$, both shaped like the position."""

    mean: ArrayTree
    sd: ArrayTree


class _State(NamedTuple):
    gradient: ArrayTree
    curvature: ArrayTree
    step_index: jax.Array


def ivon(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_steps: int,
    step_size: ScalarOrSchedule = 0.1,
    initial_curvature: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99999,
    draws_per_step: int = 1,
    clip: float = float("inf"),
    progress: bool | None = None,
) -> GaussianApproximation:
    r"""Fit a diagonal Gaussian by variational online Newton steps.

    Parameters
    ----------
    key
        For the batches and the $z$.
    grad_fn
        From `isotherm.minibatch_gradient`, or `network.gradient(data_size)`. Its log prior should
        be a sum over coordinates: $\delta$ is computed with one derivative along $(1, \dots, 1)$.
    position
        Where $m$ starts: `network.init(key)`, or a trained network.
    batches
        The data, usually `isotherm.shuffled_batches((x, y), 100)`.
    num_steps
        Number of updates.
    step_size
        $\eta$, or a schedule `step_index -> eta`. Steps are divided by curvatures, so that 1 would
        be a Newton step; the paper uses 0.1 to 0.2 with a cosine decay.
    initial_curvature
        Initial $h$, per datum. Set it to the order of the curvature of the loss: 0.01 to 1.
    beta1, beta2
        Averaging of gradients and of curvatures. The paper's $\beta_2 = 1 - 10^{-5}$ is for long
        runs; a run of $10^4$ steps needs 0.999 or 0.9999.
    draws_per_step
        Number of $z$ per step, all with the same batch.
    clip
        Largest size of an entry of the Newton direction (the paper: $10^{-3}$, or none).
    progress
        Whether to show a progress bar; by default, if stderr is a terminal.

    Returns
    -------
    The Gaussian; its `elbo` is $-N\bar\ell(\theta_t)$ at every step, without prior and entropy.

    Raises
    ------
    FloatingPointError
        If a loss or a parameter is not finite.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np, isotherm
    >>> x = np.random.default_rng(0).normal(1.0, 1.0, size=400).astype(np.float32)
    >>> grad_fn = isotherm.minibatch_gradient(
    ...     lambda mean, x: -0.5 * (x - mean) ** 2, lambda mean: -0.5 * mean**2, data_size=400)
    >>> q = ivon(jax.random.key(0), grad_fn, jnp.array(0.0), isotherm.full_batch(x),
    ...          num_steps=4000, step_size=optax.cosine_decay_schedule(0.1, 4000), beta2=0.999)
    >>> bool(abs(q.mean - x.sum() / 401) < 0.01), bool(abs(q.standard_deviations() - 0.05) < 0.005)
    (True, True)
    """
    check_training(grad_fn, batches, num_steps)
    require_positive("step_size", step_size)
    require_positive("initial_curvature", initial_curvature)
    require_positive("clip", min(clip, 1e300))
    check_count("draws_per_step", draws_per_step)
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= beta < 1:
            raise ValueError(f"`{name}` must be at least 0 and below 1, got {beta}.")
    start = as_position(position)
    settings = (initial_curvature, beta1, beta2, clip)
    optimizer = _newton(grad_fn, hashable(step_size), *settings)
    training = Training("IVON", _Loss(grad_fn, draws_per_step), optimizer)
    curvature = jax.tree.map(lambda leaf: jnp.full_like(leaf, initial_curvature), start)
    parameters = Parameters(start, _deviations(grad_fn, start, curvature))
    fitted, losses = train(key, training, parameters, batches, num_steps, progress)
    scale = flatten(fitted.sd)[0]
    return GaussianApproximation(fitted.mean, scale, -grad_fn.data_size * losses)


@dataclass(frozen=True)
class _Loss:
    """The mean loss at random positions; equal losses share a compiled program."""

    grad_fn: MinibatchGradient
    draws_per_step: int

    def __call__(self, key: Key, parameters: Parameters, batch: Batch) -> jax.Array:
        def one(i: jax.Array) -> jax.Array:
            z = random.gaussian(random.fold(key, i), parameters.mean)
            theta = jax.tree.map(lambda m, s, r: m + s * r, parameters.mean, parameters.sd, z)
            return -jnp.mean(self.grad_fn.log_likelihood(theta, batch))

        return jnp.mean(jax.vmap(one)(jnp.arange(self.draws_per_step)))


def _prior_curvature(grad_fn: MinibatchGradient, mean: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
    r"""Return $\nabla r(m)$ and $\delta$, which is at least a tiny number."""
    ones = jax.tree.map(jnp.ones_like, mean)
    slope, second = jax.jvp(jax.grad(grad_fn.log_prior), (mean,), (ones,))
    size = grad_fn.data_size
    return (
        jax.tree.map(lambda a: -a / size, slope),
        jax.tree.map(lambda a: jnp.maximum(-a / size, SMALLEST_DECAY), second),
    )


def _deviations(grad_fn: MinibatchGradient, mean: ArrayTree, curvature: ArrayTree) -> ArrayTree:
    r"""Return $\sigma$."""
    _, decay = _prior_curvature(grad_fn, mean)
    return jax.tree.map(lambda h, d: (grad_fn.data_size * (h + d)) ** -0.5, curvature, decay)


@lru_cache(maxsize=256)
def _newton(
    grad_fn: MinibatchGradient,
    step_size: ScalarOrSchedule,
    initial_curvature: float,
    beta1: float,
    beta2: float,
    clip: float,
) -> optax.GradientTransformation:
    r"""Return the recursion as a transformation of $(m, \sigma)$."""
    step_size_fn = as_schedule(step_size)

    def init(params: Any) -> Any:
        mean = params.mean
        curvature = jax.tree.map(lambda m: jnp.full_like(m, initial_curvature), mean)
        return _State(jax.tree.map(jnp.zeros_like, mean), curvature, jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        grads, (mean, sd) = updates, params
        slope, decay = _prior_curvature(grad_fn, mean)
        estimate = jax.tree.map(lambda by_sd, s: by_sd / s, grads.sd, sd)
        gradient = jax.tree.map(
            lambda g, new: beta1 * g + (1 - beta1) * new, state.gradient, grads.mean
        )
        curvature = jax.tree.map(_average, state.curvature, estimate, decay)
        unbiased = 1 - beta1 ** (state.step_index + 1)
        eta = step_size_fn(state.step_index)

        def move(g: jax.Array, r: jax.Array, h: jax.Array, d: jax.Array) -> jax.Array:
            return -eta * jnp.clip((g / unbiased + r) / (h + d), -clip, clip)

        step = jax.tree.map(move, gradient, slope, curvature, decay)
        moved = jax.tree.map(jnp.add, mean, step)
        change = jax.tree.map(jnp.subtract, _deviations(grad_fn, moved, curvature), sd)
        return Parameters(step, change), _State(gradient, curvature, state.step_index + 1)

    def _average(h: jax.Array, new: jax.Array, d: jax.Array) -> jax.Array:
        correction = 0.5 * (1 - beta2) ** 2 * (h - new) ** 2 / (h + d)
        return beta2 * h + (1 - beta2) * new + correction

    return optax.GradientTransformation(init, update)

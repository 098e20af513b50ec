r"""Doubly stochastic variational inference.

$$ z \sim \mathcal N(0, I), \quad \theta = \mu + Lz, \qquad
   \mu \leftarrow \mu + \rho_t\,\hat g(\theta), \quad
   L \leftarrow L + \kappa\rho_t\,
   \bigl[\hat g(\theta)\,z^\top + \operatorname{diag}(L)^{-1}\bigr]_{\text{lower}} $$

climbs the bound of `baselines.gaussian` by stochastic approximation: random twice, in the minibatch
of $\hat g$ and in $z$. The bracket keeps the lower triangle (`"full"`) or the diagonal
(`"diagonal"`, then cost and memory are $O(d)$); its last term is the gradient of the entropy, exact.
Steps decrease as Robbins and Monro ask, $\rho_t = \rho_0(1 + t/b)^{-\gamma}$ with $\gamma = 0.7$, and
those of $L$ are smaller by $\kappa = 0.1$. One gradient per step and $z$.

Three things that the recursion leaves open are settled here. It runs in units of the posterior
(`scale`), so that one $\rho_0$ fits all. No $L_{ii}$ may lose more than half of itself in a step, so
that they stay positive. And the answer is the mean of the iterates over the last half of the steps,
which removes most of their noise (`average=0` gives the last iterate).

References
----------
Titsias & Lázaro-Gredilla (2014), *Doubly stochastic variational Bayes for non-conjugate inference*,
ICML. Their $C$ is our $L$.
"""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from isotherm import random
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.gaussian import (
    GaussianApproximation,
    Parameters,
    bound,
    step_within,
)
from isotherm.paper.baselines.stochastic_vi import (
    check_arguments,
    check_finite,
    climb,
    standardise,
)
from isotherm.schedules import polynomial, require_positive
from isotherm.types import ArrayTree, BatchPolicy, Key, ScalarOrSchedule, Schedule


def dsvi(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_steps: int = 10_000,
    covariance: str = "full",
    draws_per_step: int = 1,
    step_size: ScalarOrSchedule = 0.5,
    factor_rate: float = 0.1,
    optimizer: optax.GradientTransformation | None = None,
    scale: str | ArrayTree = "per-coordinate",
    average: float = 0.5,
) -> GaussianApproximation:
    r"""Fit a Gaussian to the posterior by doubly stochastic variational inference.

    Parameters
    ----------
    key
        For the batches and the $z$.
    grad_fn
        From `isotherm.minibatch_gradient`.
    position
        Where $\mu$ starts.
    batches
        Any batch policy; independent and shuffled batches are both right here.
    num_steps
        How many updates.
    covariance
        `"full"` ($d^2/2$ numbers) or `"diagonal"`.
    draws_per_step
        How many $z$ per step, all with the same batch.
    step_size
        $\rho_0$, in units of the posterior, where 2 is the limit of stability without noise; the
        decay begins after a tenth of the steps. Or a schedule `step_index -> rho`, taken as it is.
    factor_rate
        $\kappa$, the rate of $L$ over that of $\mu$.
    optimizer
        Any optax optimiser instead: it minimises $-\mathcal L$ over $(\mu, L)$ in units of the
        posterior, and `step_size` and `factor_rate` are not used.
    scale
        The units, and where $L$ starts: `"per-coordinate"` from the curvature at `position`
        (indifferent to the units of the features), `"uniform"`, the same for all coordinates
        (calmer where rare features meet fewer steps than one pass over the data), or standard
        deviations of your own, one number or shaped like the position.
    average
        The part of the steps, at the end, whose mean is the answer.

    Raises
    ------
    FloatingPointError
        If the climb diverged.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np, isotherm
    >>> x = np.random.default_rng(0).normal(3.0, 1.0, size=400).astype(np.float32)
    >>> grad_fn = isotherm.minibatch_gradient(
    ...     lambda mean, x: -0.5 * (x - mean) ** 2, lambda mean: -0.5 * mean**2, data_size=400)
    >>> batches = isotherm.independent_batches(x, batch_size=100)
    >>> q = dsvi(jax.random.key(0), grad_fn, jnp.array(0.0), batches, covariance="diagonal")
    >>> bool(abs(q.mean - x.sum() / 401) < 0.01), bool(abs(q.standard_deviations() - 0.05) < 0.005)
    (True, True)
    >>> q.sample(jax.random.key(1), num_draws=10).shape
    (1, 10)
    """
    position, rule, given = check_arguments(
        grad_fn, position, scale, covariance, num_steps, draws_per_step, average
    )
    require_positive("step_size", step_size)
    require_positive("factor_rate", factor_rate)
    approximation = _fit(
        key,
        position,
        batches,
        given,
        0.0 if callable(step_size) else step_size,
        factor_rate,
        grad_fn=grad_fn,
        schedule=step_size if callable(step_size) else None,
        optimizer=optimizer,
        num_steps=num_steps,
        covariance=covariance,
        draws_per_step=draws_per_step,
        rule=rule,
        average=average,
    )
    return check_finite("DSVI", approximation)


@partial(
    jax.jit,
    static_argnames=[
        "grad_fn",
        "schedule",
        "optimizer",
        "num_steps",
        "covariance",
        "draws_per_step",
        "rule",
        "average",
    ],
)
def _fit(
    key: Key,
    position: ArrayTree,
    batches: BatchPolicy,
    given: ArrayTree,
    step_size: float | jax.Array,
    factor_rate: float | jax.Array,
    *,
    grad_fn: MinibatchGradient,
    schedule: Schedule | None,
    optimizer: optax.GradientTransformation | None,
    num_steps: int,
    covariance: str,
    draws_per_step: int,
    rule: str,
    average: float,
) -> GaussianApproximation:
    batch_key, noise_key, scale_key = (random.fold(key, i) for i in range(3))
    target = standardise(scale_key, grad_fn, position, batches, rule, given)
    if schedule is None:
        schedule = polynomial(cast(float, step_size), delay=num_steps / 10, power=0.7)
    if optimizer is None:
        optimizer = _robbins_monro(schedule, factor_rate)
    transform = optimizer
    start = target.start(covariance)
    shape = jnp.zeros((draws_per_step, target.origin.size), target.origin.dtype)

    def step(t: jax.Array, parameters: Parameters, memory: optax.OptState) -> tuple:
        noise = random.gaussian(random.fold(noise_key, t), shape)
        batch = batches.batch(batch_key, t)
        value, grads = jax.value_and_grad(partial(bound, target.log_density))(
            parameters, noise, batch
        )
        downhill = jax.tree.map(jnp.negative, grads)
        updates, memory = transform.update(downhill, memory, parameters)
        return step_within(parameters, cast(Parameters, updates)), memory, value

    parameters, values = climb(step, start, transform.init(start), num_steps, average)
    return target.finish(parameters, values)


def _robbins_monro(
    schedule: Schedule, factor_rate: float | jax.Array
) -> optax.GradientTransformation:
    """Follow the gradient with decreasing steps, smaller ones for the factor."""

    def init(params: Any) -> jax.Array:
        del params
        return jnp.zeros((), jnp.int32)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        rate = -jnp.asarray(schedule(state), updates.mean.dtype)
        slower = Parameters(rate * updates.mean, factor_rate * rate * updates.factor)
        return slower, state + 1

    return optax.GradientTransformation(init, update)

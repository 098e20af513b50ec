r"""Doubly stochastic variational inference.

$$ z \sim \mathcal N(0, I), \quad \theta = \mu + Lz, \qquad
   \mu \leftarrow \mu + \rho_t\,\hat g(\theta), \quad
   L \leftarrow L + \kappa\rho_t\,
   \bigl[\hat g(\theta)\,z^\top + \operatorname{diag}(L)^{-1}\bigr]_{\text{lower}} $$

This maximizes the bound of `baselines.gaussian` by stochastic approximation. It is doubly
stochastic: in the minibatch of $\hat g$ and in $z$. The bracket keeps the lower triangle (`"full"`)
or the diagonal (`"diagonal"`; cost and memory are then $O(d)$). Its last term is the exact gradient
of the entropy. Step sizes satisfy the conditions of Robbins and Monro,
$\rho_t = \rho_0(1 + t/b)^{-\gamma}$ with $\gamma = 0.7$; those of $L$ are smaller by
$\kappa = 0.1$. A step takes one gradient per $z$.

The recursion leaves three things open. Here it runs in standardized coordinates (`scale`), so that
the same $\rho_0$ suits all targets. No $L_{ii}$ shrinks by more than half in a step, so all stay
positive. The result is the mean of the iterates over the last half of the steps, which removes most
of their noise (`average=0` gives the last iterate).

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
    Settings,
    check_finite,
    checked_scale,
    checked_settings,
)
from isotherm.schedules import require_positive
from isotherm.tree import as_position
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
        Any batch policy; independent and shuffled batches are both valid here.
    num_steps
        Number of updates.
    covariance
        `"full"` ($d^2/2$ numbers) or `"diagonal"`.
    draws_per_step
        Number of $z$ per step, all with the same batch.
    step_size
        $\rho_0$, in standardized coordinates, where 2 is the limit of stability without noise; it
        decays after a tenth of the steps. Or a schedule `step_index -> rho`, used unchanged.
    factor_rate
        $\kappa$, the step size of $L$ divided by that of $\mu$.
    optimizer
        Any optax optimizer: it minimizes $-\mathcal L$ over $(\mu, L)$ in standardized coordinates;
        `step_size` and `factor_rate` are then not used.
    scale
        The scales of the coordinates, which are also the initial $L$: `"per-coordinate"` from the
        curvature at `position` (invariant to the units of the features), `"uniform"`, the same for
        all coordinates (more stable if features are rare and there are fewer steps than one pass
        over the data), or your own standard deviations, one number or shaped like the position.
    average
        The share of the steps, at the end, over which the iterates are averaged.

    Raises
    ------
    FloatingPointError
        If the parameters are not finite.

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
    settings = checked_settings(
        grad_fn,
        scale,
        step_size,
        num_steps=num_steps,
        covariance=covariance,
        draws_per_step=draws_per_step,
        average=average,
    )
    require_positive("factor_rate", factor_rate)
    position = as_position(position)
    approximation = _fit(
        key,
        position,
        batches,
        checked_scale(position, scale),
        0.0 if callable(step_size) else step_size,
        factor_rate,
        settings=settings,
        optimizer=optimizer,
    )
    return check_finite("DSVI", approximation)


@partial(jax.jit, static_argnames=["settings", "optimizer"])
def _fit(
    key: Key,
    position: ArrayTree,
    batches: BatchPolicy,
    given_scale: ArrayTree,
    step_size: float | jax.Array,
    factor_rate: float | jax.Array,
    *,
    settings: Settings,
    optimizer: optax.GradientTransformation | None,
) -> GaussianApproximation:
    batch_key, noise_key, scale_key = (random.fold(key, i) for i in range(3))
    target = settings.standardize(scale_key, position, batches, given_scale)
    schedule = settings.step_size_schedule(step_size, delay=1 / 10)
    transform = optimizer or _robbins_monro(schedule, factor_rate)
    start = target.start(settings.covariance)
    shape = settings.noise_shape(target)

    def step(t: jax.Array, parameters: Parameters, state: optax.OptState) -> tuple:
        noise = random.gaussian(random.fold(noise_key, t), shape)
        batch = batches.batch(batch_key, t)
        value, grads = jax.value_and_grad(partial(bound, target.log_density))(
            parameters, noise, batch
        )
        downhill = jax.tree.map(jnp.negative, grads)
        updates, state = transform.update(downhill, state, parameters)
        return step_within(parameters, cast(Parameters, updates)), state, value

    return settings.maximize_elbo(step, target, start, transform.init(start))


def _robbins_monro(
    schedule: Schedule, factor_rate: float | jax.Array
) -> optax.GradientTransformation:
    """Build gradient ascent with decreasing steps, smaller for the factor than for the mean."""

    def init(params: Any) -> jax.Array:
        del params
        return jnp.zeros((), jnp.int32)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        rate = -jnp.asarray(schedule(state), updates.mean.dtype)
        slower = Parameters(rate * updates.mean, factor_rate * rate * updates.factor)
        return slower, state + 1

    return optax.GradientTransformation(init, update)

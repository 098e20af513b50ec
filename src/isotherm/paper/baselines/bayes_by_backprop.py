r"""Bayes by backprop: a diagonal Gaussian over weights, trained like a network.

$$ \theta = \mu + \sigma \odot z, \quad z \sim \mathcal N(0, I), \quad
   \sigma = \log(1 + e^\rho), \qquad
   (\mu, \rho) \leftarrow (\mu, \rho) - \text{optimiser}\Bigl(\nabla\,\tfrac1N \bigl[\log q(\theta)
   - \log p(\theta) - \tfrac Nn \textstyle\sum_{i \in S} \log p(d_i \mid \theta)\bigr]\Bigr) $$

with one $z$ per minibatch. It maximizes the bound of `baselines.gaussian`, as `dsvi` does with a
diagonal covariance: $\log q$ at $\mu + \sigma z$ is $-\sum_i\log\sigma_i - z^\top z/2$, so the
published estimate and the exact entropy have the same gradient. The optimization differs. `dsvi`
moves $\sigma$ itself, in standardized coordinates, with decreasing steps and a tail average. This
method moves $\rho$, in the units of the weights, with Adam, and returns the last iterate, as
published for networks.

At the optimum for a Gaussian posterior of precision $\Lambda$ the mean is exact and
$\sigma_i = \Lambda_{ii}^{-1/2}$, which is too small wherever weights are correlated.

The prior is that of `grad_fn`. With the scale mixture of the paper it is

    grad_fn = isotherm.minibatch_gradient(network.log_likelihood, scale_mixture(), data_size)

References
----------
Blundell, Cornebise, Kavukcuoglu & Wierstra (2015), *Weight uncertainty in neural networks*, ICML.
Their minibatch weights $\pi_i$ of the complexity cost are all equal here.
"""

from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isotherm import random
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.gaussian import (
    GaussianApproximation,
    Parameters,
    bound,
    check_count,
    flatten,
)
from isotherm.paper.baselines.training import Training, check_training, train
from isotherm.schedules import require_positive
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, ScalarOrSchedule


def scale_mixture(
    weight: float = 0.5, wide_sd: float = 1.0, narrow_sd: float = float(np.exp(-6))
) -> Callable[[ArrayTree], jax.Array]:
    r"""Build the log density of a scale mixture of two Gaussians.

    Every number of a position has the density
    $\pi\,\mathcal N(0, \sigma_1^2) + (1 - \pi)\,\mathcal N(0, \sigma_2^2)$, normalised and
    independent of the others.

    Parameters
    ----------
    weight
        $\pi$, the weight of the wide component; the paper tries 1/4, 1/2, 3/4.
    wide_sd
        $\sigma_1$; the paper tries $e^0, e^{-1}, e^{-2}$.
    narrow_sd
        $\sigma_2$; the paper tries $e^{-6}, e^{-7}, e^{-8}$.

    Examples
    --------
    >>> round(float(scale_mixture(0.5, 1.0, 0.5)({"w": jnp.zeros(2)})), 4)  # 2 log(0.5984)
    -1.0269
    """
    if not 0 < weight < 1:
        raise ValueError(f"`weight` must be above 0 and below 1, got {weight}.")
    require_positive("wide_sd", wide_sd)
    require_positive("narrow_sd", narrow_sd)

    def log_prior(position: ArrayTree) -> jax.Array:
        def component(x: jax.Array, share: float, sd: float) -> jax.Array:
            return -0.5 * (x / sd) ** 2 + np.log(share / sd) - 0.5 * np.log(2 * np.pi)

        each = [
            jnp.sum(
                jnp.logaddexp(component(x, weight, wide_sd), component(x, 1 - weight, narrow_sd))
            )
            for x in jax.tree.leaves(position)
        ]
        return jnp.sum(jnp.stack(each))

    return log_prior


def bayes_by_backprop(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_steps: int,
    step_size: ScalarOrSchedule = 1e-3,
    initial_sd: float = 0.02,
    draws_per_step: int = 1,
    optimizer: optax.GradientTransformation | None = None,
    progress: bool | None = None,
) -> GaussianApproximation:
    r"""Fit a diagonal Gaussian to the posterior of a network.

    Parameters
    ----------
    key
        For the batches and the $z$.
    grad_fn
        From `isotherm.minibatch_gradient`, or `network.gradient(data_size)`.
    position
        Where $\mu$ starts: `network.init(key)`.
    batches
        The data, usually `isotherm.shuffled_batches((x, y), 100)`.
    num_steps
        Number of updates.
    step_size
        Of Adam: a number, or a schedule `step_index -> step_size`.
    initial_sd
        Initial value of every $\sigma$.
    draws_per_step
        Number of $z$ per step, all with the same batch.
    optimizer
        Any optax optimizer instead of Adam, for $(\mu, \rho)$ and a loss per datum; `step_size` is
        then not used.
    progress
        Whether to show a progress bar; by default, if stderr is a terminal.

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
    >>> q = bayes_by_backprop(jax.random.key(0), grad_fn, jnp.array(0.0), isotherm.full_batch(x),
    ...                       num_steps=3000, step_size=optax.cosine_decay_schedule(0.02, 3000))
    >>> bool(abs(q.mean - x.sum() / 401) < 0.01), bool(abs(q.standard_deviations() - 0.05) < 0.005)
    (True, True)
    """
    check_training(grad_fn, batches, num_steps)
    require_positive("step_size", step_size)
    require_positive("initial_sd", initial_sd)
    check_count("draws_per_step", draws_per_step)
    start, unflatten = flatten(as_position(position))
    shape = (draws_per_step, start.size)

    def log_density(x: jax.Array, batch: Batch) -> jax.Array:
        return grad_fn.log_density(unflatten(x), batch)

    def loss(key: Key, parameters: Parameters, batch: Batch) -> jax.Array:
        noise = random.gaussian(key, jnp.zeros(shape, start.dtype))
        q = Parameters(parameters.mean, jax.nn.softplus(parameters.factor))
        return -bound(log_density, q, noise, batch) / grad_fn.data_size

    training = Training("Bayes by backprop", loss, optimizer or optax.adam(cast(float, step_size)))
    rho = jnp.full_like(start, np.log(np.expm1(initial_sd)))
    fitted, losses = train(key, training, Parameters(start, rho), batches, num_steps, progress)
    scale = jax.nn.softplus(fitted.factor)
    return GaussianApproximation(unflatten(fitted.mean), scale, -grad_fn.data_size * losses)

r"""Stochastic gradient descent with momentum: one point instead of a posterior.

$$ v_{t+1} = m\,v_t + \nabla\ell_t(\theta_t), \qquad \theta_{t+1} = \theta_t - \eta_t\,v_{t+1}, \qquad
   \ell_t(\theta) = -\frac1n \sum_{i \in S_t} \log p(d_i \mid \theta) - \frac1N \log p(\theta) $$

ends near a mode of the posterior, or without the prior near a maximum of the likelihood. A prior
$\mathcal N(0, s^2)$ is weight decay $1/(s^2 N)$. The loss is that of one datum, as in deep learning, so
$\eta$ is a learning rate: a sampler's $h^2 N$ (`docs/conversions.md`).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.training import (
    Training,
    check_num_draws,
    check_training,
    momentum_optimizer,
    train,
)
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, ScalarOrSchedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PointEstimate:
    """One position in place of the posterior, with the interface of draws."""

    position: ArrayTree
    losses: jax.Array
    r"""$\ell_t(\theta_t)$ at every step."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Copy the position `num_draws` times, with leading axes `(1, num_draws)`; one will do."""
        del key
        check_num_draws(num_draws)
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (1, num_draws, *leaf.shape)), self.position
        )


def sgd(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_steps: int,
    step_size: ScalarOrSchedule = 0.1,
    momentum: float = 0.9,
    prior: bool = True,
    optimizer: optax.GradientTransformation | None = None,
    progress: bool | None = None,
) -> PointEstimate:
    r"""Train to a mode by stochastic gradient descent.

    Parameters
    ----------
    key
        For the batches.
    grad_fn
        From `isotherm.minibatch_gradient`, or `network.gradient(data_size)`.
    position
        Where to start: `network.init(key)`.
    batches
        The data, usually `isotherm.shuffled_batches((x, y), 100)`.
    num_steps
        How many updates.
    step_size
        $\eta$, or a schedule `step_index -> eta`: `isotherm.schedules.halving(0.1, every=6000)`.
    momentum
        $m$, at least 0 and below 1.
    prior
        Whether the log prior is part of the loss (a mode of the posterior) or not (maximum
        likelihood).
    optimizer
        Any optax optimiser instead; `step_size` and `momentum` are then not used.
    progress
        Show a progress bar; by default if stderr is a terminal.

    Raises
    ------
    FloatingPointError
        If the descent diverged.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> x = jnp.arange(8.0)
    >>> grad_fn = isotherm.minibatch_gradient(
    ...     lambda mean, x: -0.5 * (x - mean) ** 2, lambda mean: -4.0 * mean**2, data_size=8)
    >>> fit = sgd(jax.random.key(0), grad_fn, jnp.array(0.0), isotherm.full_batch(x), num_steps=300)
    >>> round(float(fit.position), 3), fit.sample(jax.random.key(1), 2).shape
    (1.75, (1, 2))
    """
    check_training(grad_fn, batches, num_steps)
    training = descent("SGD", grad_fn, step_size, momentum, prior, optimizer)
    position, losses = train(key, training, as_position(position), batches, num_steps, progress)
    return PointEstimate(position, losses)


def descent(
    name: str,
    grad_fn: MinibatchGradient,
    step_size: ScalarOrSchedule,
    momentum: float,
    prior: bool,
    optimizer: optax.GradientTransformation | None,
) -> Training:
    """Say what descends, and how."""

    def loss(key: Key, position: ArrayTree, batch: Batch) -> jax.Array:
        del key
        if prior:
            return -grad_fn.log_density(position, batch) / grad_fn.data_size
        return -jnp.mean(grad_fn.log_likelihood(position, batch))

    return Training(name, loss, momentum_optimizer(step_size, momentum, optimizer))

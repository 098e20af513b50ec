r"""Stochastic gradient descent with momentum: a point estimate instead of a posterior.

$$ v_{t+1} = m\,v_t + \nabla\ell_t(\theta_t), \qquad
   \theta_{t+1} = \theta_t - \eta_t\,v_{t+1}, \qquad
   \ell_t(\theta) = -\frac1n \sum_{i \in S_t} \log p(d_i \mid \theta) - \frac1N \log p(\theta) $$

It ends near a mode of the posterior or, without the prior, near a maximum of the likelihood. A
prior $\mathcal N(0, s^2)$ is weight decay $1/(s^2 N)$. The loss is per datum, as in deep learning,
so $\eta$ is a learning rate; it corresponds to $h^2 N$ of a sampler (`docs/conversions.md`).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.gaussian import check_count
from isotherm.paper.baselines.training import (
    Training,
    check_training,
    momentum_optimizer,
    train,
)
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, BatchPolicy, Key, ScalarOrSchedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PointEstimate:
    """A single position as approximation of the posterior."""

    position: ArrayTree
    losses: jax.Array
    r"""$\ell_t(\theta_t)$ at every step."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Return `num_draws` copies of the position, with leading axes `(1, num_draws)`."""
        del key
        check_count("num_draws", num_draws)
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
        Number of updates.
    step_size
        $\eta$, or a schedule `step_index -> eta`: `isotherm.schedules.halving(0.1, every=6000)`.
    momentum
        $m$, at least 0 and below 1.
    prior
        Whether the loss includes the log prior (posterior mode) or not (maximum likelihood).
    optimizer
        Any optax optimizer; `step_size` and `momentum` are then not used.
    progress
        Whether to show a progress bar; by default, if stderr is a terminal.

    Raises
    ------
    FloatingPointError
        If a loss or a parameter is not finite.

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
    training = sgd_training("SGD", grad_fn, step_size, momentum, prior, optimizer)
    position, losses = train(key, training, as_position(position), batches, num_steps, progress)
    return PointEstimate(position, losses)


def sgd_training(
    name: str,
    grad_fn: MinibatchGradient,
    step_size: ScalarOrSchedule,
    momentum: float,
    prior: bool,
    optimizer: optax.GradientTransformation | None,
) -> Training:
    """Build the training program of SGD: the loss per datum, and the optimizer."""
    optimizer = momentum_optimizer(step_size, momentum, optimizer)
    return Training(name, _Loss(grad_fn, prior), optimizer)


@dataclass(frozen=True)
class _Loss:
    """The loss per datum; equal losses share a compiled program."""

    grad_fn: MinibatchGradient
    prior: bool

    def __call__(self, key: Key, position: ArrayTree, batch: Batch) -> jax.Array:
        del key
        if self.prior:
            return -self.grad_fn.log_density(position, batch) / self.grad_fn.data_size
        return -jnp.mean(self.grad_fn.log_likelihood(position, batch))

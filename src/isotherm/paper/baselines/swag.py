r"""SWAG: a Gaussian with the mean and the covariance of the iterates of SGD.

Starting at a trained network, SGD with a constant step size wanders around a mode. Of every $c$-th
iterate $\theta_i$, $i = 1, \dots, n$, it keeps the mean $\bar\theta_i$, the mean of squares, and
the last $K$ deviations $\theta_i - \bar\theta_i$ from the mean so far, the columns of $\hat D$:

$$ q(\theta) = \mathcal N\Bigl(\bar\theta_n,\ \tfrac12\Sigma_{diag}
   + \tfrac{1}{2(K - 1)}\hat D\hat D^\top\Bigr), \qquad
   \Sigma_{diag} = \operatorname{diag}\bigl(\overline{\theta^2}_n - \bar\theta_n^2\bigr) . $$

A draw is $\bar\theta + \tfrac{1}{\sqrt2}\Sigma_{diag}^{1/2} z_1
+ \tfrac{1}{\sqrt{2(K - 1)}}\hat D z_2$ with standard normal $z_1$ and $z_2$.

The width of $q$ is that of the iterates and depends on the step size and the batches. On a
quadratic loss of curvature $\lambda$ with independent gradient noise of variance $s^2$ the variance
of the iterates without momentum is exactly $\eta s^2/\lambda(2 - \eta\lambda)$. It equals that of
the posterior for one step size only, which has to be chosen (Mandt, Hoffman & Blei 2017).

References
----------
Maddox, Garipov, Izmailov, Vetrov & Wilson (2019), *A simple baseline for Bayesian uncertainty in
deep learning*, NeurIPS.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isotherm import random
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.gaussian import check_count, flatten
from isotherm.paper.baselines.sgd import sgd_training
from isotherm.paper.baselines.training import (
    check_training,
    momentum_optimizer,
    train_state,
)
from isotherm.tree import as_position
from isotherm.types import ArrayTree, BatchPolicy, Key, ScalarOrSchedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Swag:
    """A Gaussian whose covariance is diagonal plus of low rank."""

    mean: ArrayTree
    r"""$\bar\theta_n$."""
    variances: jax.Array
    r"""The diagonal of $\Sigma_{diag}$, over the flattened position."""
    deviations: jax.Array
    r"""$\hat D^\top$, (K, d)."""
    losses: jax.Array
    """The loss at every step."""

    @property
    def covariance(self) -> jax.Array:
        """The covariance over the flattened position, (d, d)."""
        low_rank = self.deviations.T @ self.deviations / (len(self.deviations) - 1)
        return 0.5 * (jnp.diag(self.variances) + low_rank)

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Draw positions, with leading axes `(1, num_draws)` as in a run of one chain."""
        check_count("num_draws", num_draws)
        flat, unflatten = flatten(self.mean)
        rank = len(self.deviations)
        noise = random.gaussian(
            key, (jnp.zeros((num_draws, flat.size)), jnp.zeros((num_draws, rank)))
        )
        own = noise[0] * jnp.sqrt(0.5 * self.variances)[None]
        shared = noise[1] @ self.deviations / np.sqrt(2 * (rank - 1))
        positions = jax.vmap(unflatten)(flat[None] + own + shared)
        return jax.tree.map(lambda leaf: leaf[None], positions)


class _Moments(NamedTuple):
    """Moments of the iterates, kept by the optimizer beside its own state."""

    own: optax.OptState
    step_index: jax.Array
    mean: jax.Array
    squares: jax.Array
    deviations: jax.Array


def swag(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    num_steps: int,
    step_size: ScalarOrSchedule = 0.01,
    momentum: float = 0.9,
    prior: bool = True,
    optimizer: optax.GradientTransformation | None = None,
    collect_every: int | None = None,
    rank: int = 20,
    progress: bool | None = None,
) -> Swag:
    r"""Fit a Gaussian to the iterates of SGD around a trained network.

    Parameters
    ----------
    key
        For the batches.
    grad_fn
        From `isotherm.minibatch_gradient`, or `network.gradient(data_size)`.
    position
        Where to start: a trained network, such as `sgd(...).position`.
    batches
        The data, usually `isotherm.shuffled_batches((x, y), 100)`.
    num_steps
        Number of updates, at least `rank * collect_every`.
    step_size, momentum, prior, optimizer, progress
        As in `isotherm.paper.baselines.sgd.sgd`; the step size is usually constant.
    collect_every
        $c$; by default an epoch, as in the paper, if that gives `rank` iterates.
    rank
        $K \ge 2$, the number of deviations that are kept.

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
    >>> fit = swag(jax.random.key(0), grad_fn, jnp.array(1.75), isotherm.independent_batches(x, 2),
    ...            num_steps=4000, collect_every=1)
    >>> bool(abs(fit.mean - 1.75) < 0.1), fit.sample(jax.random.key(1), 3).shape
    (True, (1, 3))
    """
    check_training(grad_fn, batches, num_steps)
    if not rank >= 2:
        raise ValueError(f"`rank` must be at least 2, got {rank}.")
    epoch = getattr(batches, "epoch_length", 1)
    every = max(1, min(epoch, num_steps // rank)) if collect_every is None else collect_every
    check_count("collect_every", every)
    if num_steps < rank * every:
        raise ValueError(
            f"`num_steps` must be at least `rank * collect_every`, {rank * every}, got {num_steps}."
        )
    own = momentum_optimizer(step_size, momentum, optimizer)
    collecting = _collecting(own, every, rank)
    training = sgd_training("SWAG", grad_fn, step_size, momentum, prior, collecting)
    start = as_position(position)
    state = train_state(key, training, start, batches, num_steps, progress)
    moments: Any = state.optimizer_state
    _, unflatten = flatten(start)
    variances = jnp.maximum(moments.squares - moments.mean**2, 0)
    origin = moments.mean + flatten(start)[0]
    return Swag(unflatten(origin), variances, moments.deviations, state.losses)


@lru_cache(maxsize=64)
def _collecting(
    optimizer: optax.GradientTransformation, every: int, rank: int
) -> optax.GradientTransformation:
    """Return the optimizer with running moments of the parameters in its state.

    Moments are those of the distance from the start, so that the difference of mean square and
    squared mean loses no digits.
    """

    def init(params: Any) -> Any:
        start = jnp.copy(flatten(params)[0])
        mean, squares = jnp.zeros_like(start), jnp.zeros_like(start)
        own, index = (optimizer.init(params), start), jnp.zeros((), jnp.int32)
        return _Moments(own, index, mean, squares, jnp.zeros((rank, start.size)))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        inner, start = state.own
        updates, inner = optimizer.update(updates, inner, params)
        step_index = state.step_index + 1
        new = flatten(optax.apply_updates(params, updates))[0] - start
        count = step_index // every
        mean = state.mean + (new - state.mean) / jnp.maximum(count, 1)
        squares = state.squares + (new**2 - state.squares) / jnp.maximum(count, 1)
        deviations = state.deviations.at[(count - 1) % rank].set(new - mean)
        kept = _Moments((inner, start), step_index, mean, squares, deviations)
        left = _Moments((inner, start), step_index, state.mean, state.squares, state.deviations)
        chosen = jax.tree.map(lambda a, b: jnp.where(step_index % every == 0, a, b), kept, left)
        return updates, chosen

    return optax.GradientTransformation(init, update)

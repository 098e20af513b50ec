r"""Deep ensembles: the average of several networks that were trained from different starts.

$$ p(y \mid x) \approx \frac1M \sum_{m=1}^M p(y \mid x, \theta_m) $$

with $\theta_m$ trained by stochastic gradient descent (`baselines.sgd`) from its own random start
with its own batches. This is not a posterior: the members are modes, without the spread around
each. It costs $M$ times as much as one network and is hard to beat at that cost.

References
----------
Lakshminarayanan, Pritzel & Blundell (2017), *Simple and scalable predictive uncertainty estimation
using deep ensembles*, NIPS. Their adversarial training is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax

from isotherm import random
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.paper.baselines.gaussian import check_count
from isotherm.paper.baselines.sgd import sgd_training
from isotherm.paper.baselines.training import check_training, train
from isotherm.tree import as_position
from isotherm.types import ArrayTree, BatchPolicy, Key, ScalarOrSchedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ensemble:
    """Several positions as approximation of the posterior."""

    members: ArrayTree
    """Positions, with a leading axis over members."""
    losses: jax.Array
    """The loss of every member at every step, (member, step)."""

    def sample(self, key: Key, num_draws: int) -> ArrayTree:
        """Return members in a random order; none is repeated before all have been used.

        Leading axes are `(1, num_draws)`. If `num_draws` is a multiple of the number of members,
        the mean over draws is the mean over members.
        """
        check_count("num_draws", num_draws)
        order = _order(key, num_draws, self.losses.shape[0])
        return jax.tree.map(lambda leaf: leaf[order][None], self.members)


@partial(jax.jit, static_argnames=["num_draws", "num_members"])
def _order(key: Key, num_draws: int, num_members: int) -> jax.Array:
    return random.permuted(key, jnp.arange(num_draws) % num_members, num_members)


def deep_ensemble(
    key: Key,
    grad_fn: MinibatchGradient,
    init: Callable[[Key], ArrayTree],
    batches: BatchPolicy,
    *,
    num_steps: int,
    num_members: int = 5,
    step_size: ScalarOrSchedule = 0.1,
    momentum: float = 0.9,
    prior: bool = True,
    optimizer: optax.GradientTransformation | None = None,
    progress: bool | None = None,
) -> Ensemble:
    r"""Train networks from independent starts, one after the other.

    Parameters
    ----------
    key
        For starts and batches. Member $m$ starts at `init(fold(fold(key, m), 0))` and is trained by
        `sgd` with the key `fold(fold(key, m), 1)` (`isotherm.random.fold`).
    grad_fn
        From `isotherm.minibatch_gradient`, or `network.gradient(data_size)`.
    init
        `key -> position`: `network.init`.
    batches
        The data, usually `isotherm.shuffled_batches((x, y), 100)`.
    num_steps
        Updates per member.
    num_members
        $M$, the number of networks.
    step_size, momentum, prior, optimizer, progress
        As in `sgd`.

    Raises
    ------
    FloatingPointError
        If a member diverged.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> x = jnp.arange(8.0)
    >>> grad_fn = isotherm.minibatch_gradient(
    ...     lambda w, x: -0.5 * (x / 8 - w**2) ** 2, lambda w: -0.5 * w**2, data_size=8)
    >>> fit = deep_ensemble(jax.random.key(0), grad_fn, jax.random.normal, isotherm.full_batch(x),
    ...                     num_steps=300, num_members=4)
    >>> jnp.unique(jnp.abs(fit.members).round(2)).size  # two modes, of opposite sign
    1
    """
    check_training(grad_fn, batches, num_steps)
    check_count("num_members", num_members)
    training = sgd_training("deep ensemble", grad_fn, step_size, momentum, prior, optimizer)
    fits = []
    for m in range(num_members):
        start_key, train_key = (random.fold(random.fold(key, m), i) for i in range(2))
        start = as_position(init(start_key))
        fits.append(train(train_key, training, start, batches, num_steps, progress))
    members, losses = jax.tree.map(lambda *leaves: jnp.stack(leaves), *fits)
    return Ensemble(members, losses)

r"""Hamiltonian Monte Carlo on all data, for networks: the reference where it is feasible.

Every draw is a trajectory of $L$ leapfrog steps from a fresh momentum, accepted or rejected by a
Metropolis test, so that draws have the exact posterior at any step size
(`isotherm.references.hmc`). The step size is changed during a first phase towards a given share of
accepted proposals,

$$ \log h \leftarrow \log h + (\bar a - a^*), $$

once per round of a few trajectories, and is then fixed. The position must be in units in which the
prior is of order one: with `LearnedScales()` (not centred) weights are standard normal, and scales
and noise are sampled with them.

It costs $L$ gradients on all rows per draw. A trajectory should be as long as the posterior is
wide: $Lh$ of order 1 in these units.

References
----------
Neal (1996), *Bayesian learning for neural networks*. Neal (2011), *MCMC using Hamiltonian
dynamics*.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm import random
from isotherm.models.networks import Network
from isotherm.paper.baselines.gaussian import check_count
from isotherm.paper.baselines.training import KeptDraws
from isotherm.references.hmc import hmc
from isotherm.references.network import network_target
from isotherm.schedules import require_positive
from isotherm.types import ArrayTree, Batch, Key

LARGEST_CHANGE = 0.7
r"""Largest change of $\log h$ in a round."""


class HmcRun(NamedTuple):
    """Draws and how they were made."""

    fitted: KeptDraws
    step_size: float
    accepted: float
    """Share of accepted proposals among the kept draws."""


def full_hmc(
    key: Key,
    network: Network,
    starts: ArrayTree,
    data: Batch,
    *,
    num_draws: int,
    num_leapfrog: int,
    burn_in: int,
    step_size: float = 1e-3,
    accepted: float = 0.8,
    rounds: int = 20,
) -> HmcRun:
    r"""Sample the posterior of a network given all data.

    Parameters
    ----------
    key
        For momenta and acceptance.
    network
        The network; its prior should have unit scale in the coordinates of the position.
    starts
        Positions with a leading axis of chains: trained networks.
    data
        `(x, y)`, all rows.
    num_draws
        Draws kept per chain.
    num_leapfrog
        $L$.
    burn_in
        Trajectories before the first kept draw; the first half adapts the step size in `rounds`.
    step_size
        $h$ at the start.
    accepted
        $a^*$, the share of proposals that should be accepted.
    rounds
        Number of changes of the step size.
    """
    require_positive("step_size", step_size)
    for name, value in (("num_draws", num_draws), ("num_leapfrog", num_leapfrog)):
        check_count(name, value)
    check_count("burn_in", burn_in)
    first = jax.tree.map(lambda leaf: leaf[0], starts)
    target = network_target(network, data, first)
    position = np.asarray(jax.vmap(lambda w: ravel_pytree(w)[0])(starts), np.float64)
    rounds = min(rounds, max(1, burn_in // 2))
    per_round = max(1, burn_in // 2 // rounds)

    def trajectories(position: np.ndarray, count: int, seed: Key) -> tuple[np.ndarray, float]:
        return hmc(
            target,
            num_chains=len(position),
            num_draws=count,
            burn_in=0,
            seed=random.numpy_seed(seed),
            step_size=step_size,
            num_leapfrog=num_leapfrog,
            starts=position,
        )

    for i in range(rounds):
        draws, share = trajectories(position, per_round, random.fold(key, i))
        position = draws[:, -1]
        step_size *= float(np.exp(np.clip(share - accepted, -LARGEST_CHANGE, LARGEST_CHANGE)))
    rest = burn_in - rounds * per_round
    draws, share = trajectories(position, num_draws + rest, random.fold(key, rounds))
    unravel = ravel_pytree(first)[1]
    kept = jax.vmap(jax.vmap(unravel))(jnp.asarray(draws[:, rest:], jnp.float32))
    return HmcRun(KeptDraws(kept), step_size, share)

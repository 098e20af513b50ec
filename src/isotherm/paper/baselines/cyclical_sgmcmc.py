r"""Cyclical SG-MCMC: a step size that rises again and again, so that a chain visits several modes.

A run of $K$ steps is divided into $M$ cycles. In each, the learning rate falls by a cosine,

$$ \alpha_k = \frac{\alpha_0}{2}\Bigl[\cos\Bigl(\pi\,\frac{(k - 1) \bmod \lceil K/M\rceil}
   {\lceil K/M\rceil}\Bigr) + 1\Bigr] . $$

In the first share $\beta$ of a cycle the chain *explores*: noise is left out ($T = 0$), so that it
descends into a mode. In the rest it *samples* at temperature 1, and draws are kept. The mixture of
the draws of all cycles weights modes equally, not by their probability; within a mode it has the
bias of its sampler at a falling step size.

The learning rate multiplies the gradient of $-\log\pi$. It is $h$ of `isotherm.sgld`, and $h^2$ of
`isotherm.sghmc`: there the schedule is $h_k = \sqrt{\alpha_k}$.

References
----------
Zhang, Li, Zhang, Chen & Wilson (2020), *Cyclical stochastic gradient MCMC for Bayesian deep
learning*, ICLR.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm.paper.baselines.gaussian import check_count
from isotherm.paper.baselines.training import KeptDraws, run_chains
from isotherm.schedules import cyclical, require_positive
from isotherm.types import (
    ArrayTree,
    Batch,
    BatchPolicy,
    GradFn,
    Key,
    Sampler,
    Scalar,
    StepInfo,
)


def cyclical_sgmcmc(
    key: Key,
    grad_fn: GradFn,
    position: ArrayTree,
    batches: BatchPolicy,
    *,
    learning_rate: float,
    num_cycles: int = 4,
    steps_per_cycle: int,
    draws_per_cycle: int = 10,
    exploration: float = 0.8,
    sampler: str = "sghmc",
    friction: float = 1.0,
    num_chains: int = 1,
    position_per_chain: bool = False,
) -> KeptDraws:
    r"""Sample in cycles of falling step size; keep the draws of all sampling stages.

    Parameters
    ----------
    key
        Determines everything: chains, batches and noise.
    grad_fn
        From `isotherm.minibatch_gradient`, or `network.gradient(data_size)`.
    position
        Where the chains start: `network.init(key)`.
    batches
        The data, usually `isotherm.shuffled_batches((x, y), 100)`.
    learning_rate
        $\alpha_0$: the $h$ of SGLD, or the $h^2$ of SGHMC, at the start of a cycle. Divided by the
        number of data it is a learning rate of SGD with a loss per datum.
    num_cycles
        $M$.
    steps_per_cycle
        $\lceil K/M\rceil$.
    draws_per_cycle
        Draws kept in the sampling stage of each cycle, equally spaced.
    exploration
        $\beta$, the share of a cycle without noise.
    sampler
        `"sghmc"` or `"sgld"`.
    friction
        $\gamma$ of SGHMC; 1/time. With a momentum of $1 - \alpha$ per step in the paper's units,
        $\gamma = \alpha/h$.
    num_chains, position_per_chain
        As in `isotherm.sample`.

    Raises
    ------
    FloatingPointError
        If a chain diverged.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> fit = cyclical_sgmcmc(jax.random.key(0), lambda x, batch: -x, jnp.zeros(2),
    ...                       isotherm.no_batches(), learning_rate=0.01, steps_per_cycle=100)
    >>> fit.draws.shape, fit.sample(jax.random.key(1), 7).shape
    ((1, 40, 2), (1, 7, 2))
    """
    require_positive("learning_rate", learning_rate)
    require_positive("friction", friction)
    check_count("num_cycles", num_cycles)
    check_count("draws_per_cycle", draws_per_cycle)
    if sampler not in ("sghmc", "sgld"):
        raise ValueError(f"`sampler` must be 'sghmc' or 'sgld', got {sampler!r}.")
    if not 0 <= exploration < 1:
        raise ValueError(f"`exploration` must be at least 0 and below 1, got {exploration}.")
    thin = int((1 - exploration) * steps_per_cycle + 1e-9) // draws_per_cycle
    if thin < 1:
        raise ValueError(
            f"`steps_per_cycle` must leave {draws_per_cycle} steps for sampling, got "
            f"{steps_per_cycle} with exploration {exploration}."
        )
    period = steps_per_cycle // thin * thin  # a whole number of kept draws
    run = run_chains(
        key,
        _Stages(grad_fn, sampler, period),
        (learning_rate, exploration, friction),
        position,
        batches,
        num_draws=num_cycles * (period // thin),
        thin=thin,
        num_chains=num_chains,
        position_per_chain=position_per_chain,
    )

    def sampled(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        shape = (leaf.shape[0], num_cycles, period // thin, *leaf.shape[2:])
        last = leaf.reshape(shape)[:, :, -draws_per_cycle:]
        return last.reshape(leaf.shape[0], num_cycles * draws_per_cycle, *leaf.shape[2:])

    return KeptDraws(jax.tree.map(sampled, run.draws))


@dataclass(frozen=True)
class _Stages:
    """The sampler that explores in the first part of a cycle and samples in the rest."""

    grad_fn: GradFn
    kind: str
    period: int

    def __call__(self, learning_rate: float, exploration: float, friction: float) -> Sampler:
        rate = cyclical(learning_rate, self.period)

        def at(temperature: Scalar) -> Sampler:
            if self.kind == "sgld":
                return isotherm.sgld(self.grad_fn, rate, temperature=temperature)
            step_size = lambda t: jnp.sqrt(rate(t))  # noqa: E731
            return isotherm.sghmc(self.grad_fn, step_size, friction, temperature=temperature)

        def step(key: Key, state: Any, batch: Batch) -> tuple[Any, StepInfo]:
            phase = (state.step_index % self.period) / self.period
            return at(jnp.where(phase < exploration, 0.0, 1.0)).step(key, state, batch)

        return Sampler(at(1.0).init, step)

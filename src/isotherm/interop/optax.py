r"""Any sampler as an optax optimiser: an existing training loop becomes a posterior sampler.

    optimizer = optax.adam(1e-3)                                                     # before
    optimizer = isotherm.as_optax(isotherm.msgnht(None, 1e-3), key, loss_scale=N)    # after

optax passes the optimiser one gradient per update, taken at the parameters it returned last. A
palindrome such as ABOBA needs its gradient in the middle of the step, so the parameters in the loop
are the *half-step positions*; each update finishes one step and begins the next. The chain itself
is in the optimiser's state: `state.position` is the draw. Before the first half step no gradient is
needed, so the first update of such a sampler only moves there; from then on update $k + 1$ is step
$k$ of the sampler, number for number.

Memory, in copies of the parameters: the state of mSGNHT is three (position, momentum, thermostat)
and the parameters of the loop are a fourth, one more than with Adam or with `isotherm.sample`. The
two positions cannot be shared: the loop needs the half step, where the gradient is taken, and the
draw is the whole step. Donate parameters and state to the compiled update, so that they are not
stored twice.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from isotherm import random
from isotherm.tree import check_gradient
from isotherm.types import ArrayTree, Key, Sampler


class AsOptaxState(NamedTuple):
    """The state of the sampler between steps, and the number of updates."""

    chain: Any
    num_updates: jax.Array
    key: Key

    @property
    def position(self) -> ArrayTree:
        """The latest draw."""
        return self.chain.position


def as_optax(
    sampler: Sampler, key: Key, *, loss_scale: float = 1.0
) -> optax.GradientTransformation:
    r"""Convert a sampler to an `optax.GradientTransformation`.

    Parameters
    ----------
    sampler
        Any sampler with one gradient per step; its own `grad_fn` is not used and may be `None`,
        but not a balanced gradient.
    key
        For momentum and noise.
    loss_scale
        The loss of the loop times this is $-\log\pi$ up to a constant. For a mean over $N$ data,
        minus the log prior divided by $N$, it is $N$.

    Examples
    --------
    >>> import isotherm, jax, jax.numpy as jnp, optax
    >>> optimizer = as_optax(isotherm.msgnht(None, step_size=0.1), jax.random.key(0))
    >>> params = jnp.ones(3)
    >>> state = optimizer.init(params)
    >>> for _ in range(5):
    ...     updates, state = optimizer.update(params, state, params)  # loss |params|^2 / 2
    ...     params = optax.apply_updates(params, updates)
    >>> int(state.num_updates), state.position.shape
    (5, (3,))
    """
    if sampler.traits.balanced:
        raise ValueError(
            f"{sampler.traits.name} has a balanced gradient, which needs the log likelihood of "
            "every row, but optax passes only the mean gradient of a batch. Use isotherm.sample, "
            "or build the sampler with `None` instead of a gradient."
        )
    if sampler.halves is None:
        raise ValueError(
            f"{sampler.traits.name} with integrator {sampler.traits.integrator!r} does not have "
            "exactly one gradient per step, but optax passes one per update."
        )
    halves = sampler.halves

    def init(params: ArrayTree) -> AsOptaxState:
        chain = sampler.init(params, random.fold(key, 2))
        return AsOptaxState(chain, jnp.zeros((), jnp.int32), key)

    def update(
        updates: ArrayTree, state: Any, params: ArrayTree | None = None
    ) -> tuple[ArrayTree, AsOptaxState]:
        if params is None:
            raise ValueError("as_optax needs `params`: call update(grads, state, params).")
        check_gradient(params, updates)
        noise_key = random.fold(state.key, 0)
        uphill = jax.tree.map(lambda g: -loss_scale * g, updates)

        def finish(chain: Any) -> Any:
            step_key = random.fold(noise_key, chain.step_index)
            opened = halves.open(step_key, chain)
            return halves.close(step_key, opened, uphill)[0]

        chain = state.chain
        if halves.moves_before_gradient:
            chain = jax.lax.cond(state.num_updates > 0, finish, lambda chain: chain, chain)
            ahead = halves.open(random.fold(noise_key, chain.step_index), chain)
        else:
            chain = ahead = finish(chain)
        updates = jax.tree.map(
            lambda new, old: (new - old).astype(old.dtype), ahead.position, params
        )
        return updates, AsOptaxState(chain, state.num_updates + 1, state.key)

    return optax.GradientTransformation(init, update)

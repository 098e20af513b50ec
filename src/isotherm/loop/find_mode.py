"""Find a mode of the posterior with an optax optimiser on minibatches."""

import jax
import optax

from isotherm.batches.in_memory import InMemoryBatches
from isotherm.batches.streamed import StackedBatches, StreamedBatches
from isotherm.exceptions import HealthWarning
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.loop.devices import Devices
from isotherm.loop.feed import Feed
from isotherm.loop.user_warnings import Message, warn_user
from isotherm.tree import as_position, is_finite
from isotherm.types import ArrayTree, Batch, Key

RATE, MAX_TRIES = 0.03, 3
"""Learning rate of the default optimiser at its start, and how often it is divided by ten."""


def find_mode(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches | StreamedBatches,
    *,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 2000,
) -> ArrayTree:
    r"""Return an approximate mode of the posterior.

    Parameters
    ----------
    key
        For the batches.
    grad_fn
        From `isotherm.minibatch_gradient`.
    position
        Where to start.
    batches
        The data, in memory or streamed.
    optimizer
        Minimises $-\log\pi/N$; by default Adam with a cosine decay from 0.03 to 0. If that ends in
        a position that is not finite, it starts again with 0.003 and 0.0003, and a warning.
    num_steps
        Number of updates.

    Raises
    ------
    FloatingPointError
        If the position at the end is not finite.

    Examples
    --------
    >>> import isotherm, jax, jax.numpy as jnp
    >>> x = 3 + jax.random.normal(jax.random.key(0), (100,))
    >>> grad_fn = isotherm.minibatch_gradient(lambda m, x: -0.5 * (x - m)**2, lambda m: -m**2, 100)
    >>> mode = find_mode(jax.random.key(1), grad_fn, 0.0, isotherm.independent_batches(x, 20))
    >>> bool(abs(mode - x.sum() / 102) < 0.05)
    True
    """
    check_target(grad_fn, batches)
    start = as_position(position)
    rates = [RATE * 0.1**i for i in range(MAX_TRIES if optimizer is None else 1)]
    for i, rate in enumerate(rates):
        transform = optimizer or optax.adam(optax.cosine_decay_schedule(rate, num_steps))
        found = _ascend(key, grad_fn, start, batches, transform, num_steps)
        if is_finite(found):
            if i > 0:
                text = (
                    "The search for the mode ran away (its position became infinite or NaN), so it "
                    f"was repeated from the start with steps of {rate:.2g} instead of {RATE:.2g}. "
                    "Check the scale of the data, or pass an `optimizer`."
                )
                warn_user(Message(text, HealthWarning))
            return found
    raise FloatingPointError(
        "The search for the mode ran away: its position is not finite after "
        f"{num_steps} steps. Check the data and the log density at the start, start from another "
        "position, or pass an `optimizer` with shorter steps."
    )


def _ascend(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: InMemoryBatches | StreamedBatches,
    transform: optax.GradientTransformation,
    num_steps: int,
) -> ArrayTree:
    if isinstance(batches, StreamedBatches):
        return _ascend_stream(key, grad_fn, position, batches, transform, num_steps)

    @jax.jit
    def ascend(position: ArrayTree, batches: InMemoryBatches) -> ArrayTree:
        def update(t: jax.Array, carry: tuple) -> tuple:
            return _update(grad_fn, transform, carry, batches.batch(key, t))

        return jax.lax.fori_loop(0, num_steps, update, (position, transform.init(position)))[0]

    return ascend(position, batches)


def _update(
    grad_fn: MinibatchGradient,
    transform: optax.GradientTransformation,
    carry: tuple,
    batch: Batch,
) -> tuple:
    """Make one update of the position and the state of the optimiser."""
    position, state = carry
    grads = grad_fn(position, batch)
    loss_grads = jax.tree.map(lambda g: -g / grad_fn.data_size, grads)
    updates, state = transform.update(loss_grads, state, position)
    return optax.apply_updates(position, updates), state


def _ascend_stream(
    key: Key,
    grad_fn: MinibatchGradient,
    position: ArrayTree,
    batches: StreamedBatches,
    transform: optax.GradientTransformation,
    num_steps: int,
) -> ArrayTree:
    """Make updates with stacks of batches, which a thread reads."""

    @jax.jit
    def ascend(carry: tuple, stack: StackedBatches, first: int, end: int) -> tuple:
        def update(t: jax.Array, carry: tuple) -> tuple:
            return _update(grad_fn, transform, carry, stack.batch(key, t))

        return jax.lax.fori_loop(first, end, update, carry)

    carry, step = (position, transform.init(position)), 0
    batch_key = jax.random.wrap_key_data(
        jax.random.key_data(key)[None], impl=jax.random.key_impl(key)
    )
    with Feed(batches, batch_key, Devices(None, 1, batches), num_steps, own_key=True) as feed:
        while step < num_steps:
            stack, end = feed.stack(step)
            one = jax.tree.map(lambda x: x if feed.shared else x[0], stack)
            carry, step = ascend(carry, one, step, end), end
    return carry[0]


def check_target(grad_fn: object, batches: object) -> None:
    """Raise an error unless prior, likelihood and data can be told apart."""
    if not isinstance(grad_fn, MinibatchGradient):
        raise ValueError(
            "`grad_fn` must come from isotherm.minibatch_gradient: the log prior and the log "
            f"likelihood are needed separately, got {grad_fn!r}."
        )
    if isinstance(batches, StreamedBatches):
        if batches.data_size not in (None, grad_fn.data_size):
            raise ValueError(
                f"`batches` has {batches.data_size} rows, but `data_size` of the gradient is "
                f"{grad_fn.data_size}."
            )
        return
    if not isinstance(batches, InMemoryBatches):
        raise ValueError(
            "`batches` must hold the data, as isotherm.independent_batches((x, y), 100) does, "
            f"got {type(batches).__name__}."
        )

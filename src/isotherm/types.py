r"""The nouns every other module is written in.

A *sampler* is a pair of pure functions and a *gradient* is one function; everything else in
isotherm is built from these two seams.

- `GradFn`: `(position, batch) -> grads`, an estimate of $+\nabla\log\pi$ at full-data scale.
- `Sampler`: `init(position, key) -> state` and `step(key, state, batch) -> (state, info)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

ArrayTree = Any
"""A pytree whose leaves are arrays of real floating-point numbers."""

Batch = Any
"""Whatever a gradient function wants: a pytree of rows, a key, a scheduled anchor, or nothing."""

Key = jax.Array
"""A typed key, as `jax.random.key` makes it; never used twice."""

Scalar = float | jax.Array
"""A number: of Python, of JAX, or traced."""

GradFn = Callable[[ArrayTree, Batch], ArrayTree]
Schedule = Callable[[jax.Array], Scalar]
ScalarOrSchedule = Scalar | Schedule


class BatchPolicy(Protocol):
    """Anything that can give the batch of a step; a pytree, so that its data can be an argument."""

    @property
    def policy(self) -> str:
        """The policy's name, for messages."""
        ...

    def batch(self, key: Key, step_index: jax.Array) -> Batch:
        """Give the batch of step `step_index` for the chain with this key."""
        ...


class State(Protocol):
    """What every sampler's state can be asked for."""

    @property
    def position(self) -> ArrayTree:
        """The point the chain has reached, in the coordinates of the user."""
        ...

    @property
    def step_index(self) -> jax.Array:
        """How many steps the chain has taken."""
        ...


class StepInfo(NamedTuple):
    r"""What a step can tell beyond the new state.

    The loop asks for it once per kept draw, and XLA drops what nobody reads, so it costs nothing
    in between.
    """

    step_size: jax.Array
    """$h$ of this step."""
    virial: jax.Array
    r"""Per leaf of the position, $-\theta\cdot\hat g/d$: its mean is the temperature."""


@dataclass(frozen=True)
class Traits:
    """What messages, warnings and reports need to know about a sampler."""

    name: str = "sampler"
    integrator: str | None = None
    thermostat: str | None = None
    temperature: Any = 1.0
    adaptive: bool = False
    """Whether a thermostat reads the gradient noise off the momentum (SGNHT, mSGNHT)."""


class Halves(NamedTuple):
    """A step cut at its one gradient: `step = close(open(state), gradient there)`.

    `open(key, state) -> state` ends where the gradient is wanted (at `.position`);
    `close(key, state, grads) -> (state, info)` takes the gradient and finishes the step.
    A loop that carries opened states lets XLA join the end of a step to the start of the next.
    """

    open: Callable[[Key, Any], Any]
    close: Callable[[Key, Any, ArrayTree], tuple[Any, StepInfo]]
    moves_before_gradient: bool
    """Whether the gradient is wanted somewhere else than where the last step ended."""
    gradient: GradFn
    """The sampler's own gradient function; complains if it was built without one."""


class Sampler(NamedTuple):
    """A Markov chain as two pure functions; the other fields have defaults and may be ignored."""

    init: Callable[..., Any]
    """`init(position, key) -> state`."""
    step: Callable[[Key, Any, Batch], tuple[Any, StepInfo]]
    """`step(key, state, batch) -> (state, info)`; one key, used once."""
    halves: Halves | None = None
    """The step cut at its gradient, where it has exactly one (see `isotherm.as_optax`)."""
    traits: Traits = Traits()

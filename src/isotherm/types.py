r"""The types that every other module uses.

A *sampler* is a pair of pure functions and a *gradient* is one function; everything else in
isotherm is built on these two interfaces.

- `GradFn`: `(position, batch) -> grads`, an estimate of $+\nabla\log\pi$ at full-data scale.
- `Sampler`: `init(position, key) -> state` and `step(key, state, batch) -> (state, info)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.core
import numpy as np

ArrayTree = Any
"""A pytree whose leaves are arrays of real floating-point numbers."""

Batch = Any
"""What a gradient function takes as data: a pytree of rows, a key, or `None`."""

Key = jax.Array
"""A typed key, as `jax.random.key` returns it; use a key only once."""

Scalar = float | jax.Array
"""A Python number, a JAX scalar, or a traced value."""

GradFn = Callable[[ArrayTree, Batch], ArrayTree]


@runtime_checkable
class VelocityGradient(Protocol):
    """A gradient that also depends on the velocity, as `isotherm.balanced` makes it.

    Samplers with momentum call `at_velocity` where they would call a plain gradient.
    """

    def __call__(self, position: ArrayTree, batch: Batch) -> ArrayTree:
        """Return the plain estimate."""
        ...

    def at_velocity(
        self,
        position: ArrayTree,
        batch: Batch,
        velocity: ArrayTree,
        duration: Scalar,
        temperature: Scalar,
    ) -> ArrayTree:
        """Return the gradient for a kick of this duration; the velocity is that of `position`."""
        ...


Schedule = Callable[[jax.Array], Scalar]
ScalarOrSchedule = Scalar | Schedule


class BatchPolicy(Protocol):
    """A rule that returns the batch of each step.

    It is a pytree, so that the data are an argument of the compiled program.
    """

    @property
    def policy(self) -> str:
        """Name of the policy, for messages."""
        ...

    def batch(self, key: Key, step_index: jax.Array) -> Batch:
        """Return the batch of step `step_index` for the chain with this key."""
        ...


class State(Protocol):
    """The attributes that the state of every sampler has."""

    @property
    def position(self) -> ArrayTree:
        """The current position, in the coordinates of the user."""
        ...

    @property
    def step_index(self) -> jax.Array:
        """Number of steps that the chain has taken."""
        ...


class StepInfo(NamedTuple):
    r"""What a step reports besides the new state.

    The loop reads it once per kept draw. XLA removes unused outputs, so it is free at other steps.
    """

    step_size: jax.Array
    """$h$ of this step."""
    virial: jax.Array
    r"""For each leaf of the position, $-\theta\cdot\hat g/d$; its mean is the temperature."""
    kinetic: jax.Array | None = None
    """For each leaf, the mean of $p^2$ in the middle of the kick, if that differs from the end of
    the step (`isotherm.gradients.balanced`)."""


@dataclass(frozen=True)
class Traits:
    """Properties of a sampler that messages, warnings and reports use."""

    name: str = "sampler"
    integrator: str | None = None
    thermostat: str | None = None
    temperature: Any = 1.0
    adaptive: bool = False
    """Whether a thermostat adapts the friction to the gradient noise (SGNHT, mSGNHT)."""
    balanced: bool = False
    """Whether the gradient takes its own noise out (`isotherm.balanced`)."""
    num_shards: int | None = None
    """Number of shards that a balanced gradient expects in a batch."""
    diffusion: Any = None
    """$D$ of a sampler with momentum."""
    thermostat_mass: Any = None
    r"""$\mu$ of a sampler with momentum."""

    def __post_init__(self) -> None:
        """Make numbers of arrays: programs are compiled for traits, which must have a hash."""
        for name in ("temperature", "diffusion", "thermostat_mass"):
            value = getattr(self, name)
            is_array = isinstance(value, jax.Array | np.ndarray | np.generic)
            if is_array and not isinstance(value, jax.core.Tracer) and value.size == 1:
                object.__setattr__(self, name, value.item())


class Halves(NamedTuple):
    """A step split at its only gradient evaluation.

    `open(key, state) -> state` stops where the gradient is needed, at `state.position`;
    `close(key, state, grads) -> (state, info)` finishes the step with the gradient. A loop over
    opened states lets XLA fuse the end of each step with the start of the next.
    """

    open: Callable[[Key, Any], Any]
    close: Callable[[Key, Any, ArrayTree], tuple[Any, StepInfo]]
    moves_before_gradient: bool
    """Whether `open` changes the position, so that the gradient is needed at another point."""
    gradient: Callable[[Key, Any, Batch], ArrayTree]
    """`gradient(key, state, batch) -> grads` at an opened state, with the key of the step; raises
    `ValueError` if the sampler was built without a gradient."""


class Sampler(NamedTuple):
    """A Markov chain as two pure functions; the other fields are optional."""

    init: Callable[..., Any]
    """`init(position, key) -> state`."""
    step: Callable[[Key, Any, Batch], tuple[Any, StepInfo]]
    """`step(key, state, batch) -> (state, info)`; every step needs a new key."""
    halves: Halves | None = None
    """The step split at its gradient, if it has exactly one (see `isotherm.as_optax`)."""
    traits: Traits = Traits()
    family: "Family | None" = None
    """How it was built from arrays, if programs are to be shared between such samplers."""


class Family(NamedTuple):
    """Samplers that differ only in arrays; they share compiled programs."""

    build: Callable[[Any], Sampler]
    """`build(parameters) -> sampler`, also of traced arrays; the same object for a family."""
    parameters: Any
    """A pytree of arrays and numbers."""

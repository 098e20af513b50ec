"""Samplers without momentum: the gradient is evaluated at the current position."""

from collections.abc import Callable
from typing import Any

from isotherm.gradients.minibatch import evaluate
from isotherm.types import (
    ArrayTree,
    Batch,
    GradFn,
    Halves,
    Key,
    Sampler,
    StepInfo,
    Traits,
    VelocityGradient,
)


def overdamped(
    grad_fn: GradFn | None,
    init: Callable[..., Any],
    update: Callable[[Key, Any, ArrayTree], tuple[Any, StepInfo]],
    traits: Traits,
) -> Sampler:
    """Build a sampler from `update(key, state, grads) -> (state, info)`."""
    if isinstance(grad_fn, VelocityGradient):
        raise ValueError(
            f"{traits.name} has no momentum, so that a balanced gradient has no friction to add. "
            "Use the plain gradient, or a sampler with momentum such as isotherm.msgnht."
        )

    def gradient(key: Key, state: Any, batch: Batch) -> ArrayTree:
        del key
        return evaluate(grad_fn, state.position, batch)

    def open_(key: Key, state: Any) -> Any:
        del key
        return state

    def step(key: Key, state: Any, batch: Batch) -> tuple[Any, StepInfo]:
        return update(key, state, gradient(key, state, batch))

    halves = Halves(open_, update, moves_before_gradient=False, gradient=gradient)
    return Sampler(init, step, halves, traits)

"""Samplers without momentum: the gradient is evaluated at the current position."""

from collections.abc import Callable
from functools import partial
from typing import Any

from isotherm.gradients.minibatch import evaluate
from isotherm.types import ArrayTree, Batch, GradFn, Halves, Key, Sampler, StepInfo, Traits


def overdamped(
    grad_fn: GradFn | None,
    init: Callable[..., Any],
    update: Callable[[Key, Any, ArrayTree], tuple[Any, StepInfo]],
    traits: Traits,
) -> Sampler:
    """Build a sampler from `update(key, state, grads) -> (state, info)`."""
    gradient = partial(evaluate, grad_fn)

    def open_(key: Key, state: Any) -> Any:
        del key
        return state

    def step(key: Key, state: Any, batch: Batch) -> tuple[Any, StepInfo]:
        return update(key, state, gradient(state.position, batch))

    halves = Halves(open_, update, moves_before_gradient=False, gradient=gradient)
    return Sampler(init, step, halves, traits)

r"""Topic updates for the deep Boltzmann machine: a thermostat on logarithms of the topics.

Topics are expanded-natural, $\phi_k = \mathrm{softmax}(\theta_k)$, with
$e^{\theta_{kw}} \sim \Gamma(\eta, 1)$, so that $\phi_k \sim \mathrm{Dir}(\eta)$ as in the model.
With counts $\hat n_{kw}$ scaled to all documents the gradient of the log posterior is
$\eta - e^{\theta_{kw}} + \hat n_{kw} - \phi_{kw}\hat n_{k\cdot}$. After the step at which the
documents were swept, the sampler can take further *inner* steps with the counts of the same batch
and a new gradient at every step.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.samplers.msgnht import msgnht
from isotherm.schedules import require_positive
from isotherm.topics.topic_updates import (
    ExpandedMean,
    HalfStep,
    SamplerUpdate,
    halves_of,
    noise_key,
)
from isotherm.types import Key

THERMOSTAT = msgnht(None, 1e-4, 40.0, integrator="euler")
"""The paper's sampler of the topics; built once, since JAX compiles per sampler object."""


@dataclass(frozen=True)
class LogGamma:
    r"""Expanded-natural topics with a Dirichlet prior: $e^{\theta_{kw}} \sim \Gamma(\eta, 1)$."""

    eta: float = 0.05

    def __post_init__(self) -> None:
        require_positive("eta", self.eta)

    def init(self, key: Key, shape: tuple[int, int]) -> jax.Array:
        """Draw logarithms of exponential variables."""
        return jnp.log(ExpandedMean().init(key, shape))

    def from_topics(self, topics: jax.Array) -> jax.Array:
        """Return the logarithms of expanded-mean topics."""
        return jnp.log(ExpandedMean().from_topics(topics))

    def topics(self, position: jax.Array) -> jax.Array:
        """Compute the softmax over words."""
        return jax.nn.softmax(position, axis=0)

    def gradient(self, position: jax.Array, topics: jax.Array, counts: jax.Array) -> jax.Array:
        """Compute the gradient of the log posterior."""
        return self.eta - jnp.exp(position) + counts - topics * counts.sum(0, keepdims=True)


@dataclass(frozen=True)
class MultiStepUpdate(SamplerUpdate):
    """A sampler of the core that takes several steps with the counts of a batch."""

    inner_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_steps < 1:
            raise ValueError(f"`inner_steps` must be at least 1, got {self.inner_steps}.")

    def finish_step(self, seed: int, half: HalfStep, counts: np.ndarray, scale: float) -> Any:
        """Finish the step, and take the inner steps."""
        state = super().finish_step(seed, half, counts, scale)
        if self.inner_steps == 1:
            return state
        return _inner_steps(noise_key(seed), state, counts, np.float32(scale), update=self)


@partial(jax.jit, static_argnames="update", donate_argnums=1)
def _inner_steps(key: Key, state: Any, counts: Any, scale: Any, *, update: MultiStepUpdate):
    halves, parametrization = halves_of(update.sampler), update.parametrization
    scaled = scale * counts

    def full_step(_: Any, state: Any) -> Any:
        step_key = random.fold(key, state.step_index)
        inside = halves.open(step_key, state)
        topics = parametrization.topics(inside.position)
        grads = parametrization.gradient(inside.position, topics, scaled)
        return halves.close(step_key, inside, grads)[0]

    return jax.lax.fori_loop(1, update.inner_steps, full_step, state)

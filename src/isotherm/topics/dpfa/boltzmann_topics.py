r"""How topics move beside a deep Boltzmann machine: a thermostat on logarithms.

Topics are expanded-natural, $\phi_k = \mathrm{softmax}(\theta_k)$, with $e^{\theta_{kw}} \sim \Gamma(\eta, 1)$, so that $\phi_k \sim \mathrm{Dir}(\eta)$ as in
the model. With counts $\hat n_{kw}$ scaled to all documents the gradient of the log posterior is
$\eta - e^{\theta_{kw}} + \hat n_{kw} - \phi_{kw}\hat n_{k\cdot}$. After the step at which the documents were swept, a batch may serve
further *inner* steps: the counts stay, the gradient is new at every step.
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
from isotherm.topics.topic_updates import ExpandedMean, Opened, SamplerMove, noise_key
from isotherm.types import Key

THERMOSTAT = msgnht(None, 1e-4, 40.0, integrator="euler")
"""The paper's sampler of the topics; built once, since every object is compiled anew."""


@dataclass(frozen=True)
class LogGamma:
    r"""Expanded-natural topics with a Dirichlet prior: $e^{\theta_{kw}} \sim \Gamma(\eta, 1)$."""

    eta: float = 0.05

    def __post_init__(self) -> None:
        require_positive("eta", self.eta)

    def start(self, key: Key, shape: tuple[int, int]) -> jax.Array:
        """Draw logarithms of exponential variables."""
        return jnp.log(ExpandedMean().start(key, shape))

    def place(self, topics: jax.Array) -> jax.Array:
        """Take logarithms of expanded-mean topics."""
        return jnp.log(ExpandedMean().place(topics))

    def topics(self, position: jax.Array) -> jax.Array:
        """Take the softmax over words."""
        return jax.nn.softmax(position, axis=0)

    def gradient(self, position: jax.Array, topics: jax.Array, counts: jax.Array) -> jax.Array:
        """Give the gradient of the log posterior."""
        return self.eta - jnp.exp(position) + counts - topics * counts.sum(0, keepdims=True)


@dataclass(frozen=True)
class InnerSteps(SamplerMove):
    """A sampler of the core that makes several steps with the counts of a batch."""

    inner_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_steps < 1:
            raise ValueError(f"`inner_steps` must be at least 1, got {self.inner_steps}.")

    def close(self, seed: int, opened: Opened, counts: np.ndarray, scale: float) -> Any:
        """Finish the step, and make the others."""
        state = super().close(seed, opened, counts, scale)
        if self.inner_steps == 1:
            return state
        return _go_on(noise_key(seed), state, counts, np.float32(scale), move=self)


@partial(jax.jit, static_argnames="move", donate_argnums=1)
def _go_on(key: Key, state: Any, counts: Any, scale: Any, *, move: InnerSteps):
    halves = move.sampler.halves
    assert halves is not None
    scaled = scale * counts

    def again(_: Any, state: Any) -> Any:
        now = random.fold(key, state.step_index)
        inside = halves.open(now, state)
        grads = move.form.gradient(inside.position, move.form.topics(inside.position), scaled)
        return halves.close(now, inside, grads)[0]

    return jax.lax.fori_loop(1, move.inner_steps, again, state)

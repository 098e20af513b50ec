r"""Updates of the topics: from scaled counts of a batch to the next topics, by any sampler.

An `LDAChain` (`isotherm.topics.lda`) takes a step in two halves. `begin_step` of a *topic update*
returns the topics at which the counts of a batch are needed; the chain estimates the counts by
Gibbs sweeps; `finish_step` turns them into the next state. `SamplerUpdate` makes a topic update of
any sampler of the core that has one gradient per step (`isotherm.types.Halves`): two compiled calls
per step, and the topics arrive on the host in the layout of the kernels.

A *parametrization* defines what the position of a sampler means. Positions are word-major,
$(V, K)$. With $\hat n_{kw} = \frac{J}{|S|}\sum_{j\in S} \mathrm E[n_{jkw}]$:

- `ExpandedNatural`: topics $\phi_{kw} = e^{\theta_{kw}}/\sum_v e^{\theta_{kv}}$, gradient
  $(\beta - \theta_{kw})/\sigma^2 + \hat n_{kw} - \phi_{kw}\hat n_{k\cdot}$;
- `ExpandedMean`: topics $\phi_{kw} = \gamma_{kw}/\sum_v\gamma_{kv}$, gradient
  $\hat n_{kw} - \phi_{kw}\hat n_{k\cdot}$ with respect to $\log\gamma$, without the prior.

The second is for `isotherm.sgrld`, which adds its own prior. The softmax of the first does not
change when a constant is added to a topic; only the prior determines that constant.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.topics import layout
from isotherm.types import Halves, Key, Sampler


class Parametrization(Protocol):
    """Meaning of a sampler's position; hashable, and different classes compare as different."""

    def init(self, key: Key, shape: tuple[int, int]) -> jax.Array:
        """Draw an initial position."""
        ...

    def from_topics(self, topics: jax.Array) -> jax.Array:
        """Return a position with these topics, all of whose entries are positive."""
        ...

    def topics(self, position: jax.Array) -> jax.Array:
        """Return the topics of a position; columns sum to 1."""
        ...

    def gradient(self, position: jax.Array, topics: jax.Array, counts: jax.Array) -> jax.Array:
        """Compute the gradient that the sampler needs from scaled counts."""
        ...


@dataclass(frozen=True)
class ExpandedNatural:
    r"""Expanded-natural topics: the softmax of $\theta_{kw} \sim \mathcal N(\beta, \sigma^2)$."""

    mean: float = 0.1
    variance: float = 1.0

    def init(self, key: Key, shape: tuple[int, int]) -> jax.Array:
        """Draw from the prior."""
        return self.mean + self.variance**0.5 * random.gaussian(key, jnp.zeros(shape))

    def from_topics(self, topics: jax.Array) -> jax.Array:
        """Return the logarithms, shifted to the mean of the prior."""
        logs = jnp.log(topics)
        return logs - logs.mean(0, keepdims=True) + self.mean

    def topics(self, position: jax.Array) -> jax.Array:
        """Compute the softmax over words."""
        return jax.nn.softmax(position, axis=0)

    def gradient(self, position: jax.Array, topics: jax.Array, counts: jax.Array) -> jax.Array:
        """Compute the gradient of the log posterior."""
        return (
            (self.mean - position) / self.variance + counts - topics * counts.sum(0, keepdims=True)
        )


@dataclass(frozen=True)
class ExpandedMean:
    r"""Expanded-mean topics: $\gamma_{kw} > 0$, $\phi_k = \gamma_k/\sum_w\gamma_{kw}$."""

    def init(self, key: Key, shape: tuple[int, int]) -> jax.Array:
        """Draw exponential variables."""
        uniform = (random.bits(key, shape) >> 8).astype(jnp.float32) + 0.5
        return -jnp.log(uniform * 2.0**-24)

    def from_topics(self, topics: jax.Array) -> jax.Array:
        """Scale every topic to mean 1, the expected value of an initial position."""
        return topics * topics.shape[0]

    def topics(self, position: jax.Array) -> jax.Array:
        """Normalize over words."""
        return position / position.sum(0, keepdims=True)

    def gradient(self, position: jax.Array, topics: jax.Array, counts: jax.Array) -> jax.Array:
        """Compute the gradient of the log likelihood with respect to log γ."""
        del position
        return counts - topics * counts.sum(0, keepdims=True)


class HalfStep(NamedTuple):
    """A step that needs the counts of a batch to be finished."""

    state: Any
    """What `finish_step` continues with."""
    rows: np.ndarray
    """Topics at which to count: word-major, padded, float32."""
    finite: bool
    """Whether all topics are finite."""


class TopicUpdate(Protocol):
    """What a chain needs to know about the sampler of its topics."""

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    def init(self, seed: int, shape: tuple[int, int], counts: np.ndarray | None = None) -> Any:
        """Return the initial state of topics `(words, topics)`: random, or from positive counts."""
        ...

    def begin_step(self, seed: int, state: Any) -> HalfStep:
        """Advance to the topics at which the counts are needed; `state` stays valid."""
        ...

    def finish_step(self, seed: int, half: HalfStep, counts: np.ndarray, scale: float) -> Any:
        """Return the next state, given counts `(words, topics)` and the factor to scale them by."""
        ...

    def topics(self, state: Any) -> np.ndarray:
        """Return the topics of a state, `(words, topics)`."""
        ...


def require_one_gradient(sampler: Sampler) -> None:
    """Check that a sampler evaluates exactly one gradient per step."""
    if sampler.halves is None:
        raise ValueError(
            f"{sampler.traits.name} with integrator {sampler.traits.integrator!r} does not have "
            "exactly one gradient per step, but the Gibbs sweeps over a batch estimate only one."
        )


@dataclass(frozen=True)
class SamplerUpdate:
    """A sampler of the core as a topic update. Its own `grad_fn` is not used and may be `None`."""

    sampler: Sampler
    parametrization: Parametrization

    def __post_init__(self) -> None:
        require_one_gradient(self.sampler)

    @property
    def name(self) -> str:
        """Name of the sampler and its integrator."""
        traits = self.sampler.traits
        return f"{traits.name} {traits.integrator}" if traits.integrator else traits.name

    def init(self, seed: int, shape: tuple[int, int], counts: np.ndarray | None = None) -> Any:
        """Draw the initial position, or start at the topics of the counts."""
        key = random.fold(jax.random.key(seed), 2)
        if counts is None:
            return self.sampler.init(self.parametrization.init(random.fold(key, 1), shape), key)
        topics = jnp.asarray(counts / counts.sum(0), jnp.float32)
        return self.sampler.init(self.parametrization.from_topics(topics), key)

    def begin_step(self, seed: int, state: Any) -> HalfStep:
        """Advance to the position at which the gradient is needed."""
        inside, topics, rows, finite = _begin_step(noise_key(seed), state, update=self)
        return HalfStep((inside, topics), np.array(rows), bool(finite))

    def finish_step(self, seed: int, half: HalfStep, counts: np.ndarray, scale: float) -> Any:
        """Finish the step with the gradient of the counts."""
        inside, topics = half.state
        return _finish_step(noise_key(seed), inside, topics, counts, np.float32(scale), update=self)

    def topics(self, state: Any) -> np.ndarray:
        """Return the topics of a state."""
        return np.asarray(_topics(state.position, parametrization=self.parametrization))


def noise_key(seed: int, stream: int = 0) -> Key:
    """Return the key of an update's noise; the updates within a chain use different streams."""
    return _fold_noise(np.uint32(seed & 0xFFFFFFFF), stream)


def halves_of(sampler: Sampler) -> Halves:
    """Return the two halves of a step of a sampler with one gradient per step."""
    assert sampler.halves is not None  # checked by `require_one_gradient`
    return sampler.halves


@jax.jit
def _fold_noise(seed: jax.Array, stream: int) -> Key:
    return random.fold(jax.random.key(seed), stream)


@partial(jax.jit, static_argnames="update")
def _begin_step(key: Key, state: Any, *, update: SamplerUpdate):
    inside = halves_of(update.sampler).open(random.fold(key, state.step_index), state)
    topics = update.parametrization.topics(inside.position)
    padding = layout.padded_size(topics.shape[1]) - topics.shape[1]
    rows = jnp.pad(jnp.maximum(topics, layout.TINY).astype(jnp.float32), ((0, 0), (0, padding)))
    return inside, topics, rows, jnp.all(jnp.isfinite(topics.sum(0)))


@partial(jax.jit, static_argnames="update", donate_argnums=1)
def _finish_step(key: Key, inside: Any, topics, counts, scale, *, update: SamplerUpdate):
    grads = update.parametrization.gradient(inside.position, topics, scale * counts)
    key = random.fold(key, inside.step_index)
    return halves_of(update.sampler).close(key, inside, grads)[0]


_topics = jax.jit(
    lambda position, parametrization: parametrization.topics(position),
    static_argnames="parametrization",
)

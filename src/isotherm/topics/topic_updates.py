r"""How topics move: from scaled counts of a batch to the next topics, by any sampler.

An `LDAChain` (`isotherm.topics.lda`) asks a *move* where it wants the counts of a batch, lets Gibbs sweeps
find them, and hands them back. `SamplerMove` makes a move of any sampler of the core: `open` brings
the position to where the gradient is wanted, `close` takes the gradient and finishes the step
(`isotherm.types.Halves`). Two compiled calls per step, and what crosses to the host is ready for the kernels.

A *form* says what the position of a sampler means. Positions are word-major, $(V, K)$. With
$\hat n_{kw} = \frac{J}{|S|}\sum_{j\in S} \mathrm E[n_{jkw}]$:

| form | topics | gradient |
| --- | --- | --- |
| `Natural` | $\phi_{kw} = e^{\theta_{kw}}/\sum_v e^{\theta_{kv}}$ | $(\beta - \theta_{kw})/\sigma^2 + \hat n_{kw} - \phi_{kw}\hat n_{k\cdot}$ |
| `ExpandedMean` | $\phi_{kw} = \gamma_{kw}/\sum_v\gamma_{kv}$ | $\hat n_{kw} - \phi_{kw}\hat n_{k\cdot}$, with respect to $\log\gamma$, without the prior |

The second is what `isotherm.sgrld` wants; the prior is its own. The softmax of the first is blind to a
constant per topic, which only the prior pins.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.topics import layout
from isotherm.types import Key, Sampler


class Form(Protocol):
    """What the position of a sampler means; hashable, and equal to no form of another class."""

    def start(self, key: Key, shape: tuple[int, int]) -> jax.Array:
        """Draw a position to start at."""
        ...

    def place(self, topics: jax.Array) -> jax.Array:
        """Give a position with these topics, all of them positive."""
        ...

    def topics(self, position: jax.Array) -> jax.Array:
        """Turn a position into topics; columns sum to 1."""
        ...

    def gradient(self, position: jax.Array, topics: jax.Array, counts: jax.Array) -> jax.Array:
        """Turn scaled counts into the gradient that the sampler wants."""
        ...


@dataclass(frozen=True)
class Natural:
    r"""Expanded-natural topics: $\theta_{kw} \sim \mathcal N(\beta, \sigma^2)$, $\phi_k = \mathrm{softmax}(\theta_k)$."""

    mean: float = 0.1
    variance: float = 1.0

    def start(self, key: Key, shape: tuple[int, int]) -> jax.Array:
        """Draw from the prior."""
        return self.mean + self.variance**0.5 * random.gaussian(key, jnp.zeros(shape))

    def place(self, topics: jax.Array) -> jax.Array:
        """Take logarithms, with the mean of the prior."""
        logs = jnp.log(topics)
        return logs - logs.mean(0, keepdims=True) + self.mean

    def topics(self, position: jax.Array) -> jax.Array:
        """Take the softmax over words."""
        return jax.nn.softmax(position, axis=0)

    def gradient(self, position: jax.Array, topics: jax.Array, counts: jax.Array) -> jax.Array:
        """Give the gradient of the log posterior."""
        return (
            (self.mean - position) / self.variance + counts - topics * counts.sum(0, keepdims=True)
        )


@dataclass(frozen=True)
class ExpandedMean:
    r"""Expanded-mean topics: $\gamma_{kw} > 0$, $\phi_k = \gamma_k/\sum_w\gamma_{kw}$."""

    def start(self, key: Key, shape: tuple[int, int]) -> jax.Array:
        """Draw exponential variables."""
        uniform = (random.bits(key, shape) >> 8).astype(jnp.float32) + 0.5
        return -jnp.log(uniform * 2.0**-24)

    def place(self, topics: jax.Array) -> jax.Array:
        """Give the mean of every topic the value that `start` gives it, 1."""
        return topics * topics.shape[0]

    def topics(self, position: jax.Array) -> jax.Array:
        """Normalise over words."""
        return position / position.sum(0, keepdims=True)

    def gradient(self, position: jax.Array, topics: jax.Array, counts: jax.Array) -> jax.Array:
        """Give the gradient of the log likelihood with respect to log γ."""
        del position
        return counts - topics * counts.sum(0, keepdims=True)


class Opened(NamedTuple):
    """A step that waits for counts: what to go on with, and the topics to count with."""

    inside: Any
    rows: np.ndarray
    """Word-major, padded, float32."""
    finite: bool


class Move(Protocol):
    """What a chain of topics needs to know about its sampler."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def start(self, seed: int, shape: tuple[int, int], counts: np.ndarray | None = None) -> Any:
        """Give the first state of a chain, with topics `(words, topics)`: random, or those of positive counts."""
        ...

    def open(self, seed: int, state: Any) -> Opened:
        """Go to where counts are wanted; the state given stays good."""
        ...

    def close(self, seed: int, opened: Opened, counts: np.ndarray, scale: float) -> Any:
        """Take counts `(words, topics)` and what to scale them with; give the next state."""
        ...

    def topics(self, state: Any) -> np.ndarray:
        """Give the topics of a state, `(words, topics)`."""
        ...


@dataclass(frozen=True)
class SamplerMove:
    """A sampler of the core as a move. Its own `grad_fn` is not used and may be `None`."""

    sampler: Sampler
    form: Form

    def __post_init__(self) -> None:
        if self.sampler.halves is None:
            raise ValueError(
                f"{self.sampler.traits.name} with integrator {self.sampler.traits.integrator!r} does "
                "not have exactly one gradient per step, but a batch is counted once."
            )

    @property
    def name(self) -> str:
        """Name of the sampler, with its integrator."""
        traits = self.sampler.traits
        return f"{traits.name} {traits.integrator}" if traits.integrator else traits.name

    def start(self, seed: int, shape: tuple[int, int], counts: np.ndarray | None = None) -> Any:
        """Draw where the chain starts, or start at the topics of the counts."""
        key = random.fold(jax.random.key(seed), 2)
        if counts is None:
            return self.sampler.init(self.form.start(random.fold(key, 1), shape), key)
        topics = jnp.asarray(counts / counts.sum(0), jnp.float32)
        return self.sampler.init(self.form.place(topics), key)

    def open(self, seed: int, state: Any) -> Opened:
        """Go to where the gradient is wanted."""
        inside, topics, rows, finite = _open(noise_key(seed), state, move=self)
        return Opened((inside, topics), np.array(rows), bool(finite))

    def close(self, seed: int, opened: Opened, counts: np.ndarray, scale: float) -> Any:
        """Finish the step."""
        inside, topics = opened.inside
        return _close(noise_key(seed), inside, topics, counts, np.float32(scale), move=self)

    def topics(self, state: Any) -> np.ndarray:
        """Give the topics of a state."""
        return np.asarray(_topics(state.position, form=self.form))


def noise_key(seed: int, stream: int = 0) -> Key:
    """Give the key of a move's noise; moves of one chain take streams of their own."""
    return _fold_noise(np.uint32(seed & 0xFFFFFFFF), stream)


@jax.jit
def _fold_noise(seed: jax.Array, stream: int) -> Key:
    return random.fold(jax.random.key(seed), stream)


@partial(jax.jit, static_argnames="move")
def _open(key: Key, state: Any, *, move: SamplerMove):
    inside = move.sampler.halves.open(random.fold(key, state.step_index), state)  # type: ignore[union-attr]
    topics = move.form.topics(inside.position)
    padding = layout.padded_size(topics.shape[1]) - topics.shape[1]
    rows = jnp.pad(jnp.maximum(topics, layout.TINY).astype(jnp.float32), ((0, 0), (0, padding)))
    return inside, topics, rows, jnp.all(jnp.isfinite(topics.sum(0)))


@partial(jax.jit, static_argnames="move", donate_argnums=1)
def _close(key: Key, inside: Any, topics, counts, scale, *, move: SamplerMove):
    grads = move.form.gradient(inside.position, topics, scale * counts)
    key = random.fold(key, inside.step_index)
    return move.sampler.halves.close(key, inside, grads)[0]  # type: ignore[union-attr]


_topics = jax.jit(lambda position, form: form.topics(position), static_argnames="form")

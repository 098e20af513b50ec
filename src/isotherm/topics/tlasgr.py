r"""TLASGR: Riemannian Langevin updates on the simplex, with a step size adapted to each topic.

Given the counts, a topic $\phi_k$ is $\mathrm{Dir}(a_k)$ with $a_{kw} = \beta + n_{kw}$, the
stationary law of the Wright–Fisher diffusion

$$ d\phi_k = \frac{a_k - a_{k\cdot}\phi_k}{M_k}\,dt
   + \sqrt{\frac{2}{M_k}}\,\bigl(\mathrm{diag}\,\phi_k - \phi_k\phi_k^\top\bigr)^{1/2}dW, $$

for any $M_k > 0$. TLASGR takes an Euler step of it with $\hat a_k$ from a minibatch and $M_k$ the
running mean of $\hat a_{k\cdot}$, so common and rare topics have the same autocorrelation, $1 - h$
per step. With independent $x_w \sim \mathcal N(0, \phi_{kw})$ the noise is $x - \phi_k\sum_w x_w$.
The step preserves the sum 1; negative entries are reflected, and the topic is normalized. For a
topic of many tokens, $M_k = a_{k\cdot}$ and no reflection, the variance is that of the Dirichlet
law with $a_{k\cdot}$ multiplied by $1 - h/2$.

References
----------
Cong, Chen, Liu & Zhou (2017), *Deep latent Dirichlet allocation with
topic-layer-adaptive stochastic gradient Riemannian MCMC*, ICML.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isotherm.schedules import as_schedule, require_positive
from isotherm.topics import counter_rng, layout
from isotherm.topics.topic_updates import HalfStep
from isotherm.types import ScalarOrSchedule


class TLASGRState(NamedTuple):
    """Topics (words, topics) whose columns sum to 1, their masses, and the number of steps."""

    position: np.ndarray
    mass: np.ndarray
    """$M$, (topics,); NaN before the first step."""
    step_index: Any


@dataclass(frozen=True)
class TLASGR:
    r"""TLASGR as a topic update of `isotherm.topics.lda.LDAChain`.

    Parameters
    ----------
    step_size
        $h$: a positive number or a schedule, below 1.
    prior
        $\beta > 0$, the Dirichlet prior of the topics.
    """

    step_size: ScalarOrSchedule
    prior: float = 0.05
    name: str = "tlasgr"

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        require_positive("prior", self.prior)

    def init(
        self, seed: int, shape: tuple[int, int], counts: np.ndarray | None = None
    ) -> TLASGRState:
        """Draw topics uniformly, or start at the topics of the counts."""
        if counts is None:
            counts = counter_rng.generator(seed, "topics", -1).standard_exponential(shape)
        position = np.asarray(counts / counts.sum(0), np.float32)
        return TLASGRState(position, np.full(shape[1], np.nan), np.zeros((), np.int32))

    def begin_step(self, seed: int, state: TLASGRState) -> HalfStep:
        """Return the current topics, at which the counts are needed."""
        del seed
        phi = state.position
        return HalfStep(state, layout.word_major(phi.T), bool(np.isfinite(phi.sum())))

    def finish_step(
        self, seed: int, half: HalfStep, counts: np.ndarray, scale: float
    ) -> TLASGRState:
        """Take the Euler step."""
        state: TLASGRState = half.state
        step = int(state.step_index)
        h = float(as_schedule(self.step_size)(state.step_index))
        shape = counts * np.float32(scale) + np.float32(self.prior)
        total = shape.sum(0)
        mass = np.where(np.isnan(state.mass), total, (1 - h) * state.mass + h * total)
        rng = counter_rng.generator(seed, "topics", step)
        position = euler_step(rng, state.position, shape, (h / mass).astype(np.float32))
        return TLASGRState(position, mass, np.asarray(step + 1, np.int32))

    def topics(self, state: TLASGRState) -> np.ndarray:
        """Return the topics."""
        return state.position


def euler_step(
    rng: np.random.Generator, position: np.ndarray, shape: np.ndarray, time: np.ndarray
) -> np.ndarray:
    r"""Take an Euler step of the diffusion, reflect negative entries, and normalize.

    `time` is $h/M_k$ of each topic, `shape` is $a$, (words, topics) as `position`.

    Examples
    --------
    >>> rng, position = np.random.default_rng(0), np.full((3, 2), 1 / 3)
    >>> x = euler_step(rng, position, np.full((3, 2), 5.0), np.full(2, 0.01))
    >>> x.shape, bool(np.allclose(x.sum(0), 1))
    ((3, 2), True)
    """
    noise = rng.standard_normal(position.shape, position.dtype)
    noise *= np.sqrt(2 * time * position)
    drift = time * (shape - shape.sum(0) * position)
    moved = np.abs(position + drift + noise - position * noise.sum(0))
    return moved / moved.sum(0)

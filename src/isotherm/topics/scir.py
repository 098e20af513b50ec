r"""SCIR, the stochastic Cox–Ingersoll–Ross process: topic updates without discretization error.

Expanded-mean topics $\gamma_{kw} > 0$, $\phi_k = \gamma_k/\sum_w\gamma_{kw}$, with independent
priors $\gamma_{kw} \sim \Gamma(\beta, 1)$ so that $\phi_k \sim \mathrm{Dir}(\beta)$. Given the
counts, $\gamma_{kw}$ is $\Gamma(a, 1)$ with $a = \beta + n_{kw}$, the stationary law of
$d\gamma = (a - \gamma)\,dt + \sqrt{2\gamma}\,dW$, whose transition law is known:

$$ \gamma(t + h) = (1 - e^{-h})\,G, \qquad G \mid N \sim \Gamma(a + N, 1), \qquad
   N \sim \mathrm{Poisson}\Bigl(\frac{\gamma(t)\,e^{-h}}{1 - e^{-h}}\Bigr). $$

SCIR estimates $a$ from a minibatch,
$\hat a = \beta + \frac{J}{|S|}\sum_{j \in S}\mathrm E[n_{jkw}]$. There is no reflection and no
error at small $\gamma$, where that of SGRLD is largest. The mean satisfies
$\mathrm E[\gamma(t + h)] = e^{-h}\gamma(t) + (1 - e^{-h})\,\hat a$: online variational Bayes with
the learning rate $1 - e^{-h}$, but with noise of the posterior's scale and exact inference within
documents. Gradient noise is not corrected: the variance of $\hat a$ enters $\gamma$ with the factor
$\tanh(h/2)$, so $h$ should decrease.

SCIR runs in NumPy: gamma and Poisson variables take twenty times as long in JAX on a CPU.

References
----------
Baker, Fearnhead, Fox & Nemeth (2018), *Large-scale stochastic sampling from the
probability simplex*, NeurIPS. Their $h$ is ours.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isotherm.schedules import as_schedule, require_positive
from isotherm.topics import counter_rng, layout
from isotherm.topics.topic_updates import HalfStep
from isotherm.types import ScalarOrSchedule


class SCIRState(NamedTuple):
    """Positive weights (words, topics), and the number of steps taken."""

    position: np.ndarray
    step_index: Any


def transition(
    rng: np.random.Generator, position: np.ndarray, shape: np.ndarray, step_size: float
) -> np.ndarray:
    r"""Draw $\gamma(t + h)$ given $\gamma(t)$, exactly.

    Parameters
    ----------
    rng
        Random generator.
    position
        $\gamma(t) \ge 0$.
    shape
        $a > 0$, the shape of the stationary Gamma law.
    step_size
        $h > 0$.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = transition(rng, np.zeros(100_000), np.full(100_000, 3.0), 50.0)
    >>> round(float(x.mean()), 1), round(float(x.var()), 1)
    (3.0, 3.0)
    """
    decay, growth = np.exp(-step_size), -np.expm1(-step_size)
    extra = rng.poisson(position * (decay / growth))
    return growth * rng.standard_gamma(shape + extra)


@dataclass(frozen=True)
class SCIR:
    r"""SCIR as a topic update of `isotherm.topics.lda.LDAChain`.

    Parameters
    ----------
    step_size
        $h$: a positive number or a schedule.
    prior
        $\beta > 0$, the Dirichlet prior of the topics.
    """

    step_size: ScalarOrSchedule
    prior: float = 0.05
    name: str = "scir"

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        require_positive("prior", self.prior)

    def init(
        self, seed: int, shape: tuple[int, int], counts: np.ndarray | None = None
    ) -> SCIRState:
        """Draw exponential variables, or start at the counts."""
        rng = counter_rng.generator(seed, "topics", -1)
        position = rng.standard_exponential(shape, np.float32) if counts is None else counts
        return SCIRState(np.asarray(position, np.float32), np.zeros((), np.int32))

    def begin_step(self, seed: int, state: SCIRState) -> HalfStep:
        """Return the current topics, at which the counts are needed."""
        del seed
        phi = self.topics(state)
        rows = np.zeros((len(phi), layout.padded_size(phi.shape[1])), np.float32)
        np.maximum(phi, layout.TINY, out=rows[:, : phi.shape[1]])
        return HalfStep(state, rows, bool(np.isfinite(phi.sum())))

    def finish_step(self, seed: int, half: HalfStep, counts: np.ndarray, scale: float) -> SCIRState:
        """Draw the next state from the exact transition."""
        state: SCIRState = half.state
        step = int(state.step_index)
        h = float(as_schedule(self.step_size)(state.step_index))
        rng = counter_rng.generator(seed, "topics", step)
        shape = counts.astype(np.float64) * scale + self.prior
        position = transition(rng, state.position, shape, h).astype(np.float32)
        return SCIRState(position, np.asarray(step + 1, np.int32))

    def topics(self, state: SCIRState) -> np.ndarray:
        """Normalize over words; a topic whose weights are all zero stays zero."""
        mass = state.position.sum(0)
        return state.position / np.where(mass > 0, mass, 1)

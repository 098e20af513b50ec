"""What learns topics inside `BayesianLDA`: a filter, or a chain of any sampler."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_scalar

from isotherm.samplers.msgnht import msgnht
from isotherm.samplers.psgld import psgld
from isotherm.samplers.sghmc import sghmc
from isotherm.samplers.sgld import sgld
from isotherm.samplers.sgnht import sgnht
from isotherm.samplers.sgrld import sgrld
from isotherm.schedules import polynomial, require_positive
from isotherm.topics.bcdf import BCDFLDA
from isotherm.topics.corpus import Corpus
from isotherm.topics.lda import LDAChain
from isotherm.topics.scir import SCIR
from isotherm.topics.tlasgr import TLASGR

SAMPLERS: dict[str, Callable[[Any, float], Any]] = {
    "scir": lambda h, beta: SCIR(polynomial(1.0, 1, 0.7) if h is None else h, beta),
    "sgrld": lambda h, beta: sgrld(None, polynomial(0.05, 100, 0.6) if h is None else h, beta),
    "tlasgr": lambda h, beta: TLASGR(polynomial(0.5, 1, 0.7) if h is None else h, beta),
    "msgnht": lambda h, _: msgnht(None, 5e-3 if h is None else h),
    "sgnht": lambda h, _: sgnht(None, 5e-3 if h is None else h),
    "sghmc": lambda h, _: sghmc(None, 2.5e-3 if h is None else h, 10.0),
    "sgld": lambda h, _: sgld(None, 1e-5 if h is None else h),
    "psgld": lambda h, _: psgld(None, 0.03 if h is None else h),
}
"""Samplers by name, from a step size (or None) and the Dirichlet prior of the topics, if they have one."""


def check_settings(lda: Any) -> None:
    """Refuse settings of `BayesianLDA` that make no sense, also where a learner has no use for them."""
    for name in ("n_components", "batch_size", "max_iter", "num_draws", "sweeps", "burn_in"):
        check_scalar(getattr(lda, name), name, Integral, min_val=int(name != "burn_in"))
    if lda.n_jobs is not None:
        check_scalar(lda.n_jobs, "n_jobs", Integral)
        if lda.n_jobs == 0:
            raise ValueError("`n_jobs` must not be 0; -1 is a thread per core.")
    for name in ("doc_topic_prior", "topic_word_prior", "step_size"):
        value = getattr(lda, name)
        if value is not None:
            require_positive(name, value)
    decay, total = lda.learning_decay, lda.total_samples
    check_scalar(decay, "learning_decay", Real, min_val=0.5, max_val=1, include_boundaries="right")
    if total is not None:
        check_scalar(total, "total_samples", Real, min_val=1)
        if not np.isfinite(total):
            raise ValueError(f"`total_samples` must be finite, got {total}.")
    if lda.fractional not in ("refuse", "round"):
        raise ValueError(f"`fractional` must be 'refuse' or 'round', got {lda.fractional!r}.")


class Learner(ABC):
    """Learns from batches and gives draws; its memory does not grow."""

    def __init__(self) -> None:
        self._found: dict[str, np.ndarray] = {}

    def update(self, batch: Corpus) -> None:
        """Learn from documents."""
        self._found = {}
        self._update(batch)

    def draws(self) -> np.ndarray:
        """Give draws of the topics, (draws, topics, words)."""
        if "draws" not in self._found:
            self._found["draws"] = self._draws()
        return self._found["draws"]

    def mean(self) -> np.ndarray:
        """Give the posterior mean of the topics."""
        if "mean" not in self._found:
            self._found["mean"] = self._mean()
        return self._found["mean"]

    @abstractmethod
    def _update(self, batch: Corpus) -> None: ...

    @abstractmethod
    def _draws(self) -> np.ndarray: ...

    @abstractmethod
    def _mean(self) -> np.ndarray: ...


class Filter(Learner):
    """Conditional density filtering: draws are those of the Dirichlet it has arrived at."""

    def __init__(self, model: BCDFLDA, num_draws: int) -> None:
        super().__init__()
        self.model, self.num_draws = model, num_draws

    def _update(self, batch: Corpus) -> None:
        self.model.update(batch)

    def _draws(self) -> np.ndarray:
        return np.stack([self.model.draw(i) for i in range(self.num_draws)])

    def _mean(self) -> np.ndarray:
        return self.model.topics()


class Plan(NamedTuple):
    """How to build a chain: plain values, where a sampler is functions and cannot be pickled."""

    sampler: Any
    step_size: Any
    beta: float
    sizes: tuple[int, int]
    threads: int
    shared: dict[str, Any]

    def build(self) -> LDAChain:
        """Make a chain that has not moved."""
        sampler = self.sampler
        if isinstance(sampler, str):
            if sampler not in SAMPLERS:
                known = ", ".join(map(repr, ("filter", *SAMPLERS)))
                raise ValueError(f"`sampler` must be one of {known}, got {sampler!r}.")
            sampler = SAMPLERS[sampler](self.step_size, self.beta)
        return LDAChain(sampler, *self.sizes, data_size=1, threads=self.threads, **self.shared)


class Chain(Learner):
    """A chain of topics: a step per batch, and the topics of the last steps."""

    def __init__(self, plan: Plan, num_draws: int, total: float | None) -> None:
        super().__init__()
        self.plan, self.chain = plan, plan.build()
        self.total, self.num_documents = total, 0
        self.recent: deque[np.ndarray] = deque(maxlen=num_draws)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"chain": self.chain.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.chain = self.plan.build()
        self.chain.restore(state["chain"])

    def _update(self, batch: Corpus) -> None:
        """Take a step; without a total, the documents seen so far are the data."""
        self.num_documents += len(batch)
        self.chain.data_size = self.num_documents if self.total is None else self.total
        self.chain.step(batch)
        self.recent.append(self.chain.topics())

    def _draws(self) -> np.ndarray:
        return np.stack(list(self.recent))

    def _mean(self) -> np.ndarray:
        return np.mean(list(self.recent), axis=0)

"""Learners inside the estimators: their common base, samplers by name, and the learners of LDA."""

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from isotherm.samplers.msgnht import msgnht
from isotherm.samplers.psgld import psgld
from isotherm.samplers.sghmc import sghmc
from isotherm.samplers.sgld import sgld
from isotherm.samplers.sgnht import sgnht
from isotherm.samplers.sgrld import sgrld
from isotherm.schedules import polynomial
from isotherm.topics import counter_rng
from isotherm.topics.bcdf import BCDFLDA, draw_topics
from isotherm.topics.corpus import Corpus
from isotherm.topics.gibbs import GibbsLDA, sweep_chains
from isotherm.topics.lda import LDAChain
from isotherm.topics.scir import SCIR
from isotherm.topics.tlasgr import TLASGR

NUM_STARTS, START_SWEEPS = 4, 10
"""Least number of starts of Gibbs sampling, and the largest number of sweeps of each."""
WORSE_CHAIN = 0.05
"""A chain whose last state is less probable than that of the best, by this in nats per token, is
left out of predictions. Chains in which topics are merged differ by more (0.1 to 0.4 in tests with
three topics), most others by less (0.02 for ICML abstracts and for 128 topics of WikiText-2)."""
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
"""Samplers by name: functions of a step size (`None` for a default) and of the topics' prior."""


def named_sampler(name: str, step_size: Any, prior: float, others: tuple[str, ...] = ()) -> Any:
    """Build a sampler by name, once per setting, since JAX compiles per sampler object.

    Parameters
    ----------
    name
        A key of `SAMPLERS`.
    step_size
        A number, a schedule, or `None` for the default of the sampler.
    prior
        Dirichlet prior of the topics; only some samplers use it.
    others
        Other names that the caller accepts, for the error message.
    """
    if name not in SAMPLERS:
        known = ", ".join(map(repr, (*others, *SAMPLERS)))
        raise ValueError(f"`sampler` must be one of {known}, got {name!r}.")
    build = _cached_sampler if isinstance(step_size, Hashable) else _build_sampler
    return build(name, step_size, prior)


def _build_sampler(name: str, step_size: Any, prior: float) -> Any:
    return SAMPLERS[name](step_size, prior)


_cached_sampler = lru_cache(maxsize=32)(_build_sampler)


class Learner(ABC):
    """Base of all learners: it learns from batches, and returns draws.

    Memory does not grow with the number of batches. A pickle contains the state of `chain` instead
    of the chain, since samplers consist of functions, which cannot be pickled.
    """

    chain: Any = None
    """The chain or filter that learns, if it is kept."""

    def __init__(self) -> None:
        self._cache: dict[str, Any] = {}

    @property
    def waiting(self) -> bool:
        """Whether documents are still being collected for the initialization."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        chain = None if self.chain is None else self.chain.state_dict()
        return self.__dict__ | {"chain": chain, "_cache": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if state["chain"] is not None:
            self.chain = self._build_chain()
            self.chain.load_state_dict(state["chain"])

    def update(self, batch: Corpus, *, new: bool = True) -> None:
        """Learn from documents; `new` says whether they have not been learned from before."""
        self._cache = {}
        self._update(batch, new)

    def draws(self) -> dict[str, np.ndarray]:
        """Return draws by name, with leading axes (chain, draw)."""
        return self._cached("draws", self._draws)

    def mean_topics(self) -> np.ndarray:
        """Return the posterior mean of the topics, (topics, words)."""
        return self._cached("mean", self._mean_topics)

    def running_perplexity(self) -> float:
        """Return the perplexity to show in a progress bar; NaN if there is none."""
        return float("nan")

    def _cached(self, name: str, compute: Callable[[], Any]) -> Any:
        if name not in self._cache:
            self._cache[name] = compute()
        return self._cache[name]

    @abstractmethod
    def _build_chain(self) -> Any: ...

    @abstractmethod
    def _update(self, batch: Corpus, new: bool) -> None: ...

    @abstractmethod
    def _draws(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def _mean_topics(self) -> np.ndarray: ...


def kept_sweeps(num_sweeps: int, num_draws: int) -> set[int]:
    """Return which of the sweeps 1 to `num_sweeps` to keep: evenly spaced, from the second half.

    Examples
    --------
    >>> sorted(kept_sweeps(100, 4))
    [64, 76, 88, 100]
    """
    return set(range(num_sweeps, 0, -max(num_sweeps // 2 // num_draws, 1))[:num_draws])


def best_starts(
    build: Callable[[int], GibbsLDA],
    num_sweeps: int,
    num_chains: int = 1,
    report: Callable[[], None] = lambda: None,
) -> list[GibbsLDA]:
    """Return the best of at least `NUM_STARTS` chains after a few sweeps, best first.

    Topics that are merged at the start may stay merged for a very long time. So several chains
    start, and those with the highest joint probability of words and assignments are continued.

    Parameters
    ----------
    build
        Builds the chain of a number from 0.
    num_sweeps
        Number of sweeps of a chain, in all.
    num_chains
        Number of chains to return.
    report
        Called without arguments after each sweep of a chain.
    """
    best: list[tuple[float, GibbsLDA]] = []
    for i in range(0, max(NUM_STARTS, num_chains), 2):
        pair = [build(i), build(i + 1)]
        for _ in range(min(START_SWEEPS, -(-num_sweeps // NUM_STARTS))):
            sweep_chains(pair)
            report()
            report()
        best += [(start.log_joint(), start) for start in pair]
        best = sorted(best, key=lambda scored: -scored[0])[:num_chains]
    return [start for _, start in best]


def rank_chains(chains: Sequence[GibbsLDA]) -> tuple[list[int], int]:
    """Return chains from the most probable on, by index, and how many of them should predict."""
    joints = np.array([chain.log_joint() for chain in chains])
    tokens = chains[0].corpus.num_tokens
    num_predicting = int(np.sum(joints > joints.max() - WORSE_CHAIN * tokens))
    return np.argsort(-joints).tolist(), num_predicting


class LDAPlan(NamedTuple):
    """Settings from which a chain or filter of LDA is built; it can be pickled."""

    sampler: Any
    step_size: Any
    beta: float
    decay: float
    sizes: tuple[int, int]
    """Number of topics and of words."""
    total: float | None
    """Number of documents that the posterior is conditioned on; `None` is all documents seen."""
    threads: int
    common: dict[str, Any]
    """Arguments that chains and filters have in common."""
    priors: dict[str, Any]
    """How filters and Gibbs samplers learn the priors, and the pseudo-counts of seed words."""

    def build_filter(self) -> BCDFLDA:
        """Build a filter that has not learned yet."""
        limit = np.inf if self.total is None else self.total
        return BCDFLDA(
            *self.sizes,
            beta=self.beta,
            decay=self.decay,
            data_size=limit,
            **self.common,
            **self.priors,
        )

    def build_gibbs(self, corpus: Corpus, start: int) -> GibbsLDA:
        """Build a Gibbs sampler that has made no sweep; each value of `start` has its own seed."""
        alpha, seed = self.common["alpha"], self.common["seed"] + 2**31 * start
        settings = {"alpha": alpha, "beta": self.beta, "seed": seed, **self.priors}
        return GibbsLDA(corpus, self.sizes[0], **settings)

    def build_chain(self) -> LDAChain:
        """Build a chain that has not taken a step yet."""
        sampler = self.sampler
        if isinstance(sampler, str):
            sampler = named_sampler(
                sampler, self.step_size, self.beta, others=("auto", "gibbs", "filter")
            )
        return LDAChain(sampler, *self.sizes, data_size=1, threads=self.threads, **self.common)


class LDALearner(Learner):
    """Base of the learners of `BayesianLDA`."""

    plan: LDAPlan

    @abstractmethod
    def alpha(self) -> np.ndarray:
        r"""Return $\alpha$, (topics,), the mean over draws if it is learned."""

    def beta(self) -> float:
        r"""Return $\beta$, the mean over draws if it is learned."""
        return self.plan.beta

    def conditional_means(self) -> list[tuple[np.ndarray, np.ndarray]]:
        r"""Return topics to predict with, and $\alpha$, one pair for each draw."""
        return [(topics, self.alpha()) for topics in self.draws()["topics"][0]]


KeptSweep = tuple[np.ndarray, np.ndarray, float]
r"""Counts (topics, words), $\alpha$ and $\beta$ of a sweep."""


class GibbsLDALearner(LDALearner):
    """Collapsed Gibbs sweeps over all documents; draws are from the second half of the sweeps.

    Topics of different chains do not correspond, so summaries of topics use the first chain, which
    has the highest joint probability in the end. Predictions use all chains, except those with a
    far lower probability (`WORSE_CHAIN`).
    """

    def __init__(self, plan: LDAPlan, num_draws: int, num_chains: int = 1) -> None:
        super().__init__()
        self.plan, self.num_draws, self.num_documents = plan, num_draws, 0
        self.chains: list[list[KeptSweep]] = [[] for _ in range(num_chains)]
        """The kept sweeps of each chain."""
        self.num_predicting = num_chains
        """How many of the chains predictions use, from the first."""

    def run(self, corpus: Corpus, num_sweeps: int, report: Callable[[], None]) -> None:
        """Sweep all documents; `report` is called after each sweep of a chain.

        Parameters
        ----------
        corpus
            The documents.
        num_sweeps
            Number of sweeps of all chains together, with those of the starts. At least half of them
            are made after the starts.
        report
            Called without arguments.
        """
        made = 0

        def made_sweep() -> None:
            nonlocal made
            made += 1
            report()

        chains = best_starts(
            lambda i: self.plan.build_gibbs(corpus, i),
            -(-num_sweeps // len(self.chains)),
            len(self.chains),
            made_sweep,
        )
        per_chain = -(-max(num_sweeps - made, num_sweeps // 2) // len(chains))
        kept = kept_sweeps(per_chain, self.num_draws)
        self.num_documents = len(corpus)
        for i in range(1, per_chain + 1):
            sweep_chains(chains)
            for chain, sweeps in zip(chains, self.chains, strict=True):
                if i in kept:
                    sweeps.append((chain.counts(), np.array(chain.alpha), float(chain.beta)))
                made_sweep()
        order, self.num_predicting = rank_chains(chains)
        self.chains = [self.chains[i] for i in order]

    def as_filter(self, total: float | None) -> "LDAFilterLearner":
        """Return a filter that continues with new documents, given the mean counts of the draws.

        `total` is the number of documents that the posterior is conditioned on, as in the plan.
        """
        learner = LDAFilterLearner(self.plan._replace(total=total), self.num_draws)
        counts = np.mean([counts for counts, _, _ in self.chains[0]], axis=0)
        learner.chain.start_from(counts, self.num_documents, self.alpha(), self.beta())
        return learner

    def alpha(self) -> np.ndarray:
        r"""Return the mean of $\alpha$."""
        return np.mean([alpha for _, alpha, _ in self.chains[0]], axis=0)

    def beta(self) -> float:
        r"""Return the mean of $\beta$."""
        return float(np.mean([beta for _, _, beta in self.chains[0]]))

    def conditional_means(self) -> list[tuple[np.ndarray, np.ndarray]]:
        r"""Return $\mathrm E[\phi \mid z]$ and $\alpha$ of each draw of the chains that predict."""
        chains = self.chains[: self.num_predicting]
        return [pair for sweeps in chains for pair in _conditional_means(sweeps)]

    def _draws(self) -> dict[str, np.ndarray]:
        seed, index = self.plan.common["seed"], itertools.count()
        topics = [
            [
                draw_topics(counter_rng.generator(seed, "topics", next(index)), counts + beta)
                for counts, _, beta in sweeps
            ]
            for sweeps in self.chains
        ]
        return {"topics": np.array(topics)}

    def _mean_topics(self) -> np.ndarray:
        return np.mean([topics for topics, _ in _conditional_means(self.chains[0])], axis=0)

    def _build_chain(self) -> None:
        return None

    def _update(self, batch: Corpus, new: bool) -> None:
        raise NotImplementedError("Gibbs sampling needs all documents at once: use `run`.")


def _conditional_means(sweeps: list[KeptSweep]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    r"""Yield $\mathrm E[\phi \mid z]$ and $\alpha$ of each sweep."""
    for counts, alpha, beta in sweeps:
        shape = counts + np.float32(beta)
        yield shape / shape.sum(1, keepdims=True), alpha


class LDAFilterLearner(LDALearner):
    """Conditional density filtering: draws are from the Dirichlet distribution of the filter."""

    def __init__(self, plan: LDAPlan, num_draws: int) -> None:
        super().__init__()
        self.plan, self.num_draws = plan, num_draws
        self.chain = self._build_chain()

    def _build_chain(self) -> BCDFLDA:
        return self.plan.build_filter()

    def _update(self, batch: Corpus, new: bool) -> None:
        del new
        self.chain.update(batch)

    def alpha(self) -> np.ndarray:
        r"""Return the current $\alpha$."""
        return self.chain.alpha

    def beta(self) -> float:
        r"""Return the current $\beta$."""
        return self.chain.beta

    def _draws(self) -> dict[str, np.ndarray]:
        return {"topics": np.stack([self.chain.draw(i) for i in range(self.num_draws)])[None]}

    def _mean_topics(self) -> np.ndarray:
        return self.chain.topics()


class LDAChainLearner(LDALearner):
    """A chain of topics: one step per batch, and the topics of the last steps as draws."""

    def __init__(self, plan: LDAPlan, num_draws: int) -> None:
        super().__init__()
        self.plan, self.num_documents = plan, 0
        self.chain = self._build_chain()
        self.recent: deque[np.ndarray] = deque(maxlen=num_draws)

    def _build_chain(self) -> LDAChain:
        return self.plan.build_chain()

    def alpha(self) -> np.ndarray:
        r"""Return the given $\alpha$."""
        return self.chain.alpha

    def _update(self, batch: Corpus, new: bool) -> None:
        del new
        self.num_documents += len(batch)
        total = self.plan.total
        self.chain.data_size = self.num_documents if total is None else total
        self.chain.step(batch)
        self.recent.append(self.chain.topics())

    def _draws(self) -> dict[str, np.ndarray]:
        return {"topics": np.stack(list(self.recent))[None]}

    def _mean_topics(self) -> np.ndarray:
        return np.mean(list(self.recent), axis=0)

"""Learners inside `BayesianDPFA`: a chain or filter on a stream, or Gibbs sampling in memory."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from isotherm.samplers.msgnht import msgnht
from isotherm.topics import counter_rng
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import local_gibbs
from isotherm.topics.dpfa.bcdf import DPFAFilter
from isotherm.topics.dpfa.conjugate import draw_topics
from isotherm.topics.dpfa.gibbs import DPFAGibbs, first_parameters, mean_topics
from isotherm.topics.dpfa.initialization import Start, learn_start
from isotherm.topics.dpfa.model import DPFA, Parameters, parameter_arrays
from isotherm.topics.dpfa.perplexity import predict_batch
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.estimators.learners import (
    Learner,
    best_starts,
    kept_sweeps,
    named_sampler,
    rank_chains,
)
from isotherm.topics.gibbs import GibbsLDA, sweep_chains
from isotherm.topics.perplexity import prequential_perplexity
from isotherm.topics.scir import SCIR
from isotherm.types import Sampler

ROUNDS, ROUNDS_BURN_IN = 5, 2
"""Rounds per batch when filtering, and how many of them are discarded."""
LDA_SWEEPS = 50
"""Sweeps of plain LDA from which Gibbs sampling starts."""
NETWORK_EVERY = 5
"""Sweeps of Gibbs sampling between two updates of the weights."""
WINDOW = 10
"""Number of scored batches in the running perplexity."""


@lru_cache
def network_sampler(
    step_size: float | None, diffusion: float, integrator: str, size: float = 1.0, growth: int = 0
) -> Sampler:
    r"""Build the thermostat of the weights, once per setting, since JAX compiles per object.

    The default step size is $0.3/\sqrt J$: the curvature of the log posterior is proportional to
    the number of documents $J$, which is `size` at first and grows by `growth` with every step.
    """
    step: Any = step_size
    if step_size is None:
        step = 0.3 * size**-0.5 if growth == 0 else lambda t: 0.3 * (size + growth * t) ** -0.5
    return msgnht(None, step, diffusion, integrator=integrator)


class DPFAPlan(NamedTuple):
    """Settings from which a chain or filter is built; it can be pickled."""

    model: DPFA
    inference: str
    sampler: Any
    step_size: Any
    network: tuple[float | None, float, str]
    """Step size, diffusion and integrator of the weights."""
    total: float | None
    """Number of documents that the posterior is conditioned on; `None` is all documents seen."""
    batch_size: int
    sweeps: int
    burn_in: int
    seed: int
    threads: int
    learn_eta: bool = False
    prior_counts: np.ndarray | None = None
    """Pseudo-counts of seed words, (topics, words)."""

    def build(self, start: Start | None, num_start_batches: int) -> DPFAChain | DPFAFilter:
        """Build a chain or filter; `num_start_batches` batches were used to initialize it."""
        common: dict[str, Any] = {"start": start, "seed": self.seed, "threads": self.threads}
        if self.inference == "filtering":
            sweeps = -(-self.sweeps // ROUNDS)
            return DPFAFilter(
                self.model, rounds=ROUNDS, burn_in=ROUNDS_BURN_IN, sweeps=sweeps, **common
            )
        seen = max(num_start_batches, 1) * self.batch_size
        size, growth = (seen, self.batch_size) if self.total is None else (self.total, 0)
        return DPFAChain(
            self.model,
            self._topic_sampler(num_start_batches),
            self._network_sampler(size, growth),
            data_size=size,
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            **common,
        )

    def _network_sampler(self, size: float, growth: int) -> Sampler:
        if self.network[0] is None:
            return network_sampler(*self.network, size, growth)
        return network_sampler(*self.network)

    def _topic_sampler(self, num_start_batches: int) -> Any:
        if not isinstance(self.sampler, str):
            return self.sampler
        if self.sampler == "scir" and self.step_size is None:
            return SCIR(lambda t: (1.0 + num_start_batches + t) ** -0.7, self.model.eta)
        return named_sampler(self.sampler, self.step_size, self.model.eta)

    def learn_start(self, batches: list[Corpus]) -> Start | None:
        """Learn the initialization from the first documents; `None` if there are none."""
        return learn_start(self.model, batches, seed=self.seed) if batches else None

    def build_gibbs(
        self, corpus: Corpus, num_sweeps: int, num_chains: int
    ) -> tuple[list[DPFAGibbs], int]:
        r"""Build Gibbs samplers that start from sweeps of plain LDA with a learned $\alpha$.

        Returns them in the order of the joint probabilities of their starts, and how many of them
        should predict (`isotherm.topics.estimators.learners.rank_chains`). $r$ starts at $\alpha$,
        $p$ at the value that explains the length of documents if all units are on, and the units of
        the layers above the first are on with probability 1/2.
        """
        model, seed = self.model, self.seed

        def build_lda(start: int) -> GibbsLDA:
            return GibbsLDA(
                corpus,
                model.num_topics,
                beta=model.eta,
                prior_counts=self.prior_counts,
                learn_alpha="asymmetric",
                learn_beta=self.learn_eta,
                seed=seed + 2**31 * start,
            )

        starts = best_starts(build_lda, num_sweeps, num_chains)
        for _ in range(min(LDA_SWEEPS, num_sweeps)):
            sweep_chains(starts)
        order, num_predicting = rank_chains(starts)
        chains = [self._continue(starts[i], seed + 2**31 * i) for i in order]
        return chains, num_predicting

    def _continue(self, lda: GibbsLDA, seed: int) -> DPFAGibbs:
        """Build a Gibbs sampler that continues a chain of plain LDA."""
        model, corpus, size = self.model, lda.corpus, self.model.num_topics
        first, length = first_parameters(model, seed), corpus.num_tokens / len(corpus)
        if model.r is None:
            first = first._replace(rates=lda.alpha.astype(np.float64))
        if model.p is None:
            first = first._replace(p=np.full(size, length / (length + first.rates.sum())))
        gibbs = DPFAGibbs(
            replace(model, eta=lda.beta),
            corpus,
            learn_eta=self.learn_eta,
            network_every=NETWORK_EVERY,
            seed=seed,
            parameters=first,
            prior_counts=self.prior_counts,
        )
        gibbs.start_from(lda.assignments)
        return gibbs


class DPFALearner(Learner):
    """Base of the learners of `BayesianDPFA`."""

    def __init__(self, plan: DPFAPlan, num_draws: int) -> None:
        super().__init__()
        self.plan, self.num_draws = plan, num_draws
        self.on_rates = np.full(plan.model.depth, np.nan)
        """Fraction of units that were on in the last batch, per layer."""

    def parameters(self) -> list[Parameters]:
        """Return draws of the parameters; topics are in single precision, to save memory."""
        return self._cached("parameters", lambda: [_with_float32(x) for x in self._parameters()])

    @abstractmethod
    def _parameters(self) -> list[Parameters]: ...

    def mean_parameters(self) -> list[Parameters]:
        """Return draws of the parameters, with means in place of topics where they are known."""
        return self.parameters()

    def predictive_parameters(self) -> list[Parameters]:
        """Return the parameters to predict with: those of all chains that predict."""
        return self.mean_parameters()

    def eta(self) -> float:
        r"""Return $\eta$, the mean over draws if it is learned."""
        return self.plan.model.eta

    def prequential_perplexity(self) -> float:
        """Return the perplexity of tokens predicted before they were learned; NaN if none were."""
        return float("nan")

    def training_perplexity(self) -> float:
        """Return the perplexity of predicted tokens of documents learned from before, or NaN."""
        return float("nan")

    def _draws(self) -> dict[str, np.ndarray]:
        chains = [[parameter_arrays(x) for x in chain] for chain in self._parameters_of_chains()]
        return {name: np.array([[x[name] for x in y] for y in chains]) for name in chains[0][0]}

    def _parameters_of_chains(self) -> list[list[Parameters]]:
        return [self.parameters()]

    def _mean_topics(self) -> np.ndarray:
        return np.mean([draw.topics for draw in self.parameters()], axis=0)


class StreamLearner(DPFALearner):
    """Learner from batches by a chain or a filter; its memory does not grow.

    Parameters
    ----------
    plan
        How to build the chain or filter.
    num_draws
        Number of draws to keep.
    num_start_documents
        Number of first documents that are collected for the initialization.
    predict_every
        Predict a part of every `predict_every`-th batch before learning from it; 0 means never.
    """

    def __init__(
        self, plan: DPFAPlan, num_draws: int, num_start_documents: int, predict_every: int
    ) -> None:
        super().__init__(plan, num_draws)
        self.num_start_documents, self.predict_every = num_start_documents, predict_every
        self.num_documents = self.num_start_batches = 0
        self.start_batches: list[Corpus] = []
        """The first documents, until there are `num_start_documents`."""
        self.chain = None if num_start_documents else self._build_chain()
        self.recent: deque[Parameters] = deque(maxlen=num_draws)
        self.predicted: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """Log likelihood and number of predicted tokens, of new documents."""
        self.fitted: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """The same of documents that were learned from before."""

    @property
    def waiting(self) -> bool:
        """Whether documents are still being collected for the initialization."""
        return self.chain is None

    def _build_chain(self) -> DPFAChain | DPFAFilter:
        return self.plan.build(None, self.num_start_batches)

    def _update(self, batch: Corpus, new: bool) -> None:
        self.num_documents += len(batch)
        if self.chain is None:
            self.start_batches.append(batch)
            if self.num_documents >= self.num_start_documents:
                self.initialize(self.start_batches)
            return
        if self.predict_every and self.chain.num_batches % self.predict_every == 0:
            (self.predicted if new else self.fitted).append(self._predict(batch))
        if isinstance(self.chain, DPFAChain):
            total = self.plan.total
            self.chain.data_size = self.num_documents if total is None else total
        self.chain.step(batch)
        self.on_rates = self.chain.on_rates
        if isinstance(self.chain, DPFAChain):
            self.recent.append(_with_float32(self.chain.parameters()))

    def initialize(self, batches: list[Corpus]) -> None:
        """Build the chain or filter from the first documents."""
        self._cache, self.start_batches, self.num_start_batches = {}, [], len(batches)
        self.chain = self.plan.build(self.plan.learn_start(batches), self.num_start_batches)

    def prequential_perplexity(self) -> float:
        """Return the perplexity of tokens that were predicted before they were learned."""
        return prequential_perplexity(np.sum([(0.0, 0.0), *self.predicted], axis=0))

    def training_perplexity(self) -> float:
        """Return the perplexity of predicted tokens of documents that were learned from before."""
        return prequential_perplexity(np.sum([(0.0, 0.0), *self.fitted], axis=0))

    def running_perplexity(self) -> float:
        """Return the perplexity of the last scored batches, new or not."""
        return self.training_perplexity() if self.fitted else self.prequential_perplexity()

    def _predict(self, batch: Corpus) -> tuple[float, float]:
        plan = self.plan
        predicted = predict_batch(
            local_gibbs.prepare_parameters(self.chain.parameters()),
            batch,
            sweeps=plan.sweeps,
            burn_in=plan.burn_in,
            seed=plan.seed,
            num_batches=self.chain.num_batches,
            threads=plan.threads,
        )
        return (float(predicted[0]), float(predicted[1]))

    def _parameters(self) -> list[Parameters]:
        if self.chain is None:
            start, seed = self.plan.learn_start(self.start_batches), self.plan.seed
            return [
                first_parameters(self.plan.model, seed + i, start) for i in range(self.num_draws)
            ]
        if self.chain.num_batches == 0:
            return [self.chain.parameters()]
        if isinstance(self.chain, DPFAFilter):
            return [self.chain.draw(i) for i in range(self.num_draws)]
        return list(self.recent)


KeptSweep = tuple[Parameters, float]
r"""Parameters with counts of words in place of topics, and $\eta$, of a sweep."""


class GibbsLearner(DPFALearner):
    """Gibbs sweeps over all documents; draws are from the second half of the sweeps.

    As in `isotherm.topics.estimators.learners.GibbsLDALearner`, summaries use the first chain, and
    predictions all chains but those that started far less probable. The first chain is the one
    with the most probable start.
    """

    def __init__(self, plan: DPFAPlan, num_draws: int, num_chains: int = 1) -> None:
        super().__init__(plan, num_draws)
        self.num_documents = 0
        self.chains: list[list[KeptSweep]] = [[] for _ in range(num_chains)]
        """The kept sweeps of each chain."""
        self.num_predicting = num_chains
        """How many of the chains predictions use, from the first."""

    def run(self, corpus: Corpus, num_sweeps: int, report: Callable[[int], None]) -> None:
        """Sweep all documents; `report` is called with the number of documents of each sweep.

        `num_sweeps` is the number of sweeps of all chains together.
        """
        per_chain = -(-num_sweeps // len(self.chains))
        chains, self.num_predicting = self.plan.build_gibbs(corpus, per_chain, len(self.chains))
        kept = kept_sweeps(per_chain, self.num_draws)
        self.num_documents = len(corpus)
        for i in range(1, per_chain + 1):
            for j, (gibbs, sweeps) in enumerate(zip(chains, self.chains, strict=True)):
                gibbs.sweep()
                if i in kept:
                    sweeps.append((gibbs.with_topics(gibbs.counts()), gibbs.eta))
                if (i - 1) * len(chains) + j < num_sweeps:
                    report(len(corpus))
        self.on_rates = chains[0].on_rates

    def as_stream(self, total: float | None, predict_every: int) -> StreamLearner:
        """Return a learner by stochastic gradients that continues with new documents.

        It starts from the last draw of the first chain. `total` is the number of documents that the
        posterior is conditioned on, as in the plan.
        """
        last, eta = self.chains[0][-1]
        plan = self.plan._replace(inference="sgmcmc", total=total, learn_eta=False)
        plan = plan._replace(model=replace(plan.model, eta=eta))
        learner = StreamLearner(plan, self.num_draws, 0, predict_every)
        learner.num_start_batches = -(-self.num_documents // plan.batch_size)
        learner.num_documents = self.num_documents
        start = Start(last.topics.T, self.num_documents, 1.0, 0.5)
        chain = plan.build(start, learner.num_start_batches)
        assert isinstance(chain, DPFAChain)  # since `inference` is "sgmcmc"
        chain.continue_from(last)
        learner.chain = chain
        return learner

    def eta(self) -> float:
        r"""Return the mean of $\eta$."""
        return float(np.mean([eta for _, eta in self.chains[0]]))

    def mean_parameters(self) -> list[Parameters]:
        r"""Return draws with $\mathrm E[\phi \mid z]$ in place of topics, of the first chain."""
        return _with_mean_topics(self.chains[0])

    def predictive_parameters(self) -> list[Parameters]:
        r"""Return draws with $\mathrm E[\phi \mid z]$ in place of topics, of all that predict."""
        chains = self.chains[: self.num_predicting]
        return [x for sweeps in chains for x in _with_mean_topics(sweeps)]

    def _mean_topics(self) -> np.ndarray:
        return np.mean([draw.topics for draw in self.mean_parameters()], axis=0)

    def _parameters(self) -> list[Parameters]:
        return self._parameters_of_chain(0)

    def _parameters_of_chain(self, number: int) -> list[Parameters]:
        sweeps, drawn = self.chains[number], []
        for i, (x, eta) in enumerate(sweeps, start=number * len(sweeps)):
            rng = counter_rng.generator(self.plan.seed, "topics", i)
            drawn.append(x._replace(topics=draw_topics(rng, x.topics.T, eta)))
        return drawn

    def _parameters_of_chains(self) -> list[list[Parameters]]:
        others = (self._parameters_of_chain(i) for i in range(1, len(self.chains)))
        return [self.parameters(), *([_with_float32(x) for x in chain] for chain in others)]

    def _build_chain(self) -> None:
        return None

    def _update(self, batch: Corpus, new: bool) -> None:
        raise NotImplementedError("Gibbs sampling needs all documents at once: use `run`.")


def _with_mean_topics(sweeps: list[KeptSweep]) -> list[Parameters]:
    return [x._replace(topics=mean_topics(x.topics, eta)) for x, eta in sweeps]


def _with_float32(parameters: Parameters) -> Parameters:
    return parameters._replace(topics=np.asarray(parameters.topics, np.float32))

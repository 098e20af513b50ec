"""What learns inside `BayesianDPFA`: a chain or a filter of a stream, or a Gibbs sampler of documents in memory."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from isotherm.samplers.msgnht import msgnht
from isotherm.topics.corpus import Corpus, completion
from isotherm.topics.dpfa import local_gibbs
from isotherm.topics.dpfa.bcdf import DPFAFilter
from isotherm.topics.dpfa.gibbs import DPFAGibbs, first_parameters
from isotherm.topics.dpfa.initialization import Start, learn_start
from isotherm.topics.dpfa.model import DPFA, Parameters
from isotherm.topics.dpfa.perplexity import predict
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.estimators.lda_learners import SAMPLERS
from isotherm.topics.scir import SCIR
from isotherm.types import Sampler

ROUNDS, ROUNDS_BURN_IN = 5, 2
"""Draws of the parameters per batch when filtering, and how many of them are not averaged."""
WINDOW = 10
"""Batches whose predictions make the running perplexity."""


@lru_cache
def network_sampler(
    step_size: float | None, diffusion: float, integrator: str, size: float = 1.0, growth: int = 0
) -> Sampler:
    r"""Build the thermostat of the weights, once per setting, since every object is compiled anew.

    Without a step size it is $0.3/\sqrt J$: the curvature of the log posterior grows like the number of documents $J$, which is `size` and `growth` more
    with every step.
    """
    step: Any = step_size
    if step_size is None:
        step = 0.3 * size**-0.5 if growth == 0 else lambda t: 0.3 * (size + growth * t) ** -0.5
    return msgnht(None, step, diffusion, integrator=integrator)


class Plan(NamedTuple):
    """How to build what learns: plain values, where a sampler is functions and cannot be pickled."""

    model: DPFA
    inference: str
    sampler: Any
    step_size: Any
    network: tuple[float | None, float, str]
    """Step size, diffusion and integrator of the weights."""
    total: float | None
    """Documents the posterior is given; `None` is as many as were seen."""
    batch_size: int
    sweeps: int
    burn_in: int
    seed: int
    threads: int

    def build(self, start: Start | None, before: int) -> DPFAChain | DPFAFilter:
        """Make a chain or a filter that has not moved; `before` batches went into the start."""
        common: dict[str, Any] = {"start": start, "seed": self.seed, "threads": self.threads}
        if self.inference == "filtering":
            sweeps = -(-self.sweeps // ROUNDS)
            return DPFAFilter(
                self.model, rounds=ROUNDS, burn_in=ROUNDS_BURN_IN, sweeps=sweeps, **common
            )
        seen = max(before, 1) * self.batch_size
        size, growth = (seen, self.batch_size) if self.total is None else (self.total, 0)
        return DPFAChain(
            self.model,
            self._topics(before),
            self._network(size, growth),
            data_size=size,
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            **common,
        )

    def _network(self, size: float, growth: int) -> Sampler:
        if self.network[0] is None:
            return network_sampler(*self.network, size, growth)
        return network_sampler(*self.network)

    def _topics(self, before: int) -> Any:
        if not isinstance(self.sampler, str):
            return self.sampler
        if self.sampler not in SAMPLERS:
            known = ", ".join(map(repr, SAMPLERS))
            raise ValueError(f"`sampler` must be one of {known}, got {self.sampler!r}.")
        if self.sampler == "scir" and self.step_size is None:
            return SCIR(lambda t: (1.0 + before + t) ** -0.7, self.model.eta)
        return SAMPLERS[self.sampler](self.step_size, self.model.eta)

    def start(self, batches: list[Corpus]) -> Start | None:
        """Read the first documents; none give no start."""
        return learn_start(self.model, batches, seed=self.seed) if batches else None


class DeepLearner(ABC):
    """Has learned and gives draws."""

    plan: Plan
    on_rates: np.ndarray
    """Share of units that were on in the last batch, per layer."""

    def __init__(self, plan: Plan, num_draws: int) -> None:
        self.plan, self.num_draws = plan, num_draws
        self.on_rates = np.full(plan.model.depth, np.nan)
        self._found: list[Parameters] | None = None

    def draws(self) -> list[Parameters]:
        """Give draws of the parameters."""
        if self._found is None:
            self._found = self._draws()
        return self._found

    @abstractmethod
    def _draws(self) -> list[Parameters]: ...


class Stream(DeepLearner):
    """Learns from batches; its memory does not grow."""

    def __init__(self, plan: Plan, num_draws: int, wait: int, predict_every: int) -> None:
        super().__init__(plan, num_draws)
        self.wait, self.predict_every = wait, predict_every
        self.seen = self.before = 0
        self.waiting: list[Corpus] = []
        """The first documents, until there are `wait` of them."""
        self.chain = None if wait else plan.build(None, 0)
        self.recent: deque[Parameters] = deque(maxlen=num_draws)
        self.predicted: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def __getstate__(self) -> dict[str, Any]:
        arrays = None if self.chain is None else self.chain.arrays()
        return self.__dict__ | {"chain": arrays, "_found": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if state["chain"] is not None:
            self.chain = self.plan.build(None, self.before)
            self.chain.restore(state["chain"])

    def update(self, batch: Corpus) -> None:
        """Learn from documents, or keep them until there are enough for a start."""
        self._found, self.seen = None, self.seen + len(batch)
        if self.chain is None:
            self.waiting.append(batch)
            if self.seen >= self.wait:
                self.begin(self.waiting)
            return
        if self.predict_every and self.chain.num_batches % self.predict_every == 0:
            self._predict(self.chain, batch)
        if isinstance(self.chain, DPFAChain):
            total = self.plan.total
            self.chain.data_size = self.seen if total is None else total
        self.chain.step(batch)
        self.on_rates = self.chain.on_rates
        if isinstance(self.chain, DPFAChain):
            self.recent.append(_lighter(self.chain.parameters()))

    def begin(self, batches: list[Corpus]) -> None:
        """Start from what these documents say."""
        self._found, self.waiting, self.before = None, [], len(batches)
        self.chain = self.plan.build(self.plan.start(batches), self.before)

    def perplexity(self) -> float:
        """Give the perplexity of what was predicted in the last batches that were."""
        if not sum(number for _, number in self.predicted):
            return float("nan")
        log_likelihood, tokens = np.sum(list(self.predicted), axis=0)
        return float(np.exp(-log_likelihood / tokens))

    def _predict(self, chain: DPFAChain | DPFAFilter, batch: Corpus) -> None:
        plan, step = self.plan, -1 - chain.num_batches  # not the numbers of the sweeps that learn
        split = completion(batch, observed=0.8, seed=plan.seed)
        prepared = local_gibbs.prepare_parameters(chain.parameters())
        found = predict(
            prepared,
            split,
            sweeps=plan.sweeps,
            burn_in=plan.burn_in,
            seed=plan.seed,
            step=step,
            threads=plan.threads,
        )
        self.predicted.append(found)

    def _draws(self) -> list[Parameters]:
        if self.chain is None:
            start, seed = self.plan.start(self.waiting), self.plan.seed
            return [
                _lighter(first_parameters(self.plan.model, seed + i, start))
                for i in range(self.num_draws)
            ]
        if self.chain.num_batches == 0:
            return [_lighter(self.chain.parameters())]
        if isinstance(self.chain, DPFAFilter):
            return [_lighter(self.chain.draw(i)) for i in range(self.num_draws)]
        return list(self.recent)


class Sweeps(DeepLearner):
    """Gibbs sweeps over all documents; draws are of the later half."""

    def run(self, corpus: Corpus, first: list[Corpus], num_sweeps: int, tell: Callable) -> None:
        """Start from what the first documents say and sweep; `tell` hears of the documents swept."""
        plan, start = self.plan, self.plan.start(first)
        parameters = first_parameters(plan.model, plan.seed, start)
        chain = DPFAGibbs(
            plan.model, corpus, seed=plan.seed, threads=plan.threads, parameters=parameters
        )
        late = num_sweeps - np.arange(self.num_draws) * max(num_sweeps // 2 // self.num_draws, 1)
        kept = []
        for i in range(1, num_sweeps + 1):
            chain.sweep()
            if i in late:
                kept.append(_lighter(chain.parameters()))
            tell(len(corpus))
        self._kept, self.on_rates = kept, chain.on_rates

    def _draws(self) -> list[Parameters]:
        return self._kept


def _lighter(parameters: Parameters) -> Parameters:
    """Keep topics in single precision: they are by far the most."""
    return parameters._replace(topics=np.asarray(parameters.topics, np.float32))

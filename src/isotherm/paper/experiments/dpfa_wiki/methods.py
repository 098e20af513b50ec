"""The methods that learn from the stream, and the score of each.

Every method is an object with `step`, `parameters`, `state_dict` and `load_state_dict`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

import isotherm
from isotherm.topics.bcdf import BCDFLDA
from isotherm.topics.corpus import Completion, Corpus
from isotherm.topics.dpfa.bcdf import DPFAFilter
from isotherm.topics.dpfa.boltzmann import DPFABoltzmann
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.dpfa.perplexity import DPFAScore
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.perplexity import CompletionScore
from isotherm.topics.scir import SCIR
from isotherm.topics.state import StateDict, Stateful
from isotherm.topics.tlasgr import TLASGR
from isotherm.types import Sampler


@dataclass(frozen=True)
class Method:
    """A model, and how it is trained."""

    route: str
    """`"chain"`, `"filter"`, `"boltzmann"` or `"lda"`."""
    integrator: str = "ABOBA"
    step_size: float = 1e-4
    """$h$ of the weights."""
    topics: str = "SGRLD"
    """The sampler of the topics of a chain: SGRLD, SCIR or TLASGR."""
    depth: int | None = None
    """Number of binary layers; `None` for all."""
    r: float | None = None
    p: float | None = None
    warm: bool = True
    """Whether it starts from the fit to the first documents."""


class Learner(Stateful, Protocol):
    """A model that is trained on batches."""

    @property
    def documents_seen(self) -> int:
        """Number of documents seen so far."""
        ...

    @property
    def on_rates(self) -> np.ndarray:
        """Share of units that were on in the last batch, per layer."""
        ...

    def step(self, batch: Corpus) -> None:
        """Learn from a batch."""
        ...

    def parameters(self) -> Any:
        """Return a draw."""
        ...


class LDAFilter:
    """LDA by density filtering; its parameters are topics."""

    def __init__(self, model: DPFA, alpha: float, start: Start | None, **settings: Any) -> None:
        self.filter = BCDFLDA(
            model.num_topics, model.num_words, alpha=alpha, beta=model.eta, **settings
        )
        if start is not None:
            self.filter.counts[:, : model.num_topics] = start.counts
            self.filter.num_documents = start.documents
        self.on_rates = np.full(1, np.nan)

    @property
    def documents_seen(self) -> int:
        """Number of documents seen so far."""
        return self.filter.num_documents

    def step(self, batch: Corpus) -> None:
        """Learn from a batch."""
        self.filter.update(batch)

    def parameters(self) -> np.ndarray:
        """Draw topics."""
        return self.filter.draw()

    def state_dict(self) -> StateDict:
        """Return everything needed to resume."""
        return self.filter.state_dict()

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from a saved state, bit for bit."""
        self.filter.load_state_dict(state)


@dataclass(frozen=True)
class Settings:
    """Settings that all methods share."""

    num_words: int
    layers: tuple[int, ...]
    eta: float
    alpha: float
    diffusion: float
    data_size: int
    sgrld_step: float
    """Initial step size of the topics, SGRLD."""
    scir_step: float
    """Initial step size of the topics, SCIR."""
    tlasgr_step: float
    """Initial step size of the topics, TLASGR."""
    start_batches: int
    rounds: int
    rounds_burn_in: int
    seed: int


def build(method: Method, settings: Settings, start: Start | None) -> Learner:
    """Build the learner of a method."""
    layers = settings.layers[: method.depth]
    model = DPFA(settings.num_words, layers, settings.eta, method.r, p=method.p)
    start, seed = start if method.warm else None, settings.seed
    if method.route == "lda":
        return LDAFilter(model, settings.alpha, start, seed=seed)
    if method.route == "filter":
        return DPFAFilter(
            model, rounds=settings.rounds, burn_in=settings.rounds_burn_in, start=start, seed=seed
        )
    sampler = _thermostat(method.step_size, settings.diffusion, method.integrator)
    common: dict[str, Any] = {"data_size": settings.data_size, "start": start, "seed": seed}
    if method.route == "boltzmann":
        return DPFABoltzmann(model, sampler, **common)
    return DPFAChain(model, topics_sampler(method, settings), sampler, **common)


def topics_sampler(method: Method, settings: Settings) -> Any:
    """Build the sampler of the topics, with a step size that decays with the documents."""
    before = settings.start_batches if method.warm else 1
    if method.topics == "SCIR":
        return SCIR(_DecayingStep(settings.scir_step, before), settings.eta)
    if method.topics == "TLASGR":
        return TLASGR(_DecayingStep(settings.tlasgr_step, before), settings.eta)
    return _sgrld(_DecayingStep(settings.sgrld_step, before), settings.eta)


class _DecayingStep(NamedTuple):
    r"""The step size $h_0(1 + t/t_0)^{-0.7}$ after $t_0$ earlier batches."""

    first: float
    before: int

    def __call__(self, t: Any) -> Any:
        return self.first * (1 + t / self.before) ** -0.7


@lru_cache
def _thermostat(h: float, diffusion: float, integrator: str) -> Sampler:
    """Build the sampler of the weights once: every new object would be compiled again."""
    return isotherm.msgnht(None, h, diffusion, integrator=integrator)


@lru_cache
def _sgrld(step: _DecayingStep, eta: float) -> Sampler:
    return isotherm.sgrld(None, step, eta)


def make_score(method: Method, settings: Settings, split: Completion, threads: int = 1) -> Any:
    """Build the score of a method's draws: 25 sweeps for the first, then a few per draw."""
    if method.route == "lda":
        return CompletionScore(
            split, settings.alpha, sweeps=23, burn_in=20, warm=True, threads=threads
        )
    learner = DPFABoltzmann if method.route == "boltzmann" else DPFAChain
    return DPFAScore(split, threads=threads, kernel=learner.kernel)

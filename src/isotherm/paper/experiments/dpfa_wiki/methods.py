"""Who learns from the stream: every method as an object with `step`, `parameters`, `arrays` and `restore`, and the score that suits it."""

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
from isotherm.topics.tlasgr import TLASGR
from isotherm.types import Sampler


@dataclass(frozen=True)
class Method:
    """How a model learns."""

    route: str
    """`"chain"`, `"filter"`, `"boltzmann"` or `"lda"`."""
    integrator: str = "ABOBA"
    step_size: float = 1e-4
    """$h$ of the weights."""
    topics: str = "SGRLD"
    """What moves the topics of a chain: SGRLD, SCIR or TLASGR."""
    depth: int | None = None
    """Binary layers that are kept; all without a number."""
    r: float | None = None
    p: float | None = None
    warm: bool = True
    """Whether it starts from what the first documents said."""


class Learner(Protocol):
    """What learns from batches."""

    @property
    def documents_seen(self) -> int:
        """Documents so far."""
        ...

    @property
    def on_rates(self) -> np.ndarray:
        """Share of units that were on in the last batch, per layer."""
        ...

    def step(self, batch: Corpus) -> None:
        """Learn from a batch."""
        ...

    def parameters(self) -> Any:
        """Give a draw."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Give what it takes to go on."""
        ...

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Go on, bit for bit."""
        ...


class LDAFilter:
    """LDA by density filtering, as a learner; its parameters are topics."""

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
        """Count documents."""
        return self.filter.num_documents

    def step(self, batch: Corpus) -> None:
        """Learn from a batch."""
        self.filter.update(batch)

    def parameters(self) -> np.ndarray:
        """Draw topics."""
        return self.filter.draw()

    def arrays(self) -> dict[str, np.ndarray]:
        """Give what it takes to go on."""
        return self.filter.state()

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Go on, bit for bit."""
        self.filter.restore(arrays)


@dataclass(frozen=True)
class Settings:
    """What all methods share."""

    num_words: int
    layers: tuple[int, ...]
    eta: float
    alpha: float
    diffusion: float
    data_size: int
    sgrld_step: float
    """Step of the topics by SGRLD at the start."""
    scir_step: float
    """Step of the topics by SCIR at the start."""
    tlasgr_step: float
    """Step of the topics by TLASGR at the start."""
    start_batches: int
    rounds: int
    rounds_burn_in: int
    seed: int


def build(method: Method, settings: Settings, start: Start | None) -> Learner:
    """Make the learner of a method."""
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
    """Build what moves the topics, with a step that falls with the documents."""
    before = settings.start_batches if method.warm else 1
    if method.topics == "SCIR":
        return SCIR(_Fall(settings.scir_step, before), settings.eta)
    if method.topics == "TLASGR":
        return TLASGR(_Fall(settings.tlasgr_step, before), settings.eta)
    return _sgrld(_Fall(settings.sgrld_step, before), settings.eta)


class _Fall(NamedTuple):
    r"""The step $h_0(1 + t/t_0)^{-0.7}$, where $t_0$ batches came before."""

    first: float
    before: int

    def __call__(self, t: Any) -> Any:
        return self.first * (1 + t / self.before) ** -0.7


@lru_cache
def _thermostat(h: float, diffusion: float, integrator: str) -> Sampler:
    """Build a sampler of the weights, once: every object is compiled anew."""
    return isotherm.msgnht(None, h, diffusion, integrator=integrator)


@lru_cache
def _sgrld(step: _Fall, eta: float) -> Sampler:
    return isotherm.sgrld(None, step, eta)


def make_score(method: Method, settings: Settings, split: Completion, threads: int = 1) -> Any:
    """Make the score of a method's draws: 25 sweeps for the first, then a few per draw."""
    if method.route == "lda":
        return CompletionScore(
            split, settings.alpha, sweeps=23, burn_in=20, warm=True, threads=threads
        )
    learner = DPFABoltzmann if method.route == "boltzmann" else DPFAChain
    return DPFAScore(split, threads=threads, kernel=learner.kernel)

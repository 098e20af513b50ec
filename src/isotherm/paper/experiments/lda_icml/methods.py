"""The methods of the table, and chains whose draws are scored while they run."""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import isotherm
from isotherm.exceptions import DivergedError
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.topics.corpus import Completion, Corpus
from isotherm.topics.gibbs import GibbsLDA
from isotherm.topics.lda import LDAChain
from isotherm.topics.perplexity import CompletionScore
from isotherm.topics.scir import SCIR

Setting = tuple[float, float]
"""Step size, and the other setting of a method: diffusion, friction, topic prior, or 0 for none."""


class Protocol(NamedTuple):
    """Settings that all chains share."""

    num_topics: int = 30
    alpha: float = 0.1
    batch_size: int = 5
    num_steps: int = 1000
    thin: int = 10
    sweeps: int = 10
    burn_in: int = 5

    @property
    def num_kept(self) -> int:
        """Number of draws that are scored."""
        return self.num_steps // self.thin

    @property
    def num_averaged(self) -> int:
        """Number of draws that are averaged at the end: those of the second half."""
        return self.num_kept - self.num_kept // 2


def _decaying(h: float, delay: float) -> Callable[..., Any]:
    return isotherm.schedules.polynomial(h, delay, 0.55)


SAMPLERS: dict[str, Callable[..., Any]] = {
    "mSGNHT-S": lambda h, d, **kw: isotherm.msgnht(None, h, d, **kw),
    "mSGNHT-E": lambda h, d, **kw: isotherm.msgnht(None, h, d, integrator="euler", **kw),
    "SGHMC-S": lambda h, d: isotherm.sghmc(None, h, d),
    "SGHMC-E": lambda h, d: isotherm.sghmc(None, h, d, integrator="euler"),
    "SGNHT-S": lambda h, d: isotherm.sgnht(None, h, d),
    "SGLD": lambda h, _: isotherm.sgld(None, h),
    "pSGLD": lambda h, _: isotherm.psgld(None, h),
    "SGRLD": lambda h, beta: isotherm.sgrld(None, _decaying(h, 1000), beta),
    "SCIR": lambda h, beta: SCIR(_decaying(h, 100), beta),
}
GIBBS = "Gibbs"


@lru_cache(maxsize=32)
def make_sampler(name: str, setting: Setting) -> Any:
    """Return a sampler, the same for the same setting, so that its programs compile once."""
    return SAMPLERS[name](*setting)


class Chain(NamedTuple):
    """The result of a chain: probabilities of the scored cells summed over draws, and its time."""

    sums: np.ndarray
    """(kept, cells), summed up to each kept draw; NaN after a divergence."""
    seconds: float
    """Wall time of the steps, without compilation and scores."""
    cpu: float
    """Processor time of the steps, all threads."""


def run_chain(
    name: str,
    setting: Setting,
    train: Corpus,
    split: Completion,
    protocol: Protocol,
    seed: int,
    *,
    sampler: Any = None,
) -> Chain:
    """Run one chain and score every `thin`-th draw."""
    score = CompletionScore(split, protocol.alpha, sweeps=15, burn_in=10, warm=True, seed=seed)
    sums = np.full((protocol.num_kept, len(score.sums)), np.nan)
    advance, topics = _start(name, setting, train, protocol, seed, sampler)
    seconds = cpu = 0.0
    try:
        for i in range(protocol.num_kept):
            clock, work = time.perf_counter(), time.process_time()
            advance(protocol.thin)
            seconds += time.perf_counter() - clock
            cpu += time.process_time() - work
            score.add(topics())
            sums[i] = score.sums
    except DivergedError:
        seconds = cpu = np.nan
    return Chain(sums, seconds, cpu)


def _start(
    name: str, setting: Setting, train: Corpus, protocol: Protocol, seed: int, sampler: Any
) -> tuple[Callable[[int], None], Callable[[], np.ndarray]]:
    """Build and compile a chain; return functions that advance it and that return its topics."""
    if name == GIBBS:
        gibbs = GibbsLDA(
            train, protocol.num_topics, alpha=protocol.alpha, beta=setting[1], seed=seed
        )
        return gibbs.sweep, gibbs.topics

    def make() -> LDAChain:
        return LDAChain(
            make_sampler(name, setting) if sampler is None else sampler,
            protocol.num_topics,
            train.num_words,
            data_size=len(train),
            alpha=protocol.alpha,
            sweeps=protocol.sweeps,
            burn_in=protocol.burn_in,
            seed=seed,
        )

    chain = make()
    state = chain.state_dict()
    chain.advance(train, 1, protocol.batch_size)  # compiles
    chain.load_state_dict(state)
    return (lambda n: chain.advance(train, n, protocol.batch_size)), chain.topics


def curve(chain: Chain, split: Completion) -> np.ndarray:
    """Return the perplexity after each kept draw, averaged over the later half of them so far."""
    kept = np.arange(1, len(chain.sums) + 1)
    start = kept // 2
    before = np.vstack([np.zeros_like(chain.sums[:1]), chain.sums])[start]
    mean = (chain.sums - before) / (kept - start)[:, None]
    n = split.scored.counts
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.exp(-(np.log(mean) @ n) / n.sum())
    return np.where(np.isfinite(value), value, np.inf)


class Runs(NamedTuple):
    """The results of the chains of one setting, one row per seed."""

    curves: np.ndarray
    """(seeds, kept)"""
    seconds: np.ndarray
    cpu: np.ndarray


class ChainRunner(NamedTuple):
    """Runs chains on given documents, and saves them as checkpoints."""

    protocol: Protocol
    checkpoints: Checkpoints
    report: Report
    seed: int
    train: Corpus
    split: Completion

    def run(
        self, purpose: str, name: str, setting: Setting, num_seeds: int, first: int, **more: Any
    ) -> Runs:
        """Run chains with seeds from `first` on, or load them; `more` goes to the sampler."""
        label = f"{purpose}: {name} {setting}"
        sampler = SAMPLERS[name](*setting, **more) if more else None
        chains = [
            self._run_one(f"{label}, seed {k}", name, setting, self.seed + first + k, sampler)
            for k in range(num_seeds)
        ]
        runs = Runs(*map(np.array, zip(*chains, strict=True)))
        self.report(f"{label}: perplexity {runs.curves[:, -1].mean():.1f}")
        return runs

    def _run_one(self, label: str, name: str, setting: Setting, seed: int, sampler: Any) -> Runs:
        if (saved := self.checkpoints.load(label)) is not None:
            return Runs(**saved)
        chain = run_chain(
            name, setting, self.train, self.split, self.protocol, seed, sampler=sampler
        )
        run = Runs(curve(chain, self.split), np.asarray(chain.seconds), np.asarray(chain.cpu))
        self.checkpoints.save(label, run._asdict())
        return run

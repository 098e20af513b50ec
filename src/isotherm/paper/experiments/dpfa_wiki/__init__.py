r"""Does a deep prior improve a topic model of Wikipedia, and which method learns it best?

Deep Poisson factor analysis (DPFA) with 128 topics and binary layers of 128, 64 and 32 units, in
one pass over Wikipedia articles (7702 words) in batches of 100. The weights of the layers are
sampled by mSGNHT-S or -E with D = 40, the topics by SGRLD; r, γ₀ and p are sampled too. It is
compared with the same model by density filtering (BCDF), with a Boltzmann machine for the layers
(RBM; topics by mSGNHT-E, weights by contrastive divergence), with one layer (NB-FTM) and with LDA
by density filtering.

- *Perplexity* is by document completion on 1000 test articles: 80 % of the tokens are observed, and
  probabilities are averaged over the draws of the last 300 batches before taking the logarithm. A
  point of a curve averages 20 draws. *Single draw* is the perplexity without averaging.
- All methods start from a collapsed filter of LDA fitted to the first 10 000 articles, which count
  as seen; *random start* shows the effect of that.
- The step size of the topics is chosen by a shorter pass, on 1000 training articles that are held
  out of the stream. The warm start and the sampling of p were chosen in shorter runs that were
  scored on the test articles; the rows that begin with *S,* show their effect. These are mSGNHT-S
  at the larger step with one change.
- *On* is the share of units that are on, from the lowest layer up. A layer that is always on or
  always off has no effect.
- ± of the differences is a standard error over test articles; the spread over seeds is of a shorter
  pass.
- The paper has 10 million articles, and a figure without numbers: its order is S < E < RBM, BCDF,
  NB-FTM, LDA.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from isotherm import random
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.dpfa_wiki.figures import plot
from isotherm.paper.experiments.dpfa_wiki.methods import Method, Settings
from isotherm.paper.experiments.dpfa_wiki.tables import KINDS, ONE_LAYER, check, rows
from isotherm.paper.experiments.dpfa_wiki.training import (
    Plan,
    Traces,
    documents_of,
    train_on_stream,
)
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.topics.corpus import Completion, completion
from isotherm.topics.corpus_readers import CorpusStream, stream_wiki
from isotherm.topics.dpfa.initialization import Start, learn_start
from isotherm.topics.dpfa.model import DPFA
from isotherm.types import Key

__all__ = ["SMOKE", "Config", "check", "plot", "rows", "run"]


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    layers: tuple[int, ...] = (128, 64, 32)
    eta: float = 0.05
    alpha: float = 0.1
    """Dirichlet prior of the documents, for LDA and for the warm start."""
    batch_size: int = 100
    num_documents: int = 228_600
    start_documents: int = 10_000
    num_test: int = 1000
    step_sizes: tuple[float, ...] = (1e-4, 1e-5)
    diffusion: float = 40.0
    mark_every: int = 10_000
    curve_draws: int = 20
    final_draws: int = 300
    late: int = 10_000
    num_seeds: int = 3
    seed_documents: int = 40_000
    """Documents in the passes with several seeds."""
    choice_documents: int = 30_000
    """Documents in the passes that choose step sizes."""
    sgrld_steps: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    scir_steps: tuple[float, ...] = (0.02, 0.04, 0.08)
    tlasgr_steps: tuple[float, ...] = (0.02, 0.04, 0.08)
    rounds: int = 3
    rounds_burn_in: int = 1
    alternatives: bool = True

    def __post_init__(self) -> None:
        size = self.batch_size
        for name in (
            "num_documents",
            "start_documents",
            "mark_every",
            "seed_documents",
            "choice_documents",
        ):
            if getattr(self, name) % size:
                raise ValueError(f"`{name}` must be a multiple of `batch_size`.")
        ends = (self.num_documents, self.seed_documents, self.choice_documents)
        if min(ends) < self.start_documents + size * self.curve_draws:
            raise ValueError(
                "Every pass must be longer than `start_documents` plus the documents of "
                "`curve_draws` batches."
            )

    def plan(self, total: int, final_draws: int) -> Plan:
        """Return the plan of evaluations for a pass over `total` documents."""
        left = (total - self.start_documents) // self.batch_size
        return Plan(
            batch_size=self.batch_size,
            total=total,
            mark_every=self.mark_every,
            curve_draws=min(self.curve_draws, left),
            final_draws=min(final_draws, left),
            late=self.late,
            late_every=max(self.late // 10, self.batch_size),
            predict_every=20,
            save_every=200,
        )

    def methods(self) -> dict[str, Method]:
        """Return the methods that are trained on the whole stream, by name."""
        h = max(self.step_sizes)
        methods = {
            f"mSGNHT-{scheme}, h = {step:g}": Method("chain", integrator, step)
            for step in self.step_sizes
            for scheme, integrator in (("S", "ABOBA"), ("E", "euler"))
        }
        methods |= {
            "BCDF": Method("filter"),
            "RBM": Method("boltzmann", "euler", h),
            "NB-FTM, BCDF": Method("filter", depth=1),
            "LDA, BCDF": Method("lda"),
        }
        if self.alternatives:
            best = methods[f"mSGNHT-S, h = {h:g}"]
            methods |= {
                ONE_LAYER: replace(best, depth=1),
                "S, topics by SCIR": replace(best, topics="SCIR"),
                "S, topics by TLASGR": replace(best, topics="TLASGR"),
                "S, p = 1/2": replace(best, p=0.5),
                "S, r = 1/128, p = 1/2": replace(best, r=1 / 128, p=0.5),
                "S, random start": replace(best, warm=False),
            }
        return methods

    def seeded(self) -> list[str]:
        """Return the names of the methods that are run with several seeds."""
        h = f"h = {max(self.step_sizes):g}"
        return [f"mSGNHT-S, {h}", f"mSGNHT-E, {h}", *[ONE_LAYER] * self.alternatives]


SMOKE = Config(
    layers=(8, 4, 2),
    num_documents=1500,
    start_documents=500,
    num_test=50,
    step_sizes=(1e-4,),
    mark_every=500,
    curve_draws=3,
    final_draws=5,
    late=500,
    num_seeds=2,
    seed_documents=1000,
    choice_documents=1000,
    sgrld_steps=(3e-3,),
    scir_steps=(0.03,),
    tlasgr_steps=(0.03,),
    rounds=2,
    rounds_burn_in=1,
)


def run(
    config: Config, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Choose step sizes, then train every method on the stream."""
    trainer = _Trainer(config, random.numpy_seed(key), checkpoints, report)
    chosen = trainer.choose()
    result: dict[str, np.ndarray] = {f"tried {k}": v for k, v in trainer.tried.items()}
    for name, method in config.methods().items():
        traces = trainer.run(name, method, chosen)
        result |= {f"{field} {name}": x for field, x in traces._asdict().items()}
    plan = config.plan(config.seed_documents, config.curve_draws)
    for name in config.seeded():
        method = config.methods()[name]
        ends = [
            trainer.run(name, method, chosen, seed=seed, plan=plan).final[0]
            for seed in range(config.num_seeds)
        ]
        result[f"seeds {name}"] = np.array(ends)
    scored = trainer.test.scored
    return result | {"cell starts": scored.indptr, "cell counts": scored.counts}


class Steps(NamedTuple):
    """Step sizes of the topics, by sampler."""

    sgrld: float
    scir: float
    tlasgr: float


class _Trainer:
    """Trains methods on the stream: documents, warm starts and checkpoints that runs share."""

    def __init__(self, config: Config, seed: int, checkpoints: Checkpoints, report: Report) -> None:
        self.config, self.seed = config, seed
        self.checkpoints, self.report = checkpoints, report
        self.stream: CorpusStream = stream_wiki()
        self.test = completion(_first(stream_wiki("test"), config.num_test), observed=0.8, seed=0)
        held_out = documents_of(self.stream, config.num_documents, config.num_test)
        self.held_out: Completion = completion(held_out, observed=0.8, seed=0)
        self.starts: dict[int, Start] = {}
        self.tried: dict[str, np.ndarray] = {}

    def start(self, seed: int) -> Start:
        """Return the fit to the first documents, loaded from a checkpoint if there is one."""
        if seed not in self.starts:
            name, config = f"start, seed {seed}", self.config
            if (saved := self.checkpoints.load(name)) is None:
                self.report(f"{name}: {config.start_documents:,} documents")
                model = DPFA(self.stream.num_words, config.layers, config.eta)
                batches = self.stream.batches(config.batch_size)
                first = (
                    next(batches).corpus for _ in range(config.start_documents // config.batch_size)
                )
                fitted = learn_start(model, first, alpha=config.alpha, seed=self.seed + seed)
                saved = {k: np.asarray(v) for k, v in fitted._asdict().items()}
                self.checkpoints.save(name, saved)
            numbers = int(saved["documents"]), float(saved["r"]), float(saved["p"])
            self.starts[seed] = Start(saved["counts"], *numbers)
        return self.starts[seed]

    def run(
        self,
        name: str,
        method: Method,
        steps: Steps,
        *,
        seed: int = 0,
        plan: Plan | None = None,
        split: Completion | None = None,
    ) -> Traces:
        """Train and evaluate a method; by default on the whole stream and the test documents."""
        config = self.config
        settings = Settings(
            num_words=self.stream.num_words,
            layers=config.layers,
            eta=config.eta,
            alpha=config.alpha,
            diffusion=config.diffusion,
            data_size=config.num_documents,
            sgrld_step=steps.sgrld,
            scir_step=steps.scir,
            tlasgr_step=steps.tlasgr,
            start_batches=config.start_documents // config.batch_size,
            rounds=config.rounds,
            rounds_burn_in=config.rounds_burn_in,
            seed=self.seed + seed,
        )
        plan = plan or config.plan(config.num_documents, config.final_draws)
        label = f"{name}, seed {seed}, to {plan.total}"
        return train_on_stream(
            label,
            method,
            settings,
            plan,
            self.stream,
            split or self.test,
            self.start(seed),
            self.checkpoints,
            self.report,
        )

    def choose(self) -> Steps:
        """Try the step sizes of each sampler on held-out documents; return the best of each."""
        config, method = self.config, Method("chain", step_size=max(self.config.step_sizes))
        steps = Steps(config.sgrld_steps[0], config.scir_steps[0], config.tlasgr_steps[0])
        for kind in KINDS:
            one = replace(method, topics=kind)
            values = getattr(config, f"{kind.lower()}_steps")
            steps = self._choose(kind, kind.lower(), values, one, steps)
        return steps

    def _choose(
        self, kind: str, field: str, values: tuple[float, ...], method: Method, steps: Steps
    ) -> Steps:
        plan = self.config.plan(self.config.choice_documents, 10**9)
        perplexities = [
            self.run(
                f"choice, {kind} {value:g}",
                method,
                steps._replace(**{field: value}),
                plan=plan,
                split=self.held_out,
            ).final[0]
            for value in values
        ]
        self.tried[kind] = np.array([values, perplexities])
        return steps._replace(**{field: values[int(np.argmin(perplexities))]})


def _first(stream: CorpusStream, size: int) -> Any:
    return next(stream.batches(size)).corpus

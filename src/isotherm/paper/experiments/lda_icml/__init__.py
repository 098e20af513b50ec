"""Which sampler finds the best topics from five abstracts at a time?

LDA on 766 abstracts of ICML 2007 to 2011 (1918 words, 45 158 tokens): 30 topics, Dirichlet prior 0.1 of the documents,
topics softmax(θ) with prior N(0.1, 1), batches of 5, 1000 steps, D = 0.75. A fifth of the documents is for testing.

- *Perplexity* is by document completion: half of the tokens of each test document are observed, the other half scored;
  probabilities are averaged over the draws of the second half of the chain (every tenth step) before the logarithm.
- *Best settings* are chosen on a fifth of the training documents, held out, never on the test documents. mSGNHT and SGNHT have
  the paper's D = 0.75 and a step size to choose, SGHMC a friction too; SGRLD and SCIR have their own Dirichlet prior of the topics, and
  so has Gibbs, all chosen in the same way. If a test chain diverges, the next best setting takes its place; the table says how many did.
- ± is the standard deviation over seeds of the chain; the split is the same for all. The standard error over test documents is
  an order of magnitude larger and common to all.
- *Seconds* are those of the fastest seed, on one or two busy cores; the steps alone, without compilation and scores.
- The paper's corpus has the same source and its own preprocessing, and its score is not described: compare the order, not the digits.
- *Causes*: the chosen settings again with one thing changed (D, thermostat mass, sweeps, batch, averaging, prior, length), to see what
  the values hang on. These are on the test documents and nothing was chosen by them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from isotherm import random
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.experiments.lda_icml import figures, tables
from isotherm.paper.experiments.lda_icml.methods import GIBBS, Bench, Protocol, Setting
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.topics.corpus import completion, train_test
from isotherm.topics.corpus_readers import load_icml
from isotherm.topics.perplexity import perplexity, unigram
from isotherm.types import Key

_PRIORS = (0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    num_topics: int = 30
    alpha: float = 0.1
    batch_size: int = 5
    diffusion: float = 0.75
    num_steps: int = 1000
    thin: int = 10
    sweeps: int = 10
    burn_in: int = 5
    test_share: float = 0.2
    observed: float = 0.5
    curve_step_sizes: tuple[float, ...] = (4e-2, 1e-2, 2.5e-3, 5e-4)
    curve_seeds: int = 5
    num_seeds: int = 8
    validation_share: float = 0.2
    validation_seeds: int = 4
    methods: tuple[str, ...] = (
        "mSGNHT-S",
        "mSGNHT-E",
        "SGHMC-S",
        "SGHMC-E",
        "SGNHT-S",
        "SGLD",
        "pSGLD",
        "SGRLD",
        "SCIR",
        "Gibbs",
    )
    step_sizes: tuple[float, ...] = (5e-3, 1e-2, 1.4e-2, 2e-2, 4e-2, 8e-2, 0.16)
    friction_step_sizes: tuple[float, ...] = (1e-2, 2e-2, 4e-2, 8e-2)
    frictions: tuple[float, ...] = (0.75, 5.0, 25.0)
    sgld_step_sizes: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    psgld_step_sizes: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    sgrld_step_sizes: tuple[float, ...] = (0.01, 0.03, 0.06, 0.12)
    sgrld_priors: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05)
    scir_step_sizes: tuple[float, ...] = (0.05, 0.15, 0.5, 1.5)
    scir_priors: tuple[float, ...] = (0.05, 0.1, 0.2)
    causes: bool = True
    cause_seeds: int = 3

    def __post_init__(self) -> None:
        if not {"mSGNHT-S", "mSGNHT-E", "SGHMC-S", "SGHMC-E", GIBBS} <= set(self.methods):
            raise ValueError("`methods` must have mSGNHT-S, mSGNHT-E, SGHMC-S, SGHMC-E and Gibbs.")
        if self.num_steps < 2 * self.thin:
            raise ValueError("`num_steps` must be at least twice `thin`.")

    @property
    def protocol(self) -> Protocol:
        """How chains run."""
        return Protocol(
            self.num_topics,
            self.alpha,
            self.batch_size,
            self.num_steps,
            self.thin,
            self.sweeps,
            self.burn_in,
        )

    def grid(self, name: str) -> list[Setting]:
        """List the settings of a method that are tried."""
        steps, others = {
            "SGHMC-S": (self.friction_step_sizes, self.frictions),
            "SGHMC-E": (self.friction_step_sizes, self.frictions),
            "SGLD": (self.sgld_step_sizes, (0.0,)),
            "pSGLD": (self.psgld_step_sizes, (0.0,)),
            "SGRLD": (self.sgrld_step_sizes, self.sgrld_priors),
            "SCIR": (self.scir_step_sizes, self.scir_priors),
            GIBBS: ((0.0,), _PRIORS),
        }.get(name, (self.step_sizes, (self.diffusion,)))
        return [(h, other) for h in steps for other in others]


SMOKE = Config(
    num_topics=10,
    num_steps=200,
    methods=("mSGNHT-S", "mSGNHT-E", "SGHMC-S", "SGHMC-E", "SCIR", "Gibbs"),
    curve_step_sizes=(1e-2, 2.5e-3),
    curve_seeds=2,
    num_seeds=2,
    validation_seeds=1,
    step_sizes=(2.5e-3, 1e-2),
    friction_step_sizes=(2.5e-3,),
    frictions=(0.75,),
    scir_step_sizes=(0.05,),
    scir_priors=(0.1,),
    causes=False,
)


def run(
    config: Config, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Choose settings, make the table, draw the curves, look for causes."""
    train, test = train_test(load_icml(), test=config.test_share, seed=0)
    inner = train_test(train, test=config.validation_share, seed=1)
    split = completion(test, observed=config.observed, seed=0)
    held_out = completion(inner.test, observed=config.observed, seed=0)
    seed = int(random.bits(key) >> 8)
    work = Bench(config.protocol, checkpoints, report, seed, train, split)
    choice = work._replace(train=inner.train, split=held_out)
    one_topic = perplexity(unigram(train), split, config.alpha)
    result = {"unigram": np.array([one_topic.value, one_topic.standard_error])}
    for name in config.methods:
        result |= _method(config, name, choice, work)
    for name in figures.CURVES:
        found = [
            work.run(f"curve {name}", name, (h, config.diffusion), config.curve_seeds, 200).curves
            for h in config.curve_step_sizes
        ]
        result[f"curve {name}"] = np.stack(found)
    return result | (_causes(config, work, result) if config.causes else {})


def _method(config: Config, name: str, choice: Bench, work: Bench) -> dict[str, np.ndarray]:
    """Try all settings on the validation documents and the best on the test documents.

    If a chain diverges there, the next best takes its place.
    """
    grid = config.grid(name)
    tried = np.array(
        [
            choice.run("choice", name, setting, config.validation_seeds, 0).curves[:, -1]
            for setting in grid
        ]
    )
    order = np.argsort(tried.mean(1), kind="stable")
    for place, i in enumerate(order):
        found = work.run("test", name, grid[i], config.num_seeds, 100)
        if np.isfinite(found.curves).all():
            return {
                f"tried {name}": tried,
                f"chosen {name}": np.array([*grid[i], tried[i].mean(), place]),
                f"test {name}": found.curves,
                f"seconds {name}": found.seconds,
                f"cpu {name}": found.cpu,
            }
    raise ValueError(f"{name} diverges at every step size that was tried; add smaller ones.")


def _causes(config: Config, work: Bench, chosen: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Vary one thing at a time around the chosen settings."""
    found = {}
    for label, cause in tables.CAUSES.items():
        name = cause.method
        if name not in config.methods:
            continue
        h, other = chosen[f"chosen {name}"][:2]
        setting = (float(h), float(other if cause.other is None else cause.other))
        mass = {} if cause.mass is None else {"thermostat_mass": cause.mass}
        changed = work._replace(protocol=config.protocol._replace(**cause.protocol))
        runs = changed.run(f"cause {label}", name, setting, config.cause_seeds, 100, **mass)
        found[f"cause {label}"] = runs.curves[:, -1]
    return found


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the rows of all tables."""
    return [
        *tables.best(config, result),
        *tables.over_steps(config, result),
        *tables.causes(config, result),
    ]


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check the claims of the paper."""
    return tables.claims(config, result)


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the learning curves, the table, and perplexity against step size."""
    return {
        "curves": figures.curves(config, result),
        "best": figures.best(config, result),
        "step_sizes": figures.step_sizes(config, result),
    }

"""Which sampler finds the best topics from five abstracts at a time?

LDA on 766 abstracts of ICML 2007 to 2011 (1918 words, 45 158 tokens): 30 topics, Dirichlet prior
0.1 of the documents, topics softmax(θ) with prior N(0.1, 1), batches of 5, 1000 steps, D = 0.75. A
fifth of the documents are test documents.

- *Perplexity* is by document completion: half of the tokens of each test document are observed, the
  other half scored. Probabilities are averaged over the draws of the second half of the chain
  (every tenth step) before taking the logarithm.
- *Best settings* are chosen on a fifth of the training documents, which are held out; the test
  documents are never used for that. For mSGNHT and SGNHT, with the paper's D = 0.75, the step size
  is chosen; for SGHMC the friction too; for SGRLD, SCIR and Gibbs the Dirichlet prior of the
  topics. If a test chain diverges, the next best setting is used; the table says how many settings
  were skipped.
- ± is the standard deviation over seeds of the chain; the split is the same for all. The standard
  error over test documents is an order of magnitude larger and common to all.
- *Seconds* are those of the fastest seed, on one or two busy cores, for the steps alone, without
  compilation and scores.
- The paper's corpus has the same source but its own preprocessing, and its score is not described:
  compare the order, not the digits.
- *Causes*: the chosen settings with one change each (D, thermostat mass, sweeps, batch, averaging,
  prior, length). They are scored on the test documents, and nothing was chosen by them.
"""

from dataclasses import dataclass

import numpy as np

from isotherm import random
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.lda_icml.figures import CURVES, plot
from isotherm.paper.experiments.lda_icml.methods import GIBBS, ChainRunner, Protocol, Setting
from isotherm.paper.experiments.lda_icml.tables import CAUSES, check, rows
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.topics.corpus import completion, train_test
from isotherm.topics.corpus_readers import load_icml
from isotherm.topics.perplexity import perplexity, unigram
from isotherm.types import Key

__all__ = ["SMOKE", "Config", "check", "plot", "rows", "run"]

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
        """Settings that all chains share."""
        return Protocol(**{name: getattr(self, name) for name in Protocol._fields})

    def grid(self, name: str) -> list[Setting]:
        """Return the settings of a method that are tried: (step size, other setting)."""
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
    """Choose settings, run the table, the curves and the causes."""
    train, test = train_test(load_icml(), test=config.test_share, seed=0)
    inner = train_test(train, test=config.validation_share, seed=1)
    split = completion(test, observed=config.observed, seed=0)
    held_out = completion(inner.test, observed=config.observed, seed=0)
    seed = random.numpy_seed(key)
    test_runner = ChainRunner(config.protocol, checkpoints, report, seed, train, split)
    choice_runner = test_runner._replace(train=inner.train, split=held_out)
    one_topic = perplexity(unigram(train), split, config.alpha)
    result = {"unigram": np.array([one_topic.value, one_topic.standard_error])}
    for name in config.methods:
        result |= _method(config, name, choice_runner, test_runner)
    for name in CURVES:
        label, seeds = f"curve {name}", config.curve_seeds
        curves = [
            test_runner.run(label, name, (h, config.diffusion), seeds, 200).curves
            for h in config.curve_step_sizes
        ]
        result[label] = np.stack(curves)
    return result | (_causes(config, test_runner, result) if config.causes else {})


def _method(
    config: Config, name: str, choice_runner: ChainRunner, test_runner: ChainRunner
) -> dict[str, np.ndarray]:
    """Try all settings on the validation documents, and run the best on the test documents.

    If a chain diverges there, the next best setting is used.
    """
    grid = config.grid(name)
    tried = np.array(
        [
            choice_runner.run("choice", name, setting, config.validation_seeds, 0).curves[:, -1]
            for setting in grid
        ]
    )
    order = np.argsort(tried.mean(1), kind="stable")
    for num_skipped, i in enumerate(order):
        runs = test_runner.run("test", name, grid[i], config.num_seeds, 100)
        if np.isfinite(runs.curves).all():
            return {
                f"tried {name}": tried,
                f"chosen {name}": np.array([*grid[i], tried[i].mean(), num_skipped]),
                f"test {name}": runs.curves,
                f"seconds {name}": runs.seconds,
                f"cpu {name}": runs.cpu,
            }
    raise ValueError(f"{name} diverges at every step size that was tried; add smaller ones.")


def _causes(
    config: Config, test_runner: ChainRunner, chosen: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Change one thing at a time in the chosen settings."""
    result = {}
    for label, cause in CAUSES.items():
        name = cause.method
        if name not in config.methods:
            continue
        h, other = chosen[f"chosen {name}"][:2]
        setting = (float(h), float(other if cause.other is None else cause.other))
        mass = {} if cause.mass is None else {"thermostat_mass": cause.mass}
        changed = test_runner._replace(protocol=config.protocol._replace(**cause.protocol))
        runs = changed.run(f"cause {label}", name, setting, config.cause_seeds, 100, **mass)
        result[f"cause {label}"] = runs.curves[:, -1]
    return result

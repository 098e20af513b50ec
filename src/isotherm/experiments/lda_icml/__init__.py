"""Which sampler finds the best topics from five abstracts at a time?

LDA on 766 abstracts of ICML 2007 to 2011 (1918 words, 45 158 tokens): 30 topics, Dirichlet prior 0.1 of the documents,
topics softmax(θ) with prior N(0.1, 1), batches of 5, 1000 steps, D = 0.75. A fifth of the documents is for testing.

- *Perplexity* is by document completion: half of the tokens of each test document are observed, the other half scored;
  probabilities are averaged over the draws of the second half of the chain (every tenth step) before the logarithm.
- *Best settings* are chosen on a fifth of the training documents, held out, never on the test documents. mSGNHT and SGNHT have
  the paper's D = 0.75 and a step size to choose, SGHMC a friction too; SGRLD and SCIR have their own Dirichlet prior of the topics, and
  so has Gibbs, all chosen in the same way.
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
from isotherm.experiments.contract import Claim, Say
from isotherm.experiments.lda_icml import figures, tables
from isotherm.experiments.lda_icml.methods import (
    GIBBS,
    SAMPLERS,
    Protocol,
    Setting,
    curve,
    run_chain,
)
from isotherm.topics.corpora import load_icml
from isotherm.topics.corpus import Completion, Corpus, completion, train_test
from isotherm.topics.perplexity import perplexity, unigram
from isotherm.types import Key

_PRIORS = (0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class Config:
    """Everything that can change the numbers, apart from the seed."""

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
        "mSGNHT-S", "mSGNHT-E", "SGHMC-S", "SGHMC-E", "SGNHT-S", "SGLD", "pSGLD", "SGRLD", "SCIR", "Gibbs",
    )  # fmt: skip
    step_sizes: tuple[float, ...] = (5e-3, 1e-2, 1.4e-2, 2e-2, 4e-2, 8e-2, 0.16)
    friction_step_sizes: tuple[float, ...] = (1e-2, 2e-2, 4e-2, 8e-2)
    frictions: tuple[float, ...] = (0.75, 5.0, 25.0)
    sgld_step_sizes: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    psgld_step_sizes: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    sgrld_step_sizes: tuple[float, ...] = (0.01, 0.03, 0.06, 0.12)
    scir_step_sizes: tuple[float, ...] = (0.05, 0.15, 0.5, 1.5)
    priors: tuple[float, ...] = (0.05, 0.1, 0.2)
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
            self.num_topics, self.alpha, self.batch_size, self.num_steps, self.thin, self.sweeps,
            self.burn_in,
        )  # fmt: skip

    def grid(self, name: str) -> list[Setting]:
        """List the settings of a method that are tried."""
        steps, others = {
            "SGHMC-S": (self.friction_step_sizes, self.frictions),
            "SGHMC-E": (self.friction_step_sizes, self.frictions),
            "SGLD": (self.sgld_step_sizes, (0.0,)),
            "pSGLD": (self.psgld_step_sizes, (0.0,)),
            "SGRLD": (self.sgrld_step_sizes, self.priors),
            "SCIR": (self.scir_step_sizes, self.priors),
            GIBBS: ((0.0,), _PRIORS),
        }.get(name, (self.step_sizes, (self.diffusion,)))
        return [(h, other) for h in steps for other in others]


SMOKE = Config(
    num_topics=10, num_steps=200, methods=("mSGNHT-S", "mSGNHT-E", "SGHMC-S", "SGHMC-E", "SCIR", "Gibbs"),
    curve_step_sizes=(1e-2, 2.5e-3), curve_seeds=2, num_seeds=2, validation_seeds=1, step_sizes=(2.5e-3, 1e-2),
    friction_step_sizes=(2.5e-3,), frictions=(0.75,), scir_step_sizes=(0.05,), priors=(0.1,), causes=False,
)  # fmt: skip


def run(config: Config, key: Key, say: Say) -> dict[str, np.ndarray]:
    """Choose settings, make the table, draw the curves, look for causes."""
    seed = int(random.bits(key) >> 8)
    train, test = train_test(load_icml(), test=config.test_share, seed=0)
    inner = train_test(train, test=config.validation_share, seed=1)
    split = completion(test, observed=config.observed, seed=0)
    held_out = completion(inner.test, observed=config.observed, seed=0)
    one_topic = perplexity(unigram(train), split, config.alpha)
    result = {"unigram": np.array([one_topic.value, one_topic.standard_error])}
    for name in config.methods:
        result[f"tried {name}"] = _choose(config, name, inner.train, held_out, seed, say)
        chosen = result[f"chosen {name}"] = _best(config.grid(name), result[f"tried {name}"])
        found = [
            run_chain(name, tuple(chosen[:2]), train, split, config.protocol, seed + 100 + i)
            for i in range(config.num_seeds)
        ]
        result[f"test {name}"] = np.array([curve(chain, split) for chain in found])
        result[f"seconds {name}"] = np.array([chain.seconds for chain in found])
        result[f"cpu {name}"] = np.array([chain.cpu for chain in found])
        last = result[f"test {name}"][:, -1]
        say(
            f"{name}: test perplexity {last.mean():.1f} ± {last.std():.1f} at h, other = {chosen[:2]}"
        )
    result |= _curves(config, train, split, seed, say)
    return result | (_causes(config, train, split, result, seed, say) if config.causes else {})


def _choose(
    config: Config, name: str, train: Corpus, split: Completion, seed: int, say: Say
) -> np.ndarray:
    """Score every setting on the validation documents, (settings, seeds)."""
    grid = config.grid(name)
    found = np.full((len(grid), config.validation_seeds), np.inf)
    for i, setting in enumerate(grid):
        for k in range(config.validation_seeds):
            chain = run_chain(name, setting, train, split, config.protocol, seed + k)
            found[i, k] = curve(chain, split)[-1]
        say(f"{name} {setting}: validation perplexity {found[i].mean():.1f}")
    return found


def _best(grid: list[Setting], found: np.ndarray) -> np.ndarray:
    """Pick the setting with the lowest mean over seeds: step size, other, perplexity."""
    i = int(np.argmin(found.mean(1)))
    return np.array([*grid[i], found[i].mean()])


def _curves(
    config: Config, train: Corpus, split: Completion, seed: int, say: Say
) -> dict[str, np.ndarray]:
    """Learning curves at the paper's step sizes, D (or friction) the same for all."""
    curves = {}
    for name in figures.CURVES:
        shape = (len(config.curve_step_sizes), config.curve_seeds, config.protocol.num_kept)
        found = np.full(shape, np.inf)
        for i, h in enumerate(config.curve_step_sizes):
            for k in range(config.curve_seeds):
                setting = (h, config.diffusion)
                chain = run_chain(name, setting, train, split, config.protocol, seed + 200 + k)
                found[i, k] = curve(chain, split)
            say(
                f"{name} h = {h:g}: perplexity {found[i, :, -1].mean():.1f} after {config.num_steps} steps"
            )
        curves[f"curve {name}"] = found
    return curves


def _causes(
    config: Config,
    train: Corpus,
    split: Completion,
    chosen: dict[str, np.ndarray],
    seed: int,
    say: Say,
) -> dict[str, np.ndarray]:
    """Vary one thing at a time around the chosen settings."""
    found = {}
    for label, cause in tables.CAUSES.items():
        name = cause.method
        if name not in config.methods:
            continue
        h, other = chosen[f"chosen {name}"][:2]
        other = other if cause.other is None else cause.other
        mass = {} if cause.mass is None else {"thermostat_mass": cause.mass}
        make = SAMPLERS[name](h, other, **mass)
        protocol = config.protocol._replace(**cause.protocol)
        chains = [
            run_chain(name, (h, other), train, split, protocol, seed + 100 + k, sampler=make)
            for k in range(config.cause_seeds)
        ]
        found[f"cause {label}"] = np.array([curve(chain, split)[-1] for chain in chains])
        say(f"{label}: {found[f'cause {label}'].mean():.1f}")
    return found


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Lay out the tables."""
    return [
        *tables.best(config, result),
        *tables.over_steps(config, result),
        *tables.causes(config, result),
    ]


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Say which of the paper's claims hold."""
    return tables.claims(config, result)


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the learning curves, the table, and perplexity against step size."""
    return {
        "curves": figures.curves(config, result),
        "best": figures.best(config, result),
        "step_sizes": figures.step_sizes(config, result),
    }

"""Do default network posteriors predict better than what people use, on five regression sets?

Five UCI sets with the 20 splits of the literature. The row isotherm is `BayesianMLPRegressor()`
with all its defaults, among them its own network (two hidden layers of 32 tanh units). All other
methods have one layer of 50 hidden units, unless stated otherwise, standardised features and
targets, and learned noise.

- *Log likelihood* is that of a test row under the predictive mixture over draws or members, in the
  original units. *Coverage* is that of central 90 % intervals. The *CRPS* is computed from 20
  quantiles.
- *Rivals are tuned* on a part of the training rows by the log likelihood of the mixture: ensembles
  choose the learning rate, the number of steps, one noise or one per input, and (MAP) the scale of
  the prior; dropout its rate and its noise; SWAG and IVON a step size and the scale of the prior;
  Laplace the scale of the prior (Kronecker: then one per layer by marginal likelihood); cyclical
  SG-MCMC and SMS-UBU the step size, and the former the share of a cycle without noise. The best is
  fitted again on all training rows.
- *An ensemble of 100* takes about as long as isotherm; one of five takes a second. With the
  network of isotherm it shows what the network contributes.
- *HMC* uses all data in every gradient and has a Metropolis test, on sets with fewer than 2000
  rows. HMC, cyclical SG-MCMC and SMS-UBU sample the scale of the prior of each layer too.
- ± is the standard error over splits. Two methods are compared split by split.
- *CPU seconds* are those of one fit with its tuning on all cores, with compilation; *seconds* is
  wall time.
- *Published* numbers are for the same sets: probabilistic backpropagation (Hernández-Lobato &
  Adams 2015), MC dropout (Gal & Ghahramani 2016, tuned), deep ensembles (Lakshminarayanan et al.
  2017, other splits), HMC (Bui et al. 2016; these numbers were not checked against the paper).
"""

import time
import warnings
from dataclasses import dataclass, fields
from pathlib import Path

import jax
import numpy as np

from isotherm import random
from isotherm.data.uci import Rows, load_uci, uci_names
from isotherm.exceptions import DivergedError
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.registry import unknown
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.experiments.uci.figures import plot
from isotherm.paper.experiments.uci.methods import METHODS, Budget, Job
from isotherm.paper.experiments.uci.problem import SCORES, scores
from isotherm.paper.experiments.uci.tables import check, rows
from isotherm.types import Key

__all__ = ["SMOKE", "Config", "check", "plot", "rows", "run"]

LARGEST_FOR_HMC = 2000
"""Rows from which HMC is left out."""
MOST_MEMORY = 3e9
"""Bytes of the process from which compiled programs are freed between two units."""


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    sets: tuple[str, ...] = ("boston", "concrete", "energy", "wine", "power")
    splits: tuple[int, ...] = tuple(range(20))
    methods: tuple[str, ...] = tuple(METHODS)
    hidden: tuple[int, ...] = (50,)
    activation: str = "relu"
    batch_size: int = 64
    held_out_share: float = 0.15
    num_steps: int = 5000
    num_members: int = 5
    num_draws: int = 100
    prior_scales: tuple[float, ...] = (1.0, 3.0)
    step_sizes: tuple[float, ...] = (3e-3, 1e-2)
    dropout_rates: tuple[float, ...] = (0.005, 0.01, 0.05, 0.1)
    noise_factors: tuple[float, ...] = (0.6, 0.8, 1.0, 1.25, 1.6)
    swag_step_sizes: tuple[float, ...] = (1e-3, 1e-2)
    ivon_step_sizes: tuple[float, ...] = (0.03, 0.1)
    chain_steps: int = 20_000
    chain_multiples: tuple[float, ...] = (0.3, 1.0)
    explorations: tuple[float, ...] = (0.2, 0.8)
    hmc_draws: int = 100
    hmc_leapfrog: int = 200

    def __post_init__(self) -> None:
        for name, given, known in (
            ("method", self.methods, METHODS),
            ("set", self.sets, uci_names()),
        ):
            for word in given:
                if word not in known:
                    raise unknown(name, word, known)
        if not all(0 <= split < 20 for split in self.splits) or not self.splits:
            raise ValueError(f"`splits` must be numbers from 0 to 19, got {self.splits}.")

    @property
    def budget(self) -> Budget:
        """Settings that the methods read."""
        return Budget(**{field.name: getattr(self, field.name) for field in fields(Budget)})


SMOKE = Config(
    sets=("boston",),
    splits=(0, 1),
    methods=("MAP ensemble", "MC dropout", "last-layer Laplace"),
    hidden=(10,),
    num_steps=300,
    num_members=2,
    num_draws=20,
    prior_scales=(1.0,),
    step_sizes=(1e-2,),
    dropout_rates=(0.01,),
    swag_step_sizes=(1e-3,),
    ivon_step_sizes=(0.1,),
    chain_steps=400,
    chain_multiples=(0.3,),
    explorations=(0.5,),
    hmc_draws=4,
    hmc_leapfrog=10,
)


def run(
    config: Config, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Fit every method on every split of every set: all of split 0 first, then of split 1, …"""
    sets = {name: load_uci(name) for name in config.sets}
    shape = (len(config.splits), len(SCORES))
    result = {f"{s}/{m}": np.full(shape, np.nan) for s in config.sets for m in config.methods}
    result |= {f"{s}/constant": np.full(len(config.splits), np.nan) for s in config.sets}
    for i, split in enumerate(config.splits):
        for name, data in sets.items():
            train, test = data.split(split)
            split_key = random.fold(random.fold(key, uci_names().index(name)), split)
            result[f"{name}/constant"][i] = _constant(train, test)
            for method in config.methods:
                if method == "HMC" and len(data.y) >= LARGEST_FOR_HMC:
                    continue
                unit = f"{name}, split {split}, {method}"
                saved = checkpoints.load(unit)
                if saved is None:
                    report(unit)
                    saved = _fit(method, Job(train, split_key, config.budget), test)
                    checkpoints.save(unit, saved)
                    _free_programs()
                result[f"{name}/{method}"][i] = saved["scores"]
    return result


def _fit(method: str, job: Job, test: Rows) -> dict[str, np.ndarray]:
    """Fit a method and score it; a method that diverges has no scores."""
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains of rivals are judged by their predictions
        try:
            predictor = METHODS[method](job)
            took = {"CPU seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
            values = scores(predictor, test) | took
        except (FloatingPointError, DivergedError):
            values = {}
    return {"scores": np.array([values.get(name, np.nan) for name in SCORES])}


def _constant(train: Rows, test: Rows) -> float:
    """Return the log likelihood of a Gaussian that ignores the features."""
    sd = train.y.std()
    z = (test.y - train.y.mean()) / sd
    return float(np.mean(-0.5 * z**2 - np.log(sd) - 0.5 * np.log(2 * np.pi)))


def _free_programs() -> None:
    """Free compiled programs if the process has grown large, where the system tells."""
    statistics = Path("/proc/self/statm")
    if statistics.exists() and int(statistics.read_text().split()[1]) * 4096 > MOST_MEMORY:
        jax.clear_caches()

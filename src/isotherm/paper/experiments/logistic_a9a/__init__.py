"""How accurate are predictions and posterior of each sampler for logistic regression?

a9a: 32 561 training rows, 16 281 test rows, 123 features and an intercept with prior N(0, 10).
Paper's protocol: batches of 10, 3000 steps, of which 300 are burn-in, every 50th draw kept,
predictions averaged.

- *Accuracy*: the step size and diffusion of every method are chosen on a fifth of the training
  rows, which are held out; the test rows are never used for that. Then each is trained on all
  training rows with new seeds. DSVI and HFSGVI take as many steps with the same batches. ± is the
  standard deviation over seeds. On 16 281 rows an accuracy of 85 % has a standard error of 0.28 %,
  so smaller differences are not significant for new rows.
- *Robustness*: accuracy over a grid of step sizes h and diffusions D (frictions for SGHMC). A
  setting *works* if no seed diverges and the mean accuracy is at least 84 %.
- *Why Euler fails*: in the noisiest coordinate the gradient noise has variance σ², so the noise
  changes the momentum by hσ per step. If hσ > 1, no friction can keep Euler's momentum at
  temperature 1, and ξ grows until hξ = 2, where 1 − hξ no longer damps. That takes about 4μ/3h⁴σ²
  steps (`diagnostics/noise.py`), for any D: with a larger step Euler survives only if the run is
  shorter. The splitting damps by exp(−hξ) instead, which has no such limit.
- *Posterior accuracy*: errors of the posterior standard deviations (relative) and of the means (in
  standard deviations) of the 124 weights, against Hamiltonian Monte Carlo with a Metropolis test on
  all data. ESS is the median over weights.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.diagnostics.noise import gradient_noise
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.logistic_a9a import posterior, sweep
from isotherm.paper.experiments.logistic_a9a.figures import plot, shown
from isotherm.paper.experiments.logistic_a9a.problem import Problem, load, scores
from isotherm.paper.experiments.logistic_a9a.tables import check, rows, step_diverging_after
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.references.logistic import ReferencePosterior, logistic_posterior
from isotherm.types import Key

__all__ = ["SMOKE", "Config", "check", "plot", "rows", "run"]


def _decades(first: float, last: float, per_decade: int) -> tuple[float, ...]:
    count = round(np.log10(last / first) * per_decade) + 1
    return tuple(float(f"{x:.3g}") for x in np.geomspace(first, last, count))


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    batch_size: int = 10
    num_steps: int = 3000
    burn_in: int = 300
    thin: int = 50
    prior_variance: float = 10.0
    num_rows: int = 0
    """Number of training rows; 0 for all."""
    samplers: tuple[str, ...] = tuple(sweep.SAMPLERS)
    num_seeds: int = 10
    step_sizes: tuple[float, ...] = (1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
    diffusion: float = 10.0
    map_step_sizes: tuple[float, ...] = field(default=_decades(1e-5, 1, 4))
    map_diffusions: tuple[float, ...] = field(default=_decades(0.1, 1000, 2))
    map_seeds: int = 3
    fine_step_sizes: tuple[float, ...] = field(default=_decades(1e-3, 0.1, 20))
    sgld_step_sizes: tuple[float, ...] = field(default=_decades(1e-8, 1, 4))
    psgld_step_sizes: tuple[float, ...] = field(default=_decades(1e-3, 1e5, 4))
    variational_step_sizes: tuple[float, ...] = (0.1, 0.3, 1.0, 2.0)
    validation_share: float = 0.2
    validation_seeds: int = 3
    lifetimes: tuple[float, ...] = (300, 1_000, 3_000, 10_000, 30_000, 100_000)
    """Numbers of steps; mSGNHT-E is run at the step sizes at which it should diverge after them."""
    curve_step_sizes: tuple[float, ...] = (1e-3, 1e-3, 3e-3, 1e-2)
    curve_diffusions: tuple[float, ...] = (1.0, 10.0, 10.0, 10.0)
    curve_seeds: int = 10
    reference_chains: int = 16
    reference_draws: int = 500
    posterior_steps: int = 100_000
    posterior_chains: int = 8
    posterior_cases: int = len(posterior.CASES)

    def __post_init__(self) -> None:
        if len(self.curve_step_sizes) != len(self.curve_diffusions):
            raise ValueError("`curve_step_sizes` and `curve_diffusions` must be equally long.")
        if not 0 < self.validation_share < 1:
            raise ValueError("`validation_share` must be between 0 and 1.")
        if not {"mSGNHT-S", "mSGNHT-E"} <= set(self.samplers) <= set(sweep.SAMPLERS):
            raise ValueError(
                "`samplers` must have mSGNHT-S and mSGNHT-E, and may have "
                f"{', '.join(sweep.SAMPLERS)}; got {self.samplers}."
            )

    @property
    def protocol(self) -> sweep.Protocol:
        """The paper's protocol."""
        return sweep.Protocol(self.batch_size, self.num_steps, self.burn_in, self.thin)

    @property
    def underdamped(self) -> tuple[str, ...]:
        """Names of the samplers that have a diffusion or a friction."""
        return tuple(name for name in self.samplers if name in sweep.UNDERDAMPED)

    @property
    def overdamped(self) -> dict[str, tuple[float, ...]]:
        """Names and step sizes of the other samplers."""
        known = {"SGLD": self.sgld_step_sizes, "pSGLD": self.psgld_step_sizes}
        return {name: known[name] for name in self.samplers if name in known}

    @property
    def map_grid(self) -> np.ndarray:
        """Settings of the robustness map, (step size, diffusion, 2)."""
        return _grid(self.map_step_sizes, self.map_diffusions)


SMOKE = Config(
    samplers=("mSGNHT-S", "mSGNHT-E"),
    num_rows=3000,
    num_seeds=2,
    map_step_sizes=(1e-4, 1e-3, 1e-2, 1e-1),
    map_diffusions=(1, 10, 100),
    map_seeds=1,
    fine_step_sizes=_decades(1e-3, 0.1, 4),
    lifetimes=(1000,),
    variational_step_sizes=(1.0,),
    validation_seeds=1,
    curve_seeds=1,
    reference_chains=8,
    reference_draws=600,
    posterior_steps=5000,
    posterior_chains=4,
    posterior_cases=2,
)


def _grid(step_sizes: tuple[float, ...], diffusions: tuple[float, ...]) -> np.ndarray:
    return np.stack(np.meshgrid(step_sizes, diffusions, indexing="ij"), axis=-1)


def run(
    config: Config, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Run the table, the curves and the map, in parallel with the reference; compare with it."""
    whole, part = load(config.prior_variance, config.num_rows, config.validation_share)
    result: dict[str, np.ndarray] = {}

    def add(name: str, measure: Callable[[], dict[str, np.ndarray]]) -> None:
        if (arrays := checkpoints.load(name)) is None:
            arrays = {key: np.asarray(value) for key, value in measure().items()}
            checkpoints.save(name, arrays)
        result.update(arrays)

    with ThreadPoolExecutor(1) as background:
        pending = background.submit(_reference, config, whole, checkpoints)
        add("settings", lambda: _choose(config, part, random.fold(key, 0), report))
        add("accuracy", lambda: _table(config, whole, result, random.fold(key, 1), report))
        add("robustness", lambda: _robustness(config, whole, random.fold(key, 2), report))
        add("curves", lambda: _curves(config, whole, random.fold(key, 3), report))
        report("Reference posterior")
        reference = pending.result()
    result |= _reference_summary(config, whole, reference)
    keys = random.fold(key, 5), random.fold(key, 4)
    add("lifetimes", lambda: _lifetimes(config, whole, reference, keys[0], report))
    result |= _posterior(config, whole, reference, keys[1], report, checkpoints)
    return result


def _choose(config: Config, part: Problem, key: Key, report: Report) -> dict[str, np.ndarray]:
    """Choose the best setting of each method on held-out rows: `chosen NAME` is h, D, accuracy."""
    chosen = {}
    grids = dict.fromkeys(config.underdamped, config.map_grid.reshape(-1, 2))
    grids |= {name: _grid(steps, (0.0,))[:, 0] for name, steps in config.overdamped.items()}
    for name, grid in grids.items():
        report(f"Choosing a setting on held-out rows: {name}")
        accuracy = sweep.accuracy(part, config.protocol, name, grid, config.validation_seeds, key)
        chosen[f"chosen {name}"] = _best(grid, accuracy)
    for name in sweep.VARIATIONAL:
        report(f"Choosing a setting on held-out rows: {name}")
        grid = _grid(config.variational_step_sizes, (0.0,))[:, 0]
        accuracy = sweep.variational_accuracy(
            part, config.protocol, name, grid[:, 0], config.validation_seeds, key
        )
        chosen[f"chosen {name}"] = _best(grid, accuracy)
    return chosen


def _best(grid: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Return the setting with the best mean over seeds; those with a diverged seed are excluded."""
    mean = np.where(np.isfinite(accuracy).all(-1), accuracy.mean(-1), -np.inf)
    i = int(np.argmax(mean))
    return np.array([*grid[i], mean[i]])


def _table(
    config: Config, whole: Problem, chosen: dict[str, np.ndarray], key: Key, report: Report
) -> dict[str, np.ndarray]:
    """Measure test accuracy at the chosen settings, and over step sizes at one diffusion."""
    report("Test accuracy")
    result = {}
    for name in config.samplers:
        setting = chosen[f"chosen {name}"][None, :2]
        result[f"accuracy {name}"] = sweep.accuracy(
            whole, config.protocol, name, setting, config.num_seeds, key
        )[0]
    for name in sweep.VARIATIONAL:
        result[f"accuracy {name}"] = sweep.variational_accuracy(
            whole, config.protocol, name, chosen[f"chosen {name}"][:1], config.num_seeds, key
        )[0]
    grid = _grid(config.step_sizes, (config.diffusion,))[:, 0]
    for name in config.underdamped:
        result[f"over h {name}"] = sweep.accuracy(
            whole, config.protocol, name, grid, config.num_seeds, key
        )
    return result


def _robustness(config: Config, whole: Problem, key: Key, report: Report) -> dict[str, np.ndarray]:
    """Measure accuracy over the map and, on a finer grid, near the largest stable step sizes."""
    result = {}
    fine = _grid(config.fine_step_sizes, (config.diffusion,))[:, 0]
    for name in config.underdamped:
        report(f"Robustness map: {name}")
        arguments = (whole, config.protocol, name)
        result[f"map {name}"] = sweep.accuracy(*arguments, config.map_grid, config.map_seeds, key)
        result[f"fine {name}"] = sweep.accuracy(*arguments, fine, config.map_seeds, key)
    for name, step_sizes in config.overdamped.items():
        grid = _grid(step_sizes, (0.0,))[:, 0]
        result[f"map {name}"] = sweep.accuracy(
            whole, config.protocol, name, grid, config.map_seeds, key
        )
    return result


def _lifetimes(
    config: Config, whole: Problem, reference: ReferencePosterior, key: Key, report: Report
) -> dict[str, np.ndarray]:
    """Measure after how many steps mSGNHT-E diverges, at step sizes chosen by theory."""
    report("Lifetimes of mSGNHT-E")
    batches, center = whole.batches(config.batch_size), jnp.asarray(reference.mean, jnp.float32)
    variance = gradient_noise(
        key, whole.grad_fn, center, lambda k: batches.batch(k, jnp.zeros((), int)), 2000
    )
    expected = np.asarray(config.lifetimes)
    noisiest = float(np.max(variance))
    step_sizes = np.array([step_diverging_after(n, noisiest, config.diffusion) for n in expected])
    lifetimes = sweep.lifetimes(
        whole, config.batch_size, step_sizes, config.diffusion, expected, config.num_seeds, key
    )
    return {"noise variance": variance, "lifetime step sizes": step_sizes, "lifetimes": lifetimes}


def _curves(config: Config, whole: Problem, key: Key, report: Report) -> dict[str, np.ndarray]:
    report("Learning curves")
    settings = np.stack([config.curve_step_sizes, config.curve_diffusions], axis=-1)
    result = {}
    for name in shown(config):
        error, fit = sweep.curves(whole, config.protocol, name, settings, config.curve_seeds, key)
        result[f"error {name}"], result[f"fit {name}"] = error, fit
    return result


def _reference(config: Config, whole: Problem, checkpoints: Checkpoints) -> ReferencePosterior:
    x, y = (np.asarray(part, np.float64) for part in whole.train)
    return logistic_posterior(
        x,
        y,
        config.prior_variance,
        method="hmc",
        num_chains=config.reference_chains,
        num_draws=config.reference_draws,
        burn_in=50,
        cache_dir=checkpoints.folder,
    )


def _reference_summary(
    config: Config, whole: Problem, reference: ReferencePosterior
) -> dict[str, np.ndarray]:
    """Return moments of the reference, their errors, and its accuracy in groups of draws."""
    size = config.protocol.num_draws
    draws = reference.draws.reshape(-1, reference.draws.shape[-1])
    groups = min(config.num_seeds, len(draws) // size)
    stride = len(draws) // (groups * size)
    grouped = draws[:: max(stride, 1)][: groups * size].reshape(groups, size, -1)
    return {
        "accuracy reference": np.asarray(scores(grouped, whole.test)[0]),
        "reference mean": reference.mean,
        "reference sd": reference.sd,
        "reference mcse mean": reference.mcse_mean,
        "reference mcse sd": reference.mcse_sd,
        "reference rhat": reference.rhat,
        "reference ess": reference.ess,
    }


def _posterior(
    config: Config,
    whole: Problem,
    reference: ReferencePosterior,
    key: Key,
    report: Report,
    checkpoints: Checkpoints,
) -> dict[str, np.ndarray]:
    size = (config.posterior_steps, config.posterior_chains)
    runner = posterior.CaseRunner(whole, reference.draws, *size, key)
    cases = posterior.CASES[: config.posterior_cases]
    sampled = posterior.run_cases(runner, cases, checkpoints, report)
    names, gaussians = zip(*runner.gaussians(), strict=True)
    results = [*sampled, *gaussians]
    result = {
        f"posterior {name}": np.stack([np.asarray(getattr(each, name)) for each in results])
        for name in posterior.CaseResult._fields
    }
    along = reference.draws.reshape(-1, len(runner.axes)) @ np.asarray(runner.axes)
    return {
        **result,
        "posterior gaussians": np.array(names),
        "reference axis_sd": along.std(0, dtype=np.float64),
    }

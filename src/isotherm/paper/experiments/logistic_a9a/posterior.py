r"""Errors of posterior means and standard deviations, by sampler, coordinates and batches.

Every case runs in some coordinates with the settings of `isotherm.warm_start`, or with the paper's
($h = 10^{-3}$, $D = 10$, $\mu = 1$, no change of coordinates). Chains start at the mode. The
paper's setting mixes so slowly that it is also started at exact draws: from the mode the chains
have not yet spread out, from exact draws they have not yet contracted, and their equilibrium is in
between.

*Balanced* minibatches (`isotherm.balanced`) take the step size of a warm start with a balanced
gradient, which is shorter: it bounds the heat that the kicks of rare rows leave. With `settings =
"balanced"` a plain minibatch takes the same step, so that the two differ in the weights of rows
only. *Importance* batches draw row $i$ about in proportion to the size of its gradient in natural
coordinates, $|M^\top x_i|\sqrt{\pi_i(1 - \pi_i)}$ at the mode, where $\pi_i$ is the probability
of its label.

Most weights of slow coordinates do not mix in any run. So errors are also measured along the
eigenvectors of the curvature, separately for those along which the chains do mix.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm import random
from isotherm.batches.importance import ImportanceBatches, multiplicities
from isotherm.coordinates.linear import Dense, Identity
from isotherm.diagnostics.convergence import ess, rhat
from isotherm.paper.baselines.dsvi import dsvi
from isotherm.paper.baselines.hfsgvi import hfsgvi
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.logistic_a9a.problem import Problem
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.types import BatchPolicy, Key, Sampler


class Case(NamedTuple):
    """One combination of choices."""

    sampler: str = "mSGNHT-S"
    coordinates: str = "eigenbasis"
    batch_size: int = 100
    step: float = 1.0
    """Step size, in units of the default step size in these coordinates."""
    policy: str = "independent"
    gradient: str = "minibatch"
    start: str = "mode"
    lengths: float = 1.0
    """Length of the chains, in units of the default number of steps."""
    settings: str = "own"
    """`"own"`: settings for this gradient; `"balanced"`: those for a balanced gradient."""

    @property
    def rule(self) -> tuple[str, int, str]:
        """What the settings depend on: coordinates, rows per batch, and kind of gradient."""
        balanced = "balanced" in (self.gradient, self.settings)
        return self.coordinates, self.batch_size, "balanced" if balanced else "plain"


WHITENED = "symmetric whitening"
"""Whitened coordinates with mixed axes: H^(-1/2)."""
MEAN_MULTIPLICITY = 8
"""Approximate mean multiplicity of a row in importance batches."""
CASES = (
    Case(batch_size=10, lengths=3),
    Case(batch_size=100, lengths=2),
    Case(batch_size=1000),
    Case(coordinates="paper", batch_size=10, lengths=3),
    Case(coordinates="paper", batch_size=100, lengths=2),
    Case(coordinates="paper", batch_size=10, lengths=3, start="exact draws"),
    Case(coordinates="paper", batch_size=100, lengths=2, start="exact draws"),
    Case(coordinates="paper, μ = 0.01", start="exact draws"),
    Case(coordinates="plain", start="exact draws"),
    Case(coordinates="diagonal", start="exact draws"),
    Case(coordinates="symmetric whitening"),
    Case("mSGNHT-S, full-matrix thermostat", "symmetric whitening", lengths=0.06),
    Case(coordinates="symmetric whitening", gradient="control variates", lengths=0.5),
    Case("mSGNHT-S, full-matrix thermostat", lengths=0.06),
    Case("mSGNHT-S, scalar thermostat"),
    Case(step=0.5),
    Case(step=2.0),
    Case(batch_size=10, gradient="control variates", lengths=0.5),
    Case(batch_size=100, gradient="control variates", lengths=0.5),
    Case(policy="shuffled", lengths=0.5),
    Case(policy="symmetric", lengths=0.5),
    Case("mSGNHT-E", lengths=0.5),
    Case("mSGNHT-E", step=0.25),
    Case("mSGNHT, BADODAB"),
    Case("SGHMC-S", "paper", 10, start="exact draws"),
    Case("SGHMC-S", "paper", 100, start="exact draws"),
    Case("SGHMC-S", lengths=0.5),
    Case("SGHMC-S", policy="shuffled", lengths=0.5),
    Case("SGHMC-S", policy="symmetric", lengths=0.5),
    Case("SGHMC-S, noise known"),
    Case("SGLD"),
    Case("SGLD", "paper", start="exact draws"),
    *(
        Case("mSGNHT-S", coordinates, batch_size, gradient=gradient, settings=settings, **more)
        for batch_size in (10, 100)
        for coordinates, more in (
            ("eigenbasis", {}),
            (WHITENED, {}),
            ("diagonal", {"start": "exact draws", "lengths": 0.5}),
            ("plain", {"start": "exact draws", "lengths": 0.5}),
        )
        for gradient, settings in (("balanced", "own"), ("minibatch", "balanced"))
    ),
    *(
        Case("mSGNHT-S", WHITENED, batch_size, step, policy, "balanced", lengths=0.5)
        for batch_size in (10, 100)
        for policy in ("independent", "importance")
        for step in (4.0, 16.0)
    ),
    Case("mSGNHT-S", WHITENED, 100, 4.0, settings="balanced", lengths=0.5),
    Case("SGHMC-S", WHITENED, gradient="balanced"),
)


class CaseResult(NamedTuple):
    """The result of a case; arrays have one entry per weight."""

    mean: np.ndarray
    sd: np.ndarray
    ess: np.ndarray
    rhat: np.ndarray
    axis_sd: np.ndarray
    """Along the eigenvectors of the curvature."""
    axis_rhat: np.ndarray
    step_size: float
    num_gradients: int
    seconds: float


class Settings(NamedTuple):
    """Initial position and settings of a sampler."""

    position: jax.Array
    coordinates: Any
    step_size: float
    diffusion: float
    thermostat_mass: float
    noise_variance: float


class CaseRunner:
    """Runs cases on one problem; there is one warm start per coordinates and batch size."""

    def __init__(
        self, problem: Problem, exact: np.ndarray, num_steps: int, num_chains: int, key: Key
    ) -> None:
        """Use a problem and exact draws of its posterior, (chain, draw, weights)."""
        self.problem, self.key = problem, key
        draws = exact.reshape(-1, exact.shape[-1])
        self.exact = jnp.asarray(draws[:: len(draws) // num_chains][:num_chains], jnp.float32)
        self.num_steps, self.num_chains = num_steps, num_chains
        self.known: dict[tuple[str, int, str], Settings] = {}

    def settings(self, coordinates: str, batch_size: int, kind: str = "plain") -> Settings:
        """Return the default settings for coordinates, batch size and kind of gradient."""
        rule = coordinates, batch_size, kind
        if rule not in self.known:
            self.known[rule] = self._settings(*rule)
        return self.known[rule]

    @property
    def axes(self) -> jax.Array:
        """The eigenvectors of the curvature at the mode, in columns."""
        basis = self.settings("eigenbasis", 100).coordinates.basis
        return basis / jnp.linalg.norm(basis, axis=0, keepdims=True)

    def _settings(self, coordinates: str, batch_size: int, kind: str) -> Settings:
        if coordinates in ("paper", "paper, μ = 0.01"):
            mode = self.settings("eigenbasis", batch_size).position
            return Settings(
                mode, Identity(), 1e-3, 10.0, 1.0 if coordinates == "paper" else 0.01, 0
            )
        if coordinates == WHITENED:
            # A momentum with mixed axes has the same law, so it leaves the same heat.
            start = self.settings("eigenbasis", batch_size, kind)
            basis = start.coordinates.basis
            axes = basis / jnp.linalg.norm(basis, axis=0, keepdims=True)
            return start._replace(coordinates=Dense(basis @ axes.T, start.position))
        grad_fn = self.problem.grad_fn
        warm = isotherm.warm_start(
            random.fold(self.key, 0),
            isotherm.balanced(grad_fn) if kind == "balanced" else grad_fn,
            self.problem.position,
            self.problem.batches(batch_size),
            coordinates="identity" if coordinates == "plain" else coordinates,
        )
        return Settings(
            warm.position,
            warm.coordinates,
            warm.step_size,
            warm.diffusion,
            warm.thermostat_mass,
            warm.noise_variance,
        )

    def importance_batches(self, batch_size: int) -> ImportanceBatches:
        """Return batches with rows in proportion to their gradients in natural coordinates."""
        start = self.settings("eigenbasis", batch_size)
        x, y = self.problem.train
        probability = jax.nn.sigmoid(x @ start.position)
        length = jnp.linalg.norm(x @ start.coordinates.basis, axis=1)
        size = np.asarray(length * jnp.sqrt(probability * (1 - probability)), np.float64)
        times = multiplicities(size, MEAN_MULTIPLICITY)
        weight = jnp.asarray(times.mean() / times, jnp.float32)
        repeated = jnp.asarray(np.repeat(np.arange(len(times)), times), jnp.int32)
        return ImportanceBatches((x, y, weight), (), repeated, batch_size)

    def batches(self, case: Case) -> BatchPolicy:
        """Return the batches of a case."""
        if case.policy == "importance":
            return self.importance_batches(case.batch_size)
        return self.problem.batches(case.batch_size, case.policy)

    def run(self, case: Case) -> CaseResult:
        """Sample a case and summarize its draws."""
        start = self.settings(*case.rule)
        h = case.step * start.step_size
        # Small batches are cheap and noisy, so their chains are longer.
        share = case.lengths * min(2.0, (100 / case.batch_size) ** 0.7)
        num_steps = max(int(share * self.num_steps), 1000)
        thin = max(1, num_steps // 2500)
        exact = case.start == "exact draws"
        clock = time.perf_counter()
        with warnings.catch_warnings():  # the result of a case that diverges is NaN
            warnings.simplefilter("ignore", isotherm.exceptions.LostDrawsWarning)
            run = isotherm.sample(
                random.fold(self.key, 1),
                self.sampler(case, start, h),
                self.exact if exact else start.position,
                self.batches(case),
                num_draws=num_steps // thin,
                thin=thin,
                burn_in=num_steps // 10,
                num_chains=self.num_chains,
                position_per_chain=exact,
                on_divergence="continue",
                progress=False,
            )
        seconds = time.perf_counter() - clock
        draws = run.draws
        if run.diverged.any():
            nan = np.full(draws.shape[2:], np.nan)
            gradients = num_steps * self.num_chains
            return CaseResult(nan, nan, nan, nan, nan, nan, h, gradients, seconds)
        along = draws @ np.asarray(self.axes)
        return CaseResult(
            draws.mean((0, 1), dtype=np.float64),
            draws.std((0, 1), dtype=np.float64),
            ess(draws),
            rhat(draws),
            along.std((0, 1), dtype=np.float64),
            rhat(along),
            h,
            num_steps * self.num_chains,
            seconds,
        )

    def sampler(self, case: Case, start: Settings, h: float) -> Sampler:
        """Build the sampler of a case."""
        importance = case.policy == "importance"
        grad_fn: Any = self.problem.importance_grad_fn if importance else self.problem.grad_fn
        if case.gradient == "control variates":
            grad_fn = isotherm.control_variates(grad_fn, start.position, self.problem.train)
        if case.gradient == "balanced":
            grad_fn = isotherm.balanced(grad_fn)
        space, noise = start.coordinates, h * start.noise_variance / 2
        thermostats: dict[str, Callable[..., Sampler]] = {
            "mSGNHT-S": isotherm.msgnht,
            "mSGNHT-E": partial(isotherm.msgnht, integrator="euler"),
            "mSGNHT, BADODAB": partial(isotherm.msgnht, integrator="BADODAB"),
            "mSGNHT-S, scalar thermostat": isotherm.sgnht,
            "mSGNHT-S, full-matrix thermostat": partial(isotherm.msgnht, thermostat="full_matrix"),
        }
        if case.sampler in thermostats:
            return thermostats[case.sampler](
                grad_fn,
                h,
                start.diffusion,
                thermostat_mass=start.thermostat_mass,
                coordinates=space,
            )
        if case.sampler == "SGLD":  # moves as far as a step of size h with a new momentum
            return isotherm.sgld(grad_fn, h**2 / 2, coordinates=space)
        if case.sampler == "SGHMC-S":
            return isotherm.sghmc(grad_fn, h, start.diffusion, coordinates=space)
        return isotherm.sghmc(
            grad_fn, h, start.diffusion + noise, noise_estimate=noise, coordinates=space
        )

    def gaussians(self) -> Iterator[tuple[str, CaseResult]]:
        """Fit Gaussian approximations, all from the mode: Laplace, DSVI and HFSGVI."""
        start = self.settings("eigenbasis", 100)
        basis = np.asarray(start.coordinates.basis, np.float64)
        nan = np.full(len(basis), np.nan)
        yield (
            "Laplace",
            CaseResult(
                np.asarray(start.position, np.float64),
                np.sqrt((basis**2).sum(1)),
                nan,
                nan,
                np.sqrt((basis**2).sum(0)),
                nan,
                0,
                0,
                0,
            ),
        )
        for name, fit, num_steps in (
            ("DSVI, full", partial(dsvi, covariance="full"), self.num_steps),
            ("DSVI, diagonal", partial(dsvi, covariance="diagonal"), self.num_steps),
            ("HFSGVI, diagonal", partial(hfsgvi, covariance="diagonal"), self.num_steps // 20),
        ):
            clock = time.perf_counter()
            fitted = fit(
                random.fold(self.key, 2),
                self.problem.grad_fn,
                start.position,
                self.problem.batches(100),
                num_steps=num_steps,
                step_size=0.1,
            )
            mean, sd = (
                np.asarray(fitted.mean, np.float64),
                _sd(np.asarray(fitted.scale, np.float64)),
            )
            seconds = time.perf_counter() - clock
            yield name, CaseResult(mean, sd, nan, nan, nan, nan, 0, num_steps, seconds)


def _sd(scale: np.ndarray) -> np.ndarray:
    """Return the standard deviations of a covariance, from its factor."""
    return scale if scale.ndim == 1 else np.sqrt((np.tril(scale) ** 2).sum(1))


def run_cases(
    runner: CaseRunner, cases: tuple[Case, ...], checkpoints: Checkpoints, report: Report
) -> list[CaseResult]:
    """Run all cases that are not saved yet, two at a time, since each uses one core."""
    labels = [f"posterior, {', '.join(map(str, case))}" for case in cases]
    saved = [checkpoints.load(label) for label in labels]
    for case, arrays in zip(cases, saved, strict=True):
        if arrays is None:
            runner.settings(*case.rule)
    runner.settings("eigenbasis", 100)

    def run(label: str, case: Case, arrays: dict[str, np.ndarray] | None) -> CaseResult:
        if arrays is None:
            arrays = {key: np.asarray(value) for key, value in runner.run(case)._asdict().items()}
            checkpoints.save(label, arrays)
        values: dict[str, Any] = {key: v if v.ndim else v.item() for key, v in arrays.items()}
        return CaseResult(**values)

    results = []
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        # The effect of shuffled batches on a thermostat is measured here.
        warnings.simplefilter("ignore", isotherm.exceptions.PolicyWarning)
        for case, result in zip(cases, pool.map(run, labels, cases, saved), strict=True):
            results.append(result)
            report(
                f"Posterior accuracy, {len(results)} of {len(cases)}: {case.sampler}, "
                f"{case.coordinates}, batch {case.batch_size} took {result.seconds:.0f} s"
            )
    return results

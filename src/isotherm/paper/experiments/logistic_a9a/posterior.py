r"""Errors of posterior means and standard deviations, by sampler, coordinates and batches.

Every case runs in some coordinates with the settings of `isotherm.warm_start`, or with the paper's
($h = 10^{-3}$, $D = 10$, $\mu = 1$, no change of coordinates). Chains start at the mode. The
paper's setting mixes so slowly that it is also started at exact draws: from the mode the chains
have not yet spread out, from exact draws they have not yet contracted, and their equilibrium is in
between.
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
from isotherm.coordinates.linear import Dense, Identity
from isotherm.diagnostics.convergence import ess, rhat
from isotherm.paper.baselines.dsvi import dsvi
from isotherm.paper.baselines.hfsgvi import hfsgvi
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.logistic_a9a.problem import Problem
from isotherm.types import Key, Sampler


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
)


class CaseResult(NamedTuple):
    """The result of a case; arrays have one entry per weight."""

    mean: np.ndarray
    sd: np.ndarray
    ess: np.ndarray
    rhat: np.ndarray
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
        self.known: dict[tuple[str, int], Settings] = {}

    def settings(self, coordinates: str, batch_size: int) -> Settings:
        """Return the default settings for coordinates and batch size."""
        if (coordinates, batch_size) not in self.known:
            self.known[coordinates, batch_size] = self._settings(coordinates, batch_size)
        return self.known[coordinates, batch_size]

    def _settings(self, coordinates: str, batch_size: int) -> Settings:
        if coordinates in ("paper", "paper, μ = 0.01"):
            mode = self.settings("eigenbasis", batch_size).position
            return Settings(
                mode, Identity(), 1e-3, 10.0, 1.0 if coordinates == "paper" else 0.01, 0
            )
        if coordinates == "symmetric whitening":
            start = self.settings("eigenbasis", batch_size)
            basis = start.coordinates.basis
            axes = basis / jnp.linalg.norm(basis, axis=0, keepdims=True)
            return start._replace(coordinates=Dense(basis @ axes.T, start.position))
        warm = isotherm.warm_start(
            random.fold(self.key, 0),
            self.problem.grad_fn,
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

    def run(self, case: Case) -> CaseResult:
        """Sample a case and summarize its draws."""
        start = self.settings(case.coordinates, case.batch_size)
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
                self.problem.batches(case.batch_size, case.policy),
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
            return CaseResult(nan, nan, nan, nan, h, gradients, seconds)
        return CaseResult(
            draws.mean((0, 1), dtype=np.float64),
            draws.std((0, 1), dtype=np.float64),
            ess(draws),
            rhat(draws),
            h,
            num_steps * self.num_chains,
            seconds,
        )

    def sampler(self, case: Case, start: Settings, h: float) -> Sampler:
        """Build the sampler of a case."""
        grad_fn: Any = self.problem.grad_fn
        if case.gradient == "control variates":
            grad_fn = isotherm.control_variates(grad_fn, start.position, self.problem.train)
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
            yield name, CaseResult(mean, sd, nan, nan, 0, num_steps, seconds)


def _sd(scale: np.ndarray) -> np.ndarray:
    """Return the standard deviations of a covariance, from its factor."""
    return scale if scale.ndim == 1 else np.sqrt((np.tril(scale) ** 2).sum(1))


def run_cases(runner: CaseRunner, cases: tuple[Case, ...], report: Report) -> list[CaseResult]:
    """Run all cases, two at a time, since each uses one core."""
    for case in cases:
        runner.settings(case.coordinates, case.batch_size)
    results = []
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        # The effect of shuffled batches on a thermostat is measured here.
        warnings.simplefilter("ignore", isotherm.exceptions.PolicyWarning)
        for case, result in zip(cases, pool.map(runner.run, cases), strict=True):
            results.append(result)
            report(
                f"Posterior accuracy, {len(results)} of {len(cases)}: {case.sampler}, "
                f"{case.coordinates}, batch {case.batch_size} took {result.seconds:.0f} s"
            )
    return results

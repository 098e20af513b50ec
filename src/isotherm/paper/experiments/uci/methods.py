"""The methods of `uci`: each fits the training rows of a split and returns a predictor.

Every rival has a short list of candidate settings. Each candidate is fitted without the held-out
rows and scored on them by the log density of its predictive mixture; the best is fitted again on
all training rows. Nothing is chosen on test rows. A candidate that diverges is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.data.uci import Rows
from isotherm.diagnostics.mixtures import Mixture
from isotherm.exceptions import DivergedError
from isotherm.models.networks import Network
from isotherm.paper.baselines.cyclical_sgmcmc import cyclical_sgmcmc
from isotherm.paper.baselines.full_hmc import full_hmc
from isotherm.paper.baselines.ivon import ivon
from isotherm.paper.baselines.kfac_laplace import kfac_laplace
from isotherm.paper.baselines.laplace import laplace
from isotherm.paper.baselines.mc_dropout import mc_dropout
from isotherm.paper.baselines.sms_ubu import sms_ubu
from isotherm.paper.baselines.swag import swag
from isotherm.paper.baselines.training import Fitted, cosine_adam, draw_outputs
from isotherm.paper.baselines.tuned_ensemble import train_members, tuned_ensemble
from isotherm.paper.experiments.uci.problem import (
    MixturePredictor,
    Model,
    Predictor,
    Units,
    held_out_rows,
)
from isotherm.schedules import cyclical
from isotherm.types import ArrayTree, Key

Data = tuple[np.ndarray, np.ndarray]

MEMBERS_OF_EQUAL_TIME = 100
"""Members of an ensemble whose fit, with its tuning, takes about as long as one of isotherm."""


@dataclass(frozen=True)
class Budget:
    """Settings that all methods share, and the length of each."""

    hidden: tuple[int, ...]
    activation: str
    batch_size: int
    held_out_share: float
    num_steps: int
    """Steps of every training by gradient descent."""
    num_members: int
    """Members of ensembles, and chains of samplers."""
    num_draws: int
    """Draws of the predictive mixture."""
    prior_scales: tuple[float, ...]
    step_sizes: tuple[float, ...]
    """Of Adam."""
    dropout_rates: tuple[float, ...]
    noise_factors: tuple[float, ...]
    swag_step_sizes: tuple[float, ...]
    ivon_step_sizes: tuple[float, ...]
    chain_steps: int
    """Steps of a chain of cSG-MCMC or SMS-UBU."""
    chain_multiples: tuple[float, ...]
    """Step sizes of samplers, in units of the inverse of the largest frequency."""
    explorations: tuple[float, ...]
    """Shares of a cycle of cSG-MCMC without noise."""
    hmc_draws: int
    hmc_leapfrog: int


@dataclass(frozen=True)
class Job:
    """The input of a method: a split, its key and the budget."""

    train: Rows
    key: Key
    budget: Budget

    @cached_property
    def units(self) -> Units:
        """Units of the training rows."""
        return Units.of(self.train)

    @cached_property
    def data(self) -> Data:
        """All training rows, standardised."""
        return self.units.features(self.train.x), self.units.targets(self.train.y)

    @cached_property
    def held_out(self) -> np.ndarray:
        """Row numbers of the validation part; the same for all methods."""
        seed = random.numpy_seed(random.fold(self.key, 7))
        return held_out_rows(len(self.train.y), self.budget.held_out_share, seed)

    @property
    def without_held_out(self) -> Data:
        """Training rows without the validation part."""
        inside = np.setdiff1d(np.arange(len(self.train.y)), self.held_out)
        return self.data[0][inside], self.data[1][inside]

    def model(self, noise: str = "one", prior_scale: float | None = 1.0) -> Model:
        """Return a model of the size of the budget."""
        budget = self.budget
        return Model(self.train.x.shape[1], budget.hidden, budget.activation, noise, prior_scale)

    def batches(self, data: Data) -> InMemoryBatches:
        """Return shuffled batches."""
        return isotherm.shuffled_batches(data, min(self.budget.batch_size, len(data[1])))


class Fit(NamedTuple):
    """A fitted candidate: draws of outputs at standardised features."""

    network: Network
    fitted: Fitted
    num_draws: int
    noise_factor: float = 1.0

    def mixture(self, key: Key, x: np.ndarray) -> Mixture:
        """Return the mixture of standardised targets."""
        outputs = draw_outputs(self.fitted, self.network, key, x, self.num_draws)
        if not bool(jnp.isfinite(outputs).all()):
            raise FloatingPointError("Some draws have outputs that are not finite.")
        own = self.network.output_likelihood.predictive(outputs)
        return Mixture(own.location, self.noise_factor * own.scale)


def choose(
    job: Job, candidates: Sequence[Any], fit: Callable[[Key, Data, Any], Fit]
) -> MixturePredictor:
    """Fit all candidates without the held-out rows, and the best of them on all rows."""
    x, y = (part[job.held_out] for part in job.data)
    order = list(candidates)
    if len(order) > 1:
        tried = [_held_out_score(job, fit, setting, i, x, y) for i, setting in enumerate(order)]
        order = [order[i] for i in np.argsort(tried, kind="stable")[::-1]]
    for setting in order:
        try:
            chosen = fit(random.fold(job.key, 0), job.data, setting)
        except (FloatingPointError, DivergedError):
            continue
        return _predictor(job, chosen)
    raise FloatingPointError("All candidates diverged.")


def _predictor(job: Job, chosen: Fit) -> MixturePredictor:
    key = random.fold(job.key, 1)
    return MixturePredictor(job.units, lambda x: chosen.mixture(key, x))


def _held_out_score(
    job: Job, fit: Callable, setting: Any, number: int, x: np.ndarray, y: np.ndarray
) -> float:
    key = random.fold(job.key, 100 + number)
    try:
        mixture = fit(random.fold(key, 0), job.without_held_out, setting).mixture(
            random.fold(key, 1), x
        )
        score = float(np.mean(mixture.log_density(y)))
    except (FloatingPointError, DivergedError):
        return -np.inf
    return score if np.isfinite(score) else -np.inf


def isotherm_default(job: Job) -> Predictor:
    """Fit our estimator with its default settings, on the rows as they are."""
    seed = random.numpy_seed(job.key) % 2**31
    estimator: Any = isotherm.BayesianMLPRegressor(random_state=seed)
    return estimator.fit(job.train.x, job.train.y)


def _ensemble(job: Job, prior: bool) -> Predictor:
    budget = job.budget
    scales = budget.prior_scales if prior else (1.0,)
    models = [job.model(noise, scale) for noise in ("one", "input") for scale in scales]
    tuned = tuned_ensemble(
        job.key,
        [model.network() for model in models],
        job.data,
        job.held_out,
        batch_size=budget.batch_size,
        num_steps=budget.num_steps,
        step_sizes=budget.step_sizes,
        num_members=budget.num_members,
        prior=prior,
    )
    return _predictor(job, Fit(tuned.network, tuned.fitted, budget.num_members))


def _large_ensemble(job: Job, ours: bool = False) -> Predictor:
    """Fit an ensemble that takes about as long as isotherm; `ours`: with the same network."""
    network: dict[str, Any] = {"hidden": (32, 32), "activation": "tanh"} if ours else {}
    budget = replace(job.budget, num_members=MEMBERS_OF_EQUAL_TIME, **network)
    return _ensemble(replace(job, budget=budget), prior=False)


def _dropout(job: Job) -> Predictor:
    """Fit dropout of inputs and hidden units; choose rate and noise on held-out rows."""
    budget = job.budget

    def fit(key: Key, data: Data, setting: tuple[float, float]) -> Fit:
        rate, noise_factor = setting
        network, batches = job.model().network(), job.batches(data)
        fitted = mc_dropout(
            key,
            network.gradient(len(data[1])),
            network.init(random.fold(key, 9)),
            batches,
            num_steps=budget.num_steps,
            rates=(rate,) * (len(budget.hidden) + 1),
            masks_per_batch=_divisor(batches.batch_size),
            optimizer=cosine_adam(max(budget.step_sizes), budget.num_steps),
            progress=False,
        )
        return Fit(network, fitted, budget.num_draws, noise_factor)

    return choose(job, _dropout_settings(job, fit), fit)


def _dropout_settings(job: Job, fit: Callable) -> list[tuple[float, float]]:
    """Return the best rate with the best factor of its noise, one fit per rate."""
    x, y = (part[job.held_out] for part in job.data)
    tried = {}
    for i, rate in enumerate(job.budget.dropout_rates):
        key = random.fold(job.key, 200 + i)
        try:
            one = fit(key, job.without_held_out, (rate, 1.0))
            mixture = one.mixture(random.fold(key, 1), x)
        except FloatingPointError:
            continue
        for factor in job.budget.noise_factors:
            scaled = Mixture(mixture.location, factor * mixture.scale)
            tried[rate, factor] = float(np.mean(scaled.log_density(y)))
    if not tried:
        raise FloatingPointError("All candidates diverged.")
    return [max(tried, key=lambda setting: tried[setting])]


def _divisor(batch_size: int) -> int:
    """Return the number of masks per batch: a divisor of its size, for about four rows each."""
    return next(d for d in range(max(1, batch_size // 4), 0, -1) if batch_size % d == 0)


def _mode(job: Job, key: Key, network: Network, data: Data) -> ArrayTree:
    members = train_members(
        key,
        network,
        job.batches(data),
        step_size=max(job.budget.step_sizes),
        num_steps=job.budget.num_steps,
    )
    return jax.tree.map(lambda leaf: leaf[0], members.members)


def _swag(job: Job) -> Predictor:
    budget = job.budget

    def fit(key: Key, data: Data, setting: tuple[float, float]) -> Fit:
        scale, step_size = setting
        network = job.model(prior_scale=scale).network()
        start = _mode(job, random.fold(key, 8), network, data)
        grad_fn, batches = network.gradient(len(data[1])), job.batches(data)
        fitted = swag(
            key,
            grad_fn,
            start,
            batches,
            num_steps=budget.num_steps,
            step_size=step_size,
            progress=False,
        )
        return Fit(network, fitted, budget.num_draws)

    candidates = [(v, eta) for v in budget.prior_scales for eta in budget.swag_step_sizes]
    return choose(job, candidates, fit)


def _ivon(job: Job) -> Predictor:
    budget = job.budget

    def fit(key: Key, data: Data, setting: tuple[float, float]) -> Fit:
        scale, step_size = setting
        network = job.model(prior_scale=scale).network()
        fitted = ivon(
            key,
            network.gradient(len(data[1])),
            network.init(random.fold(key, 9)),
            job.batches(data),
            num_steps=2 * budget.num_steps,
            step_size=_CosineDecay(step_size, 2 * budget.num_steps),
            initial_curvature=0.5,
            beta2=1 - 5 / budget.num_steps,
            progress=False,
        )
        return Fit(network, fitted, budget.num_draws)

    candidates = [(v, eta) for v in budget.prior_scales for eta in budget.ivon_step_sizes]
    return choose(job, candidates, fit)


class _CosineDecay(NamedTuple):
    """A cosine decay to zero, which compares equal for equal settings."""

    step_size: float
    num_steps: int

    def __call__(self, step_index: jax.Array) -> jax.Array:
        return jnp.asarray(cyclical(self.step_size, self.num_steps)(step_index))


def _laplace(job: Job, approximate: Callable[..., Fitted]) -> Predictor:
    def fit(key: Key, data: Data, scale: float) -> Fit:
        network = job.model(prior_scale=scale).network()
        mode = _mode(job, key, network, data)
        return Fit(network, approximate(key, network, mode, data), job.budget.num_draws)

    return choose(job, job.budget.prior_scales, fit)


def _chains(job: Job, key: Key, data: Data) -> tuple[Network, ArrayTree, float]:
    """Return the network of samplers, trained starts, one per chain, and the largest frequency."""
    network = job.model(prior_scale=None).flat_network()
    starts = train_members(
        key,
        network,
        job.batches(data),
        step_size=max(job.budget.step_sizes),
        num_steps=job.budget.num_steps,
        num_members=job.budget.num_members,
    ).members
    return network, starts, largest_frequency(network, starts[0], data)


def largest_frequency(network: Network, position: ArrayTree, data: Data) -> float:
    """Return the root of the largest curvature of the log posterior at a position."""
    return float(jnp.sqrt(_largest_curvature(position, tuple(map(jnp.asarray, data)), network)))


def _curvature(position: ArrayTree, data: Any, network: Network) -> jax.Array:
    def log_density(w: ArrayTree) -> jax.Array:
        return network.log_prior(w) + jnp.sum(network.log_likelihood(w, data))

    def times(v: ArrayTree) -> ArrayTree:
        return jax.jvp(jax.grad(log_density), (position,), (v,))[1]

    start = random.gaussian(jax.random.key(0), position)
    return largest_eigenvalue(times, start, 50)


_largest_curvature = jax.jit(_curvature, static_argnums=2)


def _cyclical(job: Job) -> Predictor:
    budget = job.budget

    def fit(key: Key, data: Data, setting: tuple[float, float]) -> Fit:
        multiple, exploration = setting
        network, starts, frequency = _chains(job, random.fold(key, 8), data)
        step_size = multiple / frequency
        num_cycles = 4
        fitted = cyclical_sgmcmc(
            key,
            network.gradient(len(data[1])),
            starts,
            job.batches(data),
            learning_rate=step_size**2,
            num_cycles=num_cycles,
            steps_per_cycle=budget.chain_steps // num_cycles,
            draws_per_cycle=max(1, budget.num_draws // (num_cycles * budget.num_members)),
            exploration=exploration,
            friction=0.1 / step_size,
            num_chains=budget.num_members,
            position_per_chain=True,
        )
        return Fit(network, fitted, budget.num_draws)

    candidates = [(m, share) for m in budget.chain_multiples for share in budget.explorations]
    return choose(job, candidates, fit)


def _sms_ubu(job: Job) -> Predictor:
    budget = job.budget

    def fit(key: Key, data: Data, multiple: float) -> Fit:
        network, starts, frequency = _chains(job, random.fold(key, 8), data)
        step_size = multiple / frequency
        draws = max(1, budget.num_draws // budget.num_members)
        fitted = sms_ubu(
            key,
            network.gradient(len(data[1])),
            starts,
            isotherm.symmetric_batches(data, min(budget.batch_size, len(data[1]))),
            step_size=step_size,
            friction=1.0,
            num_draws=draws,
            thin=max(1, budget.chain_steps // 2 // draws),
            burn_in=budget.chain_steps // 2,
            num_chains=budget.num_members,
            position_per_chain=True,
        )
        return Fit(network, fitted, budget.num_draws)

    return choose(job, budget.chain_multiples, fit)


def _hmc(job: Job) -> Predictor:
    budget = job.budget
    network, starts, frequency = _chains(job, random.fold(job.key, 8), job.data)
    run = full_hmc(
        job.key,
        network,
        starts,
        job.data,
        num_draws=budget.hmc_draws,
        burn_in=budget.hmc_draws,
        num_leapfrog=budget.hmc_leapfrog,
        step_size=0.5 / frequency,
    )
    num_draws = min(budget.num_draws, budget.hmc_draws * budget.num_members)
    return _predictor(job, Fit(network, run.fitted, num_draws))


METHODS: dict[str, Callable[[Job], Predictor]] = {
    "isotherm": isotherm_default,
    "HMC": _hmc,
    "deep ensemble": lambda job: _ensemble(job, prior=False),
    "deep ensemble of 100": _large_ensemble,
    "deep ensemble of 100 (our network)": partial(_large_ensemble, ours=True),
    "MAP ensemble": lambda job: _ensemble(job, prior=True),
    "MC dropout": _dropout,
    "SWAG": _swag,
    "IVON": _ivon,
    "Kronecker Laplace": lambda job: _laplace(job, kfac_laplace),
    "last-layer Laplace": lambda job: _laplace(job, laplace),
    "cSG-MCMC": _cyclical,
    "SMS-UBU": _sms_ubu,
}
"""By the name in tables and in `--set methods=`."""

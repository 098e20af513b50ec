r"""Sample one network with one sampler, and measure it after every epoch.

An *epoch* is $N/n$ steps, for every batch policy. After each epoch the test set is predicted with
the latest draw and with the average over all draws since burn-in; only these predictions are kept,
not the weights. A checkpoint is saved after every epoch, so an interrupted run loses at most one.
"""

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm import random
from isotherm.data.idx import Images, load_mnist
from isotherm.diagnostics.predictions import class_probabilities
from isotherm.gradients.full_data import sum_over_rows
from isotherm.models.networks import Network, lenet, mlp
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.mnist.record import Record
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.types import Key, Sampler

BLOCK = 2000
"""Number of rows predicted at once."""


class Data(NamedTuple):
    """Training rows and test rows."""

    train: Images
    test: Images


@lru_cache(maxsize=2)
def mnist(num_train: int, num_test: int, validation: bool = False) -> Data:
    """Load part of MNIST; with `validation` the last 10 000 training images are the test rows."""
    train, test = load_mnist()
    if validation:
        train, test = (Images(train.x[a], train.y[a]) for a in (slice(50_000), slice(50_000, None)))
    return Data(
        Images(train.x[:num_train], train.y[:num_train]),
        Images(test.x[:num_test], test.y[:num_test]),
    )


@dataclass(frozen=True)
class Recipe:
    """A network, and the sampler and its settings."""

    sampler: str = "mSGNHT-S"
    hidden: tuple[int, ...] = (100, 100)
    """Units per hidden layer; empty for LeNet."""
    activation: str = "relu"
    step_size: float = 1e-4
    diffusion: float = 5.0
    """$D$; for SGHMC the friction."""
    num_epochs: int = 40
    halve_every: int = 20
    """Number of epochs after which the step size is halved, again and again; 0 for never."""
    batch_size: int = 100
    policy: str = "independent"
    prior_sd: float = 1.0
    temperature: float = 1.0
    thermostat_mass: float = 1.0
    start_scale: float = 1.0
    """Factor of the initial weights."""
    pixel_scale: float = 1.0
    """Factor of the grey values, which are between 0 and 1."""
    balanced: bool = False
    """Whether minibatches are balanced (`isotherm.balanced`)."""
    noise: str = "three-point"
    coordinates: str = "plain"
    """`"plain"`, or `"kronecker"`: start with `isotherm.warm_start` and use its settings, with
    `step_size` in units of its step size."""
    rounds: int = 4
    steps_per_round: int = 1000
    draws_per_epoch: int = 5
    burn_in: float = 0.5
    """Share of the epochs before the averaging of predictions starts."""

    @property
    def label(self) -> str:
        """Name of the sampler and its gradient."""
        return f"{self.sampler}, balanced" if self.balanced else self.sampler

    def network(self) -> Network:
        """Build the network."""
        if not self.hidden:
            return lenet(activation=self.activation, prior_sd=self.prior_sd)
        sizes = (784, *self.hidden, 10)
        return mlp(sizes, activation=self.activation, prior_sd=self.prior_sd)

    def build(self, grad_fn: Any, epoch_length: int) -> Sampler:
        """Build the sampler."""
        h: Any = self.step_size
        if self.halve_every:
            h = isotherm.schedules.halving(h, self.halve_every * epoch_length)
        options: dict[str, Any] = {"temperature": self.temperature, "noise": self.noise}
        name, _, scheme = self.sampler.partition("-")
        if name == "SGLD":  # moves as far as a step of size h with a new momentum
            return isotherm.sgld(grad_fn, lambda t: _at(h, t) ** 2 / 2, **options)
        options["integrator"] = {"S": None, "E": "euler"}[scheme]
        if name == "SGHMC":
            return isotherm.sghmc(grad_fn, h, self.diffusion, **options)
        make = {"mSGNHT": isotherm.msgnht, "SGNHT": isotherm.sgnht}[name]
        return make(grad_fn, h, self.diffusion, thermostat_mass=self.thermostat_mass, **options)

    def warm_started(self, key: Key, grad_fn: Any, batches: Any, start: Any) -> tuple[Any, Sampler]:
        """Run a warm start in Kronecker coordinates; return the position and the sampler."""
        warm = isotherm.warm_start(
            key,
            grad_fn,
            start,
            batches,
            coordinates="kronecker",
            num_steps=self.steps_per_round,
            rounds=self.rounds,
            steps_per_round=self.steps_per_round,
        )
        settings: dict[str, Any] = warm.settings | {"step_size": self.step_size * warm.step_size}
        used: Any = warm.grad_fn if self.balanced else grad_fn
        return warm.position, isotherm.msgnht(used, noise=self.noise, **settings)

    @property
    def warm_gradients(self) -> int:
        """Number of minibatch gradients of a warm start: mode, pilot runs, measurements."""
        if self.coordinates == "plain":
            return 0
        return self.steps_per_round * (1 + self.rounds) + (self.rounds + 1) * (2 * 512 + 200)

    def varied(self, **changes: Any) -> "Recipe":
        """Return this recipe with changes."""
        return replace(self, **changes)


def _at(h: Any, step_index: jax.Array) -> Any:
    return h(step_index) if callable(h) else h


class Learner:
    """Runs a recipe with any number of seeds; its programs are compiled once."""

    def __init__(self, recipe: Recipe, data: Data) -> None:
        network = recipe.network()
        train, test = (Images(recipe.pixel_scale * x, y) for x, y in data)
        policies = {
            "independent": isotherm.independent_batches,
            "shuffled": isotherm.shuffled_batches,
        }
        self.recipe, self.network, self.labels = recipe, network, test.y
        self.batches = policies[recipe.policy](tuple(train), recipe.batch_size)
        self.epoch_length = len(train.y) // recipe.batch_size
        self.grad_fn = network.gradient(len(train.y))
        used = isotherm.balanced(self.grad_fn) if recipe.balanced else self.grad_fn
        self.sampler = recipe.build(used, self.epoch_length)
        self.train_subset = jax.tree.map(lambda leaf: leaf[:10_000], self.batches.data)
        self.log_likelihood = jax.jit(self.grad_fn.log_likelihood_sum)
        self.collect = {
            "test": isotherm.collect.draws(
                class_probabilities(network.predict, test.x, rows_per_block=BLOCK)
            ),
            "thermostat": isotherm.collect.draws(_mean_thermostat, of="state"),
            "weights": isotherm.collect.draws(_some_weights),
        }

    def train_nll(self, position: Any) -> float:
        """Return the mean negative log likelihood of the first 10 000 training rows."""
        rows = self.train_subset
        size = len(rows[1])
        return -float(sum_over_rows(self.log_likelihood, position, rows, size, BLOCK)) / size

    def learn(
        self, key: Key, name: str, checkpoints: Checkpoints, report: Report
    ) -> dict[str, np.ndarray]:
        """Run a chain, resuming from a checkpoint if there is one; measure it after every epoch.

        Returns arrays over epochs: `draw accuracy` (%), `draw nll` (test, the latest draw),
        `train nll` (mean over 10 000 training rows, the latest draw), `accuracy`, `nll`, `ece` (of
        the average since burn-in; of the latest draw before), `temperature`, `thermostat`; at the
        end `probabilities`, `entropy` (mean over draws), `averages`: accuracy and NLL by share of
        burn-in and by how many draws per epoch are averaged, and `ess`: effective draws per 1000
        gradients of log probabilities and of weights.
        """
        recipe = self.recipe
        thin = max(1, self.epoch_length // recipe.draws_per_epoch)
        start = self.network.init(random.fold(key, 3))
        start = jax.tree.map(lambda leaf: recipe.start_scale * leaf, start)
        sampler = self.sampler
        if recipe.coordinates == "kronecker":
            start, sampler = recipe.warm_started(
                random.fold(key, 4), self.grad_fn, self.batches, start
            )
        start_key = random.fold(random.fold(key, 0), 2)
        state = jax.vmap(sampler.init, (None, 0))(start, start_key[None])
        record = Record(recipe, self.labels, self.epoch_length)
        if (saved := checkpoints.load(name)) is not None:
            state = record.restore(saved, state)
        while record.epoch < recipe.num_epochs and not record.diverged:
            with warnings.catch_warnings():
                # The effect of shuffled batches on a thermostat is measured here.
                warnings.simplefilter("ignore", isotherm.exceptions.PolicyWarning)
                warnings.simplefilter("ignore", isotherm.exceptions.LostDrawsWarning)  # recorded
                run = isotherm.sample(
                    key,
                    sampler,
                    start,
                    self.batches,
                    num_draws=recipe.draws_per_epoch,
                    thin=thin,
                    burn_in=self.epoch_length - thin * recipe.draws_per_epoch,
                    state=state,
                    collect=self.collect,
                    on_divergence="continue",
                    progress=False,
                )
            state = run.state
            record.add(run, self.train_nll(jax.tree.map(lambda leaf: leaf[0], state.position)))
            checkpoints.save(name, record.arrays(state))
            report(f"{name}, epoch {record.epoch} of {recipe.num_epochs}: {record.message()}")
        return record.result()


def _some_weights(position: Any) -> jax.Array:
    """Return 50 evenly spaced numbers of every leaf, to measure mixing."""
    leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(position)]
    return jnp.concatenate([leaf[:: max(1, leaf.size // 50)][:50] for leaf in leaves])


def _mean_thermostat(state: Any) -> jax.Array:
    leaves = jax.tree.leaves(getattr(state, "thermostat", None))
    if not leaves:
        return jnp.full((), jnp.nan)
    return jnp.mean(jnp.concatenate([jnp.ravel(leaf) for leaf in leaves]))

r"""One network, one sampler: what is known after every epoch.

An *epoch* is $N/n$ steps, whatever the batch policy. After each the test set is predicted with the
latest draw and with the average over all draws since the end of burn-in; nothing but these predictions
is kept of the weights. Everything is saved after every epoch, so a cut run loses at most one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm import random
from isotherm.data.idx import Images, load_mnist
from isotherm.diagnostics.calibration import (
    accuracy,
    expected_calibration_error,
    negative_log_likelihood,
)
from isotherm.experiments.contract import Say
from isotherm.experiments.shelf import Shelf
from isotherm.models.networks import Network, lenet, mlp
from isotherm.types import Key, Sampler

BLOCK = 10_000
"""Rows predicted at once."""


class Data(NamedTuple):
    """Rows to learn from and rows to be judged by."""

    train: Images
    test: Images


@lru_cache(maxsize=2)
def mnist(num_train: int, num_test: int, validation: bool = False) -> Data:
    """Load MNIST, or a part of it; for `validation` the last 10 000 training images are judged."""
    train, test = load_mnist()
    if validation:
        train, test = (Images(train.x[a], train.y[a]) for a in (slice(50_000), slice(50_000, None)))
    return Data(
        Images(train.x[:num_train], train.y[:num_train]),
        Images(test.x[:num_test], test.y[:num_test]),
    )


@dataclass(frozen=True)
class Recipe:
    """How a network is sampled."""

    sampler: str = "mSGNHT-S"
    hidden: tuple[int, ...] = (100, 100)
    """Units per hidden layer; nothing means LeNet."""
    activation: str = "relu"
    step_size: float = 1e-4
    diffusion: float = 5.0
    """$D$; for SGHMC the friction too."""
    num_epochs: int = 40
    halve_every: int = 20
    """Epochs after which the step size is halved; 0 never halves it."""
    batch_size: int = 100
    policy: str = "independent"
    prior_sd: float = 1.0
    temperature: float = 1.0
    thermostat_mass: float = 1.0
    start_scale: float = 1.0
    """Of the initial weights."""
    noise: str = "three-point"
    draws_per_epoch: int = 5
    burn_in: float = 0.5
    """Share of the epochs before predictions are averaged."""

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
            h = isotherm.halving(h, self.halve_every * epoch_length)
        options: dict[str, Any] = {"temperature": self.temperature, "noise": self.noise}
        name, _, scheme = self.sampler.partition("-")
        if name == "SGLD":  # a step of size h with a fresh momentum goes as far
            return isotherm.sgld(grad_fn, lambda t: _at(h, t) ** 2 / 2, **options)
        options["integrator"] = {"S": "ABOBA", "E": "euler"}[scheme]
        if name == "SGHMC":
            return isotherm.sghmc(grad_fn, h, self.diffusion, **options)
        make = {"mSGNHT": isotherm.msgnht, "SGNHT": isotherm.sgnht}[name]
        return make(grad_fn, h, self.diffusion, thermostat_mass=self.thermostat_mass, **options)

    def varied(self, **changes: Any) -> "Recipe":
        """Give the same with something changed."""
        return replace(self, **changes)


def _at(h: Any, step_index: jax.Array) -> Any:
    return h(step_index) if callable(h) else h


def in_blocks(predict: Callable[[Any, jax.Array], jax.Array], x: jax.Array) -> Any:
    """Predict many rows some at a time, as a function of the position."""
    size = math.gcd(BLOCK, len(x))
    blocks = x.reshape(-1, size, x.shape[1])
    return lambda w: jax.lax.map(lambda rows: predict(w, rows), blocks).reshape(len(x), -1)


class Learner:
    """Runs a recipe on some data, with any number of seeds; what compiles, compiles once."""

    def __init__(self, recipe: Recipe, data: Data) -> None:
        network, (train, test) = recipe.network(), data
        policies = {
            "independent": isotherm.independent_batches,
            "shuffled": isotherm.shuffled_batches,
        }
        self.recipe, self.network, self.labels = recipe, network, test.y
        self.batches = policies[recipe.policy](tuple(train), recipe.batch_size)
        self.epoch_length = len(train.y) // recipe.batch_size
        self.sampler = recipe.build(network.gradient(len(train.y)), self.epoch_length)
        some = min(10_000, len(train.y))
        x, y = jnp.asarray(train.x[:some]), jnp.asarray(train.y[:some])
        predict = in_blocks(network.predict, jnp.asarray(test.x))
        scores = in_blocks(network.apply, x)

        def train_nll(position: Any) -> jax.Array:
            each = jnp.take_along_axis(jax.nn.log_softmax(scores(position)), y[:, None], axis=1)
            return -jnp.mean(each)

        self.train_nll = jax.jit(train_nll)
        self.collect = {
            "probabilities": isotherm.draws(predict),
            "thermostat": isotherm.draws(_mean_thermostat, of="state"),
        }

    def learn(self, key: Key, name: str, shelf: Shelf, say: Say) -> dict[str, np.ndarray]:
        """Run with one key, or take the run off the shelf, and measure it after every epoch.

        Returns arrays over epochs: `draw accuracy` (%), `draw nll` (test, the latest draw), `train nll`
        (mean over 10 000 training rows, the latest draw), `accuracy`, `nll`, `ece` (of the average
        since burn-in; of the latest draw before), `temperature`, `thermostat`; at the end
        `probabilities`, `entropy` (mean over draws) and `averages`: accuracy and NLL by share of
        burn-in and by how many draws per epoch are averaged.
        """
        recipe = self.recipe
        thin = max(1, self.epoch_length // recipe.draws_per_epoch)
        start = self.network.init(random.fold(key, 3))
        start = jax.tree.map(lambda leaf: recipe.start_scale * leaf, start)
        state = jax.vmap(self.sampler.init, (None, 0))(
            start, random.fold(random.fold(key, 0), 2)[None]
        )
        record = _Record(recipe, self.labels)
        if (saved := shelf.load(name)) is not None:
            state = record.restore(saved, state)
        while record.epoch < recipe.num_epochs and not record.lost:
            run = isotherm.sample(
                key, self.sampler, start, self.batches, num_draws=recipe.draws_per_epoch, thin=thin,
                burn_in=self.epoch_length - thin * recipe.draws_per_epoch, collect=self.collect,
                state=state, on_divergence="continue", progress=False,
            )  # fmt: skip
            state = run.state
            record.add(
                run, float(self.train_nll(jax.tree.map(lambda leaf: leaf[0], state.position)))
            )
            shelf.save(name, record.arrays(state))
            say(f"{name}, epoch {record.epoch} of {recipe.num_epochs}: {record.line()}")
        return record.result()


def _mean_thermostat(state: Any) -> jax.Array:
    leaves = jax.tree.leaves(getattr(state, "thermostat", None))
    if not leaves:
        return jnp.full((), jnp.nan)
    return jnp.mean(jnp.concatenate([jnp.ravel(leaf) for leaf in leaves]))


class _Record:
    """What was measured so far."""

    CURVES = ("draw accuracy", "draw nll", "train nll", "accuracy", "nll", "ece", "temperature", "thermostat")  # fmt: skip
    SHARES = (0.25, 0.5, 0.75)

    def __init__(self, recipe: Recipe, labels: np.ndarray) -> None:
        self.recipe, self.labels = recipe, labels
        self.curves: dict[str, list[float]] = {name: [] for name in self.CURVES}
        shape = (len(self.SHARES), len(labels), 10)
        self.sums, self.last_sums = np.zeros(shape), np.zeros(shape)
        self.entropy = np.zeros(len(labels))
        self.lost = False

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return len(self.curves["accuracy"])

    def add(self, run: isotherm.Run, train_nll: float) -> None:
        """Take in an epoch."""
        draws = np.asarray(run.collected["probabilities"][0], np.float64)
        self.lost = bool(run.diverged.any()) or not np.isfinite(draws).all()
        if self.lost:
            return
        epoch, total = self.epoch + 1, self.recipe.num_epochs
        for i, share in enumerate(self.SHARES):
            if epoch > share * total:
                self.sums[i] += draws.mean(0)
                self.last_sums[i] += draws[-1]
        warm = epoch > self.recipe.burn_in * total
        average = self._average(self.recipe.burn_in) if warm else draws[-1]
        if warm:
            self.entropy += -(draws * np.log(np.maximum(draws, 1e-12))).sum(-1).mean(0)
        kinetic = run.stats.get("kinetic_temperature")
        values = {
            "draw accuracy": 100 * accuracy(draws[-1], self.labels),
            "draw nll": negative_log_likelihood(draws[-1], self.labels),
            "train nll": train_nll,
            "accuracy": 100 * accuracy(average, self.labels),
            "nll": negative_log_likelihood(average, self.labels),
            "ece": expected_calibration_error(average, self.labels),
            "temperature": np.nan
            if kinetic is None or not run.momentum_sizes
            else float(np.average(kinetic[0].mean(0), weights=run.momentum_sizes)),
            "thermostat": float(run.collected["thermostat"][0, -1]),
        }
        for name, value in values.items():
            self.curves[name].append(value)

    def _average(self, share: float) -> np.ndarray:
        i = self.SHARES.index(share)
        return self.sums[i] / self.sums[i].sum(-1, keepdims=True)

    def line(self) -> str:
        """Say how it stands."""
        if self.lost:
            return "diverged"
        last = {name: values[-1] for name, values in self.curves.items()}
        return f"test {last['accuracy']:.2f} % (draw {last['draw accuracy']:.2f} %), training NLL {last['train nll']:.3f}"

    def arrays(self, state: Any) -> dict[str, np.ndarray]:
        """Give everything that must be saved."""
        leaves = {f"state {i}": np.asarray(v) for i, v in enumerate(jax.tree.leaves(state))}
        curves = {f"curve {name}": np.asarray(v) for name, v in self.curves.items()}
        sums = {"sums": self.sums, "last sums": self.last_sums, "entropy": self.entropy}
        return leaves | curves | sums | {"lost": np.asarray(self.lost)}

    def restore(self, saved: dict[str, np.ndarray], state: Any) -> Any:
        """Take up what was saved; return the state."""
        self.curves = {name: saved[f"curve {name}"].tolist() for name in self.CURVES}
        self.sums, self.last_sums = saved["sums"], saved["last sums"]
        self.entropy, self.lost = saved["entropy"], bool(saved["lost"])
        leaves, structure = jax.tree.flatten(state)
        return structure.unflatten([jnp.asarray(saved[f"state {i}"]) for i in range(len(leaves))])

    def result(self) -> dict[str, np.ndarray]:
        """Lay out what was measured; epochs after a divergence are NaN."""
        total = self.recipe.num_epochs
        found: dict[str, np.ndarray] = {}
        for name, values in self.curves.items():
            found[name] = np.full(total, np.nan)
            found[name][: len(values)] = values
        averages = np.full((len(self.SHARES), 2, 2), np.nan)
        for i in range(len(self.SHARES)):
            for j, sums in enumerate((self.last_sums[i], self.sums[i])):
                if not self.lost and sums.any():
                    mean = sums / sums.sum(-1, keepdims=True)
                    averages[i, j] = (
                        100 * accuracy(mean, self.labels),
                        negative_log_likelihood(mean, self.labels),
                    )
        warm = max(1, total - int(self.recipe.burn_in * total))
        found["averages"] = averages
        found["entropy"] = self.entropy / warm
        mean = (
            self._average(self.recipe.burn_in)
            if self.sums.any()
            else np.full(self.sums[0].shape, np.nan)
        )
        found["probabilities"] = mean.astype(np.float32)
        return found

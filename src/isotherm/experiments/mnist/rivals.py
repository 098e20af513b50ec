"""What the thermostats stand beside: the paper's rivals and what people use today.

Each is fitted for as many epochs as the chains run, with settings of its literature: nothing is chosen
on the test set.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm import random
from isotherm.baselines.bayes_by_backprop import bayes_by_backprop, scale_mixture
from isotherm.baselines.deep_ensemble import deep_ensemble
from isotherm.baselines.laplace import laplace
from isotherm.baselines.mc_dropout import mc_dropout
from isotherm.baselines.sgd import sgd
from isotherm.baselines.training import Fitted
from isotherm.batches import InMemoryBatches
from isotherm.experiments.mnist.learning import Data, Recipe
from isotherm.gradients import minibatch_gradient
from isotherm.models.networks import Network
from isotherm.prediction import predictive
from isotherm.types import Key

Fit = Callable[[Key, Network, InMemoryBatches, int], Fitted]


def _sgd(key: Key, network: Network, batches: InMemoryBatches, num_steps: int) -> Fitted:
    return sgd(
        key, network.gradient(batches.data_size), network.init(random.fold(key, 9)), batches,
        num_steps=num_steps, step_size=isotherm.halving(0.1, max(1, num_steps // 4)), prior=False,
        progress=False,
    )  # fmt: skip


def _bbb(key: Key, network: Network, batches: InMemoryBatches, num_steps: int) -> Fitted:
    return bayes_by_backprop(
        key, network.gradient(batches.data_size), network.init(random.fold(key, 9)), batches,
        num_steps=num_steps, progress=False,
    )  # fmt: skip


def _bbb_mixture(key: Key, network: Network, batches: InMemoryBatches, num_steps: int) -> Fitted:
    grad_fn = minibatch_gradient(network.log_likelihood, scale_mixture(), batches.data_size)
    return bayes_by_backprop(
        key, grad_fn, network.init(random.fold(key, 9)), batches, num_steps=num_steps, progress=False
    )  # fmt: skip


def _dropout(key: Key, network: Network, batches: InMemoryBatches, num_steps: int) -> Fitted:
    return mc_dropout(
        key, network.gradient(batches.data_size), network.init(random.fold(key, 9)), batches,
        num_steps=num_steps, progress=False,
    )  # fmt: skip


def _ensemble(key: Key, network: Network, batches: InMemoryBatches, num_steps: int) -> Fitted:
    return deep_ensemble(
        key, network.gradient(batches.data_size), network.init, batches, num_steps=num_steps,
        step_size=isotherm.halving(0.1, max(1, num_steps // 4)), prior=False, progress=False,
    )  # fmt: skip


def _laplace(key: Key, network: Network, batches: InMemoryBatches, num_steps: int) -> Fitted:
    mode = sgd(
        key, network.gradient(batches.data_size), network.init(random.fold(key, 9)), batches,
        num_steps=num_steps, step_size=isotherm.halving(0.1, max(1, num_steps // 4)), progress=False,
    )  # fmt: skip
    return laplace(random.fold(key, 8), network, mode.position, batches.data)


RIVALS: dict[str, Fit] = {
    "SGD": _sgd,
    "BBB, Gaussian prior": _bbb,
    "BBB, scale mixture": _bbb_mixture,
    "MC dropout": _dropout,
    "deep ensemble of 5": _ensemble,
    "last-layer Laplace": _laplace,
}


def predict(name: str, recipe: Recipe, data: Data, key: Key, num_draws: int = 100) -> np.ndarray:
    """Fit a rival to the training rows and give its probabilities of the test rows."""
    batches = isotherm.shuffled_batches(tuple(data.train), recipe.batch_size)
    network = recipe.network()
    num_steps = recipe.num_epochs * batches.epoch_length
    fitted = RIVALS[name](random.fold(key, 1), network, batches, num_steps)
    draws = fitted.sample(random.fold(key, 2), 1 if name == "SGD" else num_draws)
    return np.asarray(predictive(network.predict, draws, jnp.asarray(data.test.x)))

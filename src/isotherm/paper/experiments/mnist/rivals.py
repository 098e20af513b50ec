"""Baselines of the table: those of the paper, and methods in use today.

Each is fitted for as many epochs as the chains run, with settings from its literature: nothing is
chosen on the test set.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.diagnostics.predictions import posterior_predictive
from isotherm.gradients.minibatch import MinibatchGradient, minibatch_gradient
from isotherm.models.networks import Network
from isotherm.paper.baselines.bayes_by_backprop import bayes_by_backprop, scale_mixture
from isotherm.paper.baselines.deep_ensemble import deep_ensemble
from isotherm.paper.baselines.laplace import laplace
from isotherm.paper.baselines.mc_dropout import mc_dropout
from isotherm.paper.baselines.sgd import sgd
from isotherm.paper.baselines.training import Fitted
from isotherm.paper.experiments.mnist.learning import Data, Recipe
from isotherm.types import ArrayTree, Key


class Job(NamedTuple):
    """The input of a baseline."""

    key: Key
    network: Network
    batches: InMemoryBatches
    num_steps: int

    @property
    def grad_fn(self) -> MinibatchGradient:
        """Minibatch gradient of the log posterior."""
        return self.network.gradient(self.batches.data_size)

    @property
    def start(self) -> ArrayTree:
        """Initial weights."""
        return self.network.init(random.fold(self.key, 9))

    @property
    def descent(self) -> dict[str, Any]:
        """Settings of gradient descent: the step size is halved three times."""
        step_size = isotherm.schedules.halving(0.1, max(1, self.num_steps // 4))
        return {"num_steps": self.num_steps, "step_size": step_size, "progress": False}

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings of a method with a default step size."""
        return {"num_steps": self.num_steps, "progress": False}


def _mixture(job: Job) -> Fitted:
    grad_fn = minibatch_gradient(job.network.log_likelihood, scale_mixture(), job.batches.data_size)
    return bayes_by_backprop(job.key, grad_fn, job.start, job.batches, **job.defaults)


def _laplace(job: Job) -> Fitted:
    mode = sgd(job.key, job.grad_fn, job.start, job.batches, **job.descent)
    return laplace(random.fold(job.key, 8), job.network, mode.position, job.batches.data)


RIVALS: dict[str, Callable[[Job], Fitted]] = {
    "SGD": lambda j: sgd(j.key, j.grad_fn, j.start, j.batches, prior=False, **j.descent),
    "BBB, Gaussian prior": lambda j: bayes_by_backprop(
        j.key, j.grad_fn, j.start, j.batches, **j.defaults
    ),
    "BBB, scale mixture": _mixture,
    "MC dropout": lambda j: mc_dropout(j.key, j.grad_fn, j.start, j.batches, **j.defaults),
    "deep ensemble of 5": lambda j: deep_ensemble(
        j.key, j.grad_fn, j.network.init, j.batches, prior=False, **j.descent
    ),
    "last-layer Laplace": _laplace,
}


def predict(name: str, recipe: Recipe, data: Data, key: Key, num_draws: int = 100) -> np.ndarray:
    """Fit a baseline to the training rows; return its probabilities of the test rows."""
    batches = isotherm.shuffled_batches(tuple(data.train), recipe.batch_size)
    network = recipe.network()
    num_steps = recipe.num_epochs * batches.epoch_length
    fitted = RIVALS[name](Job(random.fold(key, 1), network, batches, num_steps))
    draws = fitted.sample(random.fold(key, 2), 1 if name == "SGD" else num_draws)
    return np.asarray(posterior_predictive(network.predict, draws, jnp.asarray(data.test.x)))

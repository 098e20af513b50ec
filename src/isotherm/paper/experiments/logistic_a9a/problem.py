"""The target: logistic regression on a9a, and the scores of its draws."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.data.libsvm import load_a9a
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.models import logistic

Labelled = tuple[jax.Array, jax.Array]
"""Dense rows and their labels."""


@dataclass(frozen=True)
class Problem:
    """Training rows, test rows, and the prior."""

    train: Labelled
    test: Labelled
    prior_variance: float

    @property
    def position(self) -> jax.Array:
        """Initial position of every chain of the paper's protocol."""
        return jnp.zeros(self.train[0].shape[1])

    @cached_property
    def grad_fn(self) -> MinibatchGradient:
        """The minibatch gradient."""
        return isotherm.minibatch_gradient(
            logistic.log_likelihood,
            lambda weights: logistic.log_prior(weights, self.prior_variance),
            data_size=len(self.train[1]),
        )

    @cached_property
    def importance_grad_fn(self) -> MinibatchGradient:
        """The gradient for rows `(features, label, weight)` of `ImportanceBatches`."""

        def log_likelihood(weights: jax.Array, batch: Any) -> jax.Array:
            (x, y, importance), _ = batch
            return importance * logistic.log_likelihood(weights, (x, y))

        return isotherm.minibatch_gradient(
            log_likelihood, self.grad_fn.log_prior, data_size=len(self.train[1])
        )

    def batches(self, batch_size: int, policy: str = "independent") -> InMemoryBatches:
        """Return batches of the training rows."""
        return InMemoryBatches(self.train, batch_size, policy)


def load(prior_variance: float, num_rows: int, validation_share: float) -> tuple[Problem, Problem]:
    """Load a9a: the paper's problem, and one whose test rows are held-out training rows.

    Parameters
    ----------
    prior_variance
        Of every weight, the intercept included.
    num_rows
        Number of training rows to use; 0 for all.
    validation_share
        Share of the training rows that are the test rows of the second problem.
    """
    data = load_a9a()
    x, y = _labelled(data.train.x, data.train.y)
    order = np.random.default_rng(0).permutation(len(y))[: num_rows or len(y)]
    x, y = x[order], y[order]
    held_out = int(validation_share * len(y))
    whole = Problem((x, y), _labelled(data.test.x, data.test.y), prior_variance)
    part = Problem((x[held_out:], y[held_out:]), (x[:held_out], y[:held_out]), prior_variance)
    return whole, part


def _labelled(x: Any, y: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(logistic.with_intercept(x).toarray(), jnp.float32), jnp.asarray(y)


@jax.jit
def scores(draws: jax.Array, data: Labelled) -> tuple[jax.Array, jax.Array]:
    """Return accuracy and mean log likelihood of the averaged prediction of each chain.

    Parameters
    ----------
    draws
        (chain, draw, features); a chain that diverged has accuracy NaN.
    data
        Rows and labels to predict.
    """
    rows, labels = data

    def one(draws: jax.Array) -> tuple[jax.Array, jax.Array]:
        return score(jnp.mean(jax.nn.sigmoid(rows @ draws.T), axis=1), labels)

    return jax.lax.map(one, draws)


def score(probability: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return accuracy and mean log likelihood of the predicted probability of label 1."""
    finite = jnp.all(jnp.isfinite(probability))
    correct = jnp.mean((probability > 0.5) == (labels == 1))
    fit = jnp.mean(jnp.log(jnp.where(labels == 1, probability, 1 - probability)))
    return jnp.where(finite, correct, jnp.nan), fit

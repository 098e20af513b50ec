r"""Gradient estimators: functions `(position, batch) -> grads`, uphill and at full-data scale.

$$ \hat g(\theta) = \nabla\log p(\theta) + \frac Nn \sum_{i \in S} \nabla\log p(d_i \mid \theta) $$

A sampler does not care which estimator it is given; anything with this signature will do.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from isotherm.tree import check_gradient
from isotherm.types import ArrayTree, Batch, GradFn


def evaluate(grad_fn: GradFn | None, position: ArrayTree, batch: Batch) -> ArrayTree:
    """Call the gradient function of a sampler, and check that its answer fits the position."""
    if grad_fn is None:
        raise ValueError(
            "This sampler was built without a `grad_fn`, so it can only be driven from outside "
            "(isotherm.as_optax). Give it one to call `step`."
        )
    grads = grad_fn(position, batch)
    check_gradient(position, grads)
    return grads


@dataclass(frozen=True)
class MinibatchGradient:
    """The plain estimator; its parts stay readable for control variates and warm starts."""

    log_likelihood: Callable[[ArrayTree, Batch], jax.Array]
    log_prior: Callable[[ArrayTree], jax.Array]
    data_size: int

    def log_likelihood_sum(self, position: ArrayTree, batch: Batch) -> jax.Array:
        """Sum the log likelihood over the rows of a batch."""
        return jnp.sum(self._per_datum(position, batch))

    def log_density(self, position: ArrayTree, batch: Batch) -> jax.Array:
        """Estimate the log posterior density, up to a constant, at full-data scale."""
        return self.log_prior(position) + self.data_size * jnp.mean(
            self._per_datum(position, batch)
        )

    def __call__(self, position: ArrayTree, batch: Batch) -> ArrayTree:
        """Estimate the gradient of the log posterior density."""
        return jax.grad(self.log_density)(position, batch)

    def _per_datum(self, position: ArrayTree, batch: Batch) -> jax.Array:
        values = self.log_likelihood(position, batch)
        if jnp.ndim(values) != 1:
            raise ValueError(
                "`log_likelihood` must return one value per datum, shape (n,), got shape "
                f"{jnp.shape(values)}. Sum over everything but the batch axis: isotherm scales to "
                "the full data itself."
            )
        return values


def minibatch_gradient(
    log_likelihood: Callable[[ArrayTree, Batch], jax.Array],
    log_prior: Callable[[ArrayTree], jax.Array],
    data_size: int,
) -> MinibatchGradient:
    r"""Build the minibatch estimate of $\nabla\log p(\theta \mid \text{data})$.

    Parameters
    ----------
    log_likelihood
        `(position, batch) -> (n,)`: one log likelihood per datum of the batch.
    log_prior
        `position -> scalar`.
    data_size
        $N$: how many data there are in all.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> grad_fn = minibatch_gradient(
    ...     lambda mean, x: -0.5 * (x - mean) ** 2, lambda mean: -0.5 * mean**2, data_size=100)
    >>> float(grad_fn(jnp.array(0.0), jnp.array([1.0, 3.0])))
    200.0
    """
    if not data_size >= 1:
        raise ValueError(f"`data_size` must be at least 1, got {data_size}.")
    return MinibatchGradient(log_likelihood, log_prior, data_size)

r"""The minibatch estimate of the gradient of a log posterior.

$$ \hat g(\theta) = \nabla\log p(\theta) + \frac Nn \sum_{i \in S} \nabla\log p(d_i \mid \theta) $$

A sampler accepts every gradient function `(position, batch) -> grads`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from isotherm.gradients.convolutions import fast_convolutions
from isotherm.tree import check_gradient
from isotherm.types import ArrayTree, Batch, GradFn


def evaluate(grad_fn: GradFn | None, position: ArrayTree, batch: Batch) -> ArrayTree:
    """Return the gradient, and check that it has the structure and shapes of the position."""
    if grad_fn is None:
        raise ValueError(
            "This sampler was built without a `grad_fn`, so gradients must be supplied from "
            "outside (`isotherm.as_optax`). Build it with a `grad_fn` to call `step`."
        )
    grads = grad_fn(position, batch)
    check_gradient(position, grads)
    return grads


@dataclass(frozen=True)
class MinibatchGradient:
    """The minibatch estimator; control variates and warm starts read its parts."""

    log_likelihood: Callable[[ArrayTree, Batch], jax.Array]
    log_prior: Callable[[ArrayTree], jax.Array]
    data_size: int

    def log_likelihood_sum(self, position: ArrayTree, batch: Batch) -> jax.Array:
        """Return the sum of the log likelihood over the rows of a batch."""
        return jnp.sum(self.per_datum(position, batch))

    def log_density(self, position: ArrayTree, batch: Batch) -> jax.Array:
        """Return an estimate of the log posterior density at full-data scale, up to a constant."""
        return self.log_prior(position) + self.data_size * jnp.mean(self.per_datum(position, batch))

    def __call__(self, position: ArrayTree, batch: Batch) -> ArrayTree:
        """Return an estimate of the gradient of the log posterior density."""
        return jax.grad(self.log_density)(position, batch)

    def per_datum(self, position: ArrayTree, batch: Batch) -> jax.Array:
        """Return the log likelihood of each row, and check that there is one value per row."""
        values = fast_convolutions(self.log_likelihood)(position, batch)
        if jnp.ndim(values) != 1:
            raise ValueError(
                "`log_likelihood` must return one value per datum, shape (n,), got shape "
                f"{jnp.shape(values)}. Sum over all axes but the batch axis; isotherm scales the "
                "result to the full data."
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
        $N$: number of data.

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

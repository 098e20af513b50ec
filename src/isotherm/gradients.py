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


def control_variates(
    grad_fn: MinibatchGradient, center: ArrayTree, data: Batch, *, chunk_size: int = 10_000
) -> GradFn:
    r"""Reduce the noise of a minibatch gradient near a mode.

    $$ \hat g_{cv}(\theta) = \hat g(\theta) - \hat g(c) + \nabla\log\pi(c) $$

    with the same batch in both estimates. Unbiased everywhere; its noise vanishes as
    $\theta \to c$, so it pays where the posterior is narrow beside the curvature of the likelihood.
    Two minibatch gradients per evaluation, one pass over the data at construction.

    Parameters
    ----------
    grad_fn
        From `minibatch_gradient`.
    center
        $c$, a point near the mode (`isotherm.find_mode`, `isotherm.warm_start`).
    data
        All data, a pytree whose leaves have the same first axis.
    chunk_size
        Rows per evaluation in the pass over the data.

    References
    ----------
    Baker, Fearnhead, Fox & Nemeth (2019), *Control variates for stochastic gradient MCMC*.
    """
    full = full_gradient(grad_fn, center, data, chunk_size=chunk_size)

    def gradient(position: ArrayTree, batch: Batch) -> ArrayTree:
        here, there = grad_fn(position, batch), grad_fn(center, batch)
        return jax.tree.map(lambda a, b, c: a - b + c, here, there, full)

    return gradient


def full_gradient(
    grad_fn: MinibatchGradient, position: ArrayTree, data: Batch, *, chunk_size: int = 10_000
) -> ArrayTree:
    """Compute the gradient of the log posterior over all data, in chunks of rows."""
    likelihood = sum_over_rows(
        jax.jit(jax.grad(grad_fn.log_likelihood_sum)), position, data, grad_fn.data_size, chunk_size
    )
    return jax.tree.map(jnp.add, jax.grad(grad_fn.log_prior)(position), likelihood)


def sum_over_rows(
    fn: Callable[[ArrayTree, Batch], ArrayTree],
    position: ArrayTree,
    data: Batch,
    data_size: int,
    chunk_size: int = 10_000,
) -> ArrayTree:
    """Add up a compiled `fn(position, rows)` over all rows of `data`, a chunk of them at a time."""
    rows = jax.tree.leaves(data)[0].shape[0]
    if rows != data_size:
        raise ValueError(f"`data` has {rows} rows, but `data_size` is {data_size}.")
    total = None
    for start in range(0, rows, chunk_size):
        piece = jax.tree.map(lambda leaf, a=start: leaf[a : a + chunk_size], data)
        part = fn(position, piece)
        total = part if total is None else jax.tree.map(jnp.add, total, part)
    return total

"""Control variates: a minibatch gradient whose noise vanishes at a given point."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from isotherm.gradients.full_data import full_gradient
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.types import ArrayTree, Batch


@dataclass(frozen=True, eq=False)
class ControlVariateGradient(MinibatchGradient):
    r"""A minibatch gradient minus its value at the centre plus the full gradient there.

    It is the minibatch gradient of other rows: every log likelihood minus its linearisation at the
    centre, $\ell_i(\theta) - \ell_i(c) - \nabla\ell_i(c)\cdot(\theta - c)$, and a log prior
    with the sum of the linear terms, $\sum_i \nabla\ell_i(c)\cdot(\theta - c)$. The posterior
    is the same; `isotherm.balanced` uses these rows.
    """

    plain: MinibatchGradient
    center: ArrayTree
    full: ArrayTree
    r"""$\nabla\log\pi(c)$ over all data."""

    def __call__(self, position: ArrayTree, batch: Batch) -> ArrayTree:
        """Return the controlled estimate of the gradient."""
        at_position, at_center = self.plain(position, batch), self.plain(self.center, batch)
        return jax.tree.map(lambda a, b, c: a - b + c, at_position, at_center, self.full)


def control_variates(
    grad_fn: MinibatchGradient, center: ArrayTree, data: Batch, *, chunk_size: int = 10_000
) -> ControlVariateGradient:
    r"""Reduce the noise of a minibatch gradient near a mode.

    $$ \hat g_{cv}(\theta) = \hat g(\theta) - \hat g(c) + \nabla\log\pi(c) $$

    with the same batch in both estimates. It is unbiased everywhere and its noise vanishes as
    $\theta \to c$, so it is useful where the posterior is narrow compared with the scale on
    which the curvature of the likelihood changes. Each evaluation costs two minibatch gradients,
    the construction one pass over the data.

    Parameters
    ----------
    grad_fn
        From `minibatch_gradient`.
    center
        $c$, a point near the mode (`isotherm.find_mode`, `isotherm.warm_start`).
    data
        All data, a pytree whose leaves have the same first axis; or `isotherm.streamed_batches`,
        which are read once.
    chunk_size
        Rows per evaluation in the pass over the data.

    References
    ----------
    Baker, Fearnhead, Fox & Nemeth (2019), *Control variates for stochastic gradient MCMC*.
    """
    full = full_gradient(grad_fn, center, data, chunk_size=chunk_size)
    prior = jax.grad(grad_fn.log_prior)(center)

    def from_center(position: ArrayTree) -> ArrayTree:
        return jax.tree.map(jnp.subtract, position, center)

    def log_likelihood(position: ArrayTree, batch: Batch) -> jax.Array:
        def rows(x: ArrayTree) -> jax.Array:
            return grad_fn.per_datum(x, batch)

        at_center, slopes = jax.jvp(rows, (center,), (from_center(position),))
        return rows(position) - at_center - slopes

    def log_prior(position: ArrayTree) -> jax.Array:
        linear = jax.tree.map(
            lambda f, p, x: jnp.sum((f - p) * x), full, prior, from_center(position)
        )
        return grad_fn.log_prior(position) + sum(jax.tree.leaves(linear))

    return ControlVariateGradient(
        log_likelihood, log_prior, grad_fn.data_size, grad_fn, center, full
    )

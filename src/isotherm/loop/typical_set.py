r"""Whether a chain that started at a mode is where the posterior is, or lost.

At temperature 1 the log density of $d$ parameters is $d/2$ below its maximum, give or take
$\sqrt{d/2}$, up to $d$ if the tails are exponential. A position is *typical* if it is no more than
$1.5\,d + 5\sqrt d + 10$ below the mode. (The ten are for the long tails of few parameters: without
them one healthy chain in 3000 of a single parameter would be too far.)

**Degenerate modes.** Where a mode is a spike, as the joint mode of a hierarchy is at a scale of
zero, the whole posterior is further below it. So a position is typical, too, if the log likelihood
alone is no more than that below, and the *virial* of the chain is not too large:
$\mathrm E\,(x - c)\cdot\nabla(-\log\pi) = d$ holds in every posterior whose density vanishes far
away, for every centre $c$, here the mean of a few positions of the chain. A limit of $3\,d + 30$
excludes weights that have run away.

**Worse predictions.** Where the posterior is nearly normal, the log likelihood alone is at most
$k/2$ below that of the mode, give or take $\sqrt{k/2}$, if the data determine $k$ directions: no
more than $d$, and than $N$ if every row is one outcome. A typical position where it is more than
$k/2 + 5\sqrt{k/2} + 10$ below is not refused, because with a wide prior this may be the posterior,
but it is reported. Rows of several outcomes (a piece of text) determine more than one direction
each; so the limit from $N$ is at least half of the absolute log likelihood at the mode.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.exceptions import HealthWarning
from isotherm.gradients.full_data import sum_over_rows
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.loop.user_warnings import Message
from isotherm.tree import leaf_sizes
from isotherm.types import ArrayTree

MAX_HALVINGS = 4
"""How often a chain that is lost is repeated with half the step size."""


def explained_loss(dimension: int) -> float:
    """Return how far below a mode the log density may be in the posterior of $d$ parameters."""
    return 1.5 * dimension + 5 * dimension**0.5 + 10


def largest_loss(directions: float) -> float:
    """Return how far a log likelihood that determines so many directions may be below its mode."""
    return directions / 2 + 5 * (directions / 2) ** 0.5 + 10


class TypicalSet:
    """The log density over all data, relative to that of a mode.

    Parameters
    ----------
    target
        The gradient; prior and likelihood are used.
    data
        All data, as `full_gradient` takes them.
    mode
        A mode of the posterior.
    chunk_size
        Rows per evaluation.

    Raises
    ------
    FloatingPointError
        If the log density is not finite at the mode.
    """

    def __init__(
        self, target: MinibatchGradient, data: Any, mode: ArrayTree, chunk_size: int = 10_000
    ) -> None:
        def slope(fn: Any) -> Any:
            def along(positions: tuple, *batch: Any) -> jax.Array:
                x, direction = positions
                return jnp.stack(jax.jvp(lambda y: fn(y, *batch), (x,), (direction,)))

            return jax.jit(along)

        self.dimension, self.data_size = int(leaf_sizes(mode).sum()), target.data_size
        self._data, self._chunk_size = data, chunk_size
        self._likelihood, self._prior = slope(target.log_likelihood_sum), slope(target.log_prior)
        self._at_mode = self._measure(mode, mode)
        if not np.isfinite(self._at_mode[:, 0]).all():
            raise FloatingPointError(
                f"The log density is {self._at_mode[:, 0].sum()} and so not finite at the mode "
                "from which the chain starts. Check the data, start from another position, or use "
                "another `optimizer`."
            )

    def _measure(self, position: ArrayTree, centre: ArrayTree) -> np.ndarray:
        """Return value, and slope along the way from a centre, of likelihood and prior."""
        away = jax.tree.map(jnp.subtract, position, centre)
        given = (position, away), self._data, self.data_size, self._chunk_size
        likelihood = np.asarray(sum_over_rows(self._likelihood, *given), np.float64)
        return np.stack([likelihood, np.asarray(self._prior((position, away)), np.float64)])

    def below_mode(self, position: ArrayTree) -> float:
        """Return how far the log density is below that of the mode."""
        return float(self._losses(position).sum())

    def likelihood_loss(self, position: ArrayTree) -> float:
        """Return how far the log likelihood is below that of the mode."""
        return float(self._losses(position)[0])

    def _losses(self, position: ArrayTree) -> np.ndarray:
        """Return how far likelihood and prior are below those of the mode."""
        return (self._at_mode - self._measure(position, position))[:, 0]

    def is_typical(self, path: Sequence[ArrayTree]) -> bool:
        """Return whether a chain ends where the log density is finite and as in the posterior.

        Parameters
        ----------
        path
            A few positions of the chain, the last one at its end.
        """
        losses = self._losses(path[-1])
        if not np.isfinite(losses).all():
            return False
        if losses.sum() <= explained_loss(self.dimension):
            return True
        if losses[0] > explained_loss(self.dimension):
            return False
        centre = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *path)
        virial = -np.mean([self._measure(x, centre)[:, 1].sum() for x in path])
        return bool(virial <= 3 * self.dimension + 30)

    def is_nearly_normal(self, draws: Sequence[ArrayTree], factor: float = 1.0) -> bool:
        r"""Return whether draws of the Gaussian approximation at the mode are where it says.

        Their log density is $d/2$ below that of the mode, give or take $\sqrt{d/2}$, if the
        posterior is normal; directions that the curvature at the mode calls flat, and that are not,
        put them far below. The median of the draws decides.

        Parameters
        ----------
        draws
            From the Gaussian approximation.
        factor
            By how much its covariance may be too large.
        """
        losses = [self.below_mode(draw) for draw in draws]
        limit = largest_loss(factor * self.dimension)
        return bool(np.median(np.nan_to_num(losses, nan=np.inf)) <= limit)

    def describe_prediction(self, position: ArrayTree) -> Message | None:
        """Return a warning if the data are less likely than the parameters explain."""
        loss = self.likelihood_loss(position)
        of_rows = max(largest_loss(self.data_size), abs(float(self._at_mode[0, 0])) / 2)
        limit = min(largest_loss(self.dimension), of_rows)
        if loss <= limit:
            return None
        text = (
            "A typical draw predicts the training data much worse than the mode: its log "
            f"likelihood is {loss:.3g} lower, {loss / self.data_size:.2g} per row, where "
            f"{self.dimension} parameters and {self.data_size} rows explain at most {limit:.3g}. "
            "Either the prior outweighs the data, or the chain is lost. Compare predictions of the "
            "draws with those of the mode on held-out rows before you use them; a narrower prior "
            "may help."
        )
        return Message(text, HealthWarning)

    def lost(self, position: ArrayTree, step_size: float) -> FloatingPointError:
        """Return the error of a chain that leaves the posterior at all step sizes tried."""
        return FloatingPointError(
            "The chain that starts at the mode does not stay in the typical set: its log density "
            f"ends {self.below_mode(position):.3g} below that of the mode, where {self.dimension} "
            f"parameters explain about {self.dimension / 2:.3g}, even at step size "
            f"{step_size:.3g}. Check the data for extreme values, the prior for extreme widths, or "
            "start from a better mode (`num_steps`, `optimizer`). For a network use "
            "`coordinates='prior'`, which do not assume that the curvature at the mode holds "
            "elsewhere."
        )


def describe_held_out(
    target: MinibatchGradient, mode: ArrayTree, positions: Sequence[ArrayTree], held_out: Any
) -> Message | None:
    r"""Return a warning if positions, averaged, predict held-out rows worse than the mode.

    The difference per row is $\log\frac1S\sum_s p(y \mid x, \theta_s) - \log p(y \mid x, c)$ with
    the mode $c$. Its mean must be below zero by three standard errors and a hundredth.
    """
    value = jax.jit(target.per_datum)
    each = np.stack([np.asarray(value(x, held_out), np.float64) for x in positions])
    highest = each.max(0)
    averaged = highest + np.log(np.exp(each - highest).mean(0))
    difference = averaged - np.asarray(value(mode, held_out), np.float64)
    mean, error = difference.mean(), difference.std() / len(difference) ** 0.5
    if mean >= -max(3 * error, 0.01):
        return None
    text = (
        f"{len(positions)} positions of the chain, averaged, predict the {len(difference)} "
        f"held-out rows worse than the mode: by {-mean:.2g} nats per row (standard error "
        f"{error:.1g}). Either the prior is too wide, or the chain has not reached the posterior: "
        "try a narrower prior, or more and longer `rounds`, before you use its draws."
    )
    return Message(text, HealthWarning)


def describe_shorter(wanted: float, used: float) -> Message:
    """Return the warning of a chain that needs shorter steps than curvature and noise allow."""
    text = (
        f"Steps of {wanted:.3g}, which suit the curvature where it was measured, take a chain out "
        f"of the posterior, so the step size is {used:.3g}. The curvature changes from place to "
        "place: `coordinates='prior'` measures it along the way."
    )
    return Message(text, HealthWarning)

r"""The posterior of a feed-forward network in the units of its prior.

Weights of a layer with $n$ inputs are $s\,w/\sqrt n$, where a position holds $w$, and $s^2$ is the prior variance:

$$ f(x) = \frac{s}{\sqrt{n_L}} W_L^\top g\Bigl(\cdots g\Bigl(\frac{s}{\sqrt{n_1}}W_1^\top x + s\,b_1\Bigr)\cdots\Bigr) + s\,b_L,
   \qquad w, b \sim \mathcal N(0, 1). $$

Whatever the widths, outputs then have a prior of order $s$, and every weight the natural unit 1: plain coordinates do, and one step size.
(A Kronecker basis was tried: on a network with a known posterior it mixes half as fast; `isotherm run network-exact`.)
Regression has one number more, $\log\sigma$ of the noise, with $\sigma \sim \text{half-Cauchy}(1)$ in units of the target's deviation.

**The step size.** What limits it is the stiffest direction, and the posterior lies far from every mode. So the sampler itself walks in from
the prior, and the largest curvature $\lambda$ is measured where it stands, some times over: $h = 0.3/\sqrt\lambda$.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.batches.in_memory import full_batch, independent_batches
from isotherm.coordinates.natural import DIFFUSION, THERMOSTAT_MASS
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.estimators.sampling import Draws
from isotherm.gradients.minibatch import MinibatchGradient, minibatch_gradient
from isotherm.loop import run_chain
from isotherm.models.networks import ACTIVATIONS, categorical_log_likelihood
from isotherm.samplers.msgnht import msgnht
from isotherm.types import BatchPolicy, Key

ALL_ROWS, BATCH_SIZE = 2048, 512
"""Up to the first, all rows are used at every step; of more, the second."""
STEP, ROUNDS, STEPS_PER_ROUND = 0.3, 4, 300


class Shape(NamedTuple):
    """A network: its layers, activation, prior variance, and whether it has classes."""

    sizes: tuple[int, ...]
    activation: str
    prior_variance: float
    classes: bool

    @property
    def dimension(self) -> int:
        """How many numbers a position has; a regression's last is that of the noise."""
        layers = zip(self.sizes[:-1], self.sizes[1:], strict=True)
        return sum((n + 1) * m for n, m in layers) + (not self.classes)

    def apply(self, position: jax.Array, x: jax.Array) -> jax.Array:
        """Compute the outputs, (rows, outputs)."""
        act, start, last = ACTIVATIONS[self.activation], 0, len(self.sizes) - 2
        for i, (n, m) in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True)):
            weights = position[start : start + n * m].reshape(n, m)
            bias = position[start + n * m : start + (n + 1) * m]
            x = self.prior_variance**0.5 * (x @ weights * n**-0.5 + bias[None])
            x, start = x if i == last else act(x), start + (n + 1) * m
        return x

    def predict(self, position: jax.Array, x: jax.Array) -> Any:
        """Give class probabilities, or the mean and its square."""
        outputs = self.apply(position, x)
        return jax.nn.softmax(outputs) if self.classes else (outputs[:, 0], outputs[:, 0] ** 2)

    def log_likelihood(self, position: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Evaluate the log likelihood of each row."""
        x, y = batch
        outputs = self.apply(position, x)
        if self.classes:
            return categorical_log_likelihood(outputs, y)
        log_noise = position[-1]
        return -0.5 * ((y - outputs[:, 0]) * jnp.exp(-log_noise)) ** 2 - log_noise

    def log_prior(self, position: jax.Array) -> jax.Array:
        """Evaluate the log density of the prior, up to a constant."""
        if self.classes:
            return -0.5 * jnp.sum(position**2)
        log_noise = position[-1]
        return -0.5 * jnp.sum(position[:-1] ** 2) + log_noise - jnp.logaddexp(0.0, 2 * log_noise)


@dataclass(frozen=True)
class NetworkTarget:
    """A posterior to sample (`isotherm.estimators.sampling.Target`)."""

    shape: Shape
    gradient: MinibatchGradient
    batches: BatchPolicy
    step_size: float

    @property
    def dimension(self) -> int:
        """How many numbers a position has."""
        return self.shape.dimension

    def read(self, draws: np.ndarray) -> Draws:
        """Name the draws."""
        return {"weights": draws}

    def locate(self, draws: Draws) -> np.ndarray:
        """Find them again."""
        return draws["weights"]


def network_target(
    key: Key, shape: Shape, x: np.ndarray, y: np.ndarray, batch_size: int | None = None
) -> NetworkTarget:
    """Walk into the posterior of a network and find the step size there.

    Parameters
    ----------
    key
        For the walk.
    shape
        The network.
    x, y
        Standardised rows, and labels 0, 1, … or standardised targets.
    batch_size
        Rows per step; by default all of up to 2048, otherwise 512.
    """
    size = batch_size or (len(y) if len(y) <= ALL_ROWS else BATCH_SIZE)
    rows = (x.astype(np.float32), y.astype(np.int32 if shape.classes else np.float32))
    batches = full_batch(rows) if size >= len(y) else independent_batches(rows, size)
    gradient, walk = _compiled(shape, len(y))
    position = 0.3 * random.gaussian(random.fold(key, 0), jnp.zeros(shape.dimension))
    measured: list[float] = []
    for i in range(1, ROUNDS + 1):
        h = STEP * max(measured, default=len(y)) ** -0.5
        position, stiffness = walk(random.fold(key, i), position, jnp.float32(h), batches)
        measured.append(float(stiffness))
        if not np.isfinite(measured[-1]):
            raise FloatingPointError(
                "The walk into the posterior diverged. Look for absurd values in the data, or lower `prior_variance`."
            )
    return NetworkTarget(shape, gradient, batches, _rounded(STEP * max(measured) ** -0.5))


def _rounded(h: float) -> float:
    """Round down to a power of the fourth root of 2, so that similar data share a compiled program."""
    return float(2 ** (np.floor(4 * np.log2(h)) / 4))


@lru_cache(maxsize=32)
def _compiled(shape: Shape, data_size: int) -> tuple[MinibatchGradient, Callable]:
    gradient = minibatch_gradient(shape.log_likelihood, shape.log_prior, data_size)
    return gradient, jax.jit(partial(_walk, gradient))


def _walk(
    gradient: MinibatchGradient, key: Key, position: jax.Array, h: jax.Array, batches: BatchPolicy
) -> tuple[jax.Array, jax.Array]:
    """Take some steps, and measure the largest curvature where they end, with one batch."""
    sampler = msgnht(gradient, h, DIFFUSION, thermostat_mass=THERMOSTAT_MASS)
    (position,), _ = run_chain(key, sampler, position, batches, num_draws=1, thin=STEPS_PER_ROUND)
    batch = batches.batch(random.fold(key, 3), jnp.zeros((), jnp.int32))

    def times(direction: jax.Array) -> jax.Array:
        return jax.jvp(lambda x: gradient(x, batch), (position,), (direction,))[1]

    start = random.gaussian(random.fold(key, 4), position)
    return position, largest_eigenvalue(times, start, 20)

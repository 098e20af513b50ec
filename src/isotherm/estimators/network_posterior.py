r"""The posterior of a feed-forward network, in units of its prior.

Weights of a layer with $n$ inputs are $s\,w/\sqrt n$, where the position consists of $w$ and $b$,
and $s^2$ is the prior variance:

$$ f(x) = \frac{s}{\sqrt{n_L}} W_L^\top g\Bigl(\cdots
   g\Bigl(\frac{s}{\sqrt{n_1}}W_1^\top x + s\,b_1\Bigr)\cdots\Bigr) + s\,b_L,
   \qquad w, b \sim \mathcal N(0, 1). $$

For any widths the prior of the outputs is of order $s$ and that of every coordinate is
$\mathcal N(0, 1)$, so plain coordinates and one step size suffice. (On a network with a known
posterior a Kronecker basis mixes no faster; `isotherm run network-exact`.) In a regression the last
coordinate is $\log\sigma$ of the noise, with $\sigma \sim \text{half-Cauchy}(1)$ in units of the
target's standard deviation. Every chain starts at its own trained network.

**The step size.** It is limited by the largest curvature $\lambda$, and typical points are far from
every mode. So a pilot chain starts at a trained network, $\lambda$ is measured several times
along it, and $h = 0.3/\sqrt\lambda$ for the largest. Batches that are not all rows are balanced
(`isotherm.balanced`), and the step is at most as long as balance allows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches, full_batch, independent_batches
from isotherm.coordinates.linear import Identity
from isotherm.coordinates.natural import DIFFUSION
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.estimators.padding import ROW_MULTIPLE, pad_to_multiples
from isotherm.estimators.sampling import Draws
from isotherm.gradients.balanced import BalancedGradient, balanced
from isotherm.gradients.minibatch import MinibatchGradient, minibatch_gradient
from isotherm.loop.find_mode import find_mode
from isotherm.loop.network_start import LARGEST_HEAT, longest_step, unit_strengths
from isotherm.loop.sampling import run_chain
from isotherm.models.logistic import categorical_log_likelihood
from isotherm.models.networks import ACTIVATIONS, Layer, feed_forward
from isotherm.samplers.msgnht import msgnht
from isotherm.types import BatchPolicy, Key

MAX_FULL_BATCH, BATCH_SIZE = 2048, 512
"""Up to `MAX_FULL_BATCH` rows every batch is all rows; of more, `BATCH_SIZE` by default."""
STEP_TIMES_FREQUENCY = 0.3
r"""$h\sqrt\lambda$."""
PILOT_ROUNDS, STEPS_PER_ROUND = 4, 300
TRAINING_STEPS, TRAINING_BATCH = 3000, 128
"""Updates of Adam that train the start of a chain, and their rows."""


class MLPModel(NamedTuple):
    """A feed-forward network with its prior and likelihood, over flat positions."""

    sizes: tuple[int, ...]
    """Numbers of inputs, hidden units and outputs."""
    activation: str
    prior_variance: float
    classification: bool

    @property
    def dimension(self) -> int:
        r"""Length of a position; in a regression the last coordinate is $\log\sigma$."""
        return sum((n + 1) * m for n, m in pairwise(self.sizes)) + (not self.classification)

    def layers(self, position: Any) -> list[Layer]:
        """Split positions (…, dimension) into the $w$ and $b$ of each layer."""
        layers, start, leading = [], 0, position.shape[:-1]
        for n, m in pairwise(self.sizes):
            weights = position[..., start : start + n * m].reshape(*leading, n, m)
            layers.append(Layer(weights, position[..., start + n * m : start + (n + 1) * m]))
            start += (n + 1) * m
        return layers

    def apply(self, position: jax.Array, x: jax.Array) -> jax.Array:
        """Return the outputs, (rows, outputs)."""

        def affine(layer: Layer, x: jax.Array) -> jax.Array:
            weights, bias = layer
            return self.prior_variance**0.5 * (x @ weights * len(weights) ** -0.5 + bias[None])

        return feed_forward(self.layers(position), x, ACTIVATIONS[self.activation], affine)

    def to_parameters(self, positions: np.ndarray) -> Draws:
        """Convert positions to weights and biases by name, and the noise variance."""
        prior_sd, parameters = self.prior_variance**0.5, {}
        for i, (weights, bias) in enumerate(self.layers(positions), start=1):
            parameters[f"weights_{i}"] = prior_sd * weights.shape[-2] ** -0.5 * weights
            parameters[f"bias_{i}"] = prior_sd * bias
        if not self.classification:
            parameters["noise_variance"] = self.noise_variance(positions)
        return parameters

    def noise_variance(self, positions: np.ndarray) -> np.ndarray:
        r"""Return $\sigma^2$ of a regression, in double precision."""
        return np.exp(2 * np.asarray(positions[..., -1], np.float64))

    def log_likelihood(self, position: jax.Array, batch: tuple[jax.Array, ...]) -> jax.Array:
        """Return the log likelihood of each row of `(x, y)`, up to a constant.

        If the batch is `(x, y, weight)`, it is multiplied by the weights.
        """
        x, y, *weight = batch
        outputs = self.apply(position, x)
        if self.classification:
            values = categorical_log_likelihood(outputs, y)
        else:
            log_noise = position[-1]
            values = -0.5 * ((y - outputs[:, 0]) * jnp.exp(-log_noise)) ** 2 - log_noise
        return weight[0] * values if weight else values

    def log_prior(self, position: jax.Array) -> jax.Array:
        """Return the log density of the prior, up to a constant."""
        if self.classification:
            return -0.5 * jnp.sum(position**2)
        log_noise = position[-1]
        return -0.5 * jnp.sum(position[:-1] ** 2) + log_noise - jnp.logaddexp(0.0, 2 * log_noise)


@dataclass(frozen=True)
class Predict:
    """Predictions of one draw: class probabilities, or the mean and its square.

    Objects of equal models are equal, so that they share a compiled program.
    """

    model: MLPModel

    def __call__(self, position: jax.Array, x: jax.Array) -> Any:
        """Return the predictions for each row of `x`."""
        outputs = self.model.apply(position, x)
        if self.model.classification:
            return jax.nn.softmax(outputs)
        return outputs[:, 0], outputs[:, 0] ** 2


@dataclass(frozen=True)
class NetworkTarget:
    """The posterior of a network as a target of the sampler."""

    model: MLPModel
    gradient: MinibatchGradient | BalancedGradient
    batches: BatchPolicy
    step_size: float
    starts: jax.Array
    """A trained network for every chain, (chain, dimension)."""

    @property
    def dimension(self) -> int:
        """Length of a position."""
        return self.model.dimension

    def to_parameters(self, positions: np.ndarray) -> Draws:
        """Convert positions to weights and biases by name, and the noise variance."""
        return self.model.to_parameters(positions)


def network_target(
    key: Key,
    model: MLPModel,
    x: np.ndarray,
    y: np.ndarray,
    batch_size: int | None = None,
    num_chains: int = 1,
) -> NetworkTarget:
    """Build the posterior of a network, train starts, and find its step size with a pilot chain.

    Parameters
    ----------
    key
        Key of the pilot chain.
    model
        The network.
    x, y
        Standardised rows, and labels 0, 1, … or standardised targets.
    batch_size
        Rows per step; by default all of up to 2048 rows, otherwise 512.
    num_chains
        Number of networks to train.
    """
    size = batch_size or (len(y) if len(y) <= MAX_FULL_BATCH else BATCH_SIZE)
    rows = (x.astype(np.float32), y.astype(np.int32 if model.classification else np.float32))
    if size >= len(y):  # pad with rows of weight 0, so that similar data share a program
        rows = (*rows, np.ones(len(y), np.float32))
        rows = tuple(pad_to_multiples(each, ROW_MULTIPLE, *each.shape[1:]) for each in rows)
        batches = full_batch(rows)
    else:
        batches = independent_batches(rows, size)
    gradient, pilot, train = _compiled(model, len(rows[0]), size < len(y))
    training_rows = independent_batches(rows, min(TRAINING_BATCH, len(rows[0])))
    starts = train(jax.random.split(random.fold(key, 0), num_chains), training_rows)
    position = starts[0]
    curvatures: list[float] = []
    for i in range(PILOT_ROUNDS + 1):
        # The first round does not move: a step of 0 measures the curvature at the start.
        h = STEP_TIMES_FREQUENCY * max(curvatures, default=np.inf) ** -0.5
        position, curvature = pilot(random.fold(key, i + 1), position, jnp.float32(h), batches)
        curvatures.append(float(curvature))
        if not np.isfinite(curvatures[-1]):
            raise FloatingPointError(
                "The pilot chain that finds the step size diverged. Check the data for extreme "
                "values, or reduce `prior_variance`."
            )
    h = STEP_TIMES_FREQUENCY * max(curvatures) ** -0.5
    if isinstance(gradient, BalancedGradient):
        measure = jax.jit(partial(unit_strengths, grad_fn=gradient, space=Identity()))
        strengths = measure(random.fold(key, PILOT_ROUNDS + 2), position=position, batches=batches)
        h = longest_step(h, strengths, DIFFUSION, model.dimension, LARGEST_HEAT)
    return NetworkTarget(model, gradient, batches, _round_step_size(h), starts)


def _round_step_size(h: float) -> float:
    """Round down to a power of the fourth root of 2, so that similar data share a program."""
    return float(2 ** (np.floor(4 * np.log2(h)) / 4))


@lru_cache(maxsize=32)
def _compiled(
    model: MLPModel, data_size: int, in_batches: bool
) -> tuple[MinibatchGradient | BalancedGradient, Callable, Callable]:
    """Return the gradient, the compiled pilot chain and the compiled training.

    They are the same objects for equal arguments.
    """
    gradient = minibatch_gradient(model.log_likelihood, model.log_prior, data_size)
    train = jax.jit(jax.vmap(partial(_train, gradient, model.dimension), in_axes=(0, None)))
    gradient = balanced(gradient) if in_batches else gradient
    return gradient, jax.jit(partial(_run_pilot, gradient)), train


def _train(
    gradient: MinibatchGradient, dimension: int, key: Key, batches: InMemoryBatches
) -> jax.Array:
    """Return a mode of the posterior near a random start."""
    start = 0.5 * random.gaussian(random.fold(key, 0), jnp.zeros(dimension))
    return find_mode(random.fold(key, 1), gradient, start, batches, num_steps=TRAINING_STEPS)


def _run_pilot(
    gradient: MinibatchGradient | BalancedGradient,
    key: Key,
    position: jax.Array,
    h: jax.Array,
    batches: BatchPolicy,
) -> tuple[jax.Array, jax.Array]:
    """Run the pilot for a round; return its last position and the largest curvature there."""
    sampler = msgnht(gradient, h, DIFFUSION)
    (position,), _ = run_chain(key, sampler, position, batches, num_draws=1, thin=STEPS_PER_ROUND)
    batch = batches.batch(random.fold(key, 3), jnp.zeros((), jnp.int32))

    def hessian_times(vector: jax.Array) -> jax.Array:
        return jax.jvp(lambda x: gradient(x, batch), (position,), (vector,))[1]

    start = random.gaussian(random.fold(key, 4), position)
    return position, largest_eigenvalue(hessian_times, start, 20)

r"""The posterior of a feed-forward network, in units of its prior.

Layer $l$ with $n_l$ inputs has the weights $s_l w/\sqrt{n_l}$ and the biases $s_l b$, where
the position consists of $w$ and $b$:

$$ f(x) = \frac{s_L}{\sqrt{n_L}} W_L^\top g\Bigl(\cdots
   g\Bigl(\frac{s_1}{\sqrt{n_1}}W_1^\top x + s_1 b_1\Bigr)\cdots\Bigr) + s\,b_L,
   \qquad w, b \sim \mathcal N(0, 1), \qquad s_l = s\,e^{\tau t_l}, \qquad t_l \sim
   \mathcal N(0, 1). $$

$s^2$ is the prior variance. With $\tau = 0$ it is that of every layer. With *learned scales*,
$\tau = 0.6$, each layer has a scale of its own, which the data determine: its prior is log-normal
with the median $s$ and a factor of $e^{\pm 1.2}$ in 95 %. For any widths the prior of every
coordinate is $\mathcal N(0, 1)$, so that diffusion and thermostat mass need not depend on them.

**Noise of a regression.** The last coordinate is $\log\sigma_0$, with
$\sigma_0 \sim \text{half-Cauchy}(1)$ in units of the target's standard deviation. If the noise
depends on the input, it is log-linear in the $n$ inputs and in the mean $f(x)$, within a factor of
$e^{\pm 2}$:

$$ \log\sigma(x) = \log\sigma_0 + 2\tanh\bigl((a^\top x/\sqrt n + b f(x))/4\bigr), \qquad
   a, b \sim \mathcal N(0, 1). $$

With a second output of the network in place of this function, chains enter regions where some rows
are predicted almost without noise, and where the curvature is unbounded.

Targets on a grid, such as grades from 1 to 10, have a rounding error of standard deviation
$\rho = \delta/\sqrt{12}$ for a spacing $\delta$. Without it the likelihood is unbounded: a network
that reproduces the grades of repeated rows needs no noise. So the scale of the noise is
$\sqrt{\sigma^2 + \rho^2}$ if $\rho$ is above 0.05.

**From trained networks into the posterior.** Every chain starts at its own network, trained by Adam
with the scales at $s$ and stopped early on rows of its own that are held out. Then all chains move
together, on all rows, in rounds of two units of time. The chains have arrived when the log
likelihood of the rows has stopped drifting: between two rounds its mean changes by less than it
fluctuates. A round that ends with a log likelihood further below that of the trained networks than
a posterior explains has left the posterior; it is repeated with shorter steps, and after six
attempts the fit fails with an error.

**Stiff directions.** Along a few directions the posterior is a thousand times as narrow as along
others, and they would determine the step size. After each round they are found from gradients of
the log likelihood of 1024 single rows at points of the round, and momenta are stretched along them
(`isotherm.coordinates.low_rank`; one direction per eight rows of a batch, at most 128). Then the
largest curvature $\lambda$ at points of the round is measured, and $h = 0.5/\sqrt\lambda$. In one
trial each on boston, concrete and energy, with exact Fisher matrices instead of sampled gradients,
4000 steps gave two to four times as many effective draws of the outputs. Stretching all directions
allows still longer steps, but the basis fits only where it was measured, and the chains become hot.
Batches that are not all rows are balanced (`isotherm.balanced`), and the step is at most as long as
balance allows.

**Work.** A fit has a budget of arithmetic, that of about `WORK` seconds on two cores, of which the
rounds may use up to half. It is counted, not timed, so that results can be reproduced.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches, full_batch, independent_batches
from isotherm.coordinates.linear import LowRank, low_rank
from isotherm.coordinates.natural import DIFFUSION
from isotherm.coordinates.power_iteration import largest_eigenvalue
from isotherm.dynamics.langevin import BALANCED_WORD
from isotherm.estimators.padding import ROW_MULTIPLE, pad_to_multiples
from isotherm.estimators.sampling import Draws
from isotherm.gradients.balanced import BalancedGradient, balanced
from isotherm.gradients.minibatch import MinibatchGradient, minibatch_gradient
from isotherm.loop.network_start import (
    LARGEST_HEAT,
    longest_step,
    unit_strengths,
)
from isotherm.loop.typical_set import explained_loss
from isotherm.models.likelihoods import Likelihood
from isotherm.models.networks import ACTIVATIONS, Layer, feed_forward
from isotherm.models.scale_priors import HalfCauchy
from isotherm.samplers.msgnht import msgnht
from isotherm.types import Key

MAX_FULL_BATCH, BATCH_SIZE = 2048, 512
"""Up to `MAX_FULL_BATCH` rows every batch of a regression is all rows; of more, `BATCH_SIZE`."""
MAX_FULL_CLASS_BATCH, CLASS_BATCH_SIZE = 256, 128
"""The same for classes, whose gradients have little noise where a network fits them."""
STEP_TIMES_FREQUENCY = 0.5
r"""$h\sqrt\lambda$."""
ROWS_PER_DIRECTION, MIN_DIRECTIONS, MAX_DIRECTIONS = 8, 16, 128
"""Rows of a batch per stretched direction, and bounds of the number of directions."""
NUM_GRADIENTS, MAX_GRADIENT_NUMBERS = 1024, 50_000_000
"""Gradients of single rows that show the stiff directions, and the most numbers that they have."""
THERMOSTAT_MASS = 1.0
"""Thermostats respond in the time in which a chain crosses the prior."""
SCALE_SPREAD = 0.6
r"""$\tau$."""
NOISE_SLOPE, LARGEST_NOISE_FACTOR = 0.5, 2.0
"""Prior standard deviation of a slope of the log noise, and the largest change of the latter."""
SMALLEST_ROUNDING = 0.05
"""Rounding errors below this, in standard deviations of the targets, are left to the noise."""
ROUND_TIME, MIN_ROUNDS, POINTS_PER_ROUND = 2.0, 3, 8
"""Length of a round, the fewest rounds, and how often the likelihood is computed in each."""
LARGEST_DRIFT = 1.0
"""Change of the mean log likelihood between rounds, in standard deviations, after arrival."""
MAX_RESTARTS = 6
"""How often a round is repeated with half the step size."""
MIN_UPDATES, MAX_UPDATES, TRAINING_EPOCHS = 3000, 40_000, 400
"""Updates of Adam that train the start of a chain: bounds, and how often a row is used between."""
TRAINING_BATCH, TRAINING_RATE, UPDATES_PER_CHECK = 128, 0.01, 25
"""Rows and first rate of an update, and updates from one look at the held-out rows to the next."""
MIN_ROWS_TO_HOLD_OUT, MAX_HELD_OUT = 40, 512
"""Fewer rows are all trained on; otherwise a tenth is held out, at most `MAX_HELD_OUT`."""
MAX_CHECKED_ROWS = 2048
"""Rows of which the log likelihood along the rounds is computed."""
WORK, WALK_SHARE = 40.0, 0.5
"""Budget of a fit in nominal seconds, and the largest share of the rounds."""
SECONDS_PER_STEP, FLOPS_PER_SECOND = 5e-5, 2.5e10
"""Nominal price of a step: a fixed one, and that of its arithmetic, on two cores."""


class MLPModel(NamedTuple):
    """A feed-forward network with its prior and likelihood, over flat positions."""

    sizes: tuple[int, ...]
    """Numbers of inputs, hidden units and outputs."""
    activation: str
    prior_variance: float
    likelihood: Likelihood
    """Reads the outputs: logits, or mean and log scale of a regression."""
    learned_scales: bool = False
    noise: str | None = None
    """Of a regression: `"constant"` or `"input-dependent"`; `None` for classes."""

    @property
    def num_weights(self) -> int:
        """Number of weights and biases."""
        return sum((n + 1) * m for n, m in pairwise(self.sizes))

    @property
    def num_scales(self) -> int:
        """Number of learned scales, one per layer."""
        return (len(self.sizes) - 1) * self.learned_scales

    @property
    def dimension(self) -> int:
        r"""Length of a position: weights, scales $t$ and, in a regression, $\log\sigma_0$."""
        return self.num_weights + self.num_scales + self.num_slopes + (self.noise is not None)

    @property
    def num_slopes(self) -> int:
        """Number of coefficients on which the noise depends: one per input, and of the mean."""
        return (self.sizes[0] + 1) * (self.noise == "input-dependent")

    def layers(self, position: Any) -> list[Layer]:
        """Split positions (…, dimension) into the $w$ and $b$ of each layer."""
        layers, start, leading = [], 0, position.shape[:-1]
        for n, m in pairwise(self.sizes):
            weights = position[..., start : start + n * m].reshape(*leading, n, m)
            layers.append(Layer(weights, position[..., start + n * m : start + (n + 1) * m]))
            start += (n + 1) * m
        return layers

    def scales(self, position: Any, xp: Any = jnp) -> list[Layer]:
        """Return the factors of the weights and of the biases of each layer, (…, 1 or outputs)."""
        prior_sd, num_layers = self.prior_variance**0.5, len(self.sizes) - 1
        first, leading = self.num_weights, position.shape[:-1]

        def factor(i: int, median: float) -> Any:
            if not self.learned_scales:
                return xp.full((*leading, 1), median, position.dtype)
            return median * xp.exp(SCALE_SPREAD * position[..., first + i : first + i + 1])

        layers = [Layer(factor(i, prior_sd), factor(i, prior_sd)) for i in range(num_layers)]
        output = xp.full((*leading, 1), prior_sd, position.dtype)
        return [*layers[:-1], Layer(layers[-1].weights, output)]

    def apply(self, position: jax.Array, x: jax.Array) -> jax.Array:
        r"""Return the outputs, (rows, outputs): logits, or the mean and $\log\sigma(x)$."""
        scales = iter(self.scales(position))

        def affine(layer: Layer, x: jax.Array) -> jax.Array:  # of columns: faster on a CPU
            (weights, bias), scale = layer, next(scales)
            weights = weights * (scale.weights * len(weights) ** -0.5)[None]
            return weights.T @ x + (scale.bias * bias)[:, None]

        outputs = feed_forward(self.layers(position), x.T, ACTIVATIONS[self.activation], affine).T
        if self.noise is None:
            return outputs
        mean = outputs[:, 0]
        log_scale = jnp.broadcast_to(position[-1], mean.shape)
        if self.noise == "input-dependent":
            log_scale = log_scale + self._log_noise_factor(position, x, mean)
        return jnp.stack([mean, log_scale], axis=1)

    def _log_noise_factor(self, position: jax.Array, x: jax.Array, mean: jax.Array) -> jax.Array:
        slopes = position[-1 - self.num_slopes : -1]
        linear = x @ slopes[:-1] * len(slopes[:-1]) ** -0.5 + slopes[-1] * mean
        return LARGEST_NOISE_FACTOR * jnp.tanh(NOISE_SLOPE / LARGEST_NOISE_FACTOR * linear)

    def to_parameters(self, positions: np.ndarray) -> Draws:
        """Convert positions to weights, biases and scales by name, and the noise."""
        parameters = {}
        factors = self.scales(positions, np)
        for i, layer in enumerate(self.layers(positions), start=1):
            (weights, bias), scale = layer, factors[i - 1]
            root = weights.shape[-2] ** -0.5
            parameters[f"weights_{i}"] = scale.weights[..., None, :] * root * weights
            parameters[f"bias_{i}"] = scale.bias * bias
        if self.learned_scales:
            parameters |= {
                f"scale_{i}": factors[i - 1].weights[..., 0] for i in range(1, len(self.sizes))
            }
        if self.num_slopes:
            parameters["noise_slopes"] = NOISE_SLOPE * positions[..., -1 - self.num_slopes : -1]
        if self.noise is not None:
            parameters["noise_variance"] = self.noise_variance(positions)
        return parameters

    def noise_variance(self, positions: np.ndarray) -> np.ndarray:
        r"""Return $\sigma_0^2$ of a regression, in double precision."""
        return np.exp(2 * np.asarray(positions[..., -1], np.float64))

    def log_likelihood(self, position: jax.Array, batch: tuple[jax.Array, ...]) -> jax.Array:
        r"""Return the log likelihood of each row of `(x, y, weight, rounding)`, times its weight.

        `rounding` is $\rho$, the standard deviation of the rounding error of the target.
        """
        x, y, weight, rounding = batch
        outputs = self.apply(position, x)
        if self.noise is not None:
            mean, log_scale = outputs.T
            log_scale = 0.5 * jnp.logaddexp(2 * log_scale, 2 * jnp.log(rounding))
            outputs = jnp.stack([mean, log_scale], axis=1)
        return weight * self.likelihood.log_likelihood(outputs, y)

    def log_prior(self, position: jax.Array) -> jax.Array:
        """Return the log density of the prior, up to a constant."""
        if self.noise is None:
            return -0.5 * jnp.sum(position**2)
        return -0.5 * jnp.sum(position[:-1] ** 2) + HalfCauchy(1.0).log_density(position[-1])

    def start(self, key: Key) -> jax.Array:
        r"""Return small random weights, with the scales at $s$ and $\sigma_0$ at 1."""
        weights = 0.5 * random.gaussian(key, jnp.zeros(self.num_weights))
        return jnp.pad(weights, (0, self.dimension - self.num_weights))

    def default_batch_size(self, num_rows: int) -> int:
        """Return how many of the rows a step uses."""
        small = (MAX_FULL_BATCH, BATCH_SIZE)
        largest, size = (MAX_FULL_CLASS_BATCH, CLASS_BATCH_SIZE) if self.noise is None else small
        return num_rows if num_rows <= largest else size

    def seconds_per_step(self, rows: int, num_chains: int) -> float:
        """Return the nominal time of a step of all chains."""
        flops = 6.0 * rows * self.num_weights + 12.0 * self.num_directions(rows) * self.dimension
        return SECONDS_PER_STEP + flops * num_chains / FLOPS_PER_SECOND

    def num_directions(self, rows: int) -> int:
        """Return how many directions are stretched, for this many rows per step."""
        directions = int(np.clip(rows // ROWS_PER_DIRECTION, MIN_DIRECTIONS, MAX_DIRECTIONS))
        return max(1, min(directions, self.num_gradients // 4, self.dimension // 4))

    @property
    def num_gradients(self) -> int:
        """Number of gradients of single rows from which the stiff directions are found."""
        return max(8, min(NUM_GRADIENTS, MAX_GRADIENT_NUMBERS // self.dimension))


@dataclass(frozen=True)
class Outputs:
    """Outputs of one draw for each row. Objects of equal models are equal: one program for all."""

    model: MLPModel

    def __call__(self, position: jax.Array, x: jax.Array) -> Any:
        """Return the outputs."""
        return self.model.apply(position, x)


@dataclass(frozen=True)
class Predict:
    """Predictions of one draw: class probabilities, or mean, its square, and squared scale.

    Objects of equal models are equal, so that they share a compiled program.
    """

    model: MLPModel

    def __call__(self, position: jax.Array, x: jax.Array) -> Any:
        """Return the predictions for each row of `x`."""
        outputs = self.model.apply(position, x)
        if self.model.noise is None:
            return self.model.likelihood.predict(outputs)
        mean, log_scale = outputs.T
        return mean, mean**2, jnp.exp(2 * log_scale)


@dataclass(frozen=True)
class NetworkTarget:
    """The posterior of a network as a target of the sampler."""

    model: MLPModel
    gradient: MinibatchGradient | BalancedGradient
    batches: InMemoryBatches
    step_size: float
    coordinates: LowRank
    starts: jax.Array
    """Where chains begin, (chain, dimension)."""
    trained: np.ndarray
    """The trained networks at which they began, (chain, dimension)."""
    has_arrived: bool
    """Whether the log likelihood has stopped drifting."""
    log_likelihoods: np.ndarray
    """Log likelihood, summed over at most 2048 rows, along the rounds, (chain, point)."""
    steps_left: int
    """Steps that the budget allows to sample."""

    @property
    def dimension(self) -> int:
        """Length of a position."""
        return self.model.dimension

    def to_parameters(self, positions: np.ndarray) -> Draws:
        """Convert positions to weights, biases and scales by name, and the noise."""
        return self.model.to_parameters(positions)


def network_target(
    key: Key,
    model: MLPModel,
    x: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    rounding: float = 0.0,
    batch_size: int | None = None,
    num_chains: int = 1,
    adapt: bool = True,
    work: float = WORK,
    max_time: float | None = None,
    from_positions: jax.Array | None = None,
) -> NetworkTarget:
    """Build the posterior of a network, and take chains from trained networks into it.

    Parameters
    ----------
    key
        Key of training and of the rounds.
    model
        The network.
    x, y
        Standardised rows, and labels 0, 1, … or standardised targets.
    weight
        Weight of the log likelihood of each row; by default 1.
    rounding
        Standard deviation of the rounding errors of the targets.
    batch_size
        Rows per step; by default `model.default_batch_size`.
    num_chains
        Number of chains.
    adapt
        Whether to make rounds until chains have arrived, instead of the fewest.
    work
        Nominal seconds of rounds and sampling together.
    max_time
        Seconds for training, rounds and sampling together; by default the budget is counted.
    from_positions
        Where chains are, instead of trained networks, (chain, dimension).
    """
    began = time.monotonic()
    size = batch_size or model.default_batch_size(len(y))
    rows = _rows(model, x, y, weight, rounding)
    num_rows = len(y)
    padded = _padded(rows)
    whole = size >= num_rows
    batches = full_batch(padded) if whole else independent_batches(rows, size)
    programs = _compiled(model, len(padded[0]) if whole else num_rows, not whole)
    if from_positions is None:
        trained = _trained(key, programs, padded, num_rows, num_chains)
    else:
        trained = from_positions
    directions = model.num_directions(size)
    walk = _Walk(random.fold(key, 2), model, programs, batches, trained, padded, directions)
    budget = work / model.seconds_per_step(size, num_chains)
    while True:
        walk.next_round(WALK_SHARE * budget / MIN_ROUNDS)
        enough = walk.num_rounds >= MIN_ROUNDS
        if max_time is not None:
            budget = _affordable_steps(walk, max_time - (time.monotonic() - began))
        spent = walk.num_steps >= WALK_SHARE * budget
        if enough and (not adapt or walk.has_arrived or spent):
            break
    return NetworkTarget(
        model,
        programs.gradient,
        batches,
        float(walk.step_size),
        walk.coordinates,
        walk.positions,
        np.asarray(trained),
        walk.has_arrived,
        np.concatenate(walk.log_likelihoods, axis=1),
        max(1, int(budget - walk.num_steps * (max_time is None))),
    )


def train_networks(
    key: Key,
    model: MLPModel,
    x: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    num_networks: int = 1,
) -> jax.Array:
    """Train networks as those at which chains start, (network, dimension).

    Parameters
    ----------
    key, model, x, y, weight
        As in `network_target`.
    num_networks
        Number of networks, each with held-out rows of its own.
    """
    padded = _padded(_rows(model, x, y, weight, 0.0))
    programs = _compiled(model, len(padded[0]), False)
    return _trained(key, programs, padded, len(y), num_networks)


def _rows(
    model: MLPModel, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None, rounding: float
) -> tuple[np.ndarray, ...]:
    """Return features, targets, weights and rounding errors in the precision of the sampler."""
    targets = y.astype(np.int32 if model.noise is None else np.float32)
    weights = np.ones(len(y), np.float32) if weight is None else weight.astype(np.float32)
    return x.astype(np.float32), targets, weights, np.full(len(y), rounding, np.float32)


def _padded(rows: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Pad with rows of weight 0, so that similar data share a program."""
    return tuple(pad_to_multiples(each, ROW_MULTIPLE, *each.shape[1:]) for each in rows)


def _trained(
    key: Key,
    programs: "_Programs",
    padded: tuple[np.ndarray, ...],
    num_rows: int,
    num_networks: int,
) -> jax.Array:
    order = _held_out_orders(random.fold(key, 0), num_rows, num_networks)
    keys = jax.random.split(random.fold(key, 1), num_networks)
    return programs.train(keys, padded, *order, _num_checks(num_rows))


def _affordable_steps(walk: "_Walk", seconds_left: float) -> float:
    """Return how many more steps the clock allows, at the speed of the last round."""
    return max(seconds_left, 0.0) / walk.seconds_per_step


class _Walk:
    """Chains on their way from trained networks into the posterior, in rounds."""

    def __init__(
        self,
        key: Key,
        model: MLPModel,
        programs: "_Programs",
        batches: InMemoryBatches,
        positions: jax.Array,
        rows: tuple[np.ndarray, ...],
        num_directions: int,
    ) -> None:
        self._key, self._programs, self._batches, self._model = key, programs, batches, model
        self._rows = tuple(jnp.asarray(each[:MAX_CHECKED_ROWS]) for each in rows)
        self._all_rows = rows
        self.positions, self.log_likelihoods = positions, []
        self._points = jnp.repeat(positions[:, None], POINTS_PER_ROUND, axis=1)  # one program
        self.num_rounds = self.num_steps = 0
        self.seconds_per_step = np.inf
        at_start = self._programs.log_likelihood(positions, self._rows)
        self._lowest = np.asarray(at_start, np.float64) - explained_loss(model.dimension)
        self._shrink, self.step_size = 1.0, 0.0
        self.coordinates = LowRank(
            jnp.zeros((model.dimension, num_directions)), jnp.ones(num_directions)
        )
        self._measure()

    def _measure(self) -> None:
        """Update coordinates and step size from curvature and noise at points of the last round."""
        key = random.fold(self._key, 2 * self.num_rounds)
        if self.num_rounds >= 1:
            self.coordinates = self._stretched(random.fold(key, 4))
        half = POINTS_PER_ROUND // 2
        points = self._points[:, half - 1 :: half].reshape(-1, self._model.dimension)
        curvature = float(self._programs.curvature(key, points, self._batches, self.coordinates))
        if not np.isfinite(curvature):
            raise FloatingPointError(
                "The curvature of the log posterior is not finite at a trained network. Check the "
                "data for extreme values, or reduce `prior_variance`."
            )
        h = self._shrink * STEP_TIMES_FREQUENCY * curvature**-0.5
        if isinstance(self._programs.gradient, BalancedGradient):
            strengths = self._programs.strengths(
                key, self.positions, self._batches, self.coordinates
            )
            h = longest_step(h, strengths, DIFFUSION, self._model.dimension, LARGEST_HEAT)
        self.step_size = h

    def _stretched(self, key: Key) -> LowRank:
        """Return coordinates without the stiffest directions of the last round."""
        weight = self._all_rows[2]
        num_gradients, num_rows = self._model.num_gradients, int(np.count_nonzero(weight))
        rng = np.random.default_rng(random.numpy_seed(key))
        chosen = rng.choice(np.flatnonzero(weight), num_gradients)
        points = self._points.reshape(-1, self._model.dimension)
        at = points[np.arange(num_gradients) % len(points)]
        rows = tuple(each[chosen] for each in self._all_rows)
        grads = self._programs.row_gradients(at, rows)
        factor = np.asarray(grads) * (num_rows / num_gradients) ** 0.5
        return low_rank(factor, len(self.coordinates.stretch))

    def next_round(self, most_steps: float) -> None:
        """Move all chains by two units of time, or `most_steps` if they are fewer.

        A round that ends with a log likelihood further below that of a trained network than the
        posterior explains is repeated with half the step size.
        """
        for _ in range(MAX_RESTARTS):
            steps = min(ROUND_TIME / self.step_size, most_steps)
            thin = max(1, round(steps / POINTS_PER_ROUND))
            began = time.monotonic()
            key = random.fold(self._key, 2 * self.num_rounds + 1)
            points, values = self._programs.walk(
                key,
                self.positions,
                self.step_size,
                thin,
                self._batches,
                self._rows,
                self.coordinates,
            )
            values = np.asarray(values, np.float64)
            if np.all(values[:, -1] >= self._lowest):  # false for NaN
                steps = thin * POINTS_PER_ROUND
                self.seconds_per_step = (time.monotonic() - began) / steps
                self._points, self.positions = points, points[:, -1]
                self.num_steps += steps
                self.log_likelihoods.append(values)
                self.num_rounds += 1
                self._measure()
                return
            self._shrink, self.step_size = self._shrink / 2, self.step_size / 2
        raise FloatingPointError(
            "Chains that start at trained networks lose what these have learned, even at step size "
            f"{2 * self.step_size:.3g}. Check the data for extreme values, or reduce "
            "`prior_variance`."
        )

    @property
    def has_arrived(self) -> bool:
        """Whether the log likelihood changed less between the last two rounds than it varies."""
        if self.num_rounds < MIN_ROUNDS:
            return False
        before, after = self.log_likelihoods[-2:]
        both = np.concatenate([before, after], axis=1)
        spread = np.sqrt(np.mean(np.var(both, axis=1)))
        return bool(abs(np.mean(after - before)) <= LARGEST_DRIFT * spread)


def rounding_error(targets: np.ndarray) -> float:
    """Return the standard deviation of rounding errors, or 0 if it is below `SMALLEST_ROUNDING`.

    Parameters
    ----------
    targets
        Standardised targets; if they are on a grid, its spacing is the smallest difference.

    Examples
    --------
    >>> round(rounding_error(np.array([0.0, 1.0, 1.0, 2.0, 4.0])), 4)
    0.2887
    """
    gaps = np.diff(np.unique(targets))
    error = float(gaps.min(initial=np.inf)) / 12**0.5
    return error if SMALLEST_ROUNDING <= error < np.inf else 0.0


class _Programs(NamedTuple):
    """The gradient of a model, and its compiled functions."""

    gradient: MinibatchGradient | BalancedGradient
    train: Callable
    log_likelihood: Callable
    walk: Callable
    curvature: Callable
    strengths: Callable
    row_gradients: Callable


@lru_cache(maxsize=32)
def _compiled(model: MLPModel, data_size: int, in_batches: bool) -> _Programs:
    """Compile what fits of a model share; the same objects for equal arguments."""
    plain = minibatch_gradient(model.log_likelihood, model.log_prior, data_size)
    gradient = balanced(plain) if in_batches else plain
    train = jax.jit(jax.vmap(partial(_train, model), in_axes=(0, None, 0, 0, None, None)))
    return _Programs(
        gradient,
        train,
        jax.jit(jax.vmap(plain.log_likelihood_sum, in_axes=(0, None))),
        jax.jit(partial(_walk, model, gradient)),
        jax.jit(partial(_largest_curvature, plain)),
        jax.jit(partial(_strengths, cast(BalancedGradient, gradient))),
        jax.jit(partial(_row_gradients, model)),
    )


def _held_out_orders(
    key: Key, num_rows: int, num_chains: int
) -> tuple[np.ndarray, np.ndarray, np.int32]:
    """Return row numbers to train on, (chain, padded), held-out ones with weights, and a count.

    The row numbers of each chain are a permutation: the first `count` are trained on.
    """
    rng = np.random.default_rng(random.numpy_seed(key))
    held_out = min(num_rows // 10, MAX_HELD_OUT) if num_rows >= MIN_ROWS_TO_HOLD_OUT else 0
    orders = np.stack([rng.permutation(num_rows) for _ in range(num_chains)]).astype(np.int32)
    checked = np.full((num_chains, MAX_HELD_OUT), -1, np.int32)
    kept = num_rows - held_out
    checked[:, :held_out] = orders[:, kept:]
    return pad_to_multiples(orders, 1, ROW_MULTIPLE), checked, np.int32(kept)


def _num_checks(num_rows: int) -> np.int32:
    """Return how often a network in training is compared with the held-out rows."""
    updates = np.clip(TRAINING_EPOCHS * num_rows / TRAINING_BATCH, MIN_UPDATES, MAX_UPDATES)
    return np.int32(updates / UPDATES_PER_CHECK)


def _train(
    model: MLPModel,
    key: Key,
    rows: tuple[jax.Array, ...],
    order: jax.Array,
    held_out: jax.Array,
    num_kept: jax.Array,
    num_checks: jax.Array,
) -> jax.Array:
    """Train a network by Adam; return the best on the held-out rows, or the last without any."""
    x, y, weight, rounding = rows
    is_row = jnp.where(held_out >= 0, weight[held_out], 0.0)
    checked = (x[held_out], y[held_out], is_row, rounding[held_out])
    num_updates = num_checks * UPDATES_PER_CHECK
    optimizer = optax.adam(
        lambda t: TRAINING_RATE * 0.5 * (1 + jnp.cos(jnp.pi * t / num_updates)),
    )
    start_key, batch_key = random.fold(key, 0), random.fold(key, 1)
    number = jnp.arange(model.dimension) - model.num_weights
    is_scale = (number >= 0) & (number < model.num_scales)

    def loss(position: jax.Array, batch: tuple[jax.Array, ...]) -> jax.Array:
        fit = jnp.mean(model.log_likelihood(position, batch))
        return -fit - model.log_prior(position) / num_kept

    def update(carry: tuple, t: jax.Array) -> tuple:
        position, state = carry
        numbers = random.bits(random.fold(batch_key, t), (TRAINING_BATCH,))
        chosen = order[numbers % num_kept.astype(numbers.dtype)]
        grads = jax.grad(loss)(position, tuple(each[chosen] for each in rows))
        updates, state = optimizer.update(jnp.where(is_scale, 0.0, grads), state)
        return (optax.apply_updates(position, updates), state), None

    def block(i: jax.Array, carry: tuple) -> tuple:
        (position, state), (best, highest) = carry
        steps = i * UPDATES_PER_CHECK + jnp.arange(UPDATES_PER_CHECK)
        (position, state), _ = jax.lax.scan(update, (position, state), steps)
        value = jnp.sum(model.log_likelihood(position, checked))
        better = value >= highest  # without held-out rows the value is always 0
        best = jnp.where(better, position, best)
        return (position, state), (best, jnp.where(better, value, highest))

    start = model.start(start_key)
    carry = ((start, optimizer.init(start)), (start, -jnp.inf))
    return jax.lax.fori_loop(0, num_checks, block, carry)[1][0]


def _walk(
    model: MLPModel,
    gradient: MinibatchGradient | BalancedGradient,
    key: Key,
    positions: jax.Array,
    h: jax.Array,
    thin: jax.Array,
    batches: InMemoryBatches,
    rows: tuple[jax.Array, ...],
    coordinates: LowRank,
) -> tuple[jax.Array, jax.Array]:
    """Run all chains; return points on their ways, and the log likelihoods of `rows` there."""
    sampler = msgnht(
        gradient,
        h,
        DIFFUSION,
        thermostat_mass=THERMOSTAT_MASS,
        integrator=BALANCED_WORD,
        coordinates=coordinates,
    )
    num_points = POINTS_PER_ROUND

    def chain(key: Key, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise, data = random.fold(key, 0), random.fold(key, 1)

        def step(t: jax.Array, state: Any) -> Any:
            return sampler.step(random.fold(noise, t), state, batches.batch(data, t))[0]

        def point(state: Any, i: jax.Array) -> tuple:
            state = jax.lax.fori_loop(i * thin, (i + 1) * thin, step, state)
            value = jnp.sum(model.log_likelihood(state.position, rows))
            return state, (state.position, value)

        start = sampler.init(position, random.fold(key, 2))
        return jax.lax.scan(point, start, jnp.arange(num_points))[1]

    keys = jax.vmap(partial(random.fold, key))(jnp.arange(len(positions)))
    return jax.vmap(chain)(keys, positions)


def _largest_curvature(
    gradient: MinibatchGradient,
    key: Key,
    positions: jax.Array,
    batches: InMemoryBatches,
    coordinates: LowRank,
) -> jax.Array:
    """Return the largest curvature of minus the log density at any of the positions."""
    batch = batches.batch(random.fold(key, 0), jnp.zeros((), jnp.int32))

    def at(position: jax.Array) -> jax.Array:
        def hessian_times(vector: jax.Array) -> jax.Array:
            direction = coordinates.push(vector)
            return coordinates.pull(
                jax.jvp(lambda x: gradient(x, batch), (position,), (direction,))[1]
            )

        start = random.gaussian(random.fold(key, 1), position)
        return largest_eigenvalue(hessian_times, start, 20)

    return jnp.max(jax.vmap(at)(positions))


def _strengths(
    gradient: BalancedGradient,
    key: Key,
    positions: jax.Array,
    batches: InMemoryBatches,
    coordinates: LowRank,
) -> jax.Array:
    """Return the strengths of rows in kicks of duration 1, at all positions."""

    def at(position: jax.Array) -> jax.Array:
        return unit_strengths(random.fold(key, 3), gradient, position, batches, coordinates)

    return jnp.concatenate(list(jax.lax.map(at, positions)), axis=1)


def _row_gradients(model: MLPModel, positions: jax.Array, rows: tuple[jax.Array, ...]) -> jax.Array:
    """Return the gradient of the log likelihood of each row, at a position of its own."""

    def one(pair: tuple) -> jax.Array:
        position, row = pair
        return jax.grad(
            lambda q: model.log_likelihood(q, jax.tree.map(lambda each: each[None], row))[0]
        )(position)

    return jax.lax.map(one, (positions, rows), batch_size=64)

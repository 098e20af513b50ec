"""One split of a UCI set: units, held-out rows, the network, and scores of a prediction."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from isotherm.data.uci import Rows
from isotherm.diagnostics.mixtures import Mixture
from isotherm.models.likelihoods import Gaussian
from isotherm.models.networks import Network, mlp
from isotherm.models.priors import LearnedScales, NormalPrior
from isotherm.models.scale_priors import HalfCauchy
from isotherm.types import ArrayTree, Key

SCORES = ("log likelihood", "RMSE", "coverage", "CRPS", "CPU seconds", "seconds")
"""Of every unit of work, in this order."""
LEVEL = 0.9
"""Probability of the intervals whose coverage is measured."""
NUM_QUANTILES = 20
"""Quantiles from which the CRPS is computed, for all methods in the same way."""


class Predictor(Protocol):
    """A fitted method; all units are the original ones."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the mean of every row."""
        ...

    def log_density(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the log density of every row under the predictive mixture."""
        ...

    def predict_interval(self, X: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of central intervals."""
        ...


@dataclass(frozen=True)
class Units:
    """Means and standard deviations of the training rows; a constant column is not scaled."""

    x_mean: np.ndarray
    x_sd: np.ndarray
    y_mean: float
    y_sd: float

    @classmethod
    def of(cls, rows: Rows) -> "Units":
        """Measure the training rows."""
        x_sd = rows.x.std(0)
        y_sd = float(rows.y.std())
        return cls(rows.x.mean(0), np.where(x_sd > 0, x_sd, 1.0), float(rows.y.mean()), y_sd)

    def features(self, x: np.ndarray) -> np.ndarray:
        """Return standardised features."""
        return ((x - self.x_mean) / self.x_sd).astype(np.float32)

    def targets(self, y: np.ndarray) -> np.ndarray:
        """Return standardised targets."""
        return ((y - self.y_mean) / self.y_sd).astype(np.float32)


@dataclass(frozen=True)
class MixturePredictor:
    """Draws of a network's outputs as predictions in the original units."""

    units: Units
    mixture: Callable[[np.ndarray], Mixture]
    """Standardised features to the mixture of standardised targets."""

    def _mixture(self, X: np.ndarray) -> Mixture:
        own = self.mixture(self.units.features(X))
        return Mixture(
            self.units.y_mean + self.units.y_sd * own.location, self.units.y_sd * own.scale
        )

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the mean of every row."""
        return self._mixture(X).mean

    def log_density(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the log density of every row under the predictive mixture."""
        return self._mixture(X).log_density(y)

    def predict_interval(self, X: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of central intervals."""
        return self._mixture(X).interval(level)


class Model(NamedTuple):
    """What determines the network; equal models are the same object, which compiles once."""

    num_features: int
    hidden: tuple[int, ...]
    activation: str
    noise: str = "one"
    """`"one"`: a learned noise for all rows; `"input"`: a second head, log sd of every row."""
    prior_scale: float | None = 1.0
    """$v$ of weights $N(0, v^2/n)$; `None`: one scale per layer, learned with the weights."""

    def network(self) -> Network:
        """Return the network with its prior and likelihood."""
        return _network(self)

    def flat_network(self) -> Network:
        """Return the same with a vector as its position: programs of samplers compile faster."""
        return _flat_network(self)


@lru_cache(maxsize=256)
def _network(model: Model) -> Network:
    heteroscedastic = model.noise == "input"
    likelihood = Gaussian(None) if heteroscedastic else Gaussian(HalfCauchy(1.0))
    scale = model.prior_scale
    prior = LearnedScales() if scale is None else NormalPrior(scale)
    sizes = (model.num_features, *model.hidden, 2 if heteroscedastic else 1)
    return mlp(sizes, activation=model.activation, likelihood=likelihood, prior=prior)


@dataclass(frozen=True)
class FlatPrior:
    """The prior of a position that is flattened to a vector."""

    network: Network
    unravel: Callable[[jax.Array], ArrayTree]

    def log_prior(self, position: jax.Array) -> jax.Array:
        """Return the log density of a vector."""
        return self.network.log_prior(self.unravel(position))

    def sample(self, key: Key, like: jax.Array) -> jax.Array:
        """Draw a vector."""
        del like
        return ravel_pytree(self.network.sample_prior(key))[0]

    def weights(self, position: jax.Array) -> jax.Array:
        """Return the vector."""
        return position

    def position(self, weights: jax.Array) -> jax.Array:
        """Return the vector."""
        return weights


@lru_cache(maxsize=256)
def _flat_network(model: Model) -> Network:
    network = model.network()
    unravel = ravel_pytree(network.init(jax.random.key(0)))[1]
    return Network(
        lambda flat, x: network.apply(unravel(flat), x),
        lambda key: ravel_pytree(network.init(key))[0],
        network.likelihood,
        prior=FlatPrior(network, unravel),
    )


def held_out_rows(num_rows: int, share: float, seed: int) -> np.ndarray:
    """Return the row numbers of the validation part, a share of the training rows."""
    count = max(1, round(share * num_rows))
    return np.sort(np.random.default_rng(seed).permutation(num_rows)[:count])


def scores(predictor: Predictor, test: Rows) -> dict[str, float]:
    """Return the scores of the test rows, in the original units."""
    lower, upper = predictor.predict_interval(test.x, LEVEL)
    error = np.ravel(predictor.predict(test.x)) - test.y
    return {
        "log likelihood": float(np.mean(predictor.log_density(test.x, test.y))),
        "RMSE": float(np.sqrt(np.mean(error**2))),
        "coverage": float(np.mean((lower <= test.y) & (test.y <= upper))),
        "CRPS": quantile_crps(predictor, test),
    }


def quantile_crps(predictor: Predictor, rows: Rows) -> float:
    r"""Return the CRPS by the midpoint rule over quantiles.

    $\text{CRPS} = 2\int_0^1 (1[y < q_\tau] - \tau)(q_\tau - y)\,d\tau$ with quantiles $q_\tau$ at
    $\tau = (k - \frac12)/K$, which are ends of central intervals.
    """
    total = np.zeros(len(rows.y))
    for k in range(NUM_QUANTILES // 2):
        low = (k + 0.5) / NUM_QUANTILES
        ends = predictor.predict_interval(rows.x, 1 - 2 * low)
        for tau, quantile in zip((low, 1 - low), ends, strict=True):
            total += ((rows.y < quantile) - tau) * (quantile - rows.y)
    return float(2 * np.mean(total) / NUM_QUANTILES)

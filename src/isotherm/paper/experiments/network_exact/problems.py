"""The two small networks of `network-exact`, with their data and exact posteriors."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import isotherm
from isotherm import random
from isotherm.diagnostics.convergence import ess, rhat
from isotherm.models.networks import Network, mlp
from isotherm.paper.experiments.contract import Report
from isotherm.references.hmc import hmc
from isotherm.references.network import network_target
from isotherm.types import ArrayTree, Key


class Problem(NamedTuple):
    """A network, its data, and the points at which its function is compared."""

    name: str
    network: Network
    x: np.ndarray
    y: np.ndarray
    grid: np.ndarray
    batch_size: int
    step_size: float
    """Of the reference."""

    @property
    def inside(self) -> np.ndarray:
        """Which of the compared numbers belong to points among the data."""
        among = (self.grid**2).sum(1) <= 1
        num_outputs = len(self.outputs(self.start)) // len(self.grid)
        return np.repeat(among, num_outputs)

    @property
    def start(self) -> ArrayTree:
        """Initial weights."""
        return self.network.init(jax.random.key(0))

    def outputs(self, weights: ArrayTree) -> jax.Array:
        """Return the function at all points of the grid: means, or probabilities of classes."""
        return self.network.predict(weights, jnp.asarray(self.grid)).reshape(-1)

    def find_mode(self, key: Key) -> ArrayTree:
        """Return a mode of the posterior."""
        return isotherm.find_mode(
            random.fold(key, 0),
            self.network.gradient(len(self.y)),
            self.network.init(random.fold(key, 1)),
            isotherm.independent_batches((self.x, self.y), self.batch_size),
            num_steps=5000,
        )

    def reference(self, mode: ArrayTree, num_draws: int, report: Report) -> dict[str, np.ndarray]:
        """Return a summary of exact draws, and the share of accepted proposals."""
        draws, accepted = hmc(
            network_target(self.network, (self.x, self.y), mode),
            num_chains=64,
            num_draws=num_draws,
            burn_in=num_draws // 4,
            seed=1,
            step_size=self.step_size,
            num_leapfrog=120,
            start_width=0.3,
            report=report,
        )
        unravel = ravel_pytree(mode)[1]
        outputs = jax.jit(jax.vmap(lambda w: self.outputs(unravel(w))))
        f = np.stack([np.asarray(outputs(jnp.asarray(chain, jnp.float32))) for chain in draws])
        return summary(f.astype(np.float64)) | {"taken": np.asarray(accepted)}


def regression(key: Key, num_data: int, num_hidden: int, noise_sd: float, **other: Any) -> Problem:
    """Return a noisy sine on [-1, 1], compared on [-1.5, 1.5]."""
    rng = np.random.default_rng(random.numpy_seed(key))
    x = rng.uniform(-1, 1, (num_data, 1)).astype(np.float32)
    y = (np.sin(4 * x) + 0.3 * x + noise_sd * rng.normal(size=x.shape)).astype(np.float32)
    network = mlp((1, num_hidden, 1), activation="tanh", likelihood="gaussian", noise_sd=noise_sd)
    grid = np.linspace(-1.5, 1.5, other.pop("num_points"), dtype=np.float32)[:, None]
    return Problem("regression", network, x, y, grid, step_size=0.012, **other)


def classification(key: Key, num_data: int, num_hidden: int, num_points: int, **other: Any):
    """Return three spiral arms in the unit disc, compared on a square of side 3."""
    rng = np.random.default_rng(random.numpy_seed(random.fold(key, 4)))
    y = np.arange(num_data) % 3
    radius = rng.uniform(0.1, 1, num_data)
    angle = 2 * np.pi * y / 3 + 2.5 * radius + 0.3 * rng.normal(size=num_data)
    x = (radius * np.stack([np.cos(angle), np.sin(angle)])).T.astype(np.float32)
    network = mlp((2, num_hidden, 3), activation="tanh", prior_sd=2.0)
    side = np.linspace(-1.5, 1.5, num_points, dtype=np.float32)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    return Problem("classification", network, x, y.astype(np.int32), grid, step_size=0.02, **other)


def summary(f: np.ndarray) -> dict[str, np.ndarray]:
    """Summarize draws of the function, (chain, draw, number)."""
    finite = np.isfinite(f).all()
    return {
        "mean": f.mean((0, 1)),
        "sd": f.std((0, 1)),
        "ess": ess(f) if finite else np.full(f.shape[2], np.nan),
        "rhat": rhat(f) if finite else np.full(f.shape[2], np.nan),
    }

r"""Deep ensembles whose learning rate, model and number of steps are chosen on held-out rows.

Each candidate, a network (with its prior and noise model) and a learning rate $\eta$, is trained on
a part of the rows: $M$ members from independent starts, by Adam with a cosine decay of $\eta$, all
in one program. Every few steps the ensemble is scored on the held-out rows by the log density of
its mixture,

$$ \frac1n\sum_{i=1}^n \log\frac1M\sum_{m=1}^M p(y_i \mid x_i, \theta_m), $$

so that what is chosen is best for the *ensemble*, not for a member. The candidate and the number of
steps with the highest score are taken (early stopping), and $M$ new members are trained on all
rows, for the same number of epochs of the same schedule. With `prior=True` members are modes of the
posterior, otherwise maxima of the likelihood as in the original.

References
----------
Lakshminarayanan, Pritzel & Blundell (2017), *Simple and scalable predictive uncertainty estimation
using deep ensembles*, NIPS.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.models.networks import Network
from isotherm.paper.baselines.deep_ensemble import Ensemble
from isotherm.paper.baselines.gaussian import check_count
from isotherm.paper.baselines.sgd import sgd_training
from isotherm.paper.baselines.training import (
    Training,
    TrainingState,
    cosine_adam,
    initial_state,
    steps,
)
from isotherm.schedules import require_positive
from isotherm.tree import as_position
from isotherm.types import ArrayTree, Batch, Key


class Tuned(NamedTuple):
    """An ensemble, and the choices that were made for it."""

    fitted: Ensemble
    network: Network
    step_size: float
    num_steps: int
    """Steps on all rows."""
    scores: np.ndarray
    """Held-out log density per row, (candidate, checkpoint)."""


def tuned_ensemble(
    key: Key,
    networks: Sequence[Network],
    data: Batch,
    held_out: np.ndarray,
    *,
    batch_size: int,
    num_steps: int,
    step_sizes: Sequence[float] = (3e-3, 1e-2),
    num_members: int = 5,
    prior: bool = True,
    num_checkpoints: int = 20,
) -> Tuned:
    r"""Choose model, learning rate and number of steps; train the members on all rows.

    Parameters
    ----------
    key
        For starts and batches.
    networks
        Candidates: for example with several prior scales.
    data
        `(x, y)`, all training rows.
    held_out
        Row numbers that candidates are scored on.
    batch_size
        Rows per batch.
    num_steps
        Largest number of steps, and the length of the cosine decay.
    step_sizes
        $\eta$ of Adam, candidates.
    num_members
        $M$.
    prior
        Whether the loss includes the log prior.
    num_checkpoints
        How often an ensemble is scored.

    Raises
    ------
    FloatingPointError
        If all candidates diverged.
    """
    check_count("num_members", num_members)
    check_count("num_checkpoints", num_checkpoints)
    if num_steps < num_checkpoints:
        raise ValueError(f"`num_steps` must be at least {num_checkpoints}, got {num_steps}.")
    for step_size in step_sizes:
        require_positive("step_sizes", step_size)
    data = jax.tree.map(np.asarray, data)
    rows = len(jax.tree.leaves(data)[0])
    inside = np.setdiff1d(np.arange(rows), held_out)
    part, rest = (jax.tree.map(lambda a, i=i: a[i], data) for i in (inside, held_out))
    batches = isotherm.shuffled_batches(part, min(batch_size, len(inside)))
    candidates = [(network, eta) for network in networks for eta in step_sizes]
    stops = np.linspace(0, num_steps, num_checkpoints + 1).astype(int)
    curves = []
    for i, (network, eta) in enumerate(candidates):
        members = _Members(random.fold(key, i), network, eta, num_steps, num_members, prior)
        curves.append(members.curve(batches, stops, rest))
    scores = np.array(curves)
    if not np.isfinite(scores).any():
        raise FloatingPointError("All candidates diverged. Try smaller `step_sizes`.")
    best, stop = np.unravel_index(np.nanargmax(scores), scores.shape)
    network, eta = candidates[best]
    whole = isotherm.shuffled_batches(data, min(batch_size, rows))
    ratio = whole.epoch_length / batches.epoch_length
    length, taken = round(num_steps * ratio), max(1, round(stops[stop + 1] * ratio))
    members = _Members(random.fold(key, 1000), network, eta, length, num_members, prior)
    return Tuned(members.fit(whole, taken), network, eta, taken, scores)


def train_members(
    key: Key,
    network: Network,
    batches: InMemoryBatches,
    *,
    step_size: float,
    num_steps: int,
    num_members: int = 1,
    prior: bool = True,
) -> Ensemble:
    """Train networks from independent starts by Adam with a cosine decay, all in one program.

    Parameters
    ----------
    key
        For starts and batches.
    network, batches
        The model and the data.
    step_size, num_steps, num_members, prior
        As in `tuned_ensemble`, with one value each.

    Raises
    ------
    FloatingPointError
        If a member diverged.
    """
    return _Members(key, network, step_size, num_steps, num_members, prior).fit(batches, num_steps)


class _Members(NamedTuple):
    """Members of an ensemble that are trained together."""

    key: Key
    network: Network
    step_size: float
    num_steps: int
    num_members: int
    prior: bool

    def training(self, data_size: int) -> Training:
        """Return the training program."""
        grad_fn = self.network.gradient(data_size)
        optimizer = cosine_adam(self.step_size, self.num_steps)
        return sgd_training("deep ensemble", grad_fn, self.step_size, 0.0, self.prior, optimizer)

    def start(self, data_size: int) -> TrainingState:
        """Return the state of all members before the first step."""
        keys = jax.random.split(random.fold(self.key, 0), self.num_members)
        position = jax.vmap(lambda k: as_position(self.network.init(k)))(keys)
        training = self.training(data_size)
        return jax.vmap(lambda w: initial_state(training, w, self.num_steps))(position)

    def advance(
        self, state: TrainingState, batches: InMemoryBatches, start: int, stop: int
    ) -> TrainingState:
        """Take steps `start` to `stop - 1`."""
        keys = jax.random.split(random.fold(self.key, 1), self.num_members)
        training = self.training(batches.data_size)
        return _advance(state, keys, batches, start, stop, training=training)

    def fit(self, batches: InMemoryBatches, stop: int) -> Ensemble:
        """Take `stop` steps and return the members."""
        state = self.advance(self.start(batches.data_size), batches, 0, stop)
        fitted = Ensemble(state.parameters, state.losses[:, :stop])
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(fitted)):
            raise FloatingPointError("A deep ensemble diverged. Try a smaller `step_size`.")
        return fitted

    def curve(self, batches: InMemoryBatches, stops: np.ndarray, held_out: Batch) -> list[float]:
        """Train and return the score at every stop; NaN after a divergence."""
        state, scores = self.start(batches.data_size), []
        for start, stop in itertools.pairwise(stops):
            state = self.advance(state, batches, int(start), int(stop))
            score = _score(state.parameters, held_out, network=self.network)
            scores.append(float(score) if np.isfinite(score) else np.nan)
        return scores


@partial(jax.jit, static_argnames="training", donate_argnums=0)
def _advance(
    state: TrainingState,
    keys: Key,
    batches: InMemoryBatches,
    start: int,
    stop: int,
    *,
    training: Training,
) -> TrainingState:
    return jax.vmap(lambda s, k: steps(s, k, batches, start, stop, training))(state, keys)


@partial(jax.jit, static_argnames="network")
def _score(members: ArrayTree, rows: Batch, *, network: Network) -> jax.Array:
    each = jax.vmap(lambda w: network.log_likelihood(w, rows))(members)
    return jnp.mean(jax.nn.logsumexp(each, axis=0)) - jnp.log(each.shape[0])

"""What documents say about the parameters if their binary layers are a deep Boltzmann machine.

`sweep` is `isotherm.topics.dpfa.documents.sweep` with the other kernel: same arguments, same result. `BoltzmannScore` and `predict` are
their namesakes of `isotherm.topics.dpfa.score` on top of it. Parameters are laid out by `isotherm.topics.dpfa.documents.prepare`.
"""

from typing import Any

import numpy as np

from isotherm.topics import counter, inference, layout
from isotherm.topics.corpus import Completion, Corpus
from isotherm.topics.dpfa import boltzmann_kernels, documents
from isotherm.topics.dpfa.documents import Prepared, State, Swept
from isotherm.topics.dpfa.score import DPFAScore
from isotherm.topics.kernels import predict_cells, word_slots

_PER_UNIT = 10e-9


def sweep(
    prepared: Prepared,
    batch: Corpus,
    *,
    sweeps: int = 25,
    burn_in: int = 20,
    thin: int = 2,
    seed: int,
    step: int = 0,
    state: State | None = None,
    tally: bool = True,
    threads: int = 1,
) -> Swept:
    """Run Gibbs sweeps over the documents of a batch.

    Parameters
    ----------
    prepared, batch, sweeps, burn_in, thin, seed, step, state, tally, threads
        As in `isotherm.topics.dpfa.documents.sweep`.
    """
    if prepared.rows.shape[0] != batch.num_words:
        raise ValueError(f"`batch` has {batch.num_words} words, topics {len(prepared.rows)}.")
    keeps, starts = documents.keep_places(sweeps, burn_in, thin), batch.token_starts
    kept, size = int(keeps.max()) + 1, len(prepared.rates)
    state, fresh = _start(prepared, batch, state), state is None
    words, slots = np.empty(0, np.int32), np.empty(0, np.int32)
    if tally:
        words, slots = word_slots(batch.words, batch.num_words)
    theta = np.zeros((len(batch), size), np.float32)
    counts = np.empty((kept, len(batch), prepared.sizes[0]), np.int32)
    layers = np.empty((kept, *state.units.shape), np.uint8)
    streams = counter.streams(counter.purpose_key(seed, "gibbs"), step, batch.documents)
    tallies = []

    def work(first: int, last: int) -> None:
        mine = np.zeros((len(words), size), np.float32)
        boltzmann_kernels.sweep_documents(
            first, last, batch.indptr, batch.words, batch.counts, slots, streams, starts,
            *prepared, state.assignments, state.units, int(fresh), keeps,
            theta, counts, layers, mine,
        )  # fmt: skip
        tallies.append(mine)

    seconds = inference.token_seconds(int(starts[-1]), len(keeps), size)
    seconds += _PER_UNIT * prepared.sizes.sum() * len(keeps) * len(batch)
    inference.in_threads(work, starts, seconds, threads)
    topics = int(prepared.sizes[0])
    return Swept(
        words,
        np.sum(tallies, axis=0)[:, :topics] / np.float32(kept),
        theta[:, :topics] / np.float32(kept),
        counts,
        tuple(layers[:, :, i, :n] for i, n in enumerate(prepared.sizes)),
        state,
    )


def _start(prepared: Prepared, batch: Corpus, state: State | None) -> State:
    shape = (len(batch), len(prepared.sizes), prepared.bias.shape[1])
    if state is None:
        return State(np.full(batch.num_tokens, -1, np.int32), np.zeros(shape, np.uint8))
    if len(state.assignments) != batch.num_tokens or state.units.shape != shape:
        raise ValueError("`state` is of other documents or of other layers.")
    return State(state.assignments.copy(), state.units.copy())


class BoltzmannScore(DPFAScore):
    """A running perplexity of draws of `isotherm.topics.dpfa.boltzmann.DPFABoltzmann`; for all else see `DPFAScore`."""

    def _sweep(self, prepared: Prepared) -> Swept:
        settings = {"sweeps": self.warm_sweeps, "burn_in": 0, "thin": 1}
        if self.local is None:
            settings = {"sweeps": self.sweeps, "burn_in": self.burn_in, "thin": self.thin}
        return sweep(
            prepared, self.score.split.observed, **settings, seed=self.seed,
            step=self.score.num_draws, state=self.local, tally=False, threads=self.threads,
        )  # fmt: skip


def predict(prepared: Prepared, split: Completion, **settings: Any) -> tuple[float, int]:
    """Score the hidden tokens of new documents: their log likelihood, and how many they are.

    Parameters
    ----------
    prepared
        Parameters.
    split
        The documents.
    settings
        Of `sweep`.
    """
    theta = sweep(prepared, split.observed, tally=False, **settings).intensities
    padded = np.zeros((len(theta), layout.padded_size(theta.shape[1])), np.float32)
    padded[:, : theta.shape[1]] = theta / theta.sum(1, keepdims=True)
    x, cells = split.scored, np.zeros(len(split.scored.counts))
    predict_cells(x.indptr, x.words, prepared.rows, padded, cells)
    return float(x.counts @ np.log(cells)), x.num_tokens

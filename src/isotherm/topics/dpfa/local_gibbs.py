r"""What documents say about the parameters of deep Poisson factor analysis: sweeps over a batch.

`prepare` lays parameters out for the kernel, once per batch; `sweep` runs Gibbs sweeps over the documents and returns what
the moves of the parameters need: expected counts, tokens per topic and binary layers of the kept sweeps. Local variables are forgotten
unless their `State` is handed to the next call. `threads` changes the time and nothing else.
"""

from typing import Any, NamedTuple

import numpy as np

from isotherm.topics import counter_rng, distributed, expected_counts, layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import binary_units, kernels
from isotherm.topics.dpfa.model import Parameters
from isotherm.topics.kernels import word_slots

_PER_UNIT = 50e-9


class Prepared(NamedTuple):
    """Parameters as the kernel wants them."""

    rows: np.ndarray
    """Topics, word-major."""
    rates: np.ndarray
    p: np.ndarray
    zero: np.ndarray
    """$(1 - p_k)^{r_k}$: chance of no token if the unit is on."""
    bias: np.ndarray
    r"""$e^{c}$ of every layer, (layers, width); zero beyond the units."""
    up: np.ndarray
    r"""$e^{w}$ with a row per parent, (layers - 1, parents, width)."""
    down: np.ndarray
    r"""$e^{-w}$, likewise."""
    of_child: np.ndarray
    r"""$e^{w}$ with a row per child, (layers - 1, width, parents)."""
    sizes: np.ndarray


class State(NamedTuple):
    """Local variables of documents."""

    assignments: np.ndarray
    """The topic of every token, document by document in the order of words, int32."""
    units: np.ndarray
    """All layers, (documents, layers, width), uint8."""


class Swept(NamedTuple):
    """What sweeps found; averages are over the kept ones."""

    words: np.ndarray
    """The words of the batch in rising order, (present,), int32."""
    word_counts: np.ndarray
    r"""$\mathrm E[n_{kw}]$ for these words, (present, topics), float32; no rows without a tally."""
    intensities: np.ndarray
    r"""$\mathrm E[\theta]$, (documents, topics), float32."""
    counts: np.ndarray
    """$n$, (kept, documents, topics), int32."""
    units: tuple[np.ndarray, ...]
    """Each layer, (kept, documents, units), uint8."""
    state: State
    """Where the last sweep ended."""

    def all_word_counts(self, num_words: int) -> np.ndarray:
        """Lay the counts out for all words, (words, topics), float32."""
        counts = np.zeros((num_words, self.word_counts.shape[1]), np.float32)
        counts[self.words] = self.word_counts
        return counts

    def joined(self, num_words: int) -> "Swept":
        """Put what all processes found together (`isotherm.topics.distributed`); the state stays where it is."""
        return Swept(
            np.arange(num_words, dtype=np.int32),
            distributed.add_counts(self.all_word_counts(num_words), len(self.counts)),
            distributed.join(self.intensities, 0),
            distributed.join(self.counts, 1),
            tuple(distributed.join(layer, 1) for layer in self.units),
            self.state,
        )

    def on_rates(self) -> np.ndarray:
        """Compute the share of units that are on, one number per layer."""
        return np.array([layer.mean() for layer in self.units])


def prepare(
    rows: np.ndarray,
    weights: tuple[np.ndarray, ...],
    biases: tuple[np.ndarray, ...],
    rates: np.ndarray,
    p: np.ndarray,
) -> Prepared:
    """Lay parameters out for the kernel; topics are word-major already."""
    sizes = np.array([len(c) for c in biases])
    width, parents = (
        binary_units.rounded(int(sizes.max())),
        binary_units.rounded(int(max(sizes[1:], default=1))),
    )
    width = max(width, parents)
    if rows.dtype != np.float32 or rows.shape[1] != layout.padded_size(int(sizes[0])):
        raise ValueError(
            f"`rows` must be word-major topics, float32 with {layout.padded_size(int(sizes[0]))} "
            f"columns (see `layout.word_major`), got {rows.dtype} of shape {rows.shape}."
        )
    _check_range(weights, biases)
    bias = np.zeros((len(sizes), width))
    for layer, c in enumerate(biases):
        bias[layer, : len(c)] = np.exp(np.asarray(c, np.float64))
    depth = max(len(weights), 1)  # the kernel is compiled for three axes, used or not
    up, down = np.ones((depth, parents, width)), np.ones((depth, parents, width))
    of_child = np.ones((depth, width, parents))
    for layer, w in enumerate(weights):
        up[layer] = binary_units.exponentials(w.T, (parents, width))
        down[layer] = 1 / up[layer]
        of_child[layer] = up[layer].T
    rates, p = np.asarray(rates, np.float64), np.asarray(p, np.float64)
    zero = np.exp(rates * np.log1p(-p))
    return Prepared(
        rows, layout.padded(rates), layout.padded(p), zero, bias, up, down, of_child, sizes
    )


def prepare_parameters(parameters: Parameters) -> Prepared:
    """Lay parameters out for the kernel."""
    rows = layout.word_major(parameters.topics)
    return prepare(rows, parameters.weights, parameters.biases, parameters.rates, parameters.p)


def _check_range(weights: tuple[np.ndarray, ...], biases: tuple[np.ndarray, ...]) -> None:
    for layer, c in enumerate(biases):
        size = np.abs(c)
        if layer < len(weights):
            size = size + np.abs(weights[layer]).sum(1)
        if layer > 0:
            size = np.maximum(size, np.abs(weights[layer - 1]).sum(0))
        if not size.max() < binary_units.LIMIT:
            raise FloatingPointError(
                f"The weights of layer {layer + 1} have diverged: absolute values at a unit sum to "
                f"{size.max():.3g}, more than {binary_units.LIMIT:.0f}."
            )


def keep_places(sweeps: int, burn_in: int, thin: int) -> np.ndarray:
    """Give the sweeps that are kept a number: every `thin`-th after the burn-in; the others are -1.

    Examples
    --------
    >>> keep_places(5, 2, 2)
    array([-1, -1,  0, -1,  1])
    """
    expected_counts.check_sweeps(sweeps, burn_in)
    if thin < 1:
        raise ValueError(f"`thin` must be at least 1, got {thin}.")
    late = np.arange(sweeps) - burn_in
    return np.where((late >= 0) & (late % thin == 0), late // thin, -1)


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
    kernel: Any = kernels.sweep_documents,
) -> Swept:
    """Run Gibbs sweeps over the documents of a batch.

    Parameters
    ----------
    prepared
        Parameters, as `prepare` lays them out.
    batch
        Documents. A document draws from the stream of its number, `batch.documents`.
    sweeps, burn_in, thin
        Sweeps in all, how many of them are not kept, and that every `thin`-th is kept after that.
    seed, step
        Which random numbers; a step of a chain is a step of the stream.
    state
        Go on from here, of an earlier call on the same documents; it is not changed. Without it layers are drawn from
        their prior and a sweep fills in assignments.
    tally
        Whether counts of words are wanted.
    threads
        At most so many threads.
    kernel
        What sweeps: that of a belief network, or `isotherm.topics.dpfa.boltzmann_kernels.sweep_documents`.
    """
    if prepared.rows.shape[0] != batch.num_words:
        raise ValueError(f"`batch` has {batch.num_words} words, topics {len(prepared.rows)}.")
    keeps, starts = keep_places(sweeps, burn_in, thin), batch.token_starts
    kept, size = int(keeps.max()) + 1, len(prepared.rates)
    state, fresh = _start(prepared, batch, state), state is None
    words, slots = np.empty(0, np.int32), np.empty(0, np.int32)
    if tally:
        words, slots = word_slots(batch.words, batch.num_words)
    theta = np.zeros((len(batch), size), np.float32)
    counts = np.empty((kept, len(batch), prepared.sizes[0]), np.int32)
    layers = np.empty((kept, *state.units.shape), np.uint8)
    streams = counter_rng.streams(counter_rng.purpose_key(seed, "gibbs"), step, batch.documents)
    tallies = []

    def work(first: int, last: int) -> None:
        mine = np.zeros((len(words), size), np.float32)
        kernel(
            first,
            last,
            batch.indptr,
            batch.words,
            batch.counts,
            slots,
            streams,
            starts,
            *prepared,
            state.assignments,
            state.units,
            int(fresh),
            keeps,
            theta,
            counts,
            layers,
            mine,
        )
        tallies.append(mine)

    per_document = _PER_UNIT * prepared.sizes[1:].sum() * len(keeps)
    seconds = expected_counts.token_seconds(int(starts[-1]), len(keeps), size)
    seconds += per_document * len(batch)
    expected_counts.in_threads(work, starts, seconds, threads)
    topics = int(prepared.sizes[0])
    found = tallies[0] if len(tallies) == 1 else np.sum(tallies, axis=0)
    return Swept(
        words,
        found[:, :topics] / np.float32(kept),
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

r"""Gibbs sweeps over the local variables of a batch, given the parameters of the model.

`prepare` converts parameters to the kernel's layout, once per batch; `sweep` runs Gibbs sweeps over
the documents and returns what the updates of the parameters need: expected counts, tokens per topic
and binary layers of the kept sweeps. Local variables are discarded unless their `LocalState` is
passed to the next call. The number of threads does not change the results.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from isotherm.topics import counter_rng, distributed, expected_counts, layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import binary_units, kernels
from isotherm.topics.dpfa.model import Parameters
from isotherm.topics.kernels import distinct_words
from isotherm.topics.state import StateDict

_SECONDS_PER_UNIT = 50e-9


class KernelParameters(NamedTuple):
    """Parameters in the kernel's layout."""

    rows: np.ndarray
    """Topics, word-major."""
    rates: np.ndarray
    p: np.ndarray
    prob_no_tokens: np.ndarray
    """$(1 - p_k)^{r_k}$: probability of no tokens if the unit is on."""
    bias: np.ndarray
    r"""$e^{c}$ of every layer, (layers, width); padded with zeros."""
    up: np.ndarray
    r"""$e^{w}$ with one row per parent, (layers - 1, parents, width)."""
    down: np.ndarray
    r"""$e^{-w}$ with one row per parent."""
    of_child: np.ndarray
    r"""$e^{w}$ with one row per child, (layers - 1, width, parents)."""
    sizes: np.ndarray
    """Units per layer."""


class LocalState(NamedTuple):
    """Local variables of documents."""

    assignments: np.ndarray
    """Topic of every token, by document and word, int32."""
    units: np.ndarray
    """Units of all layers, (documents, layers, width), uint8."""


def local_state_dict(state: LocalState | None) -> StateDict:
    """Return local variables as arrays by name; an empty dictionary for `None`."""
    if state is None:
        return {}
    return {"assignments": state.assignments.copy(), "units": state.units.copy()}


def load_local_state(state: Mapping[str, np.ndarray]) -> LocalState | None:
    """Return the local variables in a state that contains `local_state_dict`, or `None`."""
    if "units" not in state:
        return None
    return LocalState(state["assignments"].copy(), state["units"].copy())


class SweepResult(NamedTuple):
    """Result of Gibbs sweeps over a batch; expectations are means over the kept sweeps."""

    words: np.ndarray
    """Distinct words of the batch in increasing order, int32; none without `count_words`."""
    word_counts: np.ndarray
    r"""$\mathrm E[n_{kw}]$, (distinct words, topics), float32; no rows without `count_words`."""
    intensities: np.ndarray
    r"""$\mathrm E[\theta]$, (documents, topics), float32."""
    counts: np.ndarray
    """$n$, tokens per topic, (kept, documents, topics), int32."""
    units: tuple[np.ndarray, ...]
    """Units of each layer, (kept, documents, units), uint8."""
    state: LocalState
    """Local variables after the last sweep."""

    def all_word_counts(self, num_words: int) -> np.ndarray:
        """Return the expected counts for the whole vocabulary, (words, topics), float32."""
        counts = np.zeros((num_words, self.word_counts.shape[1]), np.float32)
        counts[self.words] = self.word_counts
        return counts

    def all_gather(self, num_words: int) -> "SweepResult":
        """Return the combined results of all processes, with the state of this process.

        All processes must call it (`isotherm.topics.distributed`).
        """
        return SweepResult(
            np.arange(num_words, dtype=np.int32),
            distributed.all_reduce_counts(self.all_word_counts(num_words), len(self.counts)),
            distributed.all_concatenate(self.intensities, 0),
            distributed.all_concatenate(self.counts, 1),
            tuple(distributed.all_concatenate(layer, 1) for layer in self.units),
            self.state,
        )

    def on_rates(self) -> np.ndarray:
        """Compute the fraction of units that are on, one number per layer."""
        return np.array([layer.mean() for layer in self.units])


def prepare(
    rows: np.ndarray,
    weights: tuple[np.ndarray, ...],
    biases: tuple[np.ndarray, ...],
    rates: np.ndarray,
    p: np.ndarray,
) -> KernelParameters:
    """Convert parameters to the kernel's layout; topics are already word-major."""
    sizes = np.array([len(c) for c in biases])
    parents = layout.padded_size(int(max(sizes[1:], default=1)))
    width = max(layout.padded_size(int(sizes.max())), parents)
    if rows.dtype != np.float32 or rows.shape[1] != layout.padded_size(int(sizes[0])):
        raise ValueError(
            f"`rows` must be word-major topics, float32 with {layout.padded_size(int(sizes[0]))} "
            f"columns (see `layout.word_major`), got {rows.dtype} of shape {rows.shape}."
        )
    _check_range(weights, biases)
    bias = np.zeros((len(sizes), width))
    for layer, c in enumerate(biases):
        bias[layer, : len(c)] = np.exp(np.asarray(c, np.float64))
    depth = max(len(weights), 1)  # the kernel needs arrays with three axes
    up, down = np.ones((depth, parents, width)), np.ones((depth, parents, width))
    of_child = np.ones((depth, width, parents))
    for layer, w in enumerate(weights):
        up[layer] = binary_units.exponentials(w.T, (parents, width))
        down[layer] = 1 / up[layer]
        of_child[layer] = up[layer].T
    rates, p = np.asarray(rates, np.float64), np.asarray(p, np.float64)
    prob_no_tokens = np.exp(rates * np.log1p(-p))
    return KernelParameters(
        rows,
        layout.padded(rates),
        layout.padded(p),
        prob_no_tokens,
        bias,
        up,
        down,
        of_child,
        sizes,
    )


def prepare_parameters(parameters: Parameters) -> KernelParameters:
    """Convert parameters to the kernel's layout."""
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
                f"The weights of layer {layer + 1} have diverged: the absolute values at a unit "
                f"sum to {size.max():.3g}, more than {binary_units.LIMIT:.0f}."
            )


def kept_sweep_index(sweeps: int, burn_in: int, thin: int) -> np.ndarray:
    """Return the index of each sweep among the kept ones, -1 for those that are not kept.

    Every `thin`-th sweep after the burn-in is kept.

    Examples
    --------
    >>> kept_sweep_index(5, 2, 2)
    array([-1, -1,  0, -1,  1])
    """
    expected_counts.check_sweeps(sweeps, burn_in)
    if thin < 1:
        raise ValueError(f"`thin` must be at least 1, got {thin}.")
    after = np.arange(sweeps) - burn_in
    return np.where((after >= 0) & (after % thin == 0), after // thin, -1)


def sweep(
    prepared: KernelParameters,
    batch: Corpus,
    *,
    sweeps: int = 25,
    burn_in: int = 20,
    thin: int = 2,
    seed: int,
    step: int = 0,
    state: LocalState | None = None,
    count_words: bool = True,
    threads: int = 1,
    kernel: Any = kernels.sweep_documents,
) -> SweepResult:
    """Run Gibbs sweeps over the documents of a batch.

    Parameters
    ----------
    prepared
        Parameters, as returned by `prepare`.
    batch
        Documents. A document uses the random stream of its number, `batch.documents`.
    sweeps, burn_in, thin
        Number of sweeps, how many of them are discarded, and the interval between kept sweeps
        after that.
    seed, step
        Seed, and the step of the chain: they determine the random numbers.
    state
        State to continue from, of an earlier call on the same documents; not modified. Without it
        layers are drawn from their prior and a first sweep initializes the assignments.
    count_words
        Whether to compute expected counts of words.
    threads
        Maximum number of threads.
    kernel
        Compiled sweep: by default that of the belief network; that of the Boltzmann machine is
        `isotherm.topics.dpfa.boltzmann_kernels.sweep_documents`.
    """
    if prepared.rows.shape[0] != batch.num_words:
        raise ValueError(
            f"`batch` has {batch.num_words} words, but the topics have {len(prepared.rows)}."
        )
    kept_index, starts = kept_sweep_index(sweeps, burn_in, thin), batch.token_starts
    kept, size = int(kept_index.max()) + 1, len(prepared.rates)
    state, fresh = _initial_state(prepared, batch, state), state is None
    words, word_rows = np.empty(0, np.int32), np.empty(0, np.int32)
    if count_words:
        words, word_rows = distinct_words(batch.words, batch.num_words)
    theta = np.zeros((len(batch), size), np.float32)
    counts = np.empty((kept, len(batch), prepared.sizes[0]), np.int32)
    layers = np.empty((kept, *state.units.shape), np.uint8)
    streams = counter_rng.streams(counter_rng.purpose_key(seed, "gibbs"), step, batch.documents)
    sums = expected_counts.ThreadSum()

    def work(first: int, last: int) -> None:
        word_topics = np.zeros((len(words), size), np.float32)
        kernel(
            first,
            last,
            batch.indptr,
            batch.words,
            batch.counts,
            word_rows,
            streams,
            starts,
            *prepared,
            state.assignments,
            state.units,
            int(fresh),
            kept_index,
            theta,
            counts,
            layers,
            word_topics,
        )
        sums.add(word_topics)

    per_document = _SECONDS_PER_UNIT * prepared.sizes[1:].sum() * len(kept_index)
    seconds = expected_counts.token_seconds(int(starts[-1]), len(kept_index), size)
    seconds += per_document * len(batch)
    expected_counts.run_in_threads(work, starts, seconds, threads)
    topics = int(prepared.sizes[0])
    return SweepResult(
        words,
        sums.total[:, :topics] / np.float32(kept),
        theta[:, :topics] / np.float32(kept),
        counts,
        tuple(layers[:, :, i, :n] for i, n in enumerate(prepared.sizes)),
        state,
    )


def _initial_state(
    prepared: KernelParameters, batch: Corpus, state: LocalState | None
) -> LocalState:
    shape = (len(batch), len(prepared.sizes), prepared.bias.shape[1])
    if state is None:
        return LocalState(np.full(batch.num_tokens, -1, np.int32), np.zeros(shape, np.uint8))
    if len(state.assignments) != batch.num_tokens or state.units.shape != shape:
        raise ValueError("`state` belongs to other documents or other layers.")
    return LocalState(state.assignments.copy(), state.units.copy())

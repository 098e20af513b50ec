r"""Expected counts of a batch and topic proportions of documents, given topics.

For given topics $\phi$ (word-major, `isotherm.topics.layout`) and documents $S$:

- `gibbs_counts` estimates $\mathrm E[n_{kw}] = \sum_{j \in S} \mathrm E[n_{jkw}]$ for the words
  that occur in the batch, and $\mathrm E[n_{jk}]$ for each document. The gradient of LDA's log
  posterior needs the first and its sum over words; Poisson factor analysis needs the same two
  quantities.
- `fold_in` estimates proportions $\theta_j = (\alpha + \mathrm E[n_j]) / (\sum_k \alpha_k + N_j)$
  by the same sweeps. This is the posterior mean of $\theta_j$, so $\sum_k\theta_{jk}\phi_{kw}$ is
  the predictive probability of another word.
- `fold_in_fixed_point` computes a $\theta_j$ without random numbers: the fixed point of
  $g_k = \alpha_k + \sum_w n_w\,g_k\phi_{kw} / \sum_l g_l\phi_{lw}$, normalized, which is the
  maximum of $p(\theta \mid w)$ in the softmax parametrization (Dirichlet with $\alpha + 1$).

The number of threads does not change the results. Threads are started only if there is enough work.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np

from isotherm.topics import counter_rng, kernels, layout
from isotherm.topics.corpus import Corpus

MIN_THREADED_SECONDS = 20e-3
"""A call whose estimated time is shorter uses one thread. Measured on two busy cores."""
MAX_CALL_SECONDS = 0.5
"""Longest estimated time of a compiled call; Ctrl-C has no effect until the call returns."""
_SECONDS_PER_TOKEN, _SECONDS_PER_BLOCK = 35e-9, 4e-9


class BatchCounts(NamedTuple):
    """Counts averaged over the kept sweeps."""

    words: np.ndarray
    """The distinct words of the batch in increasing order, (distinct words,), int32."""
    counts: np.ndarray
    r"""$\mathrm E[n_{kw}]$ for these words, (distinct words, topics), float32."""
    doc_topics: np.ndarray
    r"""$\mathrm E[n_{jk}]$, (documents, topics), float32."""
    assignments: np.ndarray
    """Topic of every token after the last sweep, by document and word, int32."""


class Proportions(NamedTuple):
    """Topic proportions of documents, and the assignments they were estimated from."""

    theta: np.ndarray
    """(documents, topics), rows that sum to 1, float32."""
    assignments: np.ndarray
    """As in `BatchCounts`; empty if none were drawn."""


def gibbs_counts(
    topics: np.ndarray,
    batch: Corpus,
    alpha: np.ndarray,
    *,
    sweeps: int,
    burn_in: int,
    seed: int,
    step: int = 0,
    threads: int = 1,
) -> BatchCounts:
    r"""Average the counts of topics over Gibbs sweeps on a batch of documents.

    Parameters
    ----------
    topics
        $\phi$, (words, padded), word-major float32 as returned by `layout.word_major`; every topic
        sums to 1.
    batch
        Documents. A document uses the random stream of its number (`batch.documents`); documents
        with the same number get the same random numbers.
    alpha
        $\alpha$, (topics,), positive.
    sweeps
        Gibbs sweeps, after one that initializes the assignments.
    burn_in
        Number of sweeps at the start that are discarded; less than `sweeps`.
    seed, step
        Seed, and the step of the chain: they determine the random numbers.
    threads
        Maximum number of threads.
    """
    check_sweeps(sweeps, burn_in)
    tokens = _TokenSweeper(topics, batch, alpha)
    words, word_rows = kernels.distinct_words(batch.words, batch.num_words)
    starts = counter_rng.streams(counter_rng.purpose_key(seed, "gibbs"), step, batch.documents)
    assignments = np.full(tokens.total, -1, np.int32)
    word_topics, doc_topics = tokens.sweep(
        starts,
        assignments,
        sweeps,
        burn_in,
        word_rows=word_rows,
        num_distinct=len(words),
        threads=threads,
    )
    kept, num_topics = np.float32(sweeps - burn_in), len(alpha)
    word_topics /= kept
    doc_topics /= kept
    return BatchCounts(words, word_topics[:, :num_topics], doc_topics[:, :num_topics], assignments)


def fold_in(
    topics: np.ndarray,
    documents: Corpus,
    alpha: np.ndarray,
    *,
    sweeps: int,
    burn_in: int,
    seed: int,
    step: int = 0,
    assignments: np.ndarray | None = None,
    threads: int = 1,
) -> Proportions:
    r"""Estimate the proportions of documents by Gibbs sweeps.

    Parameters
    ----------
    topics, alpha, sweeps, burn_in, seed, step, threads
        As in `gibbs_counts`.
    documents
        Observed tokens. An empty document gets the mean of the prior.
    assignments
        Assignments to continue from, of an earlier call on the same documents; not modified.
    """
    check_sweeps(sweeps, burn_in)
    tokens = _TokenSweeper(topics, documents, alpha)
    starts = counter_rng.streams(counter_rng.purpose_key(seed, "gibbs"), step, documents.documents)
    fresh = assignments is None
    assignments = np.full(tokens.total, -1, np.int32) if fresh else assignments.copy()
    if len(assignments) != tokens.total:
        raise ValueError(
            f"`assignments` must have one number per token, {tokens.total}, got {len(assignments)}."
        )
    _, n = tokens.sweep(
        starts, assignments, sweeps, burn_in, init_sweeps=int(fresh), threads=threads
    )
    theta = n[:, : len(alpha)] / np.float32(sweeps - burn_in) + np.asarray(alpha, np.float32)
    return Proportions(theta / theta.sum(1, keepdims=True), assignments)


def fold_in_fixed_point(
    topics: np.ndarray,
    documents: Corpus,
    alpha: np.ndarray,
    *,
    limit: int = 100,
    tolerance: float = 1e-3,
    threads: int = 1,
) -> Proportions:
    """Compute the proportions of documents by a fixed-point iteration.

    Parameters
    ----------
    topics, documents, alpha, threads
        As in `fold_in`.
    limit
        Maximum number of iterations.
    tolerance
        Stop when no topic of a document changes by more than this number of tokens.
    """
    tokens = _TokenSweeper(topics, documents, alpha)
    x, out = documents, np.empty((len(documents), len(tokens.alpha)), np.float32)

    def work(first: int, last: int) -> None:
        kernels.iterate_proportions(
            first,
            last,
            x.indptr,
            x.words,
            x.counts,
            tokens.topics,
            tokens.alpha,
            limit,
            np.float32(tolerance),
            out,
        )

    tokens.run_in_threads(work, rounds=limit, threads=threads)
    theta = out[:, : len(alpha)]
    return Proportions(theta / theta.sum(1, keepdims=True), np.empty(0, np.int32))


def doc_topic_counts(documents: Corpus, assignments: np.ndarray, num_topics: int) -> np.ndarray:
    """Count the tokens of each topic in each document, (documents, topics), int64.

    Tokens without a topic (-1) are not counted.
    """
    size, given = len(documents), assignments >= 0
    document = np.repeat(np.arange(size), documents.lengths)
    cells = document[given] * num_topics + assignments[given]
    return np.bincount(cells, minlength=size * num_topics).reshape(size, num_topics)


def check_sweeps(sweeps: int, burn_in: int) -> None:
    """Check that the burn-in leaves at least one sweep."""
    if not 0 <= burn_in < sweeps:
        raise ValueError(f"`burn_in` must be at least 0 and less than {sweeps=}, got {burn_in}.")


class _TokenSweeper:
    """Documents with topics over the same words, swept in threads."""

    def __init__(self, topics: np.ndarray, documents: Corpus, alpha: np.ndarray) -> None:
        self.alpha = layout.padded(np.asarray(alpha))
        shape = (documents.num_words, len(self.alpha))
        if topics.dtype != np.float32 or topics.shape != shape or not topics.flags.c_contiguous:
            raise ValueError(
                f"`topics` must be word-major, float32 of shape {shape} (see `layout.word_major`), "
                f"got {topics.dtype} of shape {topics.shape}."
            )
        self.topics, self.documents = topics, documents
        self.token_starts = documents.token_starts
        self.total = int(self.token_starts[-1])

    def sweep(
        self,
        starts: np.ndarray,
        assignments: np.ndarray,
        sweeps: int,
        burn_in: int,
        *,
        init_sweeps: int = 1,
        word_rows: np.ndarray | None = None,
        num_distinct: int = 0,
        threads: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of counts over kept sweeps: by word (with `word_rows`), and by document.

        Each run of documents has its own counts of words. Counts are whole numbers, so the order of
        their sum does not matter.
        """
        x, size, sums = self.documents, len(self.alpha), ThreadSum()
        doc_topics = np.zeros((len(self.documents), size), np.float32)
        word_rows = np.empty(0, np.int32) if word_rows is None else word_rows

        def work(first: int, last: int) -> None:
            word_topics = np.zeros((num_distinct, size), np.float32)
            num_tokens = int(self.token_starts[last] - self.token_starts[first])
            for first_sweep, last_sweep in sweep_runs(-init_sweeps, sweeps, num_tokens, size):
                kernels.sweep_documents(
                    first,
                    last,
                    x.indptr,
                    x.words,
                    x.counts,
                    word_rows,
                    starts,
                    self.token_starts,
                    self.topics,
                    self.alpha,
                    assignments,
                    init_sweeps,
                    first_sweep,
                    last_sweep,
                    burn_in,
                    doc_topics,
                    word_topics,
                )
            sums.add(word_topics)

        self.run_in_threads(work, rounds=init_sweeps + sweeps, threads=threads)
        return sums.total, doc_topics

    def run_in_threads(self, work: Callable[[int, int], None], rounds: int, threads: int) -> None:
        """Divide the documents among threads."""
        seconds = token_seconds(self.total, rounds, len(self.alpha))
        run_in_threads(work, self.token_starts, seconds, threads)


class ThreadSum:
    """Sum of arrays that several threads add; the first array is used as it is, not copied."""

    def __init__(self) -> None:
        self.total = np.empty(0, np.float32)
        self._lock, self._empty = Lock(), True

    def add(self, array: np.ndarray) -> None:
        """Add an array, which the caller must not use afterwards."""
        with self._lock:
            if self._empty:
                self.total, self._empty = array, False
            else:
                self.total += array


def sweep_collapsed(
    tokens: np.ndarray,
    token_starts: np.ndarray,
    assignments: np.ndarray,
    word_topics: np.ndarray,
    totals: np.ndarray,
    alpha: np.ndarray,
    beta: float,
    streams: np.ndarray,
) -> None:
    r"""Run a fully collapsed sweep in place, in runs of documents between which Ctrl-C is noticed.

    Parameters
    ----------
    tokens, token_starts, assignments, word_topics, totals, beta
        As in `isotherm.topics.kernels.sweep_collapsed`.
    alpha
        $\alpha$, (topics,).
    streams
        Starts of the documents' random streams, (documents,).
    """
    prior = layout.padded(alpha)
    seconds = token_seconds(len(tokens), 1, len(prior))
    for first, last in document_runs(token_starts, seconds):
        kernels.sweep_collapsed(
            tokens,
            token_starts[first : last + 1],
            assignments,
            word_topics,
            totals,
            prior,
            np.float32(beta),
            streams[None, first:last],
            1,
        )


def sweep_two_collapsed(
    tokens: np.ndarray,
    token_starts: np.ndarray,
    assignments: Sequence[np.ndarray],
    word_topics: Sequence[np.ndarray],
    totals: Sequence[np.ndarray],
    alphas: Sequence[np.ndarray],
    betas: Sequence[float],
    streams: Sequence[np.ndarray],
) -> None:
    r"""Run a fully collapsed sweep of two chains over the same corpus, as `sweep_collapsed` would.

    Parameters
    ----------
    tokens, token_starts
        As in `sweep_collapsed`.
    assignments, word_topics, totals, alphas, betas, streams
        As in `sweep_collapsed`, pairs.
    """
    priors = tuple(layout.padded(alpha) for alpha in alphas)
    seconds = token_seconds(len(tokens), 2, len(priors[0]))
    for first, last in document_runs(token_starts, seconds):
        kernels.sweep_two_collapsed(
            tokens,
            token_starts[first : last + 1],
            tuple(assignments),
            tuple(word_topics),
            tuple(totals),
            priors,
            tuple(np.float32(beta) for beta in betas),
            tuple(x[first:last] for x in streams),
        )


def token_seconds(num_tokens: int, rounds: int, padded_size: int) -> float:
    """Estimate how long sweeps over tokens take on one thread."""
    return num_tokens * rounds * (_SECONDS_PER_TOKEN + _SECONDS_PER_BLOCK * (padded_size // 16))


def run_in_threads(
    work: Callable[[int, int], None], token_starts: np.ndarray, seconds: float, threads: int
) -> None:
    """Divide documents into runs with about equal numbers of tokens, and process them in threads.

    `work(first, last)` processes a run of documents. `seconds` is the estimated time on one thread;
    if it is short, one thread does everything. Runs are short enough for Ctrl-C to be noticed
    between them.
    """
    if threads < 1:
        raise ValueError(f"`threads` must be at least 1, got {threads}.")
    threads = 1 if seconds < MIN_THREADED_SECONDS else threads
    edges = document_runs(token_starts, seconds, threads)
    if threads == 1:
        for first, last in edges:
            work(first, last)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        for future in [pool.submit(work, *edge) for edge in edges]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def sweep_runs(first: int, last: int, num_tokens: int, padded_size: int) -> list[tuple[int, int]]:
    """Divide sweeps `first` to `last - 1` into runs of at most about twice `MAX_CALL_SECONDS`.

    Runs of documents are short already (`document_runs`), but for a single long document.

    Parameters
    ----------
    first, last
        The first sweep, and the one after the last.
    num_tokens
        Tokens per sweep.
    padded_size
        Number of topics, padded.

    Examples
    --------
    >>> sweep_runs(-1, 3, 10, 16), sweep_runs(-1, 3, 10**7, 16)
    ([(-1, 3)], [(-1, 1), (1, 3)])
    """
    seconds = token_seconds(num_tokens, 1, padded_size)
    number = max(1, int(2 * MAX_CALL_SECONDS / max(seconds, 1e-9)))
    return [(i, min(i + number, last)) for i in range(first, last, number)]


def document_runs(
    token_starts: np.ndarray, seconds: float, least: int = 1
) -> list[tuple[int, int]]:
    """Divide documents into runs of at most about `MAX_CALL_SECONDS`, of similar sizes.

    Parameters
    ----------
    token_starts
        Index of each document's first token, then the total number of tokens.
    seconds
        Estimated time for all documents.
    least
        Least number of runs.

    Examples
    --------
    >>> document_runs(np.array([0, 5, 10, 15, 20]), 4 * MAX_CALL_SECONDS)
    [(0, 1), (1, 2), (2, 3), (3, 4)]
    """
    size, number = len(token_starts) - 1, max(least, int(np.ceil(seconds / MAX_CALL_SECONDS)))
    if number == 1:
        return [(0, size)]
    total = token_starts[-1] - token_starts[0]
    targets = token_starts[0] + np.linspace(0, total, number + 1)[1:-1]
    cuts = np.unique(np.searchsorted(token_starts, targets)).tolist()
    return list(pairwise([0, *(cut for cut in cuts if 0 < cut < size), size]))

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

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from isotherm.topics import counter_rng, kernels, layout
from isotherm.topics.corpus import Corpus

MIN_THREADED_SECONDS = 20e-3
"""Estimated work below which a call uses one thread. Measured on two busy cores."""
_SECONDS_PER_TOKEN, _SECONDS_PER_BLOCK = 35e-9, 4e-9


class BatchCounts(NamedTuple):
    """Counts averaged over the kept sweeps."""

    words: np.ndarray
    """The words of the batch in rising order, (present,), int32."""
    counts: np.ndarray
    r"""$\mathrm E[n_{kw}]$ for these words, (present, topics), float32."""
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
        Number of first sweeps that are discarded; less than `sweeps`.
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
        """Sum counts over kept sweeps: by word (if `word_rows` are given) and by document.

        Each thread has its own counts of words. Counts are whole numbers, so the order of their sum
        does not matter.
        """
        x, size = self.documents, len(self.alpha)
        doc_topics = np.zeros((len(self.documents), size), np.float32)
        word_rows, per_thread = np.empty(0, np.int32) if word_rows is None else word_rows, []

        def work(first: int, last: int) -> None:
            word_topics = np.zeros((num_distinct, size), np.float32)
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
                sweeps,
                burn_in,
                doc_topics,
                word_topics,
            )
            per_thread.append(word_topics)

        self.run_in_threads(work, rounds=init_sweeps + sweeps, threads=threads)
        return (per_thread[0] if len(per_thread) == 1 else np.sum(per_thread, axis=0)), doc_topics

    def run_in_threads(self, work: Callable[[int, int], None], rounds: int, threads: int) -> None:
        """Divide the documents among threads."""
        seconds = token_seconds(self.total, rounds, len(self.alpha))
        run_in_threads(work, self.token_starts, seconds, threads)


def token_seconds(num_tokens: int, rounds: int, padded_size: int) -> float:
    """Estimate how long sweeps over tokens take on one thread."""
    return num_tokens * rounds * (_SECONDS_PER_TOKEN + _SECONDS_PER_BLOCK * (padded_size // 16))


def run_in_threads(
    work: Callable[[int, int], None], token_starts: np.ndarray, seconds: float, threads: int
) -> None:
    """Divide documents into runs with about equal numbers of tokens, one per thread.

    `work(first, last)` processes a run of documents. `seconds` is the estimated time on one thread;
    if it is short, one thread does everything.
    """
    if threads < 1:
        raise ValueError(f"`threads` must be at least 1, got {threads}.")
    size = len(token_starts) - 1
    if threads == 1 or seconds < MIN_THREADED_SECONDS:
        work(0, size)
        return
    cuts = np.searchsorted(token_starts, np.linspace(0, token_starts[-1], threads + 1)[1:-1])
    edges = [0, *cuts.tolist(), size]
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work, *edge) for edge in pairwise(edges)]:
            future.result()

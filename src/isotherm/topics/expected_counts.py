r"""What documents say about topics: expected counts of a batch, proportions of a document.

For given topics $\phi$ (word-major, `isotherm.topics.layout`) and documents $S$:

- `gibbs_counts` estimates $\mathrm E[n_{kw}] = \sum_{j \in S} \mathrm E[n_{jkw}]$, for the words that occur in the batch
  and no others, and $\mathrm E[n_{jk}]$ for each document. The gradient of LDA's log posterior needs
  the first and its sum over words; count splitting in Poisson factor analysis gives the same two.
- `fold_in` estimates proportions $\theta_j = (\alpha + \mathrm E[n_j]) / (\sum_k \alpha_k + N_j)$ by the same sweeps.
  It is the posterior mean of $\theta_j$, so that $\sum_k\theta_{jk}\phi_{kw}$ is the predictive probability of a
  further word.
- `fold_in_fixed_point` finds a $\theta_j$ without random numbers: the fixed point of
  $g_k = \alpha_k + \sum_w n_w\,g_k\phi_{kw} / \sum_l g_l\phi_{lw}$, normalised, which is the maximum of
  $p(\theta \mid w)$ in the softmax parametrisation (Dirichlet with $\alpha + 1$).

`threads` changes the time and nothing else. Threads start only where they pay.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from isotherm.topics import counter_rng, kernels, layout
from isotherm.topics.corpus import Corpus

WORTH_A_THREAD = 20e-3
"""Seconds of work below which a call stays in one thread. Measured on two busy cores."""
_PER_TOKEN, _PER_BLOCK = 35e-9, 4e-9


class BatchCounts(NamedTuple):
    """Counts averaged over the sweeps that were kept."""

    words: np.ndarray
    """The words of the batch in rising order, (present,), int32."""
    counts: np.ndarray
    r"""$\mathrm E[n_{kw}]$ for these words, (present, topics), float32."""
    doc_topics: np.ndarray
    r"""$\mathrm E[n_{jk}]$, (documents, topics), float32."""
    assignments: np.ndarray
    """The topic of every token in the end, document by document in the order of words, int32."""


class Proportions(NamedTuple):
    """Topic proportions of documents, and the assignments behind them."""

    theta: np.ndarray
    """(documents, topics), rows that sum to 1, float32."""
    assignments: np.ndarray
    """As in `BatchCounts`; empty where none were drawn."""


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
        $\phi$, (words, padded), word-major float32 as `layout.word_major` makes it; every topic sums to 1.
    batch
        Documents. A document draws from the stream of its number, `batch.documents`: twice in one batch
        means the same numbers twice.
    alpha
        $\alpha$, (topics,), positive.
    sweeps
        Gibbs sweeps, after one that fills in first assignments.
    burn_in
        How many of them are not averaged; fewer than `sweeps`.
    seed, step
        Which random numbers; a step of a chain is a step of the stream.
    threads
        At most so many threads.
    """
    check_sweeps(sweeps, burn_in)
    tokens = _Tokens(topics, batch, alpha)
    words, slots = kernels.word_slots(batch.words, batch.num_words)
    starts = counter_rng.streams(counter_rng.purpose_key(seed, "gibbs"), step, batch.documents)
    assignments = np.full(tokens.total, -1, np.int32)
    tally, doc_topics = tokens.sweep(
        starts, assignments, sweeps, burn_in, slots=slots, num_slots=len(words), threads=threads
    )
    kept, num_topics = np.float32(sweeps - burn_in), len(alpha)
    tally /= kept
    doc_topics /= kept
    return BatchCounts(words, tally[:, :num_topics], doc_topics[:, :num_topics], assignments)


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
        What is observed of them. An empty document has the prior's mean.
    assignments
        Go on from these, of an earlier call on the same documents; they are not changed.
    """
    check_sweeps(sweeps, burn_in)
    tokens = _Tokens(topics, documents, alpha)
    starts = counter_rng.streams(counter_rng.purpose_key(seed, "gibbs"), step, documents.documents)
    fresh = assignments is None
    assignments = np.full(tokens.total, -1, np.int32) if fresh else assignments.copy()
    if len(assignments) != tokens.total:
        raise ValueError(
            f"`assignments` must have one number per token, {tokens.total}, got {len(assignments)}."
        )
    _, n = tokens.sweep(starts, assignments, sweeps, burn_in, fills=int(fresh), threads=threads)
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
    """Find the proportions of documents by a fixed-point iteration.

    Parameters
    ----------
    topics, documents, alpha, threads
        As in `fold_in`.
    limit
        Rounds at most.
    tolerance
        Stop when no topic of a document gains or loses more than so many tokens in a round.
    """
    tokens = _Tokens(topics, documents, alpha)
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

    tokens.in_threads(work, rounds=limit, threads=threads)
    theta = out[:, : len(alpha)]
    return Proportions(theta / theta.sum(1, keepdims=True), np.empty(0, np.int32))


def check_sweeps(sweeps: int, burn_in: int) -> None:
    """Refuse a burn-in that leaves nothing."""
    if not 0 <= burn_in < sweeps:
        raise ValueError(f"`burn_in` must be at least 0 and less than {sweeps=}, got {burn_in}.")


class _Tokens:
    """Documents and topics that fit together, and how their work is cut into threads."""

    def __init__(self, topics: np.ndarray, documents: Corpus, alpha: np.ndarray) -> None:
        self.alpha = layout.padded(np.asarray(alpha))
        shape = (documents.num_words, len(self.alpha))
        if topics.dtype != np.float32 or topics.shape != shape or not topics.flags.c_contiguous:
            raise ValueError(
                f"`topics` must be word-major, float32 of shape {shape} (see `layout.word_major`), got "
                f"{topics.dtype} of shape {topics.shape}."
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
        fills: int = 1,
        slots: np.ndarray | None = None,
        num_slots: int = 0,
        threads: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sum counts over kept sweeps: by word (if `slots` are given) and by document.

        Each thread counts words by itself; counts are whole numbers, so their sum has no order.
        """
        x, size = self.documents, len(self.alpha)
        doc_topics = np.zeros((len(self.documents), size), np.float32)
        slots, tallies = np.empty(0, np.int32) if slots is None else slots, []

        def work(first: int, last: int) -> None:
            tally = np.zeros((num_slots, size), np.float32)
            kernels.sweep_documents(
                first,
                last,
                x.indptr,
                x.words,
                x.counts,
                slots,
                starts,
                self.token_starts,
                self.topics,
                self.alpha,
                assignments,
                fills,
                sweeps,
                burn_in,
                doc_topics,
                tally,
            )
            tallies.append(tally)

        self.in_threads(work, rounds=fills + sweeps, threads=threads)
        return (tallies[0] if len(tallies) == 1 else np.sum(tallies, axis=0)), doc_topics

    def in_threads(self, work: Callable[[int, int], None], rounds: int, threads: int) -> None:
        """Cut the documents into runs of about equal length, one per thread."""
        seconds = token_seconds(self.total, rounds, len(self.alpha))
        in_threads(work, self.token_starts, seconds, threads)


def token_seconds(num_tokens: int, rounds: int, padded_size: int) -> float:
    """Guess how long sweeps over tokens take."""
    return num_tokens * rounds * (_PER_TOKEN + _PER_BLOCK * (padded_size // 16))


def in_threads(
    work: Callable[[int, int], None], token_starts: np.ndarray, seconds: float, threads: int
) -> None:
    """Cut documents into runs of about equal length, one per thread, if the work is worth it.

    `work(first, last)` gets a run of documents; `seconds` is how long one thread would take for all.
    """
    if threads < 1:
        raise ValueError(f"`threads` must be at least 1, got {threads}.")
    size = len(token_starts) - 1
    if threads == 1 or seconds < WORTH_A_THREAD:
        work(0, size)
        return
    cuts = np.searchsorted(token_starts, np.linspace(0, token_starts[-1], threads + 1)[1:-1])
    edges = [0, *cuts.tolist(), size]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, *edge) for edge in pairwise(edges)]:
            done.result()

"""Ways to read draws of topics: shares with intervals, words with the probability that they belong."""

from typing import Any, NamedTuple

import numpy as np

from isotherm.topics import counter_rng, layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.expected_counts import fold_in


class TopicShares(NamedTuple):
    """Shares of topics, with the ends of credible intervals."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class TopWord(NamedTuple):
    """A word of a topic."""

    word: Any
    """The word, or its column if there are no names."""
    probability: float
    """Its posterior mean in the topic."""
    membership: float
    """In how many of the draws it is among the topic's top words."""


def topic_shares(
    draws: np.ndarray,
    corpus: Corpus,
    alpha: np.ndarray,
    *,
    level: float,
    per_document: bool,
    sweeps: int,
    burn_in: int,
    seed: int,
    threads: int,
) -> TopicShares:
    r"""Draw the proportions of documents for every draw of the topics, and summarise.

    Words are assigned by Gibbs sweeps, then $\theta_j \sim \mathrm{Dir}(\alpha + n_j)$.
    """
    shares, size = [], (len(corpus), len(alpha))
    document = np.repeat(np.arange(len(corpus)), corpus.lengths)
    for i, topics in enumerate(draws):
        z = fold_in(
            layout.word_major(topics),
            corpus,
            alpha,
            sweeps=sweeps,
            burn_in=burn_in,
            seed=seed,
            step=i,
            threads=threads,
        ).assignments
        n = np.bincount(document * size[1] + z, minlength=size[0] * size[1])
        rng = counter_rng.generator(seed, "topics", -2 - i)
        theta = rng.standard_gamma(n.reshape(size) + alpha)
        theta /= theta.sum(1, keepdims=True)
        shares.append(theta if per_document else theta.mean(0))
    found, tail = np.array(shares), (1 - level) / 2
    return TopicShares(found.mean(0), *np.quantile(found, [tail, 1 - tail], axis=0))


def top_words(
    mean: np.ndarray, draws: np.ndarray, num_words: int, names: Any
) -> list[list[TopWord]]:
    """List the words that are most probable in the mean, and count the draws in which they are on top.

    Words without any probability are not listed.
    """
    size, found = min(num_words, mean.shape[1]), []
    ranked = np.argpartition(-draws, size - 1, axis=2)[:, :, :size]
    for k, topic in enumerate(mean):
        votes = np.bincount(ranked[:, k].ravel(), minlength=len(topic)) / len(ranked)
        words = np.argsort(-topic)[:size]
        found.append(
            [
                TopWord(int(w) if names is None else names[w], float(topic[w]), float(votes[w]))
                for w in words
                if topic[w] > 0
            ]
        )
    return found

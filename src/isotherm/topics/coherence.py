r"""Coherence of topics: whether their top words occur together.

Normalised pointwise mutual information over documents of a reference corpus, for two words $a, b$ of the
top words of a topic,

$$ \mathrm{NPMI}(a, b) = \log\frac{p(a, b)}{p(a)\,p(b)} \Big/ {-\log p(a, b)} \in [-1, 1], $$

where $p$ is the share of documents with the word, or with both. It is 1 for words that only occur together, 0 for
independent ones, and $-1$ for words never seen together (the limit; a word that never occurs is among
these). Two words that are in every document say nothing: 0. A topic's coherence is the mean over its pairs.

References
----------
Bouma (2009), *Normalized (pointwise) mutual information in collocation extraction*.
Lau, Newman & Baldwin (2014), *Machine reading tea leaves*, EACL.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from isotherm.topics.corpus import Corpus


class Coherence(NamedTuple):
    """Coherence of each topic."""

    per_topic: np.ndarray
    """(topics,)."""
    num_words: int
    """Top words per topic."""
    num_documents: int
    """Documents of the reference."""

    @property
    def mean(self) -> float:
        """Mean over topics."""
        return float(self.per_topic.mean())


def top_words(topics: Any, num_words: int = 10) -> np.ndarray:
    """List the most probable words of each topic, most probable first, (topics, num_words).

    Examples
    --------
    >>> top_words(np.array([[0.1, 0.6, 0.3]]), 2)
    array([[1, 2]])
    """
    topics = np.asarray(topics)
    if not 1 <= num_words <= topics.shape[1]:
        raise ValueError(f"`num_words` must be from 1 to {topics.shape[1]}, got {num_words}.")
    return np.argsort(-topics, axis=1, kind="stable")[:, :num_words]


def npmi(topics: Any, reference: Corpus | Iterable[Corpus], *, num_words: int = 10) -> Coherence:
    """Compute the coherence of topics.

    Parameters
    ----------
    topics
        (topics, words).
    reference
        Documents over the same words: a corpus, or its batches as a stream gives them.
    num_words
        Top words per topic, at least 2.
    """
    if num_words < 2:
        raise ValueError(f"`num_words` must be at least 2, got {num_words}.")
    top = top_words(topics, num_words)
    words, places = np.unique(top, return_inverse=True)
    together, documents = _co_occurrence(words, reference, np.shape(topics)[1])
    first, second = np.triu_indices(num_words, 1)
    places = places.reshape(top.shape)
    joint = np.asarray(together[places[:, first].ravel(), places[:, second].ravel()]).ravel()
    alone = together.diagonal()
    product = (alone[places[:, first]] * alone[places[:, second]]).ravel()
    values = _npmi(joint / documents, product / documents**2).reshape(len(top), -1)
    return Coherence(values.mean(1), num_words, documents)


def _npmi(joint: np.ndarray, product: np.ndarray) -> np.ndarray:
    values = np.full(joint.shape, -1.0)
    seen = joint > 0
    information = -np.log(joint[seen])
    ratio = np.log(joint[seen] / product[seen])
    values[seen] = np.divide(ratio, information, np.zeros_like(ratio), where=information > 0)
    return values


def _co_occurrence(
    words: np.ndarray, reference: Corpus | Iterable[Corpus], size: int
) -> tuple[sparse.csr_array, int]:
    """Count documents with both of two words, for the given words only."""
    column = np.full(size, -1)
    column[words] = np.arange(len(words))
    together, documents = sparse.csr_array((len(words), len(words)), dtype=np.int64), 0
    for batch in [reference] if isinstance(reference, Corpus) else reference:
        if batch.num_words != size:
            raise ValueError(
                f"`reference` has {batch.num_words} words, but the topics have {size}."
            )
        kept = column[batch.words] >= 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[batch.indptr]
        shape = (len(batch), len(words))
        ones = np.ones(kept.sum(), np.int64)
        present = sparse.csr_array((ones, column[batch.words[kept]], indptr), shape=shape)
        together = together + present.T @ present
        documents += len(batch)
    if documents == 0:
        raise ValueError("`reference` has no documents.")
    return sparse.csr_array(together), documents

r"""Coherence of topics: whether their top words occur in the same documents.

Normalized pointwise mutual information over the documents of a reference corpus, for two of the top
words of a topic $a, b$,

$$ \mathrm{NPMI}(a, b) = \log\frac{p(a, b)}{p(a)\,p(b)} \Big/ {-\log p(a, b)} \in [-1, 1], $$

where $p$ is the fraction of documents that contain the word, or both words. It is 1 for words that
only occur together, 0 for independent words and for two words that are in every document, and $-1$
for words that never occur together (the limit; this includes words that never occur). A topic's
coherence is the mean over its pairs.

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
        Documents over the same words: a corpus, or an iterable of batches.
    num_words
        Top words per topic, at least 2.
    """
    if num_words < 2:
        raise ValueError(f"`num_words` must be at least 2, got {num_words}.")
    top = top_words(topics, num_words)
    words, columns = np.unique(top, return_inverse=True)
    joint_counts, documents = _co_occurrence(words, reference, np.shape(topics)[1])
    first, second = np.triu_indices(num_words, 1)
    columns = columns.reshape(top.shape)
    joint = np.asarray(joint_counts[columns[:, first].ravel(), columns[:, second].ravel()]).ravel()
    single = joint_counts.diagonal()
    product = (single[columns[:, first]] * single[columns[:, second]]).ravel()
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
    """Count the documents that contain both words, for all pairs of the given words."""
    column = np.full(size, -1)
    column[words] = np.arange(len(words))
    joint_counts, documents = sparse.csr_array((len(words), len(words)), dtype=np.int64), 0
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
        joint_counts = joint_counts + present.T @ present
        documents += len(batch)
    if documents == 0:
        raise ValueError("`reference` has no documents.")
    return sparse.csr_array(joint_counts), documents

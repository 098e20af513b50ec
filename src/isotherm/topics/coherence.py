r"""Quality of topics: coherence and diversity of their top words, agreement with labels.

Coherence measures whether the top words $w_1, \dots, w_M$ of a topic occur together in a reference.
$p(a)$ and $p(a, b)$ are the fractions of *windows* of the reference that contain a word, or both.
With $\epsilon = 10^{-12}$ and
$\mathrm{npmi}(a, b) = \log\frac{p(a, b) + \epsilon}{p(a)\,p(b)} / {-\log(p(a, b) + \epsilon)}$:

| `measure` | value of a topic | windows |
| --- | --- | --- |
| `"c_v"` | mean over $i$ of $\cos(v_i, \sum_l v_l)$, $v_{ij} = \mathrm{npmi}(w_i, w_j)$ | 110 |
| `"c_npmi"` | mean of $\mathrm{npmi}(w_i, w_j)$ over $i \ne j$ | 10 |
| `"c_uci"` | mean of $\log\frac{p(w_i, w_j) + \epsilon}{p(w_i)\,p(w_j)}$ over $i \ne j$ | 10 |
| `"u_mass"` | mean of $\log\frac{p(w_i, w_j) + \epsilon}{p(w_j)}$ over $j < i$ | documents |
| `"npmi"` | mean of npmi, $\epsilon = 0$; $-1$ for words that never co-occur | documents |

The first four equal those of gensim's `CoherenceModel` on the same texts, and the third column is
its default window, in words. If the reference is a corpus of counts, in which words have no order,
every document is a window. gensim counts sliding windows in a special way, as is done here: when a
word leaves at one end, it counts as absent until it enters again at the other, even if it is still
inside. A pair with a word that never occurs in the reference has the value 0 (`"npmi"`: -1;
`"u_mass"`: 0 only if $w_j$ never occurs).

References
----------
Röder, Both & Hinneburg (2015), *Exploring the space of topic coherence measures*, WSDM.
Mimno et al. (2011), *Optimizing semantic coherence in topic models*, EMNLP.
Bouma (2009), *Normalized (pointwise) mutual information in collocation extraction*.
Lau, Newman & Baldwin (2014), *Machine reading tea leaves*, EACL.
Dieng, Ruiz & Blei (2020), *Topic modeling in embedding spaces*, TACL: diversity.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from isotherm.topics.corpus import Corpus

EPSILON = 1e-12


class Coherence(NamedTuple):
    """Coherence of each topic."""

    per_topic: np.ndarray
    """(topics,)."""
    num_words: int
    """Top words per topic."""
    num_documents: int
    """Number of windows of the reference; of documents, if it is a corpus."""

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


def coherence(
    topics: Any,
    reference: Any,
    *,
    measure: str = "c_v",
    num_words: int = 10,
    window: int | None = None,
    vocabulary: Sequence[str] | None = None,
) -> Coherence:
    """Compute the coherence of topics.

    Parameters
    ----------
    topics
        (topics, words).
    reference
        A corpus over the same words, or an iterable of batches of one, or texts: an iterable of
        lists of words, which need not be in the vocabulary.
    measure
        `"c_v"`, `"c_npmi"`, `"c_uci"`, `"u_mass"` or `"npmi"`.
    num_words
        Top words per topic, at least 2.
    window
        Number of words in a window of a text; by default that of the measure.
    vocabulary
        Names of the columns, needed for texts.

    Examples
    --------
    >>> topics = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
    >>> texts = [["cat", "dog"], ["dog", "cat"], ["bond", "share"], ["share", "bond"]]
    >>> names = ["cat", "dog", "share", "bond"]
    >>> round(coherence(topics, texts, num_words=2, vocabulary=names).mean, 4)
    1.0
    """
    check_measure(measure)
    if num_words < 2:
        raise ValueError(f"`num_words` must be at least 2, got {num_words}.")
    top = top_words(topics, num_words)
    counted = count_windows(
        np.unique(top),
        reference,
        np.shape(topics)[1],
        window=MEASURES[measure].window if window is None else window,
        vocabulary=vocabulary,
    )
    return Coherence(score_words(top, counted, measure), num_words, counted.number)


def npmi(topics: Any, reference: Corpus | Iterable[Corpus], *, num_words: int = 10) -> Coherence:
    """Compute the coherence of topics by NPMI over documents: `measure="npmi"`.

    Parameters
    ----------
    topics
        (topics, words).
    reference
        Documents over the same words: a corpus, or an iterable of batches.
    num_words
        Top words per topic, at least 2.
    """
    return coherence(topics, reference, measure="npmi", num_words=num_words)


def diversity(topics: Any, num_words: int = 25) -> float:
    """Return the fraction of distinct words among the top words of all topics.

    Examples
    --------
    >>> diversity(np.array([[0.6, 0.4, 0.0], [0.6, 0.0, 0.4]]), num_words=2)
    0.75
    """
    top = top_words(topics, min(num_words, np.shape(topics)[1]))
    return len(np.unique(top)) / top.size


class Agreement(NamedTuple):
    """How well the main topics of documents agree with labels."""

    nmi: float
    """Normalized mutual information: 0 for unrelated, 1 for equal partitions."""
    purity: float
    """Fraction of the documents with the most frequent label of their main topic."""


def label_agreement(main_topics: Any, labels: Any) -> Agreement:
    """Compare the main topic of each document with its label.

    Examples
    --------
    >>> label_agreement([0, 0, 1, 1], ["a", "a", "b", "c"]).purity
    0.75
    """
    from sklearn.metrics import normalized_mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    if np.shape(main_topics) != np.shape(labels):
        raise ValueError(
            f"There must be one label per document, got {np.shape(labels)} labels for "
            f"{np.shape(main_topics)} documents."
        )
    table = contingency_matrix(labels, main_topics)
    purity = float(table.max(0).sum() / table.sum())
    return Agreement(float(normalized_mutual_info_score(labels, main_topics)), purity)


class Windows(NamedTuple):
    """Numbers of windows that contain words and pairs of words."""

    words: np.ndarray
    """The counted words, in increasing order."""
    joint: np.ndarray
    """Number of windows with both words, (words, words); with the word on the diagonal."""
    number: int
    """Number of windows."""


def count_windows(
    words: np.ndarray,
    reference: Any,
    num_words: int,
    *,
    window: int | None = None,
    vocabulary: Sequence[str] | None = None,
) -> Windows:
    """Count the windows that contain each of some words, and each pair of them.

    Parameters
    ----------
    words
        Columns of the words to count, in increasing order.
    reference, window, vocabulary
        As in `coherence`; without `window` a text is one window.
    num_words
        Size of the vocabulary.
    """
    column = np.full(num_words, -1)
    column[words] = np.arange(len(words))
    rest: Iterator[Any] = iter([reference] if isinstance(reference, Corpus) else reference)
    first = next(rest, None)
    if first is None:
        raise ValueError("`reference` has no documents.")
    parts: Iterable[Any] = chain([first], rest)
    if isinstance(first, Corpus):
        joint, number = _count_documents(column, len(words), parts)
    else:
        joint, number = _count_texts(column, len(words), parts, window, vocabulary)
    if number == 0:
        raise ValueError("`reference` has no documents.")
    return Windows(words, joint, number)


def _count_documents(
    column: np.ndarray, size: int, batches: Iterable[Corpus]
) -> tuple[np.ndarray, int]:
    joint, documents = np.zeros((size, size), np.int64), 0
    for batch in batches:
        if batch.num_words != len(column):
            raise ValueError(
                f"`reference` has {batch.num_words} words, but the topics have {len(column)}."
            )
        kept = column[batch.words] >= 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[batch.indptr]
        ones = np.ones(kept.sum(), np.int64)
        shape = (len(batch), size)
        present = sparse.csr_array((ones, column[batch.words[kept]], indptr), shape=shape)
        joint += (present.T @ present).toarray()
        documents += len(batch)
    return joint, documents


def _count_texts(
    column: np.ndarray,
    size: int,
    texts: Iterable[Sequence[str]],
    window: int | None,
    vocabulary: Sequence[str] | None,
) -> tuple[np.ndarray, int]:
    if vocabulary is None:
        raise ValueError("`vocabulary` is needed to find the words of texts.")
    if len(vocabulary) != len(column):
        raise ValueError(
            f"`vocabulary` has {len(vocabulary)} words, but the topics have {len(column)}."
        )
    if window is not None and window < 1:
        raise ValueError(f"`window` must be at least 1, got {window}.")
    index = {word: column[i] for i, word in enumerate(vocabulary) if column[i] >= 0}
    joint, number = np.zeros((size, size), np.int64), 0
    for text in texts:
        if isinstance(text, str):
            raise ValueError("`reference` must have lists of words, but a text is a string.")
        tokens = np.array([index.get(word, -1) for word in text], np.int64)
        present, found = _slide(tokens, len(tokens) if window is None else window)
        number += len(present)
        counts = present.T.astype(np.int64) @ present
        joint[np.ix_(found, found)] += counts
    return joint, number


def _slide(tokens: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each window of a text contains each word, as in gensim, and the words."""
    found = np.unique(tokens[tokens >= 0])
    if len(tokens) <= window:
        return np.ones((1, len(found)), bool), found
    at = tokens[:, None] == found
    steps = np.arange(len(tokens) - window + 1)[:, None]
    enters, leaves = at[window - 1 :].copy(), np.zeros((len(steps), len(found)), bool)
    enters[0] = at[:window].any(0)
    leaves[1:] = at[: len(steps) - 1]
    last_in = np.maximum.accumulate(np.where(enters, steps, -1), axis=0)
    last_out = np.maximum.accumulate(np.where(leaves, steps, -1), axis=0)
    return (last_in >= 0) & (last_in >= last_out), found


def score_words(top: np.ndarray, counted: Windows, measure: str) -> np.ndarray:
    """Compute the coherence of lists of words.

    Parameters
    ----------
    top
        Words of each topic, (topics, num_words), all of them in `counted`.
    counted
        What `count_windows` returned.
    measure
        A key of `MEASURES`.
    """
    columns = np.searchsorted(counted.words, top)
    joint = counted.joint[columns[:, :, None], columns[:, None, :]] / counted.number
    return MEASURES[measure].score(joint)


def check_measure(measure: str) -> None:
    """Check the name of a measure."""
    if measure not in MEASURES:
        known = ", ".join(map(repr, MEASURES))
        raise ValueError(f"`measure` must be one of {known}, got {measure!r}.")


def _single(joint: np.ndarray) -> np.ndarray:
    return np.diagonal(joint, axis1=1, axis2=2)


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide where the denominator is not zero; the result is 1 elsewhere, its logarithm 0."""
    ones = np.ones(np.broadcast_shapes(numerator.shape, denominator.shape))
    return np.divide(numerator, denominator, out=ones, where=denominator > 0)


def _log_ratio(joint: np.ndarray) -> np.ndarray:
    p = _single(joint)
    return np.log(_divide(joint + EPSILON, p[:, :, None] * p[:, None, :]))


def _normalized(joint: np.ndarray) -> np.ndarray:
    return _log_ratio(joint) / -np.log(joint + EPSILON)


def _pair_mean(values: np.ndarray) -> np.ndarray:
    first, second = np.triu_indices(values.shape[1], 1)
    return values[:, first, second].mean(1)


def _c_v(joint: np.ndarray) -> np.ndarray:
    vectors = _normalized(joint)
    total = vectors.sum(1, keepdims=True)
    products = (vectors * total).sum(2)
    norms = np.linalg.norm(vectors, axis=2) * np.linalg.norm(total, axis=2)
    cosines = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    return cosines.mean(1)


def _u_mass(joint: np.ndarray) -> np.ndarray:
    return _pair_mean(np.log(_divide(joint + EPSILON, _single(joint)[:, :, None])))


def _exact_npmi(joint: np.ndarray) -> np.ndarray:
    first, second = np.triu_indices(joint.shape[1], 1)
    p, both = _single(joint), joint[:, first, second]
    values, seen = np.full(both.shape, -1.0), both > 0
    information = -np.log(both[seen])
    ratio = np.log(both[seen] / (p[:, first] * p[:, second])[seen])
    values[seen] = np.divide(ratio, information, np.zeros_like(ratio), where=information > 0)
    return values.mean(1)


class Measure(NamedTuple):
    """A measure of coherence."""

    window: int | None
    """Words in a window of a text; `None` for whole texts."""
    score: Callable[[np.ndarray], np.ndarray]
    """Coherence of topics from the probabilities of pairs, (topics, num_words, num_words)."""


MEASURES: Mapping[str, Measure] = {
    "c_v": Measure(110, _c_v),
    "c_npmi": Measure(10, lambda joint: _pair_mean(_normalized(joint))),
    "c_uci": Measure(10, lambda joint: _pair_mean(_log_ratio(joint))),
    "u_mass": Measure(None, _u_mass),
    "npmi": Measure(None, _exact_npmi),
}

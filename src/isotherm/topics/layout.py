r"""Memory layout of topics, and conversion of topics from other packages.

Outside the kernels topics have shape `(topics, words)` and rows that sum to 1, as in scikit-learn
and gensim. Inside they are *word-major*: `(words, padded)` in float32, one contiguous row per word,
the number of topics padded with zeros to a multiple of 16. All conversions are in this module.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from isotherm.topics.simd_categorical import LANES

TINY = np.float32(1e-30)


def padded_size(num_topics: int) -> int:
    """Round a number of topics up to a multiple of 16, the width of a SIMD block.

    Examples
    --------
    >>> padded_size(30), padded_size(128)
    (32, 128)
    """
    return -(-num_topics // LANES) * LANES


def word_major(topics: Any) -> np.ndarray:
    """Convert topics `(topics, words)` to the kernels' layout: `(words, padded)`, float32.

    Probabilities between 0 and 1e-30 become 1e-30: arithmetic with subnormal numbers is slow.
    """
    topics = np.asarray(topics)
    if topics.ndim != 2:
        raise ValueError(f"`topics` must have shape (topics, words), got {topics.shape}.")
    num_topics, num_words = topics.shape
    rows = np.zeros((num_words, padded_size(num_topics)), np.float32)
    rows[:, :num_topics] = topics.T
    return raise_tiny(rows)


def raise_tiny(rows: np.ndarray) -> np.ndarray:
    """Raise positive probabilities below 1e-30 to 1e-30, in place."""
    rows[(rows < TINY) & (rows > 0)] = TINY
    return rows


def topic_major(rows: np.ndarray, num_topics: int) -> np.ndarray:
    """Convert word-major rows to `(topics, words)`: the inverse of `word_major`.

    Examples
    --------
    >>> topics = np.eye(3, 5, dtype=np.float32)
    >>> bool(np.array_equal(topic_major(word_major(topics), 3), topics))
    True
    """
    return np.ascontiguousarray(rows[:, :num_topics].T)


def as_alpha(alpha: Any, num_topics: int) -> np.ndarray:
    r"""Check the document prior $\alpha$ and return it as a vector, one number per topic.

    A scalar is a symmetric prior: the value of every $\alpha_k$, not their sum.
    """
    alpha = np.asarray(alpha, np.float32)
    if alpha.ndim not in (0, 1) or (alpha.ndim == 1 and len(alpha) != num_topics):
        raise ValueError(
            f"`alpha` must be a number or have shape ({num_topics},), got {alpha.shape}."
        )
    if not (np.isfinite(alpha) & (alpha > 0)).all():
        raise ValueError(f"`alpha` must be positive, got {alpha.min()}.")
    return np.broadcast_to(alpha, (num_topics,))


def padded(vector: np.ndarray) -> np.ndarray:
    """Pad a vector over topics with zeros to a multiple of 16, in float32."""
    whole = np.zeros(padded_size(len(vector)), np.float32)
    whole[: len(vector)] = vector
    return whole


def as_topics(
    weights: Any,
    vocabulary: Sequence[str] | None = None,
    onto: Sequence[str] | None = None,
    missing: float = 0.0,
) -> np.ndarray:
    r"""Convert topics of another package to rows that sum to 1, over the words of a corpus.

    | package | `weights` | `vocabulary` |
    | --- | --- | --- |
    | scikit-learn | `model.components_` | `vectorizer.get_feature_names_out()` |
    | gensim | `model.get_topics()` | `[dictionary[i] for i in range(len(dictionary))]` |
    | tomotopy | `[model.get_topic_word_dist(k) for k in range(model.k)]` | `model.used_vocabs` |

    Parameters
    ----------
    weights
        (topics, words), not negative; counts and pseudo-counts are accepted.
    vocabulary
        The other package's words, in the order of the columns.
    onto
        The words of the result. Without `vocabulary` and `onto` the columns stay as they are.
    missing
        Weight of the words of `onto` that are not in `vocabulary`, before rows are normalized. With
        0, a single scored token of such a word makes the perplexity infinite.

    Examples
    --------
    >>> as_topics([[1.0, 3.0]], ["b", "a"], onto=["a", "b", "c"])
    array([[0.75, 0.25, 0.  ]])
    """
    weights = np.array(weights, np.float64)
    if weights.ndim != 2:
        raise ValueError(f"`weights` must have shape (topics, words), got {weights.shape}.")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("`weights` must be finite and not negative.")
    if (vocabulary is None) != (onto is None):
        raise ValueError("`vocabulary` and `onto` must be given together, or neither of them.")
    if vocabulary is not None and onto is not None:
        weights = _reindexed(weights, vocabulary, onto, missing)
    totals = weights.sum(1, keepdims=True)
    if not (totals > 0).all():
        raise ValueError(f"Topic {int(np.argmin(totals))} of `weights` has no mass.")
    return weights / totals


def _reindexed(
    weights: np.ndarray, vocabulary: Sequence[str], onto: Sequence[str], missing: float
) -> np.ndarray:
    if len(vocabulary) != weights.shape[1]:
        raise ValueError(
            f"`vocabulary` has {len(vocabulary)} words, "
            f"but `weights` has {weights.shape[1]} columns."
        )
    column = {word: i for i, word in enumerate(vocabulary)}
    if len(column) != len(vocabulary):
        raise ValueError("`vocabulary` contains duplicate words.")
    columns = np.array([column.get(word, -1) for word in onto])
    result = np.full((len(weights), len(onto)), float(missing))
    result[:, columns >= 0] = weights[:, columns[columns >= 0]]
    return result

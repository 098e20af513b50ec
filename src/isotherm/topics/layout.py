r"""How topics lie in memory, and how they come from elsewhere.

Outside the kernels topics are `(topics, words)`, rows that sum to 1, as scikit-learn and gensim have
them. Inside they are *word-major*: `(words, padded)` in float32, one contiguous row per word, the
number of topics padded with zeros to a multiple of 16. All conversions are here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from isotherm.topics.simd_categorical import LANES

TINY = np.float32(1e-30)


def padded_size(num_topics: int) -> int:
    """Round a number of topics up to whole blocks.

    Examples
    --------
    >>> padded_size(30), padded_size(128)
    (32, 128)
    """
    return -(-num_topics // LANES) * LANES


def word_major(topics: Any) -> np.ndarray:
    """Lay topics `(topics, words)` out for the kernels: `(words, padded)`, float32.

    Probabilities below 1e-30 become 1e-30, unless they are zero: processors are slow with numbers at
    the lower end of float32.
    """
    topics = np.asarray(topics)
    if topics.ndim != 2:
        raise ValueError(f"`topics` must have shape (topics, words), got {topics.shape}.")
    num_topics, num_words = topics.shape
    rows = np.zeros((num_words, padded_size(num_topics)), np.float32)
    rows[:, :num_topics] = topics.T
    return lift(rows)


def lift(rows: np.ndarray) -> np.ndarray:
    """Lift tiny probabilities in place, as `word_major` does."""
    rows[(rows < TINY) & (rows > 0)] = TINY
    return rows


def topic_major(rows: np.ndarray, num_topics: int) -> np.ndarray:
    """Lay word-major rows out as `(topics, words)`: the inverse of `word_major`.

    Examples
    --------
    >>> topics = np.eye(3, 5, dtype=np.float32)
    >>> bool(np.array_equal(topic_major(word_major(topics), 3), topics))
    True
    """
    return np.ascontiguousarray(rows[:, :num_topics].T)


def as_alpha(alpha: Any, num_topics: int) -> np.ndarray:
    r"""Make the document prior $\alpha$ a positive vector, one number per topic.

    A number stands for a symmetric prior: $\alpha_k$ itself, not the sum.
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
    """Pad one number per topic with zeros to whole blocks, in float32."""
    whole = np.zeros(padded_size(len(vector)), np.float32)
    whole[: len(vector)] = vector
    return whole


def as_topics(
    weights: Any,
    vocabulary: Sequence[str] | None = None,
    onto: Sequence[str] | None = None,
    missing: float = 0.0,
) -> np.ndarray:
    r"""Make topics of another package rows that sum to 1, over our words.

    | package | `weights` | `vocabulary` |
    | --- | --- | --- |
    | scikit-learn | `model.components_` | `vectorizer.get_feature_names_out()` |
    | gensim | `model.get_topics()` | `[dictionary[i] for i in range(len(dictionary))]` |
    | tomotopy | `[model.get_topic_word_dist(k) for k in range(model.k)]` | `model.used_vocabs` |

    Parameters
    ----------
    weights
        (topics, words), not negative; counts and pseudo-counts will do.
    vocabulary
        Their words, in the order of the columns.
    onto
        Our words. Without the two the columns stay as they are.
    missing
        Weight of those of our words that they do not have, before rows are normalised. With 0 a
        scored token of such a word makes a perplexity infinite.

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
        raise ValueError("`vocabulary` and `onto` go together: give both or neither.")
    if vocabulary is not None and onto is not None:
        weights = _moved(weights, vocabulary, onto, missing)
    totals = weights.sum(1, keepdims=True)
    if not (totals > 0).all():
        raise ValueError(f"Topic {int(np.argmin(totals))} of `weights` has no mass.")
    return weights / totals


def _moved(
    weights: np.ndarray, vocabulary: Sequence[str], onto: Sequence[str], missing: float
) -> np.ndarray:
    if len(vocabulary) != weights.shape[1]:
        raise ValueError(
            f"`vocabulary` has {len(vocabulary)} words, but `weights` has {weights.shape[1]} columns."
        )
    column = {word: i for i, word in enumerate(vocabulary)}
    if len(column) != len(vocabulary):
        raise ValueError("`vocabulary` has a word twice.")
    places = np.array([column.get(word, -1) for word in onto])
    moved = np.full((len(weights), len(onto)), float(missing))
    moved[:, places >= 0] = weights[:, places[places >= 0]]
    return moved

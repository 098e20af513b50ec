"""Checks of what users pass to the topic estimators: counts, names of words, priors."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from isotherm.schedules import require_positive
from isotherm.topics import layout
from isotherm.topics.corpus import names_by_column
from isotherm.topics.dirichlet_priors import Shape

LEARNED: dict[str, Shape] = {"learned": "asymmetric", "learned-symmetric": "symmetric"}
"""Values of `doc_topic_prior` for a learned prior."""
SEED_COUNT = 10.0
"""Default pseudo-count of a seed word."""
SEEDS_FIX_PRIOR = "`topic_word_prior` must be a number if there are `seed_words`, got 'learned'."


def refuse_texts(X: Any) -> None:
    """Raise an error for texts, words or bags, which says how to convert them to counts."""
    if isinstance(X, str) or _has_texts(X):
        raise ValueError(
            "`X` must be counts, (documents, words), but it has texts: convert them by "
            "`sklearn.feature_extraction.text.CountVectorizer().fit_transform(texts)`."
        )
    if _has_words(X):
        raise ValueError(
            "`X` must be counts, (documents, words), but it has lists of words: convert them by "
            "`sklearn.feature_extraction.text.CountVectorizer(analyzer=list).fit_transform(lists)`."
        )
    if _has_bags(X):
        raise ValueError(
            "`X` must be counts, (documents, words), but it has bags of (word, count) pairs: "
            "convert them by `isotherm.topics.corpus_readers.from_bags(bags, dictionary)`."
        )
    if isinstance(X, Iterable) and not (
        hasattr(X, "shape") or hasattr(X, "__array__") or isinstance(X, Sequence)
    ):
        raise ValueError(
            f"`X` must be counts, (documents, words), got an iterable, {type(X).__name__}: convert "
            "bags of gensim by `isotherm.topics.corpus_readers.from_bags(bags, dictionary)`, and "
            "pass the batches of a stream to `partial_fit`, one by one."
        )


def _has_texts(X: Any) -> bool:
    if isinstance(X, list | tuple):
        return any(isinstance(document, str) for document in X[:1])
    values = X.to_numpy() if hasattr(X, "to_numpy") else X  # of pandas and polars
    if not isinstance(values, np.ndarray) or values.ndim != 1 or len(values) == 0:
        return False
    return isinstance(values[0], str)


def _has_bags(X: Any) -> bool:
    if not isinstance(X, list | tuple):
        return False
    first = _first_item(X)
    return isinstance(first, tuple | list) and len(first) == 2


def _has_words(X: Any) -> bool:
    return isinstance(X, list | tuple) and isinstance(_first_item(X), str)


def _first_item(documents: Sequence[Any]) -> Any:
    """Return the first item of the first document that has any."""
    return next((x[0] for x in documents if isinstance(x, list | tuple) and len(x)), None)


def word_names(vocabulary: Any, num_words: int) -> Any:
    """Return the names of the columns as an array, and check that there is one for each.

    Parameters
    ----------
    vocabulary
        The names, or a fitted vectorizer or pipeline with `get_feature_names_out`, or a dictionary
        of gensim (columns to names) or of a vectorizer (names to columns), or `None`.
    num_words
        Number of columns.
    """
    if vocabulary is None:
        return None
    if hasattr(vocabulary, "get_feature_names_out"):
        vocabulary = vocabulary.get_feature_names_out()
    if isinstance(vocabulary, Mapping):
        vocabulary = names_by_column(vocabulary)
    names = np.asarray(vocabulary, object)
    if names.shape != (num_words,):
        raise ValueError(
            f"`vocabulary` must have one name for each of the {num_words} columns, "
            f"got {len(names) if names.ndim else vocabulary!r}."
        )
    return names


def is_learned(prior: Any) -> bool:
    """Return whether the prior of words is `"learned"`; it may be an array by mistake."""
    return isinstance(prior, str) and prior == "learned"


def check_word_prior(prior: Any) -> float:
    """Check the prior of the words of a topic and return it; `None` and `"learned"` give 0.05."""
    if prior is None or is_learned(prior):
        return 0.05
    if np.ndim(prior) > 0:
        raise ValueError(
            "`topic_word_prior` must be one number for all words and topics, got an array of shape "
            f"{np.shape(prior)}. To favour words in a topic, use `seed_words`."
        )
    require_positive("topic_word_prior", prior)
    return float(prior)


def seed_counts(seed_words: Any, names: Any, shape: tuple[int, int]) -> np.ndarray | None:
    """Return pseudo-counts of seed words, (topics, words), or `None` if there are no seed words.

    Parameters
    ----------
    seed_words
        Words of some topics: `{topic: [word, …]}` or `{topic: {word: pseudo-count}}`; words are
        names or columns.
    names
        Names of the columns, or `None`.
    shape
        Number of topics and of words.
    """
    if seed_words is None:
        return None
    if not isinstance(seed_words, Mapping):
        raise ValueError(f"`seed_words` must be a dictionary of lists, got {seed_words!r}.")
    columns = {} if names is None else {str(name): i for i, name in enumerate(names)}
    counts = np.zeros(shape)
    for topic, words in seed_words.items():
        if not (isinstance(topic, int | np.integer) and 0 <= topic < shape[0]):
            raise ValueError(
                f"`seed_words` has topic {topic!r}, but the topics are 0 to {shape[0] - 1}."
            )
        if not isinstance(words, Mapping):
            if isinstance(words, str) or not isinstance(words, Iterable):
                raise ValueError(f"`seed_words` of topic {topic} must be a list, got {words!r}.")
            words = dict.fromkeys(words, SEED_COUNT)
        for word, weight in words.items():
            require_positive("seed_words", weight)
            counts[topic, _column(word, columns, shape[1])] = weight
    return counts


def _column(word: Any, columns: Mapping[Any, int], num_words: int) -> int:
    if isinstance(word, int | np.integer) and 0 <= word < num_words:
        return int(word)
    if not columns:
        raise ValueError(
            f"`seed_words` has {word!r}, but the words have no names: use columns from 0 to "
            f"{num_words - 1} (after a vectorizer, `vectorizer.vocabulary_[word]`), or fit on a "
            "`Corpus` with a vocabulary or on a DataFrame."
        )
    if word not in columns:
        raise ValueError(f"`seed_words` has {word!r}, which is not in the vocabulary.")
    return columns[word]


def check_doc_prior(prior: Any, num_topics: int) -> tuple[np.ndarray, Shape | None]:
    r"""Check the prior $\alpha$ of documents; return it and how it is learned, or `None`.

    A learned prior starts at 0.1.
    """
    if isinstance(prior, str):
        if prior not in LEARNED:
            known = ", ".join(map(repr, LEARNED))
            raise ValueError(f"`doc_topic_prior` must be numbers or one of {known}, got {prior!r}.")
        return layout.as_alpha(0.1, num_topics), LEARNED[prior]
    require_positive("doc_topic_prior", prior)
    if np.ndim(prior) > 0 and np.shape(prior) != (num_topics,):
        raise ValueError(
            f"`doc_topic_prior` must be a number or have one for each of the {num_topics} topics, "
            f"got shape {np.shape(prior)}."
        )
    return layout.as_alpha(prior, num_topics), None


def same_setting(a: Any, b: Any) -> bool:
    """Return whether two values of a setting are equal; they may be arrays."""
    if a is b:
        return True
    if isinstance(a, Real) and isinstance(b, Real):
        return bool(a == b) or (a != a and b != b)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b))
    return type(a) is type(b) and bool(a == b)

"""Bags of words: documents by words, sparse, with a vocabulary.

A `Corpus` is never converted to a dense array. Its documents keep their *numbers* through every
selection. The random numbers of a document depend on its number, so a document is split and sampled
in the same way in a shuffled corpus, in a batch and in a stream.

An **empty document** is kept by default, so that rows still match other data about the documents.
It has the prior's topic proportions, adds nothing to a score, and counts as one of the documents a
gradient is scaled to. `as_corpus` can drop or reject empty documents instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import sparse

from isotherm.data.word_counts import Counts, check_counts, stack
from isotherm.topics import counter_rng

Rows = slice | Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Counts of words in documents. Build one with `as_corpus`, which checks the counts."""

    indptr: np.ndarray
    """Document `j` has the entries from `indptr[j]` to `indptr[j + 1]`, int64."""
    words: np.ndarray
    """Word of each entry, in increasing order within a document, int32."""
    counts: np.ndarray
    """How often the document contains the word, int32; never zero."""
    num_words: int
    """Size of the vocabulary."""
    vocabulary: tuple[str, ...] | None
    documents: np.ndarray
    """Number of each document, int64."""

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __repr__(self) -> str:
        sizes = f"{len(self)} documents, {self.num_words} words, {self.num_tokens} tokens"
        return f"Corpus({sizes})"

    def __getitem__(self, rows: Rows) -> "Corpus":
        """Select documents by a slice, a mask or indices; they keep their numbers.

        Examples
        --------
        >>> as_corpus([[1, 0], [0, 2], [3, 0]])[[2, 0]].documents
        array([2, 0])
        """
        rows = _row_indices(rows, len(self))
        sizes = self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        picks = np.arange(indptr[-1]) + np.repeat(self.indptr[rows] - indptr[:-1], sizes)
        return replace(
            self,
            indptr=indptr,
            words=self.words[picks],
            counts=self.counts[picks],
            documents=self.documents[rows],
        )

    @property
    def num_tokens(self) -> int:
        """Sum of all counts."""
        return int(self.counts.sum(dtype=np.int64))

    @property
    def token_starts(self) -> np.ndarray:
        """Index of each document's first token, then the total number of tokens, int64."""
        sums = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        return sums[self.indptr]

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each document, int64."""
        return np.diff(self.token_starts)

    def tokens(self) -> np.ndarray:
        """List the word of every token, document by document, int32."""
        return np.repeat(self.words, self.counts)

    def select_words(self, words: np.ndarray) -> "Corpus":
        """Select words by a mask or indices, in that order; documents may become empty."""
        columns = np.arange(self.num_words)[words]
        names = None
        if self.vocabulary is not None:
            names = tuple(self.vocabulary[column] for column in columns)
        return as_corpus(self.to_csr()[:, columns], names, documents=self.documents)

    def with_counts(self, counts: np.ndarray) -> "Corpus":
        """Replace the count of each entry; entries with a count of zero are removed."""
        kept = counts > 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[self.indptr]
        return replace(self, indptr=indptr, words=self.words[kept], counts=counts[kept])

    def to_csr(self) -> sparse.csr_array:
        """Return the counts as a SciPy sparse array."""
        return Counts(self.indptr, self.words, self.counts, self.num_words).to_csr()


def _row_indices(rows: Rows, size: int) -> np.ndarray:
    """Convert a slice, a mask or indices to indices that are not negative."""
    picks = rows if isinstance(rows, slice) else np.asarray(rows)
    if isinstance(picks, np.ndarray):
        if picks.ndim != 1:
            raise TypeError("A corpus is indexed by a slice, a mask or a list of rows.")
        # The time for a few indices must not depend on `size`.
        if picks.dtype.kind in "iu" and len(picks) < size // 8:
            wrong = (picks < -size) | (picks >= size)
            if wrong.any():
                raise IndexError(
                    f"Document {picks[wrong][0]} is out of range for {size} documents."
                )
            return np.where(picks < 0, picks + size, picks)
        picks = picks.astype(int) if len(picks) == 0 else picks
    return np.arange(size)[picks]


def as_corpus(
    counts: Any,
    vocabulary: Sequence[str] | None = None,
    *,
    documents: Sequence[int] | np.ndarray | None = None,
    empty: Literal["keep", "drop", "refuse"] = "keep",
) -> Corpus:
    """Check counts and convert them to a corpus.

    Parameters
    ----------
    counts
        (documents, words): a SciPy sparse matrix, for example the output of scikit-learn's
        `CountVectorizer`, or a small dense array; or what a reader of `isotherm.data.bag_of_words`
        returned; or a corpus.
    vocabulary
        The words, in the order of the columns; `vectorizer.get_feature_names_out()`.
    documents
        A permanent number for each document; by default its row.
    empty
        Whether to `"keep"` documents without words, `"drop"` them, or `"refuse"` the corpus.

    Raises
    ------
    ValueError
        If counts are negative, fractional or NaN, if a word is outside the vocabulary, or if the
        vocabulary is empty, has the wrong size or contains a word twice.

    Examples
    --------
    >>> as_corpus([[1, 0, 2], [0, 1, 0]], ["red", "green", "blue"])
    Corpus(2 documents, 3 words, 4 tokens)
    """
    if isinstance(counts, Corpus):
        vocabulary = counts.vocabulary if vocabulary is None else vocabulary
        documents = counts.documents if documents is None else documents
        counts = Counts(counts.indptr, counts.words, counts.counts, counts.num_words)
    x = counts if isinstance(counts, Counts) else check_counts(counts)
    words = None if vocabulary is None else check_vocabulary(vocabulary, x.num_words)
    size = x.num_documents
    numbers = np.arange(size) if documents is None else np.array(documents, np.int64)
    if numbers.shape != (size,):
        raise ValueError(f"`documents` must have shape ({size},), got {numbers.shape}.")
    corpus, full = Corpus(*x, words, numbers), np.diff(x.indptr) > 0
    if empty not in ("keep", "drop", "refuse"):
        raise ValueError(f"`empty` must be 'keep', 'drop' or 'refuse', got {empty!r}.")
    if empty == "refuse" and not full.all():
        raise ValueError(f"Document {int(full.argmin())} has no words.")
    return corpus if empty == "keep" or full.all() else corpus[full]


def join_corpora(parts: Sequence[Corpus]) -> Corpus:
    """Concatenate documents over the same words; they keep their numbers.

    Examples
    --------
    >>> corpus = as_corpus([[1, 0], [0, 2], [3, 0]])
    >>> join_corpora([corpus[:1], corpus[1:]])
    Corpus(3 documents, 2 words, 6 tokens)
    """
    first = parts[0]
    if any(part.num_words != first.num_words for part in parts):
        raise ValueError("All parts must have the same number of words.")
    x = stack([Counts(part.indptr, part.words, part.counts, part.num_words) for part in parts])
    numbers = np.concatenate([part.documents for part in parts])
    return Corpus(*x, first.vocabulary, numbers)


def check_vocabulary(vocabulary: Sequence[str], num_words: int) -> tuple[str, ...]:
    """Check that there is one word per column and no duplicate."""
    words = tuple(map(str, vocabulary))
    if len(words) != num_words:
        raise ValueError(f"`vocabulary` has {len(words)} words, but the counts have {num_words}.")
    if len(set(words)) != len(words):
        seen: set[str] = set()
        twice = next(word for word in words if word in seen or seen.add(word))
        raise ValueError(f"`vocabulary` contains {twice!r} twice.")
    return words


def names_by_column(dictionary: Mapping[Any, Any]) -> list[Any]:
    """Return the names of the columns in order, from columns to names or from names to columns."""
    pairs = dict(dictionary.items())
    if pairs and all(isinstance(name, str) for name in pairs):
        pairs = {column: name for name, column in pairs.items()}
    missing = next((i for i in range(len(pairs)) if i not in pairs), None)
    if missing is not None:
        raise ValueError(
            f"The vocabulary has {len(pairs)} words, but none has the number {missing}: the "
            "numbers must be 0, 1, 2, … (for gensim, call `dictionary.compactify()`)."
        )
    return [pairs[i] for i in range(len(pairs))]


class TrainTest(NamedTuple):
    """Training and test documents."""

    train: Corpus
    test: Corpus


class Completion(NamedTuple):
    """Documents with their tokens split into an observed part and a part to predict."""

    observed: Corpus
    scored: Corpus
    fraction: float
    """Fraction of the tokens that is observed."""
    seed: int


def train_test(corpus: Corpus, *, test: float | int = 0.2, seed: int) -> TrainTest:
    """Split documents at random; both parts keep the order of the corpus.

    Parameters
    ----------
    corpus
        The documents.
    test
        Size of the test part: a fraction below 1, or a number of documents.
    seed
        Seed of the random split.
    """
    size = round(test * len(corpus)) if isinstance(test, float) else test
    if not 0 < size < len(corpus):
        raise ValueError(
            f"`test` must leave documents in both parts of {len(corpus)} documents, got {test}."
        )
    chosen = np.zeros(len(corpus), bool)
    rng = counter_rng.generator(seed, "documents")
    chosen[rng.choice(len(corpus), size, replace=False)] = True
    return TrainTest(corpus[~chosen], corpus[chosen])


def completion(corpus: Corpus, *, observed: float = 0.5, seed: int) -> Completion:
    r"""Split the tokens of each document at random into an observed and a scored part.

    The split of a document depends on its number, its words and the seed, but not on the other
    documents: a stream is split like the corpus it came from. Of $N$ tokens `round(observed * N)`
    are observed, but at least one token is in each part if $N \ge 2$.

    Parameters
    ----------
    corpus
        The documents.
    observed
        Fraction of the tokens that is observed.
    seed
        Seed of the random split.
    """
    if not 0 < observed < 1:
        raise ValueError(f"`observed` must be between 0 and 1, got {observed}.")
    starts, lengths = corpus.token_starts, corpus.lengths
    document = np.repeat(np.arange(len(corpus)), lengths)
    position = np.arange(starts[-1]) - starts[document]
    key = counter_rng.purpose_key(seed, "completion")
    streams = counter_rng.streams(key, 0, corpus.documents)
    bits = counter_rng.fold(streams[document], counter_rng.as_uint64(position))
    order = np.lexsort([bits, document])
    shown = np.clip(np.rint(observed * lengths).astype(np.int64), 1, np.maximum(lengths - 1, 1))
    rank = np.empty_like(order)
    rank[order] = position  # documents are contiguous in `order` too
    cell = np.repeat(np.arange(len(corpus.counts)), corpus.counts)
    first = np.bincount(cell, weights=rank < shown[document], minlength=len(corpus.counts))
    first = first.astype(np.int32)
    scored = corpus.with_counts(corpus.counts - first)
    return Completion(corpus.with_counts(first), scored, observed, seed)


def minibatch(corpus: Corpus, batch_size: int, *, seed: int, step: int) -> Corpus:
    """Draw documents without replacement, independently at every step.

    The batch depends only on the seed and the step, so a chain can be resumed at any step.
    """
    if not 0 < batch_size <= len(corpus):
        raise ValueError(f"`batch_size` must be from 1 to {len(corpus)}, got {batch_size}.")
    rng = counter_rng.generator(seed, "batch", step)
    return corpus[rng.choice(len(corpus), batch_size, replace=False, shuffle=False)]

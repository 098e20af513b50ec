"""Bags of words: documents by words, sparse, with a vocabulary.

A `Corpus` is never made dense. Its documents keep their *numbers* through every selection: random
numbers belong to a document's number, so that a document is split and sampled in the same way
wherever it turns up: in a shuffled corpus, in a batch, in a stream.

An **empty document** is a document. It stays in its place, so that rows go on matching whatever else
is known about documents; it has the prior's topic proportions, adds nothing to a score, and counts
as one of the documents a gradient is scaled to. `as_corpus` can drop or refuse them instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import sparse

from isotherm.data.word_counts import Counts, check_counts
from isotherm.topics import counter_rng

Rows = slice | Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Counts of words in documents. Make one with `as_corpus`, which checks them."""

    indptr: np.ndarray
    """Document `j` has the entries from `indptr[j]` to `indptr[j + 1]`, int64."""
    words: np.ndarray
    """Word of each entry, rising within a document, int32."""
    counts: np.ndarray
    """How often the document has it, int32; never zero."""
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
        """Select documents, by a slice, a mask or places; they keep their numbers.

        Examples
        --------
        >>> as_corpus([[1, 0], [0, 2], [3, 0]])[[2, 0]].documents
        array([2, 0])
        """
        rows = _places(rows, len(self))
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
        """Where each document begins in a list of all tokens, and where the last one ends, int64."""
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
        """Keep some words, by a mask or places, in the order given; documents may become empty."""
        places = np.arange(self.num_words)[words]
        names = None
        if self.vocabulary is not None:
            names = tuple(self.vocabulary[place] for place in places)
        return as_corpus(self.to_csr()[:, places], names, documents=self.documents)

    def with_counts(self, counts: np.ndarray) -> "Corpus":
        """Put other counts in the place of each; entries with a count of zero go."""
        kept = counts > 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[self.indptr]
        return replace(self, indptr=indptr, words=self.words[kept], counts=counts[kept])

    def to_csr(self) -> sparse.csr_array:
        """Give the counts to SciPy."""
        return Counts(self.indptr, self.words, self.counts, self.num_words).to_csr()


def _places(rows: Rows, size: int) -> np.ndarray:
    """Turn a slice, a mask or places into places from 0 on."""
    picks = rows if isinstance(rows, slice) else np.asarray(rows)
    if isinstance(picks, np.ndarray):
        if picks.ndim != 1:
            raise TypeError("A corpus is indexed by a slice, a mask or a list of rows.")
        if picks.dtype.kind in "iu" and len(picks) < size // 8:  # without a look at all documents
            wrong = (picks < -size) | (picks >= size)
            if wrong.any():
                raise IndexError(f"There is no document {picks[wrong][0]} among {size}.")
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
    """Make a corpus of counts, and say what is wrong with them.

    Parameters
    ----------
    counts
        (documents, words): a SciPy sparse matrix, for example what scikit-learn's `CountVectorizer`
        gives, or a small dense array; or what a reader of `isotherm.data.bag_of_words` gave; or a corpus.
    vocabulary
        The words, in the order of the columns; `vectorizer.get_feature_names_out()`.
    documents
        A number for each document that it keeps for good; by default its row.
    empty
        What to do with documents without words: keep them, drop them, or refuse.

    Raises
    ------
    ValueError
        Counts that are negative, fractional or NaN, a word outside the vocabulary, a vocabulary that
        is empty, has the wrong size or has a word twice.

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


def check_vocabulary(vocabulary: Sequence[str], num_words: int) -> tuple[str, ...]:
    """Check that there is one word per column, and no word twice."""
    words = tuple(map(str, vocabulary))
    if len(words) != num_words:
        raise ValueError(f"`vocabulary` has {len(words)} words, but the counts have {num_words}.")
    if len(set(words)) != len(words):
        seen: set[str] = set()
        twice = next(word for word in words if word in seen or seen.add(word))
        raise ValueError(f"`vocabulary` has {twice!r} twice.")
    return words


class TrainTest(NamedTuple):
    """Documents to learn from, and documents to be judged by."""

    train: Corpus
    test: Corpus


class Completion(NamedTuple):
    """The same documents twice: the tokens that are shown, and those that are to be predicted."""

    observed: Corpus
    scored: Corpus
    fraction: float
    """Share of the tokens that is observed."""
    seed: int


def train_test(corpus: Corpus, *, test: float | int = 0.2, seed: int) -> TrainTest:
    """Split documents at random; both parts keep the order of the corpus.

    Parameters
    ----------
    corpus
        The documents.
    test
        How many are for testing: a share below 1, or a number.
    seed
        Which random split.
    """
    size = round(test * len(corpus)) if isinstance(test, float) else test
    if not 0 < size < len(corpus):
        raise ValueError(f"`test` must leave documents on both sides of {len(corpus)}, got {test}.")
    chosen = np.zeros(len(corpus), bool)
    rng = counter_rng.generator(seed, "documents")
    chosen[rng.choice(len(corpus), size, replace=False)] = True
    return TrainTest(corpus[~chosen], corpus[chosen])


def completion(corpus: Corpus, *, observed: float = 0.5, seed: int) -> Completion:
    """Split the tokens of each document at random into an observed and a scored part.

    The split of a document depends on its number, its words and the seed, and on no other document: a
    stream is split as the corpus it came from. Of $N$ tokens `round(observed * N)` are observed, but
    at least one on either side if there are two.

    Parameters
    ----------
    corpus
        The documents.
    observed
        Share of tokens that is observed.
    seed
        Which random split.
    """
    if not 0 < observed < 1:
        raise ValueError(f"`observed` must be between 0 and 1, got {observed}.")
    starts, lengths = corpus.token_starts, corpus.lengths
    document = np.repeat(np.arange(len(corpus)), lengths)
    place = np.arange(starts[-1]) - starts[document]
    key = counter_rng.purpose_key(seed, "completion")
    streams = counter_rng.streams(key, 0, corpus.documents)
    order = np.lexsort([counter_rng.fold(streams[document], counter_rng.as_words(place)), document])
    shown = np.clip(np.rint(observed * lengths).astype(np.int64), 1, np.maximum(lengths - 1, 1))
    rank = np.empty_like(order)
    rank[order] = place  # documents are contiguous in `order` too
    cell = np.repeat(np.arange(len(corpus.counts)), corpus.counts)
    first = np.bincount(cell, weights=rank < shown[document], minlength=len(corpus.counts))
    first = first.astype(np.int32)
    scored = corpus.with_counts(corpus.counts - first)
    return Completion(corpus.with_counts(first), scored, observed, seed)


def minibatch(corpus: Corpus, batch_size: int, *, seed: int, step: int) -> Corpus:
    """Draw documents without replacement, afresh at every step.

    A function of seed and step alone, so that a chain may go on anywhere.
    """
    if not 0 < batch_size <= len(corpus):
        raise ValueError(f"`batch_size` must be from 1 to {len(corpus)}, got {batch_size}.")
    rng = counter_rng.generator(seed, "batch", step)
    return corpus[rng.choice(len(corpus), batch_size, replace=False, shuffle=False)]

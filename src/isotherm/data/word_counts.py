"""Word counts of documents: validation, and one canonical sparse form."""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

LARGEST = np.iinfo(np.int32).max
"""Largest word index and largest count."""
MAX_TOKENS = 2**22
"""Most words that a document can have, repetitions included.

Gibbs sweeps assign every word by itself, a document at a time. They count in single precision,
which is exact up to four times this number, and cannot be interrupted within a sweep of a document,
nor, for `BayesianDPFA` with stochastic gradients, within a document.
"""


class Counts(NamedTuple):
    """Documents by words in compressed sparse rows.

    The words of a document are in ascending order, without duplicates, and no count is zero.
    """

    indptr: np.ndarray
    """Document `j` has the entries from `indptr[j]` to `indptr[j + 1]`, int64."""
    words: np.ndarray
    """Word index of each entry, int32."""
    counts: np.ndarray
    """Count of each entry, int32."""
    num_words: int
    """Size of the vocabulary."""

    @property
    def num_documents(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    def to_csr(self) -> sparse.csr_array:
        """Return the counts as a SciPy array, without a copy where SciPy allows it."""
        shape = (self.num_documents, self.num_words)
        return sparse.csr_array((self.counts, self.words, self.indptr), shape=shape)


class CountError(ValueError):
    """Invalid counts; `row` is the index of the document."""

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


def check_counts(x: Any, *, what: str = "`counts`") -> Counts:
    """Check a matrix of counts, documents by words, and convert it to canonical form.

    Parameters
    ----------
    x
        Any SciPy sparse matrix or array (as scikit-learn's vectorizers return), or a dense array.
        Floats are accepted if they are whole numbers.
    what
        Name of `x` in error messages.

    Raises
    ------
    CountError
        A `ValueError` that names the first invalid document, or one of more than `MAX_TOKENS`
        words.

    Examples
    --------
    >>> check_counts([[0, 2.0], [1, 0]]).words
    array([1, 0], dtype=int32)
    """
    if not sparse.issparse(x):
        try:
            x = np.asarray(x)
        except ValueError as error:
            raise CountError(f"{what} must be an array: {error}") from error
        if x.ndim != 2:
            raise CountError(f"{what} must have shape (documents, words), got {x.shape}.")
    if x.dtype.kind not in "biuf":
        raise CountError(f"{what} must be numbers, got {x.dtype}.")
    rows: Any = sparse.csr_array(x)
    if rows.ndim != 2:
        raise CountError(f"{what} must have shape (documents, words), got {rows.shape}.")
    return check_rows(rows.indptr, rows.indices, rows.data, rows.shape[1], what=what)


def check_rows(
    indptr: np.ndarray,
    words: np.ndarray,
    counts: np.ndarray,
    num_words: int,
    *,
    what: str = "`counts`",
    first: int = 0,
) -> Counts:
    """Check compressed sparse rows as `check_counts` does.

    The words of a row may be in any order and may repeat. `first` is the index of the first
    document in error messages.
    """
    indptr = np.asarray(indptr).astype(np.int64)
    if num_words < 1:
        raise CountError(f"{what} must have a vocabulary of at least one word.")
    if num_words > LARGEST + 1:
        raise CountError(f"{what} has a vocabulary of {num_words} words, which is too large.")
    if (np.diff(indptr) < 0).any() or indptr[-1] != len(words) or len(counts) != len(words):
        raise CountError(f"{what} has row pointers that do not match its data.")
    entries = _Entries(indptr, words, counts, what, first)
    entries.refuse((words < 0) | (words >= num_words), f"the vocabulary has {num_words} words")
    if counts.dtype.kind in "fi":
        entries.refuse(~(counts >= 0), "a count cannot be negative or NaN")
    if counts.dtype.kind == "f":
        entries.refuse(np.floor(counts) != counts, "a count must be a whole number")
    entries.refuse(counts > LARGEST, f"a count can be at most {LARGEST}")
    canonical = _canonical(entries, num_words)
    _refuse_long_documents(canonical, what, first)
    return canonical


def _refuse_long_documents(counts: Counts, what: str, first: int) -> None:
    sums = np.concatenate([[0], np.cumsum(counts.counts, dtype=np.int64)])
    lengths = np.diff(sums[counts.indptr])
    if len(lengths) and lengths.max() > MAX_TOKENS:
        row = int((lengths > MAX_TOKENS).argmax())
        raise CountError(f"{what}: document {first + row} {describe_long(lengths[row])}.", row)


def describe_long(length: int) -> str:
    """Return why a document of more than `MAX_TOKENS` words is refused, and what to do."""
    return (
        f"has {length:,} words, but a document can have at most {MAX_TOKENS:,}, since every word "
        "is assigned to a topic by itself. Split it, or divide the counts if they are not of words"
    )


class _Entries(NamedTuple):
    """The entries of compressed sparse rows, and how error messages name them."""

    indptr: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    what: str
    first: int

    def refuse(self, invalid: np.ndarray, rule: str) -> None:
        """Raise a `CountError` about the first invalid entry, if there is one."""
        if not invalid.any():
            return
        i = int(invalid.argmax())
        row = int(np.searchsorted(self.indptr, i, side="right")) - 1
        raise CountError(
            f"{self.what}: document {self.first + row} has count {self.counts[i]} for word "
            f"{self.words[i]}, but {rule}.",
            row,
        )


def _canonical(entries: _Entries, num_words: int) -> Counts:
    """Sort the words of each document, add up duplicates, drop zeros."""
    indptr = entries.indptr
    words, counts = entries.words.astype(np.int32), entries.counts.astype(np.int32)
    ascending = np.diff(words) > 0
    ascending[indptr[1:-1][(indptr[1:-1] > 0) & (indptr[1:-1] < len(words))] - 1] = True
    if ascending.all() and (counts > 0).all():
        return Counts(indptr, words, counts, num_words)
    shape = (len(indptr) - 1, num_words)
    rows: Any = sparse.csr_array((counts.astype(np.int64), words, indptr), shape=shape)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    totals = entries._replace(indptr=rows.indptr, words=rows.indices, counts=rows.data)
    totals.refuse(rows.data > LARGEST, f"a count can be at most {LARGEST}")
    return Counts(
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int32),
        rows.data.astype(np.int32),
        num_words,
    )


def stack(parts: list[Counts]) -> Counts:
    """Concatenate documents with the same vocabulary."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.concatenate([np.diff(part.indptr) for part in parts])
    words, counts = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    return Counts(np.concatenate([[0], np.cumsum(sizes)]), words, counts, parts[0].num_words)

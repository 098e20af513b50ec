"""Counts of words in documents: what numbers must be to be called so, and the form they are in."""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

LARGEST = np.iinfo(np.int32).max
"""What a word's number or a count can be."""


class Counts(NamedTuple):
    """Documents by words in compressed sparse rows; words of a document rise, no count is zero."""

    indptr: np.ndarray
    """Document `j` has the entries from `indptr[j]` to `indptr[j + 1]`, int64."""
    words: np.ndarray
    """Word of each entry, int32."""
    counts: np.ndarray
    """How often the document has it, int32."""
    num_words: int
    """Size of the vocabulary."""

    @property
    def num_documents(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    def to_csr(self) -> sparse.csr_array:
        """Give the counts to SciPy, without a copy where it can do without."""
        shape = (self.num_documents, self.num_words)
        return sparse.csr_array((self.counts, self.words, self.indptr), shape=shape)


class CountError(ValueError):
    """Something that is not a count; `row` is the document it is in."""

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


def check_counts(x: Any, *, what: str = "`counts`") -> Counts:
    """Check a matrix of counts, documents by words, and put it into one form.

    Parameters
    ----------
    x
        Any SciPy sparse matrix or array (what scikit-learn's vectorizers give), or a dense one. A float
        will do if it is a whole number.
    what
        How error messages call it.

    Raises
    ------
    CountError
        A `ValueError` that names the first document that is wrong.

    Examples
    --------
    >>> check_counts([[0, 2.0], [1, 0]]).words
    array([1, 0], dtype=int32)
    """
    if not sparse.issparse(x):
        x = np.asarray(x)
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
    """Check compressed sparse rows, in any order and with duplicates, as `check_counts` does.

    `first` is the number of the first document in error messages.
    """
    indptr = np.asarray(indptr).astype(np.int64)
    if num_words < 1:
        raise CountError(f"{what} must have a vocabulary of at least one word.")
    if num_words > LARGEST + 1:
        raise CountError(f"{what} has a vocabulary of {num_words} words, which is too large.")
    if (np.diff(indptr) < 0).any() or indptr[-1] != len(words) or len(counts) != len(words):
        raise CountError(f"{what} has row pointers that do not fit its data.")
    entries = _Entries(indptr, words, counts, what, first)
    entries.refuse((words < 0) | (words >= num_words), f"the vocabulary has {num_words} words")
    if counts.dtype.kind in "fi":
        entries.refuse(~(counts >= 0), "a count cannot be negative or NaN")
    if counts.dtype.kind == "f":
        entries.refuse(np.floor(counts) != counts, "a count must be whole")
    entries.refuse(counts > LARGEST, "the count is too large")
    return _canonical(indptr, words.astype(np.int32), counts.astype(np.int32), num_words)


def _canonical(indptr: np.ndarray, words: np.ndarray, counts: np.ndarray, num_words: int) -> Counts:
    """Sort the words of each document, add up duplicates, drop zeros."""
    rises = np.diff(words) > 0
    rises[indptr[1:-1][(indptr[1:-1] > 0) & (indptr[1:-1] < len(words))] - 1] = True
    if rises.all() and (counts > 0).all():
        return Counts(indptr, words, counts, num_words)
    shape = (len(indptr) - 1, num_words)
    rows: Any = sparse.csr_array((counts.astype(np.int64), words, indptr), shape=shape)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if rows.data.max(initial=0) > LARGEST:
        raise CountError("The same word comes too often in a document.")
    parts = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32))
    return Counts(*parts, rows.data.astype(np.int32), num_words)


class _Entries(NamedTuple):
    """The entries of a matrix, and the way to complain about one of them."""

    indptr: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    what: str
    first: int

    def refuse(self, bad: np.ndarray, rule: str) -> None:
        """Raise an error about the first bad entry, if there is one."""
        if not bad.any():
            return
        i = int(bad.argmax())
        row = int(np.searchsorted(self.indptr, i, side="right")) - 1
        raise CountError(
            f"{self.what}: document {self.first + row} has word {self.words[i]} {self.counts[i]} times, "
            f"but {rule}.",
            row,
        )


def stack(parts: list[Counts]) -> Counts:
    """Put documents under one another."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.concatenate([np.diff(part.indptr) for part in parts])
    words, counts = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    return Counts(np.concatenate([[0], np.cumsum(sizes)]), words, counts, parts[0].num_words)

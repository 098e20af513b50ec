"""Read corpora from files, as streams and by name.

`read_corpus` loads a file; a `CorpusStream` reads files larger than memory in batches;
`load_icml` and `stream_wiki` read the corpora of the paper's experiments.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from isotherm.data import bag_of_words
from isotherm.data.registry import PathLike, locate
from isotherm.data.shards import Position, Shards
from isotherm.data.word_counts import check_rows
from isotherm.topics import counter_rng
from isotherm.topics.corpus import (
    Corpus,
    as_corpus,
    check_vocabulary,
    join_corpora,
    names_by_column,
)


def read_corpus(path: PathLike, vocabulary: PathLike | Sequence[str] | None = None) -> Corpus:
    """Read a corpus; the suffix of the file name determines the format.

    Parameters
    ----------
    path
        LDA-C (`.ldac`, `.dat`), a SciPy sparse matrix (`.npz`) or Matrix Market (`.mtx`, `.mm`);
        text may be gzipped.
    vocabulary
        A file with one word per line, or the words.
    """
    words = _words(vocabulary)
    suffix = bag_of_words.kind(path)
    if bag_of_words.READERS[suffix] is bag_of_words.read_ldac:
        return as_corpus(bag_of_words.read_ldac(path, None if words is None else len(words)), words)
    return as_corpus(bag_of_words.READERS[suffix](path), words)


def from_bags(
    bags: Iterable[Iterable[tuple[int, int]]],
    dictionary: Mapping[Any, Any] | Sequence[str] | None = None,
    *,
    num_words: int | None = None,
) -> Corpus:
    """Convert bags of words in gensim's format: per document a list of pairs (word, count).

    Parameters
    ----------
    bags
        The documents, for example `[dictionary.doc2bow(text) for text in texts]`.
    dictionary
        gensim's `Dictionary`, or the words in the order of their numbers.
    num_words
        Number of words, if there is no `dictionary`.

    Examples
    --------
    >>> from_bags([[(0, 1), (2, 2)], []], ["red", "green", "blue"])
    Corpus(2 documents, 3 words, 3 tokens)
    """
    if (dictionary is None) == (num_words is None):
        raise ValueError("`from_bags` needs `dictionary` or `num_words`, and not both.")
    names = None if dictionary is None else _names(dictionary)
    rows = [list(bag) if isinstance(bag, Iterable) else [bag] for bag in bags]
    for j, row in enumerate(rows):
        if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in row):
            raise ValueError(f"`bags`: document {j} must be a list of pairs (word, count).")
        if any(isinstance(number, str) for pair in row for number in pair):
            raise ValueError(
                f"`bags`: document {j} has words instead of their numbers: convert texts by "
                "gensim's `dictionary.doc2bow(words)`."
            )
    pairs = np.array([pair for row in rows for pair in row]).reshape(-1, 2)
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    size = len(names) if names is not None else int(num_words or 0)
    words = pairs[:, 0].astype(np.int64)
    return as_corpus(check_rows(indptr, words, pairs[:, 1], size, what="`bags`"), names)


def _names(dictionary: Mapping[Any, Any] | Sequence[str]) -> list[str]:
    return names_by_column(dictionary) if isinstance(dictionary, Mapping) else list(dictionary)


def shuffle_buffer(
    batches: Iterable[Corpus], batch_size: int, *, buffer_size: int = 10_000, seed: int = 0
) -> Iterator[Corpus]:
    """Yield batches of documents in a more random order, for a sorted stream.

    A buffer of documents is kept in memory. Each batch is drawn from it at random, and the next
    documents of the stream take its place. A document moves by about `buffer_size` places, so the
    buffer should span several subjects or sources; if it cannot, shuffle the files.

    Parameters
    ----------
    batches
        Documents in order, for example `(batch for batch, _ in stream.batches(1000))`.
    batch_size
        Documents per batch; the last batch may have fewer.
    buffer_size
        Documents in the buffer, at least `batch_size`.
    seed
        Seed of the random order.
    """
    if not 1 <= batch_size <= buffer_size:
        raise ValueError(f"`batch_size` must be from 1 to {buffer_size=}, got {batch_size}.")
    waiting: list[Corpus] = []
    number, step = 0, 0
    for more in batches:
        waiting.append(more)
        number += len(more)
        while number >= buffer_size + batch_size:
            buffer = join_corpora(waiting)
            order = counter_rng.generator(seed, "documents", step).permutation(number)
            yield buffer[order[:batch_size]]
            waiting, number, step = (
                [buffer[np.sort(order[batch_size:])]],
                number - batch_size,
                step + 1,
            )
    if waiting:
        buffer = join_corpora(waiting)
        buffer = buffer[counter_rng.generator(seed, "documents", step).permutation(number)]
        for first in range(0, number, batch_size):
            yield buffer[first : first + batch_size]


def _words(vocabulary: PathLike | Sequence[str] | None) -> tuple[str, ...] | None:
    if vocabulary is None:
        return None
    if isinstance(vocabulary, str | os.PathLike):
        return bag_of_words.read_vocabulary(vocabulary)
    return check_vocabulary(vocabulary, len(vocabulary))


class StreamBatch(NamedTuple):
    """Documents of a stream; their numbers are their positions in it."""

    corpus: Corpus
    next: Position
    """Position in the stream after this batch."""


class CorpusStream(NamedTuple):
    """A corpus that is read one batch at a time."""

    shards: Shards
    vocabulary: tuple[str, ...] | None = None

    @property
    def num_words(self) -> int:
        """Size of the vocabulary."""
        return self.shards.num_words

    def batches(
        self, batch_size: int, position: Position | None = None, *, num_epochs: int | None = 1
    ) -> Iterator[StreamBatch]:
        """Yield batches of documents in order, from a position (`isotherm.data.shards`) on."""
        for batch in self.shards.batches(batch_size, position, num_epochs=num_epochs):
            numbers = batch.first.document + np.arange(batch.counts.num_documents)
            yield StreamBatch(Corpus(*batch.counts, self.vocabulary, numbers), batch.next)


def open_stream(
    paths: Sequence[PathLike],
    vocabulary: PathLike | Sequence[str] | None = None,
    *,
    num_words: int | None = None,
) -> CorpusStream:
    """Open files of documents as one stream.

    Parameters
    ----------
    paths
        Shards, in order: `.npz`, `.ldac`, `.dat`, the last two also with `.gz`.
    vocabulary
        A file with one word per line, or the words.
    num_words
        Number of words, if there is no `vocabulary`.
    """
    words = _words(vocabulary)
    num_words = len(words) if words is not None else num_words
    if num_words is None:
        raise ValueError(
            "A stream needs `vocabulary` or `num_words`, since it is not read in advance."
        )
    return CorpusStream(Shards(paths, num_words), words)


def load_icml(data_dir: PathLike | None = None) -> Corpus:
    """Load the abstracts of ICML 2007 to 2011: 766 documents, 1918 words, 45 158 tokens.

    Parameters
    ----------
    data_dir
        As in `isotherm.data.registry.locate`.
    """
    paths = locate("icml", data_dir, ["icml_bow.npz", "icml_vocab.txt"])
    return read_corpus(paths["icml_bow.npz"], paths["icml_vocab.txt"])


def stream_wiki(
    part: Literal["train", "test", "small"] = "train", data_dir: PathLike | None = None
) -> CorpusStream:
    """Open Wikipedia articles over 7702 words: 229 624 to train, 1000 to test, in random order.

    Parameters
    ----------
    part
        `"small"` is the first 10 000 of `"train"`.
    data_dir
        As in `isotherm.data.registry.locate`.
    """
    name = f"wiki_{part}.npz"
    paths = locate("wiki", data_dir, [name, "dictnostops.txt"])
    return open_stream([paths[name]], paths["dictnostops.txt"])


def load_wiki(
    part: Literal["train", "test", "small"] = "test", data_dir: PathLike | None = None
) -> Corpus:
    """Load a part of `stream_wiki` into memory."""
    name = f"wiki_{part}.npz"
    paths = locate("wiki", data_dir, [name, "dictnostops.txt"])
    return read_corpus(paths[name], paths["dictnostops.txt"])

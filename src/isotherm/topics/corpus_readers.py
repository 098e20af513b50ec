"""Read corpora from files, as streams and by name.

`read_corpus` loads a file; a `CorpusStream` reads files larger than memory in batches;
`load_icml` and `stream_wiki` read the corpora of the paper's experiments.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from isotherm.data import bag_of_words
from isotherm.data.registry import PathLike, locate
from isotherm.data.shards import Position, Shards
from isotherm.topics.corpus import Corpus, as_corpus, check_vocabulary


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
        """Iterate over the documents in order, from a position (`isotherm.data.shards`)."""
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

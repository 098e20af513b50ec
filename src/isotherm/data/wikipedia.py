"""A Wikipedia dump as bags of words, in shards that `isotherm.data.shards` reads.

The dump is cut into chunks (`isotherm.data.wikidump`), processes take the markup out of their pages and count the
words of a vocabulary (`wikipages`, `wikitext`), and one process writes the counts down in the order of the dump. So
shards do not depend on the number of processes. After every shard a *ledger* says how far it went; a build that
was killed goes on there, and its shards are those of a build that was not, byte for byte.

Memory is that of one shard and of two chunks per process, whatever the size of the dump.
"""

import hashlib
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from isotherm.data import wikidump, wikitext
from isotherm.data.bag_of_words import read_vocabulary
from isotherm.data.registry import PathLike
from isotherm.data.shard_manifest import Ledger
from isotherm.data.truncation import brief
from isotherm.data.wikipages import Counted, Settings, count_chunk, read_header
from isotherm.data.word_counts import stack
from isotherm.io.files import atomically

Progress = Callable[[int, int], None]
"""Told after every chunk how many bytes and how many pages were read."""


class Tally(NamedTuple):
    """What became of the pages."""

    documents: int = 0
    redirect: int = 0
    namespace: int = 0
    """Pages outside namespace 0."""
    model: int = 0
    """Pages without wikitext."""
    short: int = 0
    """Articles with too few words of the vocabulary."""
    malformed: int = 0
    """Pages that are not what MediaWiki writes."""
    tokens: int = 0
    plain: int = 0
    """Documents too long or too deep for mwparserfromhell, stripped by regular expressions."""

    @property
    def pages(self) -> int:
        """Number of all pages."""
        return sum(self[:6])


class Built(NamedTuple):
    """What a build has left behind."""

    shards: tuple[Path, ...]
    vocabulary: Path
    tally: Tally
    trouble: str | None
    """Why the dump was not read to its end, if it is cut off or damaged."""


def build_shards(
    dump: PathLike,
    vocabulary: PathLike,
    out: PathLike,
    *,
    min_tokens: int = 10,
    workers: int | None = None,
    limit: int | None = None,
    shard_documents: int = 5_000,
    chunk_bytes: int = 4 << 20,
    progress: Progress = lambda read, pages: None,
) -> Built:
    """Count the words of every article of a dump, or go on where a build was killed.

    Parameters
    ----------
    dump
        MediaWiki XML of current pages (`pages-articles`), plain, gzipped or bz2, best of the multistream kind.
    vocabulary
        File with a word per line, of ASCII letters; capitals are matched in lower case.
    out
        Folder for the shards, `wiki-00000.npz` and so on, each with an array `page_id`, and for
        `vocabulary.txt` and `ledger.json`.
    min_tokens
        Skip articles with fewer words of the vocabulary.
    workers
        Number of processes; by default one per core. A script that asks for more than one needs
        `if __name__ == "__main__":`.
    limit
        Stop after so many documents.
    shard_documents
        A shard ends with the chunk in which it gets so many.
    chunk_bytes
        Text that a process takes at a time.
    progress
        Called after every chunk.

    Raises
    ------
    ValueError
        The dump is none, the vocabulary cannot be used, or `out` was begun with other arguments. A dump that is
        cut off or damaged is no error: what was read is kept, and `Built.trouble` says so.
    """
    dump, out = Path(dump), Path(out)
    made_from = {
        "min_tokens": min_tokens,
        "limit": limit,
        "shard_documents": shard_documents,
        "chunk_bytes": chunk_bytes,
    }
    _check({"workers": workers, **made_from})
    if not dump.is_file():
        raise FileNotFoundError(f"There is no dump `{dump}`.")
    words = read_words(vocabulary)
    made_from |= _fingerprints(dump, words)
    header = read_header(dump)
    ledger = Ledger.open(out, made_from)
    copy = out / "vocabulary.txt"
    if not ledger.ended:
        with atomically(copy) as draft:
            draft.write_bytes("\n".join([*words, ""]).encode())
        numbers = {word: number for number, word in enumerate(words)}
        chunks = wikidump.chunks(dump, chunk_bytes, ledger.position)
        settings = Settings(numbers, header, min_tokens)
        with closing(_counted(chunks, settings, workers or _cores())) as counted:
            _write(counted, ledger, progress)
    tally = _tally(ledger)
    trouble = None
    if ledger.trouble is not None:
        trouble = f"`{dump}` {ledger.trouble}; the {tally.pages:,} pages before that were read."
    return Built(ledger.paths, copy, tally, trouble)


def _check(arguments: dict[str, int | None]) -> None:
    for name, value in arguments.items():
        least = 0 if name == "min_tokens" else 1
        if value is not None and value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}.")


def read_words(path: PathLike) -> tuple[str, ...]:
    """Read a vocabulary, in lower case; every word must be one that a page can have."""
    lines: dict[str, int] = {}
    for number, word in enumerate(read_vocabulary(path), 1):
        lower = word.lower()
        if wikitext.tokens(word) != [lower]:
            raise ValueError(
                f"`{path}`, line {number}: no page has {brief(repr(word))}, as words are made of the letters a to z."
            )
        if lower in lines:
            raise ValueError(
                f"`{path}`, line {number}: {brief(repr(word))} is on line {lines[lower]} already, but for capitals."
            )
        lines[lower] = number
    return tuple(lines)


def _fingerprints(dump: Path, words: tuple[str, ...]) -> dict[str, Any]:
    """Tell dump and words by checksums (of a large dump, only its ends), and the parsers by versions."""
    try:
        versions = {name: metadata.version(name) for name in ("mwxml", "mwparserfromhell")}
    except metadata.PackageNotFoundError as error:
        raise ImportError(
            f"Reading a dump needs {error.name}: pip install 'isotherm[wiki]'."
        ) from error
    size = dump.stat().st_size
    with dump.open("rb") as stream:
        digest = hashlib.sha256(stream.read(wikidump.BLOCK))
        stream.seek(max(size - wikidump.BLOCK, 0))
        digest.update(stream.read())
    return {
        "dump_bytes": size,
        "dump_sha256": digest.hexdigest(),
        "vocabulary_sha256": hashlib.sha256("\n".join(words).encode()).hexdigest(),
        **versions,
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tally(ledger: Ledger) -> Tally:
    return Tally(**{name: ledger.tally.get(name, 0) for name in Tally._fields})


def _counted(
    chunks: Iterator[wikidump.Chunk], settings: Settings, workers: int
) -> Generator[tuple[wikidump.Chunk, Counted]]:
    """Count chunks, several at a time, and give them in their order."""
    if workers == 1:
        for chunk in chunks:
            yield chunk, count_chunk(chunk, settings)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_follow_parent)
    pending: deque[tuple[wikidump.Chunk, Future[Counted]]] = deque()
    try:
        for chunk in chunks:
            pending.append((chunk, pool.submit(count_chunk, chunk, settings)))
            if len(pending) == 2 * workers:
                done, future = pending.popleft()
                yield done, future.result()
        for done, future in pending:
            yield done, future.result()
    except BrokenProcessPool:
        raise ChildProcessError(
            "A process was killed, perhaps for want of memory; the same again with fewer workers goes on."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _write(
    counted: Iterator[tuple[wikidump.Chunk, Counted]], ledger: Ledger, progress: Progress
) -> None:
    """Gather chunks into shards until the dump ends, or breaks off, or the limit is reached."""
    limit, size = (ledger.made_from[name] for name in ("limit", "shard_documents"))
    position, before, parts = ledger.position, _tally(ledger), []
    pages, documents = before.pages, before.documents
    held = 0
    for chunk, part in counted:
        if limit is not None:
            part = part.first(limit - documents)
        parts.append(part)
        position, pages = chunk.end, pages + len(part.outcomes)
        documents, held = documents + len(part.page_id), held + len(part.page_id)
        progress(chunk.read, pages)
        if part.trouble is not None or documents == limit:
            break
        if held >= size:
            _add(ledger, parts, position)
            parts, held = [], 0
    _add(ledger, parts, position, ended=True)


def _add(ledger: Ledger, parts: list[Counted], position: int, *, ended: bool = False) -> None:
    if not parts:
        ledger.advance({}, position, ended=ended)
        return
    tally = sum((part.tally() for part in parts), Counter())
    counts, ids = stack([part.counts for part in parts]), [part.page_id for part in parts]
    if counts.num_documents:
        ledger.add(counts, np.concatenate(ids))
    ledger.advance(tally, position, ended=ended, trouble=parts[-1].trouble)

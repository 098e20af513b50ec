"""Convert a Wikipedia dump to bags of words, in shards that `isotherm.data.shards` reads.

The dump is split into chunks (`isotherm.data.wikidump`). Processes remove the markup of the pages
and count the words of a vocabulary (`wikipages`, `wikitext`); one process writes the counts in the
order of the dump, so the shards do not depend on the number of processes. After every shard a
manifest (`shard_manifest`) records the position in the dump. A build that was killed resumes from
there, and its shards are, byte for byte, those of a build that was not killed.

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
from isotherm.data.shard_manifest import ShardManifest
from isotherm.data.truncation import shorten
from isotherm.data.wikipages import Counted, Settings, count_chunk, read_header
from isotherm.data.word_counts import stack
from isotherm.imports import require
from isotherm.io.files import atomically, checksum
from isotherm.io.locks import locked

Progress = Callable[[int, int], None]
"""Called after every chunk with the number of bytes and of pages read so far."""


class Tally(NamedTuple):
    """Number of pages by outcome, and of tokens."""

    documents: int = 0
    redirect: int = 0
    namespace: int = 0
    """Pages outside namespace 0."""
    model: int = 0
    """Pages without wikitext."""
    short: int = 0
    """Articles with too few words of the vocabulary."""
    malformed: int = 0
    """Pages with invalid XML."""
    tokens: int = 0
    plain: int = 0
    """Documents too long or too deeply nested to parse, stripped by regular expressions."""

    @property
    def pages(self) -> int:
        """Number of pages read."""
        return sum(self[:6])


class Built(NamedTuple):
    """Files and statistics of a build."""

    shards: tuple[Path, ...]
    vocabulary: Path
    tally: Tally
    trouble: str | None
    """Why the dump was not read to its end, if it is truncated or damaged."""


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
    """Count the words of every article of a dump, or resume a build that was killed.

    Parameters
    ----------
    dump
        MediaWiki XML of current pages (`pages-articles`), plain, gzipped or bz2; multistream bz2
        is the fastest.
    vocabulary
        File with one word per line, of ASCII letters; upper case is converted to lower case.
    out
        Folder for the shards, `wiki-00000.npz` and so on, each with an array `page_id`, and for
        `vocabulary.txt` and the manifest, `ledger.json`.
    min_tokens
        Skip articles with fewer words of the vocabulary.
    workers
        Number of processes; by default one per core. A script that uses more than one needs
        `if __name__ == "__main__":`.
    limit
        Stop after this many documents.
    shard_documents
        A shard ends with the chunk in which it reaches this many documents.
    chunk_bytes
        Bytes of text that a process reads at a time.
    progress
        Called after every chunk with the number of bytes and of pages read so far.

    Raises
    ------
    ValueError
        The file is not a dump, the vocabulary cannot be used, or `out` was started with other
        arguments. A truncated or damaged dump is not an error: the pages before the damage are
        kept, and `Built.trouble` describes it.
    """
    dump, out = Path(dump), Path(out)
    arguments = {
        "min_tokens": min_tokens,
        "limit": limit,
        "shard_documents": shard_documents,
        "chunk_bytes": chunk_bytes,
    }
    _check({"workers": workers, **arguments})
    if not dump.is_file():
        raise FileNotFoundError(f"The dump `{dump}` does not exist.")
    words = read_words(vocabulary)
    arguments |= _fingerprints(dump, words)
    header = read_header(dump)
    copy = out / "vocabulary.txt"
    with locked(out):
        manifest = ShardManifest.open(out, arguments)
        if not manifest.ended:
            with atomically(copy) as draft:
                draft.write_bytes("\n".join([*words, ""]).encode())
            word_ids = {word: index for index, word in enumerate(words)}
            chunks = wikidump.chunks(dump, chunk_bytes, manifest.position)
            settings = Settings(word_ids, header, min_tokens)
            with closing(_count_chunks(chunks, settings, workers or _cores())) as counted:
                _write_shards(counted, manifest, progress)
    tally = _tally(manifest)
    trouble = None
    if manifest.trouble is not None:
        trouble = (
            f"`{dump}` {manifest.trouble}; the {tally.pages:,} pages before that point were read."
        )
    return Built(manifest.paths, copy, tally, trouble)


def _check(arguments: dict[str, int | None]) -> None:
    for name, value in arguments.items():
        least = 0 if name == "min_tokens" else 1
        if value is not None and value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}.")


def read_words(path: PathLike) -> tuple[str, ...]:
    """Read a vocabulary in lower case; raise `ValueError` for a word that no page can contain."""
    lines: dict[str, int] = {}
    for number, word in enumerate(read_vocabulary(path), 1):
        lower = word.lower()
        if wikitext.tokens(word) != [lower]:
            raise ValueError(
                f"`{path}`, line {number}: {shorten(repr(word))} must have the letters a to z only."
            )
        if lower in lines:
            raise ValueError(
                f"`{path}`, line {number}: duplicate word {shorten(repr(word))}, "
                f"in other case on line {lines[lower]}."
            )
        lines[lower] = number
    return tuple(lines)


def _fingerprints(dump: Path, words: tuple[str, ...]) -> dict[str, Any]:
    """Return what identifies the dump, the words and the parsers: checksums and versions."""
    parsers = ("mwxml", "mwparserfromhell")
    for name in parsers:
        require(name, "wiki", "Reading a dump")
    versions = {name: metadata.version(name) for name in parsers}
    return {
        "dump_bytes": dump.stat().st_size,
        "dump_sha256": checksum(dump),
        "vocabulary_sha256": hashlib.sha256("\n".join(words).encode()).hexdigest(),
        **versions,
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tally(manifest: ShardManifest) -> Tally:
    return Tally(**{name: manifest.tally.get(name, 0) for name in Tally._fields})


def _count_chunks(
    chunks: Iterator[wikidump.Chunk], settings: Settings, workers: int
) -> Generator[tuple[wikidump.Chunk, Counted]]:
    """Count several chunks at a time, and yield them in order."""
    if workers == 1:
        for chunk in chunks:
            yield chunk, count_chunk(chunk, settings)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_init_worker)
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
            "A worker process was killed, perhaps because memory ran out. "
            "Run the same again with fewer workers to resume."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _init_worker() -> None:
    """Leave Ctrl-C to the parent, and exit when the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _write_shards(
    counted: Iterator[tuple[wikidump.Chunk, Counted]], manifest: ShardManifest, progress: Progress
) -> None:
    """Write shards until the dump ends, is damaged, or the limit is reached."""
    limit, size = (manifest.arguments[name] for name in ("limit", "shard_documents"))
    position, before, parts = manifest.position, _tally(manifest), []
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
            _add_shard(manifest, parts, position)
            parts, held = [], 0
    _add_shard(manifest, parts, position, ended=True)


def _add_shard(
    manifest: ShardManifest, parts: list[Counted], position: int, *, ended: bool = False
) -> None:
    if not parts:
        manifest.advance({}, position, ended=ended)
        return
    tally = sum((part.tally() for part in parts), Counter())
    counts, ids = stack([part.counts for part in parts]), [part.page_id for part in parts]
    if counts.num_documents:
        manifest.add(counts, np.concatenate(ids))
    manifest.advance(tally, position, ended=ended, trouble=parts[-1].trouble)

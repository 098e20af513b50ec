"""Split MediaWiki dumps into pages, and into chunks of work for several processes.

A dump is XML, plain, gzipped or bz2. A *multistream* bz2 dump is a sequence of streams that can be
decompressed independently. A plain or multistream dump is split into ranges of bytes, and each
process reads its own ranges. Any other dump has to be decompressed from the front by one process,
which hands the pages to the others.

A page belongs to the range in which its `<page>` begins, wherever it ends. Pages are found by
searching the bytes for `<page>` and `</page>`; in XML neither can occur inside text. Only the
header and single pages are given to an XML parser, and a header that declares a document type is
refused, so entities can be neither defined nor expanded.
"""

import bz2
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Literal, NamedTuple

from isotherm.io.untrusted import check_regular

Kind = Literal["xml", "gz", "bz2"]

BLOCK = 1 << 20
"""Bytes read or decompressed at a time."""
LARGEST_PAGE = 32 << 20
"""Largest page in bytes; MediaWiki limits an article to two million."""
LONGEST_STREAM = 32 << 20
"""Bytes searched for the second stream of a multistream dump."""
SHORTEST_END = 1 << 10
"""Smallest size of the last range in bytes, so that it contains all of `</mediawiki>`."""

_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_OPEN, _CLOSE, _END = b"<page>", b"</page>", b"</mediawiki>"


class DumpError(ValueError):
    """A dump is truncated or damaged. All pages before the damage have been returned.

    The message completes a sentence that begins with the path: "is truncated …".
    """


class Chunk(NamedTuple):
    """A part of a dump for one process: a range of bytes, or a list of pages."""

    path: Path
    kind: Kind
    start: int
    """First byte of the range; or index of the first page, if `pages` is given."""
    end: int
    """`start` of the next chunk."""
    read: int
    """Bytes of the file up to the end of this chunk, for a progress bar."""
    last: bool = False
    """Whether the range extends to the end of the file."""
    pages: tuple[bytes, ...] | None = None
    trouble: str | None = None
    """Why the dump ends after these pages, if it is truncated or damaged."""


def kind_of(path: Path) -> Kind:
    """Return the compression of a dump, by its first bytes."""
    check_regular(path)
    with path.open("rb") as stream:
        magic = stream.read(3)
    if not magic:
        raise ValueError(f"`{path}` is empty.")
    return "bz2" if magic == b"BZh" else "gz" if magic[:2] == b"\x1f\x8b" else "xml"


def blocks(path: Path, kind: Kind, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Decompress a range of a dump, at most `BLOCK` bytes at a time."""
    with path.open("rb") as stream:
        stream.seek(start)
        yield from _decompress(stream, kind, (path.stat().st_size if end is None else end) - start)


def _decompress(stream: IO[bytes], kind: Kind, size: int) -> Iterator[bytes]:
    try:
        if kind == "bz2":
            yield from _bunzip(stream, size)
        elif kind == "gz":
            with gzip.open(stream) as unpacked:
                # `read` would lose the data before the end of a truncated file.
                yield from iter(lambda: unpacked.read1(BLOCK), b"")
        else:
            while block := stream.read(min(BLOCK, size)):
                size -= len(block)
                yield block
    except EOFError:
        problem = "is damaged in" if stream.read(1) else "is truncated in the middle of"
        raise DumpError(f"{problem} its {kind} data") from None
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the dump
        raise DumpError(f"is damaged in its {kind} data ({error})") from None


def _bunzip(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Decompress all of `size` bytes.

    `bz2.BZ2File` silently ignores everything after a damaged stream.
    """
    unpacker, packed, begun = bz2.BZ2Decompressor(), b"", False
    while True:
        if unpacker.eof:
            packed, unpacker, begun = unpacker.unused_data, bz2.BZ2Decompressor(), False
        if not packed and unpacker.needs_input:
            packed = stream.read(min(BLOCK, size))
            size -= len(packed)
            if not packed:
                break
        block, packed, begun = unpacker.decompress(packed, BLOCK), b"", True
        if block:
            yield block
    if begun:
        raise EOFError


def split_pages(own: Iterable[bytes], beyond: Iterable[bytes] | None = None) -> Iterator[bytes]:
    """Find the pages that begin in the blocks `own`; the last one may end in the blocks `beyond`.

    Without `beyond`, the dump must end in `own`.
    """
    text, ended = b"", False
    for block in own:
        pages, text, ended = _split_complete(text + block, ended)
        yield from pages
    if beyond is None:
        if text.startswith(_OPEN):
            raise DumpError("is truncated in the middle of a page")
        if not ended:
            raise DumpError("is truncated after a page")
    elif text.startswith(_OPEN) or b"<" in text[1 - len(_OPEN) :]:
        yield from _finish_page(text, beyond)


def _split_complete(text: bytes, ended: bool) -> tuple[list[bytes], bytes, bool]:
    """Return the complete pages, the rest of the text, and whether the dump has ended.

    The rest is the beginning of a page, or a few bytes that may be the beginning of a tag.
    """
    pages, at = [], 0
    while (start := text.find(_OPEN, at)) >= 0:
        stop = text.find(_CLOSE, start)
        if stop < 0:
            _check_size(len(text) - start)
            return pages, text[start:], False
        at = stop + len(_CLOSE)
        pages.append(text[start:at])
    ended = (ended and not pages) or text.find(_END, at) >= 0
    return pages, text[max(at, len(text) - len(_END) + 1) :], ended


def _finish_page(text: bytes, beyond: Iterable[bytes]) -> Iterator[bytes]:
    """Find the page that begins in a text and ends in the blocks beyond it, if there is one."""
    reach = len(text) + len(_OPEN) - 1
    for block in beyond:
        text += block
        start = text.find(_OPEN, 0, reach)
        if start < 0 and len(text) >= reach:
            return
        stop = text.find(_CLOSE, start)
        if start >= 0 and stop >= 0:
            yield text[start : stop + len(_CLOSE)]
            return
        _check_size(len(text))
    if text.startswith(_OPEN):
        raise DumpError("is truncated in the middle of a page")


def _check_size(size: int) -> None:
    if size > LARGEST_PAGE:
        raise DumpError(f"has a page of over {LARGEST_PAGE >> 20} MiB, which no article can have")


def read_head(path: Path) -> bytes:
    """Return the bytes before the first page."""
    text = b""
    try:
        for block in blocks(path, kind_of(path)):
            text += block
            if len(text) > BLOCK or _OPEN in text or _END in text:
                break
    except DumpError as error:
        raise ValueError(f"`{path}` {error}, before its first page.") from None
    before = re.split(b"|".join((_OPEN, _END)), text, maxsplit=1)[0]
    if b"<mediawiki" not in before:
        raise ValueError(f"`{path}` is not a MediaWiki dump: it does not begin with `<mediawiki>`.")
    if b"<!DOCTYPE" in before or b"<!ENTITY" in before:
        raise ValueError(
            f"`{path}` is not a MediaWiki dump: "
            "it declares a document type, which may define entities."
        )
    if before == text:
        raise ValueError(f"`{path}` is truncated before its first page.")
    return before


def chunks(path: Path, size: int, start: int = 0) -> Iterator[Chunk]:
    """Split a dump into chunks of about `size` bytes of text.

    `start` is 0, or `end` of an earlier chunk of the same dump.
    """
    kind = kind_of(path)
    if kind == "xml" or (kind == "bz2" and _is_multistream(path)):
        # Wikitext compresses to about a quarter of its size.
        yield from _range_chunks(path, kind, size if kind == "xml" else max(size // 4, 1), start)
    else:
        yield from _page_chunks(path, kind, size, start)


def pages(chunk: Chunk) -> Iterator[bytes]:
    """Iterate over the pages of a chunk; raise `DumpError` after them if the dump is damaged."""
    if chunk.pages is not None:
        yield from chunk.pages
        if chunk.trouble is not None:
            raise DumpError(chunk.trouble)
        return
    own = blocks(chunk.path, chunk.kind, chunk.start, chunk.end)
    yield from split_pages(own, None if chunk.last else blocks(chunk.path, chunk.kind, chunk.end))


def _range_chunks(path: Path, kind: Kind, size: int, start: int) -> Iterator[Chunk]:
    total = path.stat().st_size
    with path.open("rb") as stream:
        while start < total:
            end = min(start + size, total)
            if kind == "bz2":
                end = _next_stream(stream, end, total)
            if total - end < SHORTEST_END:
                end = total
            yield Chunk(path, kind, start, end, end, last=end == total)
            start = end


def _next_stream(stream: IO[bytes], start: int, end: int) -> int:
    """Return where the first bz2 stream from byte `start` on begins, or `end` if there is none."""
    stream.seek(start)
    text = b""
    while start < end and (block := stream.read(BLOCK)):
        text += block
        if match := _STREAM.search(text):
            return min(start + match.start(), end)
        start += max(len(text) - 9, 0)
        text = text[-9:]
    return end


def _is_multistream(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as stream:
        return _next_stream(stream, 1, min(size, LONGEST_STREAM)) < min(size, LONGEST_STREAM)


def _page_chunks(path: Path, kind: Kind, size: int, start: int) -> Iterator[Chunk]:
    """Decompress a dump from the front into chunks of pages; skip the first `start` pages."""
    with path.open("rb") as stream:
        source = islice(split_pages(_decompress(stream, kind, path.stat().st_size)), start, None)
        trouble = None
        while trouble is None:
            batch, held = [], 0
            try:
                while held < size and (page := next(source, None)) is not None:
                    batch.append(page)
                    held += len(page)
            except DumpError as error:
                trouble = str(error)
            if not batch and trouble is None:
                return
            end = start + len(batch)
            yield Chunk(path, kind, start, end, stream.tell(), pages=tuple(batch), trouble=trouble)
            start = end

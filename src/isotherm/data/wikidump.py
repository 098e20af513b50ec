"""MediaWiki dumps, cut into pages and into chunks of work.

A dump is XML, plain, gzipped or bz2. The multistream kind of bz2 is many streams behind one another, each of which
can be unpacked alone; so a dump of this kind, or a plain one, is cut into ranges of bytes that
processes read for themselves. The others have to be unpacked from the front, by one process, which hands pages out.

A page belongs to the range in which its `<page>` begins, wherever it ends. Bytes are searched for `<page>` and
`</page>`; in XML neither can stand inside a text. Nothing but single pages and the dump's header meets an XML
parser, and a header that declares a document type is refused: no entity is ever defined, so none expands.
"""

import bz2
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Literal, NamedTuple

Kind = Literal["xml", "gz", "bz2"]

BLOCK = 1 << 20
LARGEST_PAGE = 32 << 20
"""Bytes; MediaWiki allows an article two million."""
LONGEST_STREAM = 32 << 20
"""Where the second stream of a multistream dump must begin, in bytes."""

SHORTEST_END = 1 << 10
"""Bytes of the last range at least, so that all of `</mediawiki>` is in it."""

_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_OPEN, _CLOSE, _END = b"<page>", b"</page>", b"</mediawiki>"


class DumpError(ValueError):
    """A dump that breaks off; the message is what it "is" or "has". All pages before it have come."""


class Chunk(NamedTuple):
    """Pages for one process to count."""

    path: Path
    kind: Kind
    start: int
    """First byte of the range; or number of the first page, if `pages` has them."""
    end: int
    """Where the next chunk begins."""
    read: int
    """Bytes of the file up to the end of this chunk, for a progress bar."""
    last: bool = False
    """Nothing is beyond this range."""
    pages: tuple[bytes, ...] | None = None
    trouble: str | None = None
    """Why there are no pages after these."""


def kind_of(path: Path) -> Kind:
    """Tell the kind of a dump by its first bytes."""
    with path.open("rb") as stream:
        magic = stream.read(3)
    if not magic:
        raise ValueError(f"`{path}` is empty.")
    return "bz2" if magic == b"BZh" else "gz" if magic[:2] == b"\x1f\x8b" else "xml"


def blocks(path: Path, kind: Kind, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Unpack a range of a dump, a block of at most a mebibyte at a time."""
    with path.open("rb") as stream:
        stream.seek(start)
        yield from _unpacked(stream, kind, (path.stat().st_size if end is None else end) - start)


def _unpacked(stream: IO[bytes], kind: Kind, size: int) -> Iterator[bytes]:
    try:
        if kind == "bz2":
            yield from _bunzip(stream, size)
        elif kind == "gz":
            with gzip.open(stream) as unpacked:
                yield from iter(
                    lambda: unpacked.read1(BLOCK), b""
                )  # `read` loses what it has at a cut
        else:
            while block := stream.read(min(BLOCK, size)):
                size -= len(block)
                yield block
    except EOFError:
        broken = "is damaged in" if stream.read(1) else "is cut off in the middle of"
        raise DumpError(f"{broken} its {kind} data") from None
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The disk's trouble, not the dump's.
        raise DumpError(f"is damaged in its {kind} data ({error})") from None


def _bunzip(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Unpack all of some bytes; `bz2.BZ2File` takes a damaged stream for rubbish at the end and is silent."""
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


def cut(own: Iterable[bytes], beyond: Iterable[bytes] | None = None) -> Iterator[bytes]:
    """Find the pages that begin in some blocks; the last may end in those beyond.

    If nothing is beyond, the dump has to end in these blocks.
    """
    text, ended = b"", False
    for block in own:
        pages, text, ended = _split(text + block, ended)
        yield from pages
    if beyond is None:
        if text.startswith(_OPEN):
            raise DumpError("is cut off in the middle of a page")
        if not ended:
            raise DumpError("is cut off after a page")
    elif text.startswith(_OPEN) or b"<" in text[1 - len(_OPEN) :]:
        yield from _finish(text, beyond)


def _split(text: bytes, ended: bool) -> tuple[list[bytes], bytes, bool]:
    """Cut whole pages off; what is left is the beginning of a page or has none."""
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


def _finish(text: bytes, beyond: Iterable[bytes]) -> Iterator[bytes]:
    """Find the page that begins in a text and ends in the blocks beyond it."""
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
        raise DumpError("is cut off in the middle of a page")


def _check_size(size: int) -> None:
    if size > LARGEST_PAGE:
        raise DumpError(f"has a page of over {LARGEST_PAGE >> 20} MiB, as no dump of articles has")


def head(path: Path) -> bytes:
    """Read what stands before the first page."""
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
            f"`{path}` is not a MediaWiki dump: it declares a document type, which may define entities."
        )
    if before == text:
        raise ValueError(f"`{path}` is cut off before its first page.")
    return before


def chunks(path: Path, size: int, start: int = 0) -> Iterator[Chunk]:
    """Cut a dump into chunks of about so many bytes of text, from where a chunk ended."""
    kind = kind_of(path)
    if kind == "xml" or (kind == "bz2" and _is_multistream(path)):
        yield from _ranges(path, kind, size if kind == "xml" else max(size // 4, 1), start)
    else:
        yield from _handed_out(path, kind, size, start)


def pages(chunk: Chunk) -> Iterator[bytes]:
    """Give the pages of a chunk; a `DumpError` follows them if the dump breaks off there."""
    if chunk.pages is not None:
        yield from chunk.pages
        if chunk.trouble is not None:
            raise DumpError(chunk.trouble)
        return
    own = blocks(chunk.path, chunk.kind, chunk.start, chunk.end)
    yield from cut(own, None if chunk.last else blocks(chunk.path, chunk.kind, chunk.end))


def _ranges(path: Path, kind: Kind, size: int, start: int) -> Iterator[Chunk]:
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
    """Find where a bz2 stream begins at or after a byte; `end` if there is none before that."""
    stream.seek(start)
    text = b""
    while start < end and (block := stream.read(BLOCK)):
        text += block
        if found := _STREAM.search(text):
            return min(start + found.start(), end)
        start += max(len(text) - 9, 0)
        text = text[-9:]
    return end


def _is_multistream(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as stream:
        return _next_stream(stream, 1, min(size, LONGEST_STREAM)) < min(size, LONGEST_STREAM)


def _handed_out(path: Path, kind: Kind, size: int, start: int) -> Iterator[Chunk]:
    """Unpack a dump from the front and hand its pages out; those before `start` are passed over."""
    with path.open("rb") as stream:
        source = islice(cut(_unpacked(stream, kind, path.stat().st_size)), start, None)
        trouble = None
        while trouble is None:
            found, held = [], 0
            try:
                while held < size and (page := next(source, None)) is not None:
                    found.append(page)
                    held += len(page)
            except DumpError as error:
                trouble = str(error)
            if not found and trouble is None:
                return
            end = start + len(found)
            yield Chunk(path, kind, start, end, stream.tell(), pages=tuple(found), trouble=trouble)
            start = end

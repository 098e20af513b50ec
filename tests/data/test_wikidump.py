"""Every page is read once, in order and complete, however a dump is compressed and split."""

import bz2
import re

import pytest

import wikis
from isotherm.data import wikidump
from isotherm.data.wikidump import (
    Chunk,
    DumpError,
    blocks,
    chunks,
    pages,
    read_head,
    split_pages,
)

TOY = wikis.toy_pages(12)
PAGES = re.findall(rb"<page>.*?</page>", wikis.xml(TOY), re.DOTALL)


def in_blocks(text, size):
    return [text[i : i + size] for i in range(0, len(text), size)]


def small():
    return b"<mediawiki>" + b"".join(b"<page>%d</page> " % i for i in range(3)) + b"</mediawiki>\n"


@pytest.mark.parametrize("size", range(1, 20))
def test_blocks_may_end_anywhere(size):
    assert list(split_pages(in_blocks(small(), size))) == [b"<page>%d</page>" % i for i in range(3)]


@pytest.mark.parametrize("size", [1, 4, 100])
def test_ranges_may_end_anywhere(size):
    """A page belongs to the range that has its first byte, for every pair of boundaries."""
    text = small()
    last = text.index(b"</mediawiki>")
    for first in range(last + 1):
        for second in range(first, last + 1):
            found = []
            for start, end in ((0, first), (first, second), (second, None)):
                own = in_blocks(text[start:end], size)
                beyond = None if end is None else in_blocks(text[end:], size)
                found += split_pages(own, beyond)
            assert found == [b"<page>%d</page>" % i for i in range(3)], (first, second)


@pytest.mark.parametrize("name", wikis.FORMS)
@pytest.mark.parametrize("size", [150, 700, 4000, 10**6])
def test_chunks_contain_every_page_once(tmp_path, name, size):
    path = wikis.write(tmp_path, name, TOY)
    every = list(chunks(path, size))
    assert [page for chunk in every for page in pages(chunk)] == PAGES
    assert every[-1].read == path.stat().st_size
    for i, chunk in enumerate(every):
        rest = list(chunks(path, size, chunk.end))
        assert rest == every[i + 1 :]
        assert chunk.start == (every[i - 1].end if i else 0)


@pytest.mark.parametrize("block", range(10, 40, 3))
def test_stream_boundaries_are_found_across_blocks(tmp_path, monkeypatch, block):
    path = wikis.write(tmp_path, "toy-multistream.xml.bz2", TOY)
    borders = [found.start() for found in re.finditer(b"BZh9", path.read_bytes())]
    monkeypatch.setattr(wikidump, "BLOCK", block)
    monkeypatch.setattr(wikidump, "SHORTEST_END", 1)
    assert [chunk.start for chunk in chunks(path, 4)] == borders


def test_which_dumps_are_split_into_ranges(tmp_path):
    """Workers read ranges of plain and multistream dumps; other dumps are sent to them as pages."""
    has_pages = {}
    for name in wikis.FORMS:
        path = wikis.write(tmp_path, name, TOY)
        every = list(chunks(path, 2000))
        has_pages[name] = every[0].pages is not None
        assert len(every) > 1
    assert [name for name in has_pages if has_pages[name]] == ["toy.xml.gz", "toy.xml.bz2"]


@pytest.mark.parametrize("name", wikis.FORMS)
def test_a_dump_truncated_anywhere(tmp_path, name):
    """The pages before the end are returned, then an error is raised."""
    path = wikis.write(tmp_path, name, TOY)
    content = path.read_bytes()
    stops = set()
    for length in range(len(content) - 16, len(content) // 3, -len(content) // 60):
        path.write_bytes(content[:length])
        found = []
        with pytest.raises(DumpError, match="is truncated") as caught:
            for chunk in chunks(path, 3000):
                for page in pages(chunk):
                    found.append(page)
        assert found == PAGES[: len(found)]
        stops.add(str(caught.value))
    if name == "toy.xml":
        assert stops == {"is truncated in the middle of a page", "is truncated after a page"}


def test_truncated_between_streams(tmp_path):
    path = wikis.write(tmp_path, "toy-multistream.xml.bz2", TOY)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"BZh")])
    found = []
    with pytest.raises(DumpError, match="is truncated after a page"):
        for chunk in chunks(path, 3000):
            for page in pages(chunk):
                found.append(page)
    assert found == PAGES


@pytest.mark.parametrize("name", [name for name in wikis.FORMS if name != "toy.xml"])
def test_a_wrong_byte_is_detected(tmp_path, name):
    """At any position; `bz2.BZ2File` would silently skip everything after it."""
    path = wikis.write(tmp_path, name, TOY)
    content = path.read_bytes()
    for position in range(100, len(content) - 20, len(content) // 40):
        wrong = bytearray(content)
        wrong[position] ^= 0xFF
        path.write_bytes(wrong)
        found = []
        with pytest.raises(DumpError, match=r"is damaged|is truncated"):
            for chunk in chunks(path, 1000):
                for page in pages(chunk):
                    found.append(page)
        # gzip has its checksum at the end, after the wrong page has been returned.
        assert found == PAGES[: len(found)] or name == "toy.xml.gz"


def test_a_decompression_bomb_is_read_in_small_blocks(tmp_path):
    (tmp_path / "bomb").write_bytes(bz2.compress(bytes(10 << 20)))
    assert (tmp_path / "bomb").stat().st_size < 1000
    assert max(map(len, blocks(tmp_path / "bomb", "bz2"))) <= wikidump.BLOCK


def test_a_page_that_never_ends(monkeypatch):
    monkeypatch.setattr(wikidump, "LARGEST_PAGE", 3000)
    with pytest.raises(DumpError, match="has a page of over"):
        list(split_pages([b"<page>", *[b"a" * 100] * 100]))
    with pytest.raises(DumpError, match="has a page of over"):
        list(split_pages([b"<page>"], [b"a" * 100] * 100))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"cat\n", "is not a MediaWiki dump: it does not begin"),
        (b"a" * (3 << 20), "is not a MediaWiki dump: it does not begin"),
        (bz2.compress(b"cat"), "is not a MediaWiki dump: it does not begin"),
        (b"BZh9cat cat cat cat", "is damaged in its bz2 data"),
        (b"\x1f\x8bcat cat cat", "is damaged in its gz data"),
        (bz2.compress(wikis.xml(TOY))[:100], "is truncated in the middle of its bz2 data, before"),
        (wikis.HEADER[:100].encode(), "is truncated before its first page"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]>' + wikis.xml(TOY), "declares a document type"),
        (b'<!DOCTYPE a SYSTEM "b.dtd">' + wikis.xml(TOY), "declares a document type"),
    ],
    ids=range(10),
)
def test_files_that_are_not_dumps(tmp_path, content, message):
    (tmp_path / "dump").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_head(tmp_path / "dump")


def test_the_end_tag_may_be_split(tmp_path):
    """The last range is never too short to contain `</mediawiki>`."""
    path = tmp_path / "dump"
    text = wikis.xml(TOY)
    for length in range(1, 20):
        path.write_bytes(bz2.compress(text[:-length]) + bz2.compress(text[-length:]))
        assert [page for chunk in chunks(path, 10) for page in pages(chunk)] == PAGES
        path.write_bytes(text)
        size = (len(text) - length) // 2
        assert [page for chunk in chunks(path, size) for page in pages(chunk)] == PAGES


def test_a_false_stream_boundary_is_detected(tmp_path):
    """A range that ends within a bz2 stream is an error."""
    path = wikis.write(tmp_path, "toy-multistream.xml.bz2", TOY)
    with pytest.raises(DumpError, match="is damaged in its bz2 data"):
        list(pages(Chunk(path, "bz2", 0, 700, 700)))

"""Convert the pages of a dump to bags of words: the work of one process.

mwxml parses the XML: the header of the dump once, and every page separately, so a malformed page
affects no other page.
"""

import io
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError

import numpy as np

from isotherm.data import wikidump, wikitext
from isotherm.data.bag_of_words import assemble
from isotherm.data.truncation import shorten
from isotherm.data.word_counts import Counts

OUTCOMES = ("kept", "plain", "redirect", "namespace", "model", "short", "malformed")
"""Outcomes of a page: kept; kept, with markup removed by regular expressions ("plain"); or skipped
for one of five reasons."""

_ROOT, _END = b"<mediawiki><siteinfo></siteinfo>", b"</mediawiki>"
_REDIRECT = re.compile(r"\s*#redirect", re.IGNORECASE)


class Header(NamedTuple):
    """The part of a dump before the first page."""

    xml: bytes
    hidden: frozenset[str]
    """Namespaces of files and categories, in lower case; links to them show no text."""


class Settings(NamedTuple):
    """What a process needs besides its chunks."""

    word_ids: dict[str, int]
    """Index of each word of the vocabulary."""
    header: Header
    min_tokens: int


class Counted(NamedTuple):
    """Word counts of a chunk."""

    counts: Counts
    page_id: np.ndarray
    """Page id of each document, int64."""
    outcomes: np.ndarray
    """Index into `OUTCOMES` for every page, in order."""
    trouble: str | None = None
    """Why the dump ends after these pages, if it is truncated or damaged."""

    def first(self, documents: int) -> "Counted":
        """Return the first documents, and the outcomes of the pages up to the last of them."""
        kept = np.flatnonzero(self.outcomes <= OUTCOMES.index("plain"))
        if len(kept) < documents:
            return self
        indptr, words, counts, num_words = self.counts
        indptr = indptr[: documents + 1]
        part = Counts(indptr, words[: indptr[-1]], counts[: indptr[-1]], num_words)
        return Counted(part, self.page_id[:documents], self.outcomes[: kept[documents - 1] + 1])

    def tally(self) -> Counter[str]:
        """Count the outcomes, documents and tokens."""
        numbers = np.bincount(self.outcomes, minlength=len(OUTCOMES)).tolist()
        tally: Counter[str] = Counter()
        tally.update(dict(zip(OUTCOMES, numbers, strict=True)))
        tally["documents"] = tally.pop("kept") + tally["plain"]
        tally["tokens"] = int(self.counts.counts.sum())
        return tally


def read_header(path: Path) -> Header:
    """Read the header of a dump; raise `ValueError` if the file is not a dump."""
    from mwxml import Dump
    from mwxml.errors import MalformedXML

    xml = wikidump.read_head(path)
    try:
        namespaces = Dump.from_file(io.BytesIO(xml + _END)).site_info.namespaces or ()
        hidden = {each.name.lower() for each in namespaces if int(each.id) in (6, 14)}
    except (ParseError, MalformedXML, AssertionError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{path}` is not a MediaWiki dump: its header cannot be read ({shorten(error)})."
        ) from error
    return Header(xml, frozenset(hidden) | {"file", "image", "category"})


def count_chunk(chunk: wikidump.Chunk, settings: Settings) -> Counted:
    """Count the words of every page of a chunk."""
    lines, ids, outcomes, trouble = [], [], [], None
    try:
        for xml in wikidump.pages(chunk):
            outcome, page_id, bag = count_page(xml, settings)
            outcomes.append(OUTCOMES.index(outcome))
            if outcome in ("kept", "plain"):
                lines.append([*bag, *bag.values()])
                ids.append(page_id)
    except wikidump.DumpError as error:
        trouble = str(error)
    counts = assemble(lines, len(settings.word_ids))
    return Counted(counts, np.array(ids, np.int64), np.array(outcomes, np.uint8), trouble)


def count_page(xml: bytes, settings: Settings) -> tuple[str, int, dict[int, int]]:
    """Count the words of a page; return its outcome, its id, and counts by word index."""
    from mwxml.errors import MalformedXML

    try:
        page, revision = _parse(xml, settings.header)
    except (ParseError, MalformedXML, AttributeError, TypeError, ValueError):
        return "malformed", 0, {}
    if page.namespace != 0:
        return "namespace", page.id, {}
    text, model = ("", None) if revision is None else (revision.text or "", revision.model)
    if page.redirect is not None or _REDIRECT.match(text):
        return "redirect", page.id, {}
    if not text or model not in (None, "wikitext"):
        return "model", page.id, {}
    stripped, parsed = wikitext.strip_markup(text, settings.header.hidden)
    bag = wikitext.bag(wikitext.tokens(stripped), settings.word_ids)
    if sum(bag.values()) < settings.min_tokens:
        return "short", page.id, {}
    return "kept" if parsed else "plain", page.id, bag


def _parse(xml: bytes, header: Header) -> tuple[Any, Any]:
    """Parse a page and return it with its last revision.

    Pages of old dumps have no `<ns>`: their namespaces follow from the header of the dump.
    """
    from mwxml import Dump

    head = _ROOT if b"<ns>" in xml else header.xml
    dump = Dump.from_file(io.BytesIO(head + xml + _END))
    page, revision = next(dump.pages), None
    for revision in page:  # noqa: B007
        pass
    if page.id is None:
        raise ValueError("the page has no id")
    return page, revision

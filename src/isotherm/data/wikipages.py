"""Pages of a dump to bags of words: the work of one process.

Here is where XML is parsed, by mwxml: the header of a dump once, then every page alone. A page that is not
well-formed costs only itself.
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
from isotherm.data.truncation import brief
from isotherm.data.word_counts import Counts

OUTCOMES = ("kept", "plain", "redirect", "namespace", "model", "short", "malformed")
"""What can become of a page: kept, kept but stripped plainly, or skipped for one of five reasons."""

_ROOT, _END = b"<mediawiki><siteinfo></siteinfo>", b"</mediawiki>"
_REDIRECT = re.compile(r"\s*#redirect", re.IGNORECASE)


class Header(NamedTuple):
    """What stands before the first page."""

    xml: bytes
    hidden: frozenset[str]
    """Namespaces of files and categories, in lower case: links there show no text."""


class Settings(NamedTuple):
    """What a process needs to know."""

    numbers: dict[str, int]
    """Number of each word of the vocabulary."""
    header: Header
    min_tokens: int


class Counted(NamedTuple):
    """A chunk, counted."""

    counts: Counts
    page_id: np.ndarray
    """Number of each document's page, int64."""
    outcomes: np.ndarray
    """Index into `OUTCOMES` of every page, in order."""
    trouble: str | None = None
    """Why the dump breaks off after these pages."""

    def first(self, documents: int) -> "Counted":
        """Leave the rest out, and the pages after the last of these documents."""
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
    """Read the header of a dump, or say that it is none."""
    from mwxml import Dump
    from mwxml.errors import MalformedXML

    xml = wikidump.head(path)
    try:
        namespaces = Dump.from_file(io.BytesIO(xml + _END)).site_info.namespaces or ()
        hidden = {each.name.lower() for each in namespaces if int(each.id) in (6, 14)}
    except (ParseError, MalformedXML, AssertionError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{path}` is not a MediaWiki dump: its header cannot be read ({brief(error)})."
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
    counts = assemble(lines, len(settings.numbers))
    return Counted(counts, np.array(ids, np.int64), np.array(outcomes, np.uint8), trouble)


def count_page(xml: bytes, settings: Settings) -> tuple[str, int, dict[int, int]]:
    """Count the words of a page: what becomes of it, its number, its bag."""
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
    stripped, properly = wikitext.strip(text, settings.header.hidden)
    bag = wikitext.bag(wikitext.tokens(stripped), settings.numbers)
    if sum(bag.values()) < settings.min_tokens:
        return "short", page.id, {}
    return "kept" if properly else "plain", page.id, bag


def _parse(xml: bytes, header: Header) -> tuple[Any, Any]:
    """Read one page and the last of its revisions; old dumps tell namespaces by their header only."""
    from mwxml import Dump

    head = _ROOT if b"<ns>" in xml else header.xml
    dump = Dump.from_file(io.BytesIO(head + xml + _END))
    page, revision = next(dump.pages), None
    for revision in page:  # noqa: B007
        pass
    if page.id is None:
        raise ValueError("a page has no number")
    return page, revision

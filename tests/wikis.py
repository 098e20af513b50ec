"""Small made-up MediaWiki dumps, in every format of real dumps."""

import bz2
import gzip
from xml.sax.saxutils import escape

HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"
    version="0.11" xml:lang="en">
  <siteinfo><sitename>Toy</sitename><namespaces>
    <namespace key="0" case="first-letter" />
    <namespace key="6" case="first-letter">Datei</namespace>
    <namespace key="10" case="first-letter">Template</namespace>
    <namespace key="14" case="first-letter">Category</namespace>
  </namespaces></siteinfo>
"""
FOOTER = "</mediawiki>\n"
VOCABULARY = ("cat", "dog", "Fish", "bird")


def page(number, text, *, ns="<ns>0</ns>", redirect="", model="wikitext"):
    return f"""  <page>
    <title>Page {number}</title>{ns}<id>{number}</id>{redirect}
    <revision><id>1{number}</id><timestamp>2020-01-01T00:00:00Z</timestamp>
      <contributor><username>Me</username><id>7</id></contributor>
      <model>{model}</model><format>text/x-wiki</format>
      <text bytes="1" xml:space="preserve">{escape(text)}</text><sha1>x</sha1></revision>
  </page>
"""


def toy_pages(count=40):
    """Return articles; every fifth page has to be skipped, for each of five reasons in turn."""
    skipped = [
        lambda n: page(n, "#REDIRECT [[cat]]", redirect='<redirect title="cat" />'),
        lambda n: page(n, "cat cat", ns="<ns>10</ns>"),
        lambda n: page(n, "{}", model="json"),
        lambda n: page(n, "a cat and nothing else"),
        lambda n: page(n, "cat dog").replace("</title>", "</titel>"),
    ]
    return [
        skipped[n // 5 % 5](n)
        if n % 5 == 4
        else page(n, f"{'Cat ' * n} [[dog|Dogs'']] dog-bird<ref>fish</ref> {{{{fish|cat}}}} & é")
        for n in range(count)
    ]


def toy_counts(count=40):
    """Return the counts of `VOCABULARY` in the articles of `toy_pages`, by page id."""
    return {n: [n, 1, 0, 1] for n in range(count) if n % 5 != 4}


def xml(pages):
    return (HEADER + "".join(pages) + FOOTER).encode()


def multistream(pages, per_stream=3):
    """Compress as Wikipedia does: header, groups of pages and footer in separate streams."""
    groups = ["".join(pages[i : i + per_stream]) for i in range(0, len(pages), per_stream)]
    return b"".join(bz2.compress(part.encode()) for part in (HEADER, *groups, FOOTER))


def split_anywhere(pages, size=500):
    """Compress as pbzip2 does: streams end in the middle of pages and of tags."""
    text = xml(pages)
    return b"".join(bz2.compress(text[i : i + size]) for i in range(0, len(text), size))


FORMS = {
    "toy.xml": xml,
    "toy.xml.gz": lambda pages: gzip.compress(xml(pages)),
    "toy.xml.bz2": lambda pages: bz2.compress(xml(pages)),
    "toy-multistream.xml.bz2": multistream,
    "toy-anywhere.xml.bz2": split_anywhere,
}


def write(folder, name, pages):
    """Write a dump and its vocabulary."""
    (folder / "words.txt").write_text("\n".join(VOCABULARY) + "\n")
    path = folder / name
    path.write_bytes(FORMS[name](pages))
    return path

"""Wikitext to words: what a reader of an article sees, in lower-case ASCII letters.

Templates, tables, footnotes, formulas, pictures and categories go; the text of links stays. Words are
Hoffman's: white space and hyphens separate, everything else that is not a letter is deleted (`don't` is
`dont`, `1st` is `st`).

mwparserfromhell tries markup that is never closed again at every depth, so some pages would take it hours. Those,
known by their length and depth and not by a clock, are stripped by a few regular expressions.

References
----------
Hoffman, Blei & Bach (2010), *Online learning for latent Dirichlet allocation*, NIPS.
"""

import html
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LONGEST = 400_000
"""Characters of wikitext that are parsed properly."""
DEEPEST = 60
"""Templates, links, tables and tags within one another that are parsed properly."""

_HIDDEN_TAGS = frozenset(
    "ce chem gallery graph hiero imagemap math pre ref references score source syntaxhighlight "
    "table templatedata timeline".split()
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_QUOTES = re.compile("''+")
_LANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple)(?:-[a-z]+)*:")
_SEPARATOR = re.compile(r"[\s\-\u2010-\u2015]+")
_NO_LETTERS = bytes(set(range(128)) - set(f"{string.ascii_lowercase} ".encode()))

_BRACKET = re.compile(
    r"(?P<open>\{\{|\[\[|\{\||<(?!br\b|hr\b|wbr\b|img\b|li\b|dt\b|dd\b|t[hrd]\b)[a-z]+\b(?![^<>]*/>))"
    r"|\}\}|\]\]|\|\}(?!\})|</[a-z]",
    re.IGNORECASE,
)
_KINDS = {"{{": 0, "}}": 0, "[[": 1, "]]": 1, "{|": 2, "|}": 2}
"""Which brackets belong together; all others are tags."""
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}")
_HIDDEN = re.compile(rf"<({'|'.join(sorted(_HIDDEN_TAGS))})\b[^<>]*?(/?)>", re.IGNORECASE)
_LINK = re.compile(r"\[\[([^\[\]|]*)(?:\|([^\[\]]*))?\]\]")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_ADDRESS = re.compile(r"\[?\b[a-z]+://\S*")
_PASSES = 10


def tokens(text: str) -> list[str]:
    """Take text apart into words.

    Examples
    --------
    >>> tokens("The well-known U.S. band's 1st—and best—hit")
    ['the', 'well', 'known', 'us', 'bands', 'st', 'and', 'best', 'hit']
    """
    letters = _SEPARATOR.sub(" ", text.lower()).encode("ascii", "ignore")
    return letters.translate(None, _NO_LETTERS).decode("ascii").split()


def bag(words: Iterable[str], numbers: Mapping[str, int]) -> dict[int, int]:
    """Count the words that are in a vocabulary, by their numbers, which rise."""
    counts = Counter(numbers[word] for word in words if word in numbers)
    return dict(sorted(counts.items()))


def is_monstrous(text: str) -> bool:
    """Tell whether mwparserfromhell had better not see a page."""
    if len(text) > LONGEST:
        return True
    depth = [0, 0, 0, 0]
    for bracket in _BRACKET.finditer(text):
        kind = _KINDS.get(bracket[0], 3)
        depth[kind] = depth[kind] + 1 if bracket["open"] else max(depth[kind] - 1, 0)
        if sum(depth) > DEEPEST:
            return True
    return False


def strip(text: str, hidden: frozenset[str]) -> tuple[str, bool]:
    """Take the markup out of a page, and say whether it was parsed properly.

    Parameters
    ----------
    text
        Wikitext.
    hidden
        Namespaces in lower case whose links show no text: files and categories.

    Examples
    --------
    >>> strip("'''Ice''' is [[solid|frozen]] water.{{sfn|Bell}}[[Category:Ice]]", frozenset({"category"}))
    ('Ice is frozen water.  ', True)
    """
    text = _COMMENT.sub("", text)
    if is_monstrous(text):
        return strip_plainly(text, hidden), False
    from mwparserfromhell import parse

    return _QUOTES.sub("", "".join(_visible(parse(text, skip_style_tags=True), hidden))), True


def _visible(code: Any, hidden: frozenset[str]) -> Iterator[str]:
    """Go through the nodes of parsed wikitext; what is not shown becomes a space."""
    from mwparserfromhell import nodes

    for node in code.nodes:
        if isinstance(node, nodes.Text):
            yield node.value
        elif isinstance(node, nodes.HTMLEntity):
            yield node.normalize()
        elif isinstance(node, nodes.Wikilink) and not is_hidden(str(node.title), hidden):
            yield from _visible(node.title if node.text is None else node.text, hidden)
        elif isinstance(node, nodes.Heading) or (
            isinstance(node, nodes.ExternalLink) and node.title
        ):
            yield from _visible(node.title, hidden)
        elif isinstance(node, nodes.Tag) and node.contents and _shows(node):
            yield from _visible(node.contents, hidden)
        else:
            yield " "


def _shows(tag: Any) -> bool:
    return str(tag.tag).strip().lower() not in _HIDDEN_TAGS


def is_hidden(title: str, hidden: frozenset[str]) -> bool:
    """Tell whether a link is to a file, a category or the same article in another language."""
    namespace, colon, _ = title.partition(":")
    return bool(colon) and (
        namespace.strip().lower() in hidden or _LANGUAGE.match(title) is not None
    )


def strip_plainly(text: str, hidden: frozenset[str]) -> str:
    """Take markup out with regular expressions: in linear time, but less exactly."""
    text = _without_hidden(text)
    for pattern, put in ((_TEMPLATE, " "), (_LINK, lambda link: _shown(link, hidden))):
        for _ in range(_PASSES):
            text, changes = pattern.subn(put, text)
            if not changes:
                break
    text = _ADDRESS.sub(" ", _TAG.sub(" ", text))
    return _QUOTES.sub("", html.unescape(text))


def _without_hidden(text: str) -> str:
    """Leave footnotes, formulas and the like out; each name is looked for in vain only once."""
    parts, at, unclosed = [], 0, set()
    for tag in _HIDDEN.finditer(text):
        name, closed = tag[1].lower(), tag[2]
        if tag.start() < at or (name in unclosed and not closed):
            continue
        end = tag if closed else re.compile(rf"</{name}\s*>", re.IGNORECASE).search(text, tag.end())
        if end is None:
            unclosed.add(name)
            continue
        parts.append(text[at : tag.start()])
        at = end.end()
    return " ".join([*parts, text[at:]])


def _shown(link: re.Match[str], hidden: frozenset[str]) -> str:
    title, text = link[1], link[2]
    if is_hidden(title, hidden):
        return " "
    return title if text is None else text

"""Convert wikitext to words: the text that a reader of an article sees, in lower-case ASCII.

Templates, tables, footnotes, formulas, images and categories are removed; the text of links is
kept. Words are split as by Hoffman et al.: white space and hyphens separate words, and every other
character that is not a letter is deleted (`don't` becomes `dont`, `1st` becomes `st`).

mwparserfromhell parses markup that is never closed again at every depth, which would take hours on
some pages. Pages beyond a fixed length or depth are therefore stripped by regular expressions; no
clock is involved, so the result is reproducible.

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

MAX_LENGTH = 400_000
"""Longest page that is parsed, in characters."""
MAX_DEPTH = 60
"""Deepest nesting of templates, links, tables and tags that is parsed."""

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
    r"(?P<open>\{\{|\[\[|\{\||"
    r"<(?!br\b|hr\b|wbr\b|img\b|li\b|dt\b|dd\b|t[hrd]\b)[a-z]+\b(?![^<>]*/>))"
    r"|\}\}|\]\]|\|\}(?!\})|</[a-z]",
    re.IGNORECASE,
)
_KINDS = {"{{": 0, "}}": 0, "[[": 1, "]]": 1, "{|": 2, "|}": 2}
"""Kind of each bracket; 3 for tags."""
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}")
_HIDDEN = re.compile(rf"<({'|'.join(sorted(_HIDDEN_TAGS))})\b[^<>]*?(/?)>", re.IGNORECASE)
_LINK = re.compile(r"\[\[([^\[\]|]*)(?:\|([^\[\]]*))?\]\]")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_ADDRESS = re.compile(r"\[?\b[a-z]+://\S*")
_PASSES = 10
"""Depth of nested templates and links that `strip_with_regex` removes."""


def tokens(text: str) -> list[str]:
    """Split text into words.

    Examples
    --------
    >>> tokens("The well-known U.S. band's 1st—and best—hit")
    ['the', 'well', 'known', 'us', 'bands', 'st', 'and', 'best', 'hit']
    """
    letters = _SEPARATOR.sub(" ", text.lower()).encode("ascii", "ignore")
    return letters.translate(None, _NO_LETTERS).decode("ascii").split()


def bag(words: Iterable[str], word_ids: Mapping[str, int]) -> dict[int, int]:
    """Count the words that are in the vocabulary; return counts by word index, ascending."""
    counts = Counter(word_ids[word] for word in words if word in word_ids)
    return dict(sorted(counts.items()))


def is_too_complex(text: str) -> bool:
    """Return whether a page is too long or too deeply nested for mwparserfromhell."""
    if len(text) > MAX_LENGTH:
        return True
    depth = [0, 0, 0, 0]
    for bracket in _BRACKET.finditer(text):
        kind = _KINDS.get(bracket[0], 3)
        depth[kind] = depth[kind] + 1 if bracket["open"] else max(depth[kind] - 1, 0)
        if sum(depth) > MAX_DEPTH:
            return True
    return False


def strip_markup(text: str, hidden: frozenset[str]) -> tuple[str, bool]:
    """Remove the markup of a page.

    Parameters
    ----------
    text
        Wikitext.
    hidden
        Namespaces in lower case whose links show no text: files and categories.

    Returns
    -------
    The text, and whether the page was parsed; if not, it was stripped by `strip_with_regex`.

    Examples
    --------
    >>> text = "'''Ice''' is [[solid|frozen]] water.{{sfn|Bell}}[[Category:Ice]]"
    >>> strip_markup(text, frozenset({"category"}))
    ('Ice is frozen water.  ', True)
    """
    text = _COMMENT.sub("", text)
    if is_too_complex(text):
        return strip_with_regex(text, hidden), False
    from mwparserfromhell import parse

    return _QUOTES.sub("", "".join(_visible(parse(text, skip_style_tags=True), hidden))), True


def _visible(code: Any, hidden: frozenset[str]) -> Iterator[str]:
    """Iterate over the visible text of parsed wikitext; invisible nodes become a space."""
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
        elif isinstance(node, nodes.Tag) and node.contents and _is_visible(node):
            yield from _visible(node.contents, hidden)
        else:
            yield " "


def _is_visible(tag: Any) -> bool:
    return str(tag.tag).strip().lower() not in _HIDDEN_TAGS


def is_hidden(title: str, hidden: frozenset[str]) -> bool:
    """Return whether a link is to a file, a category or the article in another language."""
    namespace, colon, _ = title.partition(":")
    return bool(colon) and (
        namespace.strip().lower() in hidden or _LANGUAGE.match(title) is not None
    )


def strip_with_regex(text: str, hidden: frozenset[str]) -> str:
    """Remove markup with regular expressions: less exact than a parser, but in linear time."""
    text = _remove_hidden_tags(text)
    for pattern, replacement in ((_TEMPLATE, " "), (_LINK, lambda link: _link_text(link, hidden))):
        for _ in range(_PASSES):
            text, changes = pattern.subn(replacement, text)
            if not changes:
                break
    text = _ADDRESS.sub(" ", _TAG.sub(" ", text))
    return _QUOTES.sub("", html.unescape(text))


def _remove_hidden_tags(text: str) -> str:
    """Remove footnotes, formulas and the like.

    Once the closing tag of a name was not found, that name is not searched for again: this keeps
    the time linear.
    """
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


def _link_text(link: re.Match[str], hidden: frozenset[str]) -> str:
    title, text = link[1], link[2]
    if is_hidden(title, hidden):
        return " "
    return title if text is None else text

"""Formatting of numbers and prose, for the report and for the terminal."""

import re
from html import unescape
from html.entities import html5
from typing import Any

from markupsafe import Markup, escape


def cell(value: Any) -> str:
    """Format one value of a table.

    >>> [cell(value) for value in (None, True, 12, 0.123456, 12345.6, 1e-9, [1, 2.5], "E")]
    ['–', 'yes', '12', '0.1235', '12,346', '1e-09', '1, 2.5', 'E']
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    return str(value)


def heading(key: str) -> str:
    """Return the column heading of a key.

    >>> heading("step_size")
    'step size'
    """
    return key.replace("_", " ")


def columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return the keys of all rows, in order of appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def tables(rows: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Group rows into tables by their key `table`; rows without it form the table "Numbers".

    >>> tables([{"table": "A", "h": 1}, {"table": "B", "D": 2}, {"table": "A", "h": 3}])
    [('A', [{'h': 1}, {'h': 3}]), ('B', [{'D': 2}])]
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        rest = {key: value for key, value in row.items() if key != "table"}
        groups.setdefault(row.get("table", "Numbers"), []).append(rest)
    return list(groups.items())


def is_numeric(rows: list[dict[str, Any]], key: str) -> bool:
    """Return whether a column holds numbers; such a column is aligned right."""
    values = [row.get(key) for row in rows]
    return all(
        isinstance(value, int | float | None) or value in ("inf", "-inf") for value in values
    ) and not all(value is None or isinstance(value, bool) for value in values)


def duration(seconds: float) -> str:
    """Format a time span.

    >>> duration(0.25), duration(75), duration(7260)
    ('0.25 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


_SPAN = re.compile(
    r"(?P<tick>``?)(?P<code>.+?)(?P=tick)"
    r"|(?P<dollar>\$\$?)(?P<maths>.+?)(?P=dollar)"
    r"|(?<![\w*])(?P<star>\*\*?)(?P<emphasis>[^\s*][^*]*)(?P=star)",
    re.DOTALL,
)


def inline(text: str) -> Markup:
    """Convert `code`, *emphasis* and simple $maths$ to HTML, and escape everything else.

    >>> print(inline("`a<b` and $h^2$"))
    <code>a&lt;b</code> and <span class="maths"><i>h</i><sup>2</sup></span>
    """
    html, end = Markup(), 0
    for match in _SPAN.finditer(text):
        html += text[end : match.start()] + _span(match)
        end = match.end()
    return html + text[end:]


def _span(match: re.Match[str]) -> Markup:
    if maths := match["maths"]:
        return _maths(maths)
    tag = "code" if match["code"] else "strong" if match["star"] == "**" else "em"
    return Markup("<{0}>{1}</{0}>").format(tag, match["code"] or match["emphasis"])


def paragraphs(text: str) -> Markup:
    """Convert the prose of a docstring to HTML paragraphs, lists and headings."""
    return Markup("\n").join(_block(block) for block in re.split(r"\n\s*\n", text) if block.strip())


def _block(block: str) -> Markup:
    lines = [line.strip() for line in block.strip().splitlines()]
    if len(lines) > 1 and re.fullmatch(r"-{3,}|={3,}", lines[1]):
        rest = "\n".join(lines[2:])
        return Markup("<h3>{}</h3>").format(lines[0]) + (_block(rest) if rest else "")
    if lines[0].startswith(("- ", "* ")):
        items = re.split(r"^[-*] ", "\n".join(lines), flags=re.MULTILINE)[1:]
        return Markup("<ul>{}</ul>").format(
            Markup().join(Markup("<li>{}</li>").format(inline(item.strip())) for item in items)
        )
    return Markup("<p>{}</p>").format(inline("\n".join(lines)))


_SYMBOLS = {"cdot": "·", "infty": "∞", "to": "→", "sqrt": "√", "partial": "∂", "ldots": "…"}
_SYMBOLS |= {"dots": "…", "quad": " ", "left": "", "right": ""}
_SYMBOLS |= {name: name for name in ("exp", "log", "max", "min", "sin", "cos")}


def _maths(tex: str) -> Markup:
    r"""Convert TeX of letters, symbols, sub- and superscripts; show anything else as source.

    HTML names most symbols as TeX does (`&lambda;`, `\lambda`).
    """

    def symbol(match: re.Match[str]) -> str:
        name = match[1]
        known = unescape(f"&{name};") if f"{name};" in html5 else match[0]
        return _SYMBOLS.get(name, known)

    plain = re.sub(r"\\[,;:! ]", " ", tex.strip())
    plain = re.sub(r"\\([a-zA-Z]+)", symbol, plain).replace("-", "−")
    html = str(escape(plain))
    for mark, tag in (("_", "sub"), (r"\^", "sup")):
        html = re.sub(mark + r"(?:\{([^{}]*)\}|(&\w+;|[^{]))", rf"<{tag}>\1\2</{tag}>", html)
    if re.search(r"[\\{}]", html):
        return Markup("<code>{}</code>").format(tex.strip())
    html = re.sub(r"(?<![^\W\d_])([^\W\d_])(?![^\W\d_])", r"<i>\1</i>", html)
    return Markup(f'<span class="maths">{html}</span>')

r"""Convert the docstrings of isotherm to reStructuredText for Sphinx.

Docstrings are numpydoc with `$maths$`, `` `code` `` and Markdown tables. Before napoleon processes
them, this extension converts

- `$$ ... $$` into a `math` directive and `$...$` into a `math` role,
- `` `code` `` into a literal, and a name that docs/api.md documents into a link,
- a Markdown table into a list-table,
- an indented block after a colon into a literal block,
- the entries under "References" into a list.
"""

import re
from collections.abc import Callable
from pathlib import Path

INLINE = re.compile(r"``[^`]+``|`[^`]+`|\$[^$]+\$")
BEFORE, AFTER = " \n([{<'\"-/:", " \n'\")]}>-/\\:.,;!?"
REFERENCE = re.compile(r"[A-Z].*\(\d{4}\)")


def to_rest(docstring: str, is_public: Callable[[str], bool] = lambda name: False) -> str:
    """Convert one docstring."""
    lines, out, start = docstring.splitlines(), [], 0
    while start < len(lines):
        end = _end_of_block(lines, start)
        block, start = lines[start:end], end
        first = block[0].strip()
        if first.startswith("$$"):
            out += _math(block)
        elif first.startswith("|"):
            out += _table(block, is_public)
        elif first.startswith(">>>") or not first:
            out += block
        elif _is_code(block, out):
            out[_last_text(out)] += ":"  # a second colon makes it literal
            out += block
        else:
            out += inline("\n".join(block), is_public).splitlines()
    return "\n".join(_list_references(out))


def inline(text: str, is_public: Callable[[str], bool] = lambda name: False) -> str:
    """Convert code and maths within a paragraph."""

    def replace(match: re.Match) -> str:
        markup = " ".join(match[0].split())
        if markup.startswith("$"):
            new = f":math:`{markup[1:-1].strip()}`"
        else:
            code = markup.strip("`")
            new = f":py:obj:`{code}`" if is_public(code) else f"``{code}``"
        before, after = text[: match.start()][-1:], text[match.end() :][:1]
        return ("" if before in BEFORE else r"\ ") + new + ("" if after in AFTER else r"\ ")

    return INLINE.sub(replace, text)


def _end_of_block(lines: list[str], start: int) -> int:
    """Return the line after a formula, a table, a doctest, a paragraph or a blank line."""
    first = lines[start].strip()
    if first.startswith("$$"):
        if len(first) > 2 and first.endswith("$$"):
            return start + 1
        closing = (i for i in range(start + 1, len(lines)) if lines[i].rstrip().endswith("$$"))
        return next(closing, len(lines) - 1) + 1
    if not first:
        return start + 1
    end = start + 1
    while end < len(lines) and (text := lines[end].strip()):
        if text.startswith("$$") or text.startswith("|") != first.startswith("|"):
            break
        end += 1
    return end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _math(block: list[str]) -> list[str]:
    margin = " " * _indent(block[0])
    formula = "\n".join(block).strip().strip("$").strip()
    body = [f"{margin}   {line.strip()}" for line in formula.splitlines()]
    return ["", f"{margin}.. math::", "", *body, ""]


def _table(block: list[str], is_public: Callable[[str], bool]) -> list[str]:
    margin = " " * _indent(block[0])
    out = ["", f"{margin}.. list-table::", f"{margin}   :header-rows: 1", ""]
    for line in block:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if set("".join(cells)) <= set("-: "):
            continue
        for i, cell in enumerate(cells):
            out.append(f"{margin}   {'* -' if i == 0 else '  -'} {inline(cell, is_public)}")
    return [*out, ""]


def _last_text(lines: list[str]) -> int:
    return max((i for i, line in enumerate(lines) if line.strip()), default=-1)


def _is_code(block: list[str], out: list[str]) -> bool:
    """Return whether a block is indented code after a colon and a blank line."""
    last = _last_text(out)
    if last < 0 or last == len(out) - 1 or not out[last].endswith(":"):
        return False
    return _indent(block[0]) >= _indent(out[last]) + 4


def _list_references(lines: list[str]) -> list[str]:
    heading = [i for i, line in enumerate(lines[:-1]) if line.strip() == "References"]
    if not heading or set(lines[heading[0] + 1].strip()) != {"-"}:
        return lines
    start, out = heading[0] + 2, []
    for line in lines[start:]:
        margin, text = line[: _indent(line)], line.strip()
        bullet = "- " if REFERENCE.match(text) else "  "
        out.append(f"{margin}{bullet}{text}" if text else "")
    return lines[:start] + out


def setup(app) -> dict[str, bool]:
    """Register with Sphinx, before napoleon."""
    reference = Path(app.srcdir, "api.md").read_text(encoding="utf-8")
    public = set(re.findall(r"^\.\. auto(?!module)\w+:: ([\w.]+)", reference, re.MULTILINE))

    def process(app, what, name, obj, options, lines: list[str]) -> None:
        if lines and lines[0].startswith("Alias for field number"):
            lines[:] = []
        else:
            lines[:] = to_rest("\n".join(lines), public.__contains__).splitlines()

    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

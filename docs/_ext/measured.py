r"""Numbers in prose that are read from result files when the documentation is built.

    ahead by {measured}`dpfa-wiki; claim ~ ahead of BCDF; measured; .0f` points

The parts of an expression are separated by semicolons. The first part is a file: `dpfa-wiki` is
`docs/results/dpfa-wiki/result.json`, `ess` is `docs/results/ess.json`, `soak/kills` is
`soak/results/kills.json`. The other parts may be in any order:

- `key = value` keeps the rows with that value (every object in the file is a row); `key ~ text`
  keeps those whose value contains the text. Such a key must not contain a comma.
- `after WORD` and `before WORD` keep a part of a text; `#2` keeps its second number.
- `min`, `max`, `median` or `sum` aggregates over the remaining rows; otherwise exactly one row must
  remain.
- A format such as `.1f`, `+.0f`, `,.0f` or `.0%` applies to every number; `abs` removes signs.
- `x 1000` multiplies.
- Anything else is the key of the value. A path such as `machine/cores` selects one value of the
  file; with `*`, as in `*/kills`, several.

`python docs/_ext/measured.py` copies the numbers of `docs/headlines.md` into `README.md`.
"""

import json
import re
import statistics
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
README, HEADLINES = ROOT / "README.md", ROOT / "docs" / "headlines.md"
FIRST, LAST = "<!-- numbers: `python docs/_ext/measured.py` -->\n", "<!-- end of numbers -->\n"
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
FORMAT = re.compile(r"[-+]?,?(?:\.\d)?[fge%d]")
AGGREGATES = {"min": min, "max": max, "median": statistics.median, "sum": sum}


def source(name: str) -> Path:
    """Return the path of the file with this short name."""
    if name.startswith("soak/"):
        return ROOT / "soak" / "results" / f"{name.removeprefix('soak/')}.json"
    folder = ROOT / "docs" / "results"
    path = folder / name / "result.json"
    return path if path.exists() else folder / f"{name}.json"


@cache
def read(path: Path) -> Any:
    """Return the contents of a JSON file; cached, because pages read the same files many times."""
    return json.loads(path.read_text(encoding="utf-8"))


def evaluate(expression: str) -> str:
    """Return the formatted value of an expression.

    Raises
    ------
    ValueError
        If the expression has two keys, or selects no value or several values without an aggregate.
    """
    name, _, rest = expression.partition(";")
    key, filters, options = _parse(rest)
    values = _values(read(source(name.strip())), key, filters)
    if not values or (len(values) > 1 and "aggregate" not in options):
        raise ValueError(f"{expression!r} selects {len(values)} values, not one.")
    values = [_part(value, options) for value in values]
    if "aggregate" in options:
        return _formatted(AGGREGATES[options["aggregate"]](map(float, values)), options)
    return _formatted(values[0], options)


def format_value(value: Any, form: str) -> str:
    """Format a value with the formatting parts of an expression, such as `x 100; .1f`."""
    return _formatted(value, _parse(form)[2])


def _parse(expression: str) -> tuple[str, list[tuple[str, ...]], dict[str, str]]:
    """Split an expression into the key, the filters, and the options for the value."""
    key, filters, options = "", [], {}
    for part in (part.strip() for part in expression.split(";")):
        if match := re.fullmatch(r"([^,]+?) ([=~]) (.+)", part, re.DOTALL):
            filters.append(match.groups())
        elif match := re.fullmatch(r"(after|before|x) (.+)", part):
            options[match[1]] = match[2]
        elif re.fullmatch(r"#\d", part):
            options["#"] = part[1:]
        elif part in AGGREGATES:
            options["aggregate"] = part
        elif part == "abs":
            options["abs"] = part
        elif FORMAT.fullmatch(part):
            options["format"] = part
        elif not key:
            key = part
        else:
            raise ValueError(f"{expression!r} has two keys, {key!r} and {part!r}.")
    return key, filters, options


def _values(document: Any, key: str, filters: list[tuple[str, ...]]) -> list[Any]:
    if not filters and "/" in key:
        values = [document]
        for step in key.split("/"):
            values = [child for value in values for child in _children(value, step)]
        return values
    values = []
    for row in _rows(document):
        matches = (
            str(row.get(k)) == v if sign == "=" else k in row and v in str(row[k])
            for k, sign, v in filters
        )
        if row.get(key) is not None and all(matches):
            values.append(row[key])
    return values


def _children(document: Any, step: str) -> list[Any]:
    if isinstance(document, list):
        return [document[int(step)]]
    items = document.items() if isinstance(document, dict) else ()
    return [value for name, value in items if fnmatchcase(name, step)]


def _rows(document: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects, at any depth."""
    if isinstance(document, dict):
        yield document
        document = list(document.values())
    for child in document:
        if isinstance(child, dict | list):
            yield from _rows(child)


def _part(value: Any, options: dict[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    if "after" in options:
        value = value.partition(options["after"])[2]
    if "before" in options:
        value = value.partition(options["before"])[0]
    if "#" in options:
        value = NUMBER.findall(value)[int(options["#"]) - 1]
    return value.strip()


def _formatted(value: Any, options: dict[str, str]) -> str:
    def number(match: re.Match[str]) -> str:
        text = match[0].replace(",", "").replace("−", "-")
        scaled = float(text) * float(options.get("x", 1))
        scaled = abs(scaled) if "abs" in options else scaled
        spec = options.get("format", "")
        if spec.endswith("d"):
            return format(round(scaled), spec)
        if match[0] != str(value) and not text.startswith(("+", "-")):
            spec = spec.lstrip("+")  # no sign for the number after ±
        return format(scaled, spec) if spec else f"{scaled:g}"

    text = str(value)
    if {"format", "x", "abs"} & options.keys():
        text = NUMBER.sub(number, text)
    return re.sub(r"(?<!\w)-(?=\d)", "−", text)


def fill(text: str) -> str:
    """Replace the {measured} roles of a text by their values."""
    return re.sub(r"\{measured\}`([^`]+)`", lambda match: evaluate(match[1]), text)


def readme() -> str:
    """Return README.md with the current numbers."""
    before, _, rest = README.read_text(encoding="utf-8").partition(FIRST)
    _, _, after = rest.partition(LAST)
    table = fill(HEADLINES.read_text(encoding="utf-8"))
    table = re.sub(r"\]\((?!http)([^)]+\.md)", r"](docs/\1", table)
    return before + FIRST + table + LAST + after


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")

r"""Numbers in prose that are read from the files of a measurement, not typed.

    ahead by {measured}`dpfa-wiki; claim ~ ahead of BCDF; measured; .0f` points

Parts of an expression are separated by semicolons. The first is a file: `dpfa-wiki` is `docs/results/dpfa-wiki/result.json`, `ess` is
`docs/results/ess.json`, `soak/kills` is `soak/results/kills.json`. Then, in any order:

- `key = value` keeps the rows (every object in the file is one) with that value; `key ~ text` those that contain it (this key has no comma);
- `after WORD` and `before WORD` keep part of a text; `#2` keeps its second number;
- `min`, `max`, `median` or `sum` is over all rows that are left; without it exactly one may be;
- a format such as `.1f`, `+.0f`, `,.0f` or `.0%`, for every number in it; a sign goes with `+`, or with `abs`;
- `x 1000` multiplies;
- anything else is the key. A path such as `machine/cores` leads to one value of the file itself; with a `*` in it, as in `*/kills`, to several.

`python docs/_ext/measured.py` writes the numbers of `docs/headlines.md` into `README.md`.
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
OVER = {"min": min, "max": max, "median": statistics.median, "sum": sum}


def source(name: str) -> Path:
    """Give the file that a name stands for."""
    if name.startswith("soak/"):
        return ROOT / "soak" / "results" / f"{name.removeprefix('soak/')}.json"
    folder = ROOT / "docs" / "results"
    path = folder / name / "result.json"
    return path if path.exists() else folder / f"{name}.json"


@cache
def read(path: Path) -> Any:
    """Give what is in a file; a page asks the same one many times."""
    return json.loads(path.read_text(encoding="utf-8"))


def spell(expression: str) -> str:
    """Look up what an expression names, and spell it."""
    name, _, rest = expression.partition(";")
    key, filters, asked = _read(rest)
    values = _values(read(source(name.strip())), key, filters)
    if not values or (len(values) > 1 and "over" not in asked):
        raise ValueError(f"{expression!r} is found {len(values)} times, not once.")
    values = [_part(value, asked) for value in values]
    value = OVER[asked["over"]](map(float, values)) if "over" in asked else values[0]
    return _spelled(value, asked)


def dress(value: Any, form: str) -> str:
    """Spell a value as `form` says, for example `x 100; .1f`."""
    return _spelled(value, _read(form)[2])


def _read(expression: str) -> tuple[str, list[tuple[str, ...]], dict[str, str]]:
    """Tell the parts of an expression apart: the key, the filters, and what is done to the value."""
    key, filters, asked = "", [], {}
    for part in (part.strip() for part in expression.split(";")):
        if match := re.fullmatch(r"([^,]+?) ([=~]) (.+)", part, re.DOTALL):
            filters.append(match.groups())
        elif match := re.fullmatch(r"(after|before|x) (.+)", part):
            asked[match[1]] = match[2]
        elif re.fullmatch(r"#\d", part):
            asked["#"] = part[1:]
        elif part in OVER or part == "abs":
            asked["over" if part in OVER else part] = part
        elif FORMAT.fullmatch(part):
            asked["format"] = part
        elif not key:
            key = part
        else:
            raise ValueError(f"{expression!r} has two keys, {key!r} and {part!r}.")
    return key, filters, asked


def _values(document: Any, key: str, filters: list[tuple[str, ...]]) -> list[Any]:
    if not filters and "/" in key:
        found = [document]
        for step in key.split("/"):
            found = [value for each in found for value in _below(each, step)]
        return found
    found = []
    for row in _rows(document):
        fits = (
            str(row.get(k)) == v if sign == "=" else k in row and v in str(row[k])
            for k, sign, v in filters
        )
        if row.get(key) is not None and all(fits):
            found.append(row[key])
    return found


def _below(document: Any, step: str) -> list[Any]:
    if isinstance(document, list):
        return [document[int(step)]]
    named = document.items() if isinstance(document, dict) else ()
    return [value for name, value in named if fnmatchcase(name, step)]


def _rows(document: Any) -> Iterator[dict[str, Any]]:
    """Give all objects, wherever they are."""
    if isinstance(document, dict):
        yield document
        document = list(document.values())
    for child in document:
        if isinstance(child, dict | list):
            yield from _rows(child)


def _part(value: Any, asked: dict[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    if "after" in asked:
        value = value.partition(asked["after"])[2]
    if "before" in asked:
        value = value.partition(asked["before"])[0]
    if "#" in asked:
        value = NUMBER.findall(value)[int(asked["#"]) - 1]
    return value.strip()


def _spelled(value: Any, asked: dict[str, str]) -> str:
    def number(match: re.Match[str]) -> str:
        text = match[0].replace(",", "").replace("−", "-")
        scaled = float(text) * float(asked.get("x", 1))
        scaled = abs(scaled) if "abs" in asked else scaled
        spec = asked.get("format", "")
        if spec.endswith("d"):
            return format(round(scaled), spec)
        if match[0] != str(value) and not text.startswith(("+", "-")):
            spec = spec.lstrip("+")  # what stands behind a ± has no sign
        return format(scaled, spec) if spec else f"{scaled:g}"

    text = str(value)
    if {"format", "x", "abs"} & asked.keys():
        text = NUMBER.sub(number, text)
    return re.sub(r"(?<!\w)-(?=\d)", "−", text)


def filled(text: str) -> str:
    """Put numbers in the place of expressions."""
    return re.sub(r"\{measured\}`([^`]+)`", lambda match: spell(match[1]), text)


def readme() -> str:
    """Give what README.md should be."""
    before, _, rest = README.read_text(encoding="utf-8").partition(FIRST)
    _, _, after = rest.partition(LAST)
    table = filled(HEADLINES.read_text(encoding="utf-8"))
    table = re.sub(r"\]\((?!http)([^)]+\.md)", r"](docs/\1", table)
    return before + FIRST + table + LAST + after


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")

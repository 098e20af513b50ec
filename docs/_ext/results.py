r"""Tables of measured numbers that are read from `docs/results` when the page is built.

    ```{result-table} logistic-a9a
    :table: Accuracy on the test rows, %
    :columns: method, accuracy, sd over seeds = ±, paper
    ```

shows these columns of the rows of one table of `docs/results/NAME/result.json`, or of a benchmark's
`docs/results/NAME.json`; without `:columns:`, all of them. `key = heading` renames a column, and
`key = heading; x 100; .1f` also formats its numbers; write a comma within a key as `\,`.
`:where: sampler = mSGNHT-S` keeps only the rows with that value; `:rows: contestants` reads another
list of the file. For numbers in prose see `measured.py`.

The extension also writes `report.html`, the report of all experiments in `docs/results`.
"""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from measured import evaluate, format_value, read, source

from isotherm.paper.experiments.registry import EXPERIMENTS
from isotherm.paper.report.page import build
from isotherm.paper.report.text import cell, columns, is_numeric, tables

RESULTS = Path(__file__).parents[1] / "results"


class ResultTable(Directive):
    """One table of one experiment."""

    required_arguments = 1
    option_spec = {  # noqa: RUF012
        "table": directives.unchanged,
        "columns": directives.unchanged,
        "where": directives.unchanged,
        "rows": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Read the file and build the table."""
        path = source(self.arguments[0])
        self.state.document.settings.record_dependencies.add(str(path))
        document = read(path)
        by_title = dict(tables(document[self.options.get("rows", "rows")]))
        title = self.options.get("table", next(iter(by_title)))
        if title not in by_title:
            raise self.error(f"{path.name} has no table {title!r}, only {list(by_title)}.")
        rows = by_title[title]
        if "where" in self.options:
            key, _, value = (part.strip() for part in self.options["where"].partition("="))
            rows = [row for row in rows if cell(row.get(key)) == value]
        chosen = self.options.get("columns")
        given = [_column(part) for part in re.split(r"(?<!\\),", chosen)] if chosen else None
        shown = given or [(key, key, "") for key in columns(rows)]
        missing = [key for key, *_ in shown if key not in columns(rows)]
        if missing or not rows:
            raise self.error(f"{title!r} has no rows, or no columns {missing}.")
        return [_table(rows, shown)]


def _column(part: str) -> tuple[str, str, str]:
    named, _, form = part.replace("\\,", ",").partition(";")
    key, _, heading = (piece.strip() for piece in named.partition("="))
    return key, heading or key, form


def _table(rows: list[dict[str, Any]], shown: list[tuple[str, str, str]]) -> nodes.table:
    group = nodes.tgroup(cols=len(shown))
    group += [nodes.colspec(colwidth=1) for _ in shown]
    numeric = [is_numeric(rows, key) for key, *_ in shown]
    head = _row([heading for _, heading, _ in shown], numeric)
    body = [_row([_text(row.get(key), form) for key, _, form in shown], numeric) for row in rows]
    group += [nodes.thead("", head), nodes.tbody("", *body)]
    return nodes.table("", group)


def _text(value: Any, form: str) -> str:
    return format_value(value, form) if form and value is not None else cell(value)


def _row(texts: list[str], numeric: list[bool]) -> nodes.row:
    row = nodes.row()
    for text, number in zip(texts, numeric, strict=True):
        entry = nodes.entry("", nodes.paragraph("", text))
        entry["classes"] += ["text-right"] if number else []
        row += entry
    return row


def _measured(name, rawtext, text, line, inliner, options=None, content=None):
    """Return the node of one number; docutils calls this for {measured}`…`."""
    path = source(text.partition(";")[0].strip())
    inliner.document.settings.record_dependencies.add(str(path))
    try:
        return [nodes.Text(evaluate(text))], []
    except (ValueError, KeyError, IndexError, OSError) as error:
        message = inliner.reporter.error(f"{text}: {error!r}", line=line)
        return [inliner.problematic(rawtext, rawtext, message)], [message]


def _report(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        broken: dict[str, str] = {}
        build(RESULTS, Path(app.outdir) / "report.html", order=list(EXPERIMENTS), broken=broken)
        if broken:
            raise ValueError(f"Results cannot be shown: {broken}.")


def setup(app: Any) -> dict[str, bool]:
    """Register the directive, the role and the report."""
    app.add_role("measured", _measured)
    app.add_directive("result-table", ResultTable)
    app.connect("build-finished", _report)
    return {"parallel_read_safe": True}

"""The report: one self-contained HTML page with the results of all experiments."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from isotherm.io.files import atomically
from isotherm.paper.report import text
from isotherm.paper.report.document import read_json
from isotherm.paper.report.svg import inline_svg


def build(directory: Path, report: Path | None = None, *, order: Sequence[str] = ()) -> Path:
    """Write the report of every `directory/*/result.json`, and return its path.

    The path is `report`, by default `directory/report.html`. The page needs no network and no other
    file. Experiments named in `order` come first, in that order.
    """
    rank = {name: number for number, name in enumerate(order)}
    paths = sorted(
        directory.glob("*/result.json"),
        key=lambda path: (rank.get(path.parent.name, len(rank)), path),
    )
    if not paths:
        raise ValueError(
            f"No results under `{directory}`: run an experiment first (`isotherm list`)."
        )
    documents = [read_json(path) for path in paths]
    page = _environment().get_template("page.html")
    sections = [
        {"document": document, "anchor": path.parent.name, "html": fragment(document, path.parent)}
        for document, path in zip(documents, paths, strict=True)
    ]
    report = report or directory / "report.html"
    with atomically(report) as draft:
        draft.write_text(page.render(sections=sections), encoding="utf-8")
    return report


def fragment(document: dict[str, Any], folder: Path) -> Markup:
    """Return the `<article>` of one experiment, with its figures, read from `folder`, inline."""
    figures = [{**figure, "picture": _picture(figure, folder)} for figure in document["figures"]]
    template = _environment().get_template("fragment.html")
    return Markup(template.render(document=document, anchor=folder.name, figures=figures))


def _picture(figure: dict[str, str], folder: Path) -> Markup:
    """Return the SVG of a figure as inline HTML or, if there is only a PNG, an image of that."""
    label = text.inline(figure.get("caption", figure["name"])).striptags()
    svg, png = folder / figure["svg"], folder / figure["png"]
    if svg.is_file():
        digest = sha256(f"{folder.name}/{figure['name']}".encode()).hexdigest()
        source = svg.read_text(encoding="utf-8")
        return Markup(inline_svg(source, prefix=f"f{digest[:8]}-", label=label))
    if not png.is_file():
        raise ValueError(
            f"`{svg}` is missing: run `{folder.name}` again (`isotherm run {folder.name}`)."
        )
    content = b64encode(png.read_bytes()).decode("ascii")
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(label, content)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = ("cell", "columns", "duration", "heading", "inline", "paragraphs", "tables")
    environment.filters |= {name: getattr(text, name) for name in filters}
    environment.tests["numeric_in"] = lambda key, rows: text.is_numeric(rows, key)
    return environment

"""One self-contained page of everything that ran."""

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
    """Write `report`, by default `directory/report.html`, from every `directory/*/result.json` and return its path.

    The page needs no network and no other file: it can be mailed and printed. Experiments named in `order` come first, in that order.
    """
    place = {name: number for number, name in enumerate(order)}
    found = sorted(
        directory.glob("*/result.json"),
        key=lambda path: (place.get(path.parent.name, len(place)), path),
    )
    if not found:
        raise ValueError(
            f"No results under `{directory}`: run an experiment first (`isotherm list`)."
        )
    documents = [read_json(path) for path in found]
    page = _environment().get_template("page.html")
    sections = [
        {"document": document, "anchor": path.parent.name, "html": fragment(document, path.parent)}
        for document, path in zip(documents, found, strict=True)
    ]
    report = report or directory / "report.html"
    with atomically(report) as draft:
        draft.write_text(page.render(sections=sections), encoding="utf-8")
    return report


def fragment(document: dict[str, Any], folder: Path) -> Markup:
    """Return the `<article>` of one experiment, its figures read from `folder` and put inline."""
    figures = [{**figure, "picture": _picture(figure, folder)} for figure in document["figures"]]
    template = _environment().get_template("fragment.html")
    return Markup(template.render(document=document, anchor=folder.name, figures=figures))


def _picture(figure: dict[str, str], folder: Path) -> Markup:
    """Put a drawing inline; where only its picture was kept, that."""
    label = text.inline(figure.get("caption", figure["name"])).striptags()
    drawing, picture = folder / figure["svg"], folder / figure["png"]
    if drawing.is_file():
        digest = sha256(f"{folder.name}/{figure['name']}".encode()).hexdigest()
        source = drawing.read_text(encoding="utf-8")
        return Markup(inline_svg(source, prefix=f"f{digest[:8]}-", label=label))
    if not picture.is_file():
        raise ValueError(
            f"`{drawing}` is missing: run `{folder.name}` again (`isotherm run {folder.name}`)."
        )
    content = b64encode(picture.read_bytes()).decode("ascii")
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(label, content)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (
        text.cell,
        text.columns,
        text.duration,
        text.heading,
        text.inline,
        text.tables,
    ):
        environment.filters[function.__name__] = function
    environment.filters["paragraphs"] = text.paragraphs
    environment.tests["numeric_in"] = lambda key, rows: text.is_numeric(rows, key)
    return environment

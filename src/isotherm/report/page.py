"""One self-contained page of everything that ran."""

from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from isotherm.files import atomically
from isotherm.report import text
from isotherm.report.document import read_json
from isotherm.report.svg import inline_svg


def build(directory: Path) -> Path:
    """Write `directory/report.html` from every `directory/*/result.json` and return its path.

    The page needs no network and no other file: it can be mailed and printed.
    """
    found = sorted(directory.glob("*/result.json"))
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
    report = directory / "report.html"
    with atomically(report) as draft:
        draft.write_text(page.render(sections=sections), encoding="utf-8")
    return report


def fragment(document: dict[str, Any], folder: Path) -> Markup:
    """Return the `<article>` of one experiment, its figures read from `folder` and put inline."""
    figures = [{**figure, "picture": _picture(figure, folder)} for figure in document["figures"]]
    template = _environment().get_template("fragment.html")
    return Markup(template.render(document=document, anchor=folder.name, figures=figures))


def _picture(figure: dict[str, str], folder: Path) -> Markup:
    source = (folder / figure["svg"]).read_text(encoding="utf-8")
    digest = sha256(f"{folder.name}/{figure['name']}".encode()).hexdigest()
    label = text.inline(figure.get("caption", figure["name"])).striptags()
    return Markup(inline_svg(source, prefix=f"f{digest[:8]}-", label=label))


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

"""The report: one self-contained HTML page with the results of all experiments."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from isotherm.io.files import atomically, in_words
from isotherm.io.untrusted import inside, open_regular
from isotherm.paper.report import text
from isotherm.paper.report.document import read_json
from isotherm.paper.report.svg import inline_svg

MAX_FIGURE_BYTES = 2**26
"""Largest figure that is put on the page; ours have less than a hundredth of it."""


def build(
    directory: Path,
    report: Path | None = None,
    *,
    order: Sequence[str] = (),
    broken: dict[str, str] | None = None,
) -> Path:
    """Write the report of every `directory/*/result.json`, and return its path.

    The path is `report`, by default `directory/report.html`. The page needs no network and no other
    file. A result that cannot be shown is left out, and the page says why. Nothing outside the
    folder is read, whatever a result says.

    Parameters
    ----------
    directory
        Folder with the results.
    report
        Path of the page.
    order
        Experiments named here come first, in this order.
    broken
        Gets the name of every result that cannot be shown, with the reason.

    Raises
    ------
    ValueError
        There is no result that can be shown.
    """
    if directory.is_file():
        raise ValueError(f"`{directory}` is a file, not a folder with results.")
    rank = {name: number for number, name in enumerate(order)}
    names = sorted(
        (path.parent.name for path in directory.glob("*/result.json")),
        key=lambda name: (rank.get(name, len(rank)), name),
    )
    if not names:
        raise ValueError(
            f"No results under `{directory}`: run an experiment first (`isotherm list`)."
        )
    broken = {} if broken is None else broken
    sections = []
    for name in names:
        try:
            sections.append(_section(directory, name))
        except Exception as error:  # a file of somebody else can raise anything
            known = isinstance(error, ValueError | OSError)
            unknown = f"`{directory / name / 'result.json'}` is damaged: {type(error).__name__}: "
            broken[name] = in_words(error) if known else f"{unknown}{error}"
    if not sections:
        raise ValueError(
            f"No result under `{directory}` can be shown. {next(iter(broken.values()))}"
        )
    report = report or directory / "report.html"
    with atomically(report) as draft:
        text = _render(sections, broken)  # a name may have characters that cannot be written
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    return report


def _section(directory: Path, name: str) -> dict[str, Any]:
    path = inside(directory, f"{name}/result.json")
    document = read_json(path)
    section = {"document": document, "anchor": name, "html": fragment(document, path.parent)}
    _render([section], {})  # raises if its line in the summary cannot be written
    return section


def _render(sections: list[dict[str, Any]], broken: dict[str, str]) -> str:
    page = _environment().get_template("page.html")
    return page.render(sections=sections, broken=broken)


def fragment(document: dict[str, Any], folder: Path) -> Markup:
    """Return the `<article>` of one experiment, with its figures, read from `folder`, inline."""
    figures = [{**figure, "picture": _picture(figure, folder)} for figure in document["figures"]]
    template = _environment().get_template("fragment.html")
    return Markup(template.render(document=document, anchor=folder.name, figures=figures))


def _picture(figure: dict[str, str], folder: Path) -> Markup:
    """Return the SVG of a figure as inline HTML or, if there is only a PNG, an image of that."""
    label = text.inline(figure.get("caption", figure["name"])).striptags()
    svg = inside(folder, figure["svg"])
    if svg.is_file():
        digest = sha256(f"{folder.name}/{figure['name']}".encode()).hexdigest()
        source = _read(svg).decode("utf-8")
        return Markup(inline_svg(source, prefix=f"f{digest[:8]}-", label=label))
    png = inside(folder, figure["png"])
    if not png.is_file():
        raise ValueError(
            f"`{svg}` is missing: run `{folder.name}` again (`isotherm run {folder.name}`)."
        )
    content = _read(png)
    if not content.startswith(b"\x89PNG\r\n"):
        raise ValueError(f"`{png}` is not a PNG image.")
    text_form = b64encode(content).decode("ascii")
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(label, text_form)


def _read(path: Path) -> bytes:
    with open_regular(path) as file:
        content = file.read(MAX_FIGURE_BYTES + 1)
    if len(content) > MAX_FIGURE_BYTES:
        raise ValueError(f"`{path}` has more than {MAX_FIGURE_BYTES:,} bytes.")
    return content


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

"""Programs in the pages run and print what the pages show; links, names and versions are correct.

A `text` block directly after a `python` block is its output. Numbers are not compared: they depend
on the machine, because rounding errors grow in a chain.
"""

import ast
import io
import re
import tomllib
from contextlib import redirect_stdout

import jax
import pytest
from markdown_blocks import DEVELOPMENT, PAGES, ROOT, blocks, name

import isotherm

PROGRAMS = [page for page in PAGES if "```python" in page.read_text()]
API = (ROOT / "docs" / "api.md").read_text()


def without_numbers(printed):
    """Return the lines of an output without numbers and column widths."""
    printed = printed.replace("<- outside its band", "")
    printed = re.sub(r"\b(nan|inf)\b|[-+−]?\d[\d.,]*(e[-+]?\d+)?", "#", printed)
    return [" ".join(line.split()) for line in printed.strip().splitlines()]


def marked_pages():
    """Return all pages with programs, marked as long tests except the README."""
    return [
        page if page.name == "README.md" else pytest.param(page, marks=pytest.mark.slow)
        for page in PROGRAMS
    ]


@pytest.mark.parametrize("page", marked_pages(), ids=name)
def test_programs_run_and_print_what_the_page_shows(page):
    namespace, printed = {"__name__": "__main__"}, None
    with jax.numpy_rank_promotion("allow"):  # forbidden in tests, but not for users
        for block in blocks(page):
            if block.language == "python" and not block.skipped:
                source = "\n" * block.line + block.text  # tracebacks have the lines of the page
                with redirect_stdout(io.StringIO()) as out:
                    exec(compile(source, str(page), "exec"), namespace)
                printed = out.getvalue()
            elif block.language == "text" and block.follows and printed is not None:
                shown = without_numbers(block.text)
                assert without_numbers(printed) == shown, f"{name(page)}:{block.line}"
            else:
                printed = None


def test_no_program_is_overlooked_and_at_most_two_are_not_run():
    programs = [b for page in PAGES for b in blocks(page) if b.language == "python"]
    assert len(programs) == sum(page.read_text().count("```python\n") for page in PAGES)
    assert sum(block.skipped for block in programs) <= 2


def documented():
    """Return the names that docs/api.md documents, and its modules with their members."""
    names = re.findall(r"^\.\. auto(?!module)\w+:: ([\w.]+)(?:\(\))?$", API, re.MULTILINE)
    modules = re.findall(
        r"^\.\. automodule:: ([\w.]+)\n   :(no-)?members:([^\n]*)", API, re.MULTILINE
    )
    return names, {module: members.strip() for module, no, members in modules if not no}


def test_the_reference_has_every_public_name_once():
    names, _ = documented()
    assert len(names) == len(set(names))
    root = set(isotherm.__all__) - {"__version__"}
    namespaces = {module.rpartition(".")[2] for module in isotherm._NAMESPACES}
    assert {n for n in names if n.count(".") == 1} == {f"isotherm.{n}" for n in root - namespaces}
    inside = {
        f"isotherm.{namespace}.{name}"
        for namespace in namespaces
        for name in getattr(getattr(isotherm, namespace), "__all__", [])
        if name not in root
    }
    assert inside <= set(names)
    assert set(isotherm._MOVED.values()) <= set(names)


def test_the_overview_of_the_reference_has_every_public_name():
    overview = API.partition("## Samplers")[0]
    names, _ = documented()
    public = {n for n in names if n.count(".") == 1} | {
        f"isotherm.{namespace}.{name}"
        for namespace in ("collect", "coordinates", "diagnostics", "exceptions", "loop", "models")
        for name in getattr(getattr(isotherm, namespace), "__all__", [])
    }
    missing = [n for n in public if f"`{n.rpartition('.')[2]}`" not in overview]
    assert not missing


def imported(source):
    """Yield the full names that a program imports from modules of isotherm."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isotherm"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_pages_and_examples_import_only_public_and_documented_names():
    sources = {
        f"{name(page)}:{block.line}": block.text
        for page in PROGRAMS
        for block in blocks(page)
        if block.language == "python"
    }
    sources |= {name(path): path.read_text() for path in (ROOT / "examples").glob("*.py")}
    names, modules = documented()
    missing = []
    for place, source in sources.items():
        for full in imported(source):
            module, _, last = full.rpartition(".")
            members = modules.get(module)
            listed = members is not None and (not members or last in members.split(", "))
            if full not in names and full not in modules and not listed:
                missing.append(f"{place}: {full}")
    assert not missing


@pytest.mark.parametrize("page", [*PAGES, *DEVELOPMENT], ids=name)
def test_links_lead_somewhere_and_no_path_is_of_one_machine(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"
    assert not re.search(r"/(work|home|root|Users)/", text)


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {project['version']}\n" in citation
    assert project["version"] in (ROOT / "CHANGELOG.md").read_text()

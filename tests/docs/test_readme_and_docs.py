"""What the documentation shows is run: its programs, its commands and the examples.

A `text` block right after a `python` block is what the block prints; numbers may differ, since a
chain is chaotic and another machine rounds differently.
"""

import io
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

import isotherm
import wikis

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOT_RUN = "<!-- not run -->"


class Block(NamedTuple):
    language: str
    line: int
    text: str
    skipped: bool
    follows: bool
    """Whether nothing but blank lines is between this block and the one before."""


def blocks(page):
    """Fenced blocks of a Markdown file, in order."""
    found, lines, start, between = [], page.read_text().splitlines(), None, ""
    for number, line in enumerate(lines):
        if start is None and (fence := re.match(r"```(\S*)", line)):
            start, language = number, fence[1]
        elif start is not None and line == "```":
            text = "\n".join(lines[start + 1 : number]) + "\n"
            found.append(Block(language, start + 1, text, NOT_RUN in between, not between.strip()))
            start, between = None, ""
        elif start is None:
            between += line + "\n"
    return found


def name(path):
    return path.relative_to(ROOT).as_posix()


def shape(printed):
    """What is left of an output without its numbers and the width of its columns."""
    printed = printed.replace("<- outside its band", "")
    printed = re.sub(r"\b(nan|inf)\b|[-+−]?\d[\d.,]*(e[-+]?\d+)?", "#", printed)
    return [" ".join(line.split()) for line in printed.strip().splitlines()]


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=name)
def test_programs_run_and_print_what_the_page_says(page):
    namespace, printed = {"__name__": "__main__"}, None
    with jax.numpy_rank_promotion("allow"):  # the tests forbid it, a user need not
        for block in blocks(page):
            if block.language == "python" and not block.skipped:
                # Line numbers of a traceback are those of the page.
                source = "\n" * block.line + block.text
                with redirect_stdout(io.StringIO()) as out:
                    exec(compile(source, str(page), "exec"), namespace)
                printed = out.getvalue()
            elif block.language == "text" and block.follows and printed is not None:
                assert shape(printed) == shape(block.text), f"{name(page)}:{block.line}"
            else:
                printed = None


def test_no_program_is_overlooked_and_few_are_not_run():
    programs = [b for page in PAGES for b in blocks(page) if b.language == "python"]
    assert len(programs) == sum(page.read_text().count("```python\n") for page in PAGES)
    assert sum(block.skipped for block in programs) <= 2


def commands(*words):
    """Command lines in shell blocks that begin with one of these words, each once."""
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "RELEASING.md"]
    shell = [b for page in pages for b in blocks(page) if b.language in ("bash", "console")]
    lines = [line.strip().removeprefix("$ ") for b in shell for line in b.text.splitlines()]
    split = [tuple(shlex.split(line, comments=True)) for line in lines]
    return list(dict.fromkeys(line for line in split if line and line[0] in words))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def call(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", commands("isotherm"), ids=" ".join)
def test_commands_work(command, runs):
    verb, *arguments = command[1:]
    if verb == "run":
        smoke = [] if "--smoke" in arguments else ["--smoke"]
        arguments = [*arguments, *smoke, "--out", str(runs)]
    elif arguments[:1] == ["build-wiki"]:  # a dump of its own, instead of tens of gigabytes
        wikis.write(runs, "toy.xml.bz2", wikis.toy_pages())
        arguments = [*arguments[:1], str(runs / "toy.xml.bz2"), "--vocab", str(runs / "words.txt")]
        arguments += ["--out", str(runs / "wiki"), "--min-tokens", "2"]
    elif verb == "report":
        arguments = [str(runs)]
        if not list(runs.glob("*/result.json")):  # this test was asked for alone
            call("-m", "isotherm.cli.app", "run", "rates", "--smoke", "--out", str(runs))
    done = call("-m", "isotherm.cli.app", verb, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_make_targets_exist():
    targets = set(re.findall(r"^(\w+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
    wanted = {target for _, *arguments in commands("make") for target in arguments}
    assert {"demo", "test", "setup"} <= wanted
    assert wanted <= targets


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_examples_run_without_a_warning(example):
    assert len(example.read_text().splitlines()) < 60
    done = call("-W", "error", str(example))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if example.stem == "logistic_regression":
        natural_coordinates_win(done.stdout)


def natural_coordinates_win(printed):
    plain, natural = (
        [float(x) for x in line.split("reference")[1].split()] for line in printed.splitlines()
    )
    middle = len(plain) // 2
    assert plain[middle] < 0.9
    assert 0.95 < natural[middle] < 1.08


def test_the_reference_has_every_public_name_once():
    text = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"auto(?:function|class|exception):: isotherm\.(\w+)(?:\(\))?$", text, re.M)
    assert sorted(listed) == sorted(set(isotherm.__all__) - {"__version__"})


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / f"{n}.md" for n in ("CONTRIBUTING", "RELEASING", "CHANGELOG"))],
    ids=name,
)
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

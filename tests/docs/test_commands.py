"""Commands in the pages work; experiments run with `--smoke`, in this process."""

import re
import shlex

import jax
import pytest
from markdown_blocks import DEVELOPMENT, PAGES, ROOT, blocks
from typer.testing import CliRunner

import wikis
from isotherm.cli.app import app
from isotherm.paper.experiments import registry


def commands(*words):
    """Return the command lines in shell blocks that begin with one of these words, each once."""
    pages = [*PAGES, *DEVELOPMENT]
    shell = [b for page in pages for b in blocks(page) if b.language in ("bash", "console")]
    lines = [line.strip().removeprefix("$ ") for b in shell for line in b.text.splitlines()]
    split = [tuple(shlex.split(line, comments=True)) for line in lines]
    return list(dict.fromkeys(line for line in split if line and line[0] in words))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def call(*arguments):
    with jax.numpy_rank_promotion("allow"):
        return CliRunner().invoke(app, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands("isotherm"), ids=" ".join)
def test_commands_work(command, runs, monkeypatch):
    monkeypatch.chdir(ROOT)
    verb, *arguments = command[1:]
    if verb == "run":
        smoke = [] if "--smoke" in arguments else ["--smoke"]
        arguments = [*arguments, *smoke, "--out", str(runs)]
    elif arguments[:1] == ["build-wiki"]:  # a small dump, instead of tens of gigabytes
        wikis.write(runs, "toy.xml.bz2", wikis.toy_pages())
        arguments = [*arguments[:1], str(runs / "toy.xml.bz2"), "--vocab", str(runs / "words.txt")]
        arguments += ["--out", str(runs / "wiki"), "--min-tokens", "2"]
    elif verb == "topics":  # of these pages, one pass
        arguments = [str(ROOT / "docs"), "--pattern", "*.md", *arguments[1:], "--passes", "1"]
        arguments += ["--out", str(runs / "topics.html"), "--no-open"]
    elif verb == "report":
        arguments = [str(runs)]
        if not list(runs.glob("*/result.json")):  # no experiment ran before this test
            call("run", "rates", "--smoke", "--out", str(runs))
    result = call(verb, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()


def test_the_page_has_every_experiment_with_its_question():
    page = (ROOT / "docs" / "experiments.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| [^|]* \|$", page, re.MULTILINE)
    assert dict(rows) == {name: registry.question(name) for name in registry.EXPERIMENTS}


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {target for _, *arguments in commands("make") for target in arguments}
    assert {"demo", "test", "test-all", "setup"} <= wanted
    assert wanted <= targets

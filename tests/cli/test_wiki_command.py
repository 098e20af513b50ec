"""Output and exit codes of `isotherm data build-wiki`."""

import json
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

import wikis
from isotherm.cli import wiki
from isotherm.cli.app import app
from isotherm.data import wikipedia
from isotherm.topics.corpus_readers import open_stream


def build_wiki(folder, *options, dump="toy-multistream.xml.bz2"):
    words = ["--vocab", folder / "words.txt", "--out", folder / "out", "--workers", 1, *options]
    return CliRunner().invoke(app, ["data", "build-wiki", *map(str, [folder / dump, *words])])


@pytest.fixture
def folder(tmp_path):
    wikis.write(tmp_path, "toy-multistream.xml.bz2", wikis.toy_pages())
    return tmp_path


def test_the_shards_of_a_dump_can_be_streamed(folder):
    done = build_wiki(folder, "--min-tokens", 2)
    assert done.exit_code == 0
    assert done.stdout == (
        f"32 documents with 672 words, from 40 pages, in {folder / 'out'} (shards: 1)\n"
    )
    assert done.stderr.splitlines()[0] == (
        "Skipped: 2 redirects, 2 in other namespaces, 1 too short, 2 without wikitext, 1 malformed."
        " Stripped by regular expressions, being too complex to parse: 0 documents."
    )
    assert "open_stream(sorted(" in done.stderr and "Traceback" not in done.stderr
    shards = sorted((folder / "out").glob("wiki-*.npz"))
    stream = open_stream(shards, folder / "out" / "vocabulary.txt")
    assert sum(len(batch.corpus) for batch in stream.batches(5)) == 32


def test_the_same_command_again_prints_the_same(folder):
    first = build_wiki(folder)
    assert build_wiki(folder).output == first.output
    other = build_wiki(folder, "--limit", 3)
    assert other.exit_code == 2 and "was started with `limit` None, not 3" in other.stderr


def test_limit(folder):
    assert build_wiki(folder, "--limit", 3).stdout.startswith("3 documents")


def test_a_truncated_dump_exits_with_1(folder):
    path = folder / "toy-multistream.xml.bz2"
    path.write_bytes(path.read_bytes()[:-200])
    done = build_wiki(folder)
    assert done.exit_code == 1 and " documents with " in done.stdout
    assert "Error: " in done.stderr
    assert "is truncated in the middle of its bz2 data; the" in done.stderr


def test_no_documents_exits_with_1(folder):
    done = build_wiki(folder, "--min-tokens", 1000)
    assert done.exit_code == 1 and done.stdout.startswith("0 documents")
    assert "has no article with 1000 words of" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere", None, "nowhere` does not exist."),
        ("words.txt", None, "is not a MediaWiki dump"),
        ("toy-multistream.xml.bz2", "cat\ncat\n", "duplicate word 'cat', first on line 1"),
        ("toy-multistream.xml.bz2", "", "is empty: a vocabulary needs at least one word"),
    ],
)
def test_an_error_is_one_line_and_exits_with_2(folder, name, content, message):
    if content is not None:
        (folder / "words.txt").write_text(content)
    done = build_wiki(folder, dump=name)
    assert done.exit_code == 2 and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("options", [["--workers", 0], ["--limit", 0], ["--min-tokens", -1]])
def test_usage_errors(folder, options):
    assert build_wiki(folder, *options).exit_code == 2


def test_an_interrupt_says_how_to_resume(folder, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(wikipedia, "build_shards", interrupted)
    done = build_wiki(folder)
    assert done.exit_code == 130
    assert done.stderr == (
        "Run the same command again to resume after the last shard.\nInterrupted.\n"
    )


def test_a_missing_library_is_reported(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "mwxml", None)
    done = build_wiki(folder)
    assert done.exit_code == 2 and "pip install 'isotherm[wiki]'" in done.stderr


def test_progress_bar_on_a_terminal(folder):
    with open(folder / "screen", "w+", encoding="utf-8") as screen:
        console = Console(force_terminal=True, width=120, file=screen)
        with wiki._progress(console, folder / "toy-multistream.xml.bz2") as progress:
            progress(100, 1000)
            progress(200, 3000)
        screen.seek(0)
        assert "3,000 pages, " in screen.read()


def test_the_manifest_has_arguments_and_outcomes(folder):
    build_wiki(folder, "--min-tokens", 2)
    entries = json.loads((folder / "out" / "ledger.json").read_text())
    assert entries["ended"] and entries["tally"]["documents"] == 32
    assert entries["made_from"]["min_tokens"] == 2

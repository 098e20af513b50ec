"""Output and exit codes of `isotherm data`."""

import gzip
import hashlib
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from isotherm.cli import data
from isotherm.cli.app import app
from isotherm.data import registry
from isotherm.data.registry import Dataset, File

CONTENT = b"+1 1:1\n"


@pytest.fixture(autouse=True)
def toys(tmp_path, monkeypatch):
    """Two datasets, and an empty data folder."""
    checksum = hashlib.sha256(CONTENT).hexdigest()
    known = {
        name: Dataset(name, f"The [bold]{name}[/]", "CC0", (File("file", 7, checksum),))
        for name in ("toy", "boy")
    }
    monkeypatch.setattr(registry, "datasets", lambda: known)
    monkeypatch.setattr(registry, "data_folders", lambda data_dir=None: [data_dir or tmp_path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(folder, content=CONTENT, dataset="toy", name="file"):
    (folder / dataset).mkdir(parents=True, exist_ok=True)
    (folder / dataset / name).write_bytes(content)


def isotherm(*words):
    return CliRunner().invoke(app, ["data", *map(str, words)])


def lines(text):
    return [line.split() for line in text.splitlines() if line.strip()]


def test_list_shows_which_files_are_present(toys):
    put(toys)
    done = isotherm("list")
    assert done.exit_code == 0 and done.stderr == ""
    toy, boy = lines(done.stdout)[2:]
    assert toy[:6] == ["toy", "1", "of", "1", "0.0", "MB"] and str(toys / "toy") in toy
    assert boy[:4] == ["boy", "0", "of", "1"]
    assert "[bold]toy[/]" in done.stdout


def test_verify_ok(toys):
    put(toys, gzip.compress(CONTENT), name="file.gz")
    done = isotherm("verify", "toy")
    assert done.exit_code == 0 and done.stderr == ""
    assert lines(done.stdout)[2:] == [["toy", "file", "ok", str(toys / "toy" / "file.gz")]]


def test_verify_without_a_name_checks_all_datasets(toys):
    put(toys)
    assert isotherm("verify").exit_code == 0
    put(toys, b"wrong", dataset="boy")
    assert isotherm("verify").exit_code == 1


def test_verify_finds_a_wrong_checksum(toys):
    put(toys, b"wrong")
    done = isotherm("verify", "toy")
    assert done.exit_code == 1 and "wrong checksum" in done.stdout


@pytest.mark.parametrize("words", [["verify", "toy"], ["verify"]])
def test_verify_without_any_file(words):
    done = isotherm(*words)
    assert done.exit_code == 2 and "missing" in done.stdout
    assert "isotherm data fetch" in done.stderr


def test_data_dir(toys):
    put(toys / "elsewhere")
    assert isotherm("verify", "toy", "--data-dir", toys / "elsewhere").exit_code == 0
    assert isotherm("verify", "toy", "--data-dir", toys / "nowhere").exit_code == 2


def test_fetch_of_existing_files(toys):
    put(toys)
    done = isotherm("fetch", "toy")
    assert done.exit_code == 0 and "ok" in done.stdout and done.stderr == ""


def test_fetch(toys, monkeypatch):
    def fake(name, data_dir, *, progress):
        put(data_dir)
        return registry.verify(name, data_dir)

    monkeypatch.setattr(registry, "fetch", fake)
    done = isotherm("fetch", "toy", "--data-dir", toys / "new")
    assert done.exit_code == 0 and "ok" in done.stdout
    assert done.stderr == f"Downloading toy to {toys / 'new' / 'toy'}\n"


def test_fetch_with_a_wrong_checksum_exits_with_1(monkeypatch):
    def fake(*args, **options):
        raise registry.ChecksumError("`file` is wrong.")

    monkeypatch.setattr(registry, "fetch", fake)
    done = isotherm("fetch", "toy")
    assert done.exit_code == 1 and "Error: `file` is wrong." in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fetch", "tooy"], "Unknown dataset `tooy`: did you mean `toy`?"),
        (["verify", "tooy"], "Unknown dataset `tooy`: did you mean `toy`?"),
        (["fetch", "toy"], "`file` of `toy` cannot be downloaded"),
    ],
)
def test_an_error_is_a_message_and_exits_with_2(words, message):
    done = isotherm(*words)
    assert done.exit_code == 2 and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], ["fetch"], ["walk"], ["list", "--data-dri", "x"]])
def test_usage_errors(words):
    assert isotherm(*words).exit_code == 2


def test_progress_bar_on_a_terminal():
    from rich.console import Console

    console = Console(force_terminal=True, width=80, file=open("screen", "w+", encoding="utf-8"))
    with console.file, data._progress(console) as bar:
        assert isinstance(bar, data._Bar)
        bar.total = 10
        bar.update(4)
        assert bar.progress.tasks[0].percentage == 40
        bar.reset(), bar.close()


def test_listing_imports_no_slow_modules():
    code = (
        "import sys; from typer.testing import CliRunner; from isotherm.cli.app import app;"
        "assert CliRunner().invoke(app, ['data', 'list']).exit_code == 0;"
        "sys.exit(bool({'jax', 'numpy', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

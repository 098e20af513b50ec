"""Output and exit codes of the commands list, run and report."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.app import app
from isotherm.io.locks import locked
from isotherm.paper.experiments import registry

FAKE = '''
"""Does the command line tell the truth about [bold]fakes[/]?"""
from dataclasses import dataclass
from isotherm.paper.experiments.contract import Claim
import numpy as np

@dataclass(frozen=True)
class Config:
    true: bool = True
    fault: str = ""

SMOKE = Config()

def run(config, key, report):
    print("noise on stdout")
    match config.fault:
        case "interrupt":
            raise KeyboardInterrupt
        case "value":
            raise ValueError("`step_size` must be positive, got -1.")
        case "bug":
            raise KeyError("oops")
        case "errno":
            raise NotADirectoryError(20, "Not a directory")
        case "data":
            from isotherm.data.libsvm import load_a9a
            load_a9a()
    return {"x": np.arange(2.0)}

def rows(config, result):
    return [{"x": x, "word": "[red]raw[/]", "paper": float("nan")} for x in result["x"]]

def check(config, result):
    return [Claim("the claim", config.true, "[i]1[/i]", "1")]

def plot(config, result):
    return {}
'''


@pytest.fixture(autouse=True)
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_for_cli.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.EXPERIMENTS, "fake", registry.Entry("fake_for_cli", "Figure 0"))
    monkeypatch.chdir(tmp_path)


def isotherm(*words):
    return CliRunner().invoke(app, words)


def test_claims_hold():
    done = isotherm("run", "fake", "--seed", "4")
    assert done.exit_code == 0
    assert "✓ the claim" in done.stdout and "[i]1[/i]" in done.stdout
    assert "[red]raw[/]" in done.stdout and "noise" not in done.stdout
    assert "Results of fake with seed 4 written to runs/fake" in done.stderr


def test_a_claim_fails():
    done = isotherm("run", "fake", "--set", "true=no", "--out", "here")
    assert done.exit_code == 1 and "✗ the claim" in done.stdout
    assert (
        json.loads(Path("here/fake/result.json").read_text(encoding="utf-8"))["config"]["true"]
        is False
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "fakee"], "Unknown experiment `fakee`: did you mean `fake`?"),
        (["list", "fakee"], "Unknown experiment `fakee`: did you mean `fake`?"),
        (["run", "fake", "--set", "fualt=x"], "Unknown setting `fualt`: did you mean `fault`?"),
        (["run", "fake", "--set", "true=2"], "`true` must be true or false, got `2`."),
        (["run", "fake", "--set", "fault=value"], "`step_size` must be positive, got -1."),
        (["run", "fake", "--set", "fault=errno"], "operating system reports: not a directory."),
        (["run", "fake", "--set", "fault=bug"], "KeyError: 'oops' (`isotherm --debug …` prints"),
        (
            ["run", "fake", "--out", "fake_for_cli.py"],
            "`fake_for_cli.py` is a file, not a folder: choose another name.",
        ),
        (
            ["run", "fake", "--out", "fake_for_cli.py/below"],
            "`fake_for_cli.py` is a file, not a folder: choose another name.",
        ),
        (["report", "fake_for_cli.py"], "`fake_for_cli.py` is a file, not a folder with results."),
        (["report", "fake_for_cli.py/below"], "No results under `fake_for_cli.py/below`"),
        (
            ["data", "verify", "--data-dir", "fake_for_cli.py"],
            "`fake_for_cli.py` is a file, not a folder with data.",
        ),
        (["report"], "No results under `runs`"),
    ],
)
def test_an_error_is_one_line(words, message):
    done = isotherm(*words)
    assert done.exit_code == 2 and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line != "noise on stdout"]
    assert len(lines) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["list"], ["run", "fake"], ["run", "fake", "--json"]])
def test_results_that_cannot_be_printed_are_reported_in_one_line(monkeypatch, words):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as end:
            app(words)
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    assert end.value.code == 1


def test_characters_that_a_terminal_cannot_show_are_replaced():
    code = "from isotherm.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "list"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert "double-well" in done.stdout


@pytest.mark.parametrize(
    "words",
    [["run"], ["walk"], *(["run", "fake", "--seed", seed] for seed in ("x", "-1", str(2**32)))],
)
def test_usage_errors(words):
    assert isotherm(*words).exit_code == 2


def test_debug_shows_the_traceback():
    done = isotherm("--debug", "run", "fake", "--set", "fault=bug")
    assert done.exit_code == 2 and "Traceback" in done.stderr and "oops" in done.stderr


def test_interrupt():
    done = isotherm("run", "fake", "--set", "fault=interrupt")
    assert done.exit_code == 130 and "Interrupted." in done.stderr
    assert not Path("runs").exists()  # no empty folders


def test_a_folder_in_use_is_refused_with_its_owner():
    with locked(Path("runs/fake")):
        done = isotherm("run", "fake")
    assert done.exit_code == 2
    assert f"Error: `runs/fake` is in use by process {os.getpid()} on" in done.stderr
    assert isotherm("run", "fake").exit_code == 0


def test_data_are_searched_where_the_option_says():
    done = isotherm("run", "fake", "--set", "fault=data", "--data-dir", "elsewhere")
    assert done.exit_code == 2 and "in `elsewhere`. Download with" in done.stderr
    assert "or on the command line `--data-dir`" in done.stderr


def test_json_is_the_file_and_nothing_else():
    done = isotherm("run", "fake", "--smoke", "--json")
    assert done.exit_code == 0
    assert done.stdout == Path("runs/fake/result.json").read_text(encoding="utf-8")
    assert json.loads(done.stdout)["rows"][0]["paper"] is None


def test_quiet_prints_no_messages():
    assert isotherm("run", "fake", "--quiet").stderr == "noise on stdout\n"


def test_report_prints_its_path():
    isotherm("run", "fake")
    done = isotherm("report")
    assert (done.exit_code, done.stdout) == (0, "runs/report.html\n")
    assert "[red]raw[/]" in Path("runs/report.html").read_text(encoding="utf-8")


def test_a_report_with_a_broken_result_shows_the_others_and_names_it():
    isotherm("run", "fake")
    Path("runs/other").mkdir()
    Path("runs/other/result.json").write_text("{")
    done = isotherm("report")
    assert (done.exit_code, done.stdout) == (1, "runs/report.html\n")
    assert "The result of other is not on the page." in done.stderr
    assert 'article id="fake"' in Path("runs/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [20, 40, 200])
def test_a_narrow_terminal_and_no_color_are_respected(monkeypatch, width):
    """Every word of a table is there at any width; without colour there is no escape sequence."""
    isotherm("run", "fake")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    coloured = isotherm("run", "fake")
    monkeypatch.setenv("NO_COLOR", "1")
    plain = isotherm("run", "fake")
    assert "\x1b[32m" in coloured.stdout and "\x1b[3" not in plain.stdout + plain.stderr
    shown = re.sub(r"\x1b\[[0-9;]*m", "", plain.stdout)
    assert max(map(len, shown.splitlines())) <= width
    assert "theclaim" in re.sub(r"\s+", "", shown)


def test_list():
    done = isotherm("list")
    assert done.exit_code == 0
    assert "Does the command line tell the truth about [bold]fakes[/]?" in done.stdout
    settings = isotherm("list", "fake").stdout
    assert "fault" in settings and "true or false" in settings


def test_version():
    assert isotherm("--version").stdout.startswith("isotherm ")


def test_help_imports_no_slow_modules():
    code = (
        "import sys; from typer.testing import CliRunner; from isotherm.cli.app import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "sys.exit(bool({'jax', 'numpy', 'matplotlib', 'jinja2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

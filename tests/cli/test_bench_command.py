"""`isotherm bench` lists the benchmarks of a checkout, and returns their exit codes."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli import bench
from isotherm.cli.app import app

ROOT = Path(__file__).parents[2]


def call(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one benchmark, which runs in this Python."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/reporting.py").write_text('"""Tables."""\n')
    source = '"""Who is faster?"""\nimport sys\n\ndef main(): ...\n\nsys.exit(3 + len(sys.argv))\n'
    (tmp_path / "benchmarks/race.py").write_text(source)
    monkeypatch.chdir(tmp_path / "benchmarks")
    monkeypatch.setattr(bench, "PEERS", Path(sys.executable))
    return tmp_path


def test_lists_benchmarks_but_not_helpers(checkout):
    listed = call()
    assert listed.exit_code == 0
    assert "race" in listed.output and "Who is faster?" in listed.output
    assert "reporting" not in listed.output


def test_runs_a_benchmark_and_returns_its_exit_code(checkout):
    assert call("race").exit_code == 4
    assert call("race", "--quick").exit_code == 5


def test_reports_what_is_missing(checkout, monkeypatch):
    assert "did you mean `race`?" in call("rase").output
    monkeypatch.setattr(bench, "PEERS", Path("nowhere"))
    assert "make peers" in call("race").output
    assert call("race").exit_code == 2


def test_benchmarks_of_this_repository():
    titles = bench._benchmarks(ROOT)
    expected = {"accuracy", "double_well", "growth", "ess", "networks", "noise", "topics"}
    assert expected | {"lda_stream"} <= set(titles)
    assert not {"noise_problems", "noise_report", "networks_report"} & set(titles)
    assert all(title and "`" not in title[:1] for title in titles.values())

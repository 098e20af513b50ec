"""Numbers of the documentation come from result files, and README.md has the current ones."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
measured = __import__("measured")
sys.path.pop(0)

DOCUMENT = {
    "machine": {"cores": 2},
    "rows": [
        {"table": "A", "method": "S, fast", "error": "1.25 ± 0.04", "steps": 1200},
        {"table": "A", "method": "E", "error": None, "steps": -300.5},
        {"table": "B", "method": "E", "error": "inf", "steps": 7},
    ],
    "claims": [{"claim": "S before E", "measured": "0.7 and 0.9, gap +0.21 ± 0.05"}],
}


@pytest.fixture(autouse=True)
def result_file(monkeypatch, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(json.dumps(DOCUMENT))
    source = measured.source
    monkeypatch.setattr(measured, "source", lambda name: path if name == "some" else source(name))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("some; method = S, fast; error", "1.25 ± 0.04"),
        ("some; method = S, fast; error; .1f", "1.2 ± 0.0"),
        ("some; method = S, fast; error; #2; x 100; .0f", "4"),
        ("some; method = S, fast; steps; ,.0f", "1,200"),
        ("some; table = A; method ~ E; steps; .1f", "−300.5"),
        ("some; table = A; method ~ E; steps; abs; .0f", "300"),
        ("some; max; steps", "1200.0"),
        ("some; sum; steps; x 2; .0f", "1813"),
        ("some; claim ~ before; measured; after gap; +.1f", "+0.2 ± 0.1"),
        ("some; claim ~ before; measured; before ,; #2", "0.9"),
        ("some; machine/cores", "2"),
    ],
)
def test_expressions_evaluate_to_formatted_text(expression, text):
    assert measured.evaluate(expression) == text


@pytest.mark.parametrize(
    "expression",
    ["some; steps", "some; method = X; steps", "some; table = A; speed", "some; steps; error"],
)
def test_expressions_that_do_not_select_one_value_are_refused(expression):
    with pytest.raises(ValueError, match=r"selects \d+ values, not one|has two keys"):
        measured.evaluate(expression)


def test_the_readme_has_the_numbers_of_the_result_files():
    assert "{measured}" not in measured.readme()
    message = "README.md differs from docs/results: run `python docs/_ext/measured.py`"
    assert measured.README.read_text(encoding="utf-8") == measured.readme(), message

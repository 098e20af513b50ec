"""Numbers of the documentation come from result files, and README.md has those of today."""

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
def a_file(monkeypatch, tmp_path):
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
def test_an_expression_is_spelled(expression, text):
    assert measured.spell(expression) == text


@pytest.mark.parametrize(
    "expression",
    ["some; steps", "some; method = X; steps", "some; table = A; speed", "some; steps; error"],
)
def test_what_is_not_there_once_is_refused(expression):
    with pytest.raises(ValueError, match=r"found|two keys"):
        measured.spell(expression)


def test_the_readme_has_the_numbers_of_the_files():
    assert "{measured}" not in measured.readme()
    told = "run `python docs/_ext/measured.py`: README.md has other numbers than docs/results"
    assert measured.README.read_text(encoding="utf-8") == measured.readme(), told

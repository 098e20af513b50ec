"""Examples are short and run without a warning.

They run in this process, each in its own namespace: importing JAX again for every example would
take longer than most of them.
"""

import runpy
import sys
import warnings

import jax
import pytest
from markdown_blocks import ROOT, name

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_examples_run_without_a_warning(example, monkeypatch, capsys):
    assert len(example.read_text().splitlines()) < 60
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.chdir(ROOT)
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.strip()
    if example.stem == "logistic_regression":
        check_that_natural_coordinates_are_accurate(printed)


def check_that_natural_coordinates_are_accurate(printed):
    plain, natural = (
        [float(x) for x in line.split("reference")[1].split()] for line in printed.splitlines()
    )
    middle = len(plain) // 2
    assert plain[middle] < 0.9
    assert 0.95 < natural[middle] < 1.08

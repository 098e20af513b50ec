"""The documentation builds without warnings; its extensions convert docstrings and formulas."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

pytest.importorskip("sphinx", reason="the documentation needs sphinx: pip install '.[docs]'")
pytest.importorskip("myst_parser", reason="the documentation needs myst-parser")
pytest.importorskip("furo", reason="the documentation needs furo")


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-b",
            "html",
            "-d",
            str(out / "doctrees"),
            str(ROOT / "docs"),
            str(out / "html"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_the_build_has_no_warnings_and_the_pages_need_no_network(html):
    pages = {path.stem: path.read_text() for path in html.glob("*.html")}
    assert {"index", "quickstart", "api", "contributing"} <= set(pages)
    for name, text in pages.items():
        assert 'src="http' not in text, name
        assert 'rel="stylesheet" type="text/css" href="http' not in text, name


def test_the_reference_has_formulas_tables_and_links(html):
    api = (html / "api.html").read_text()
    assert "<math" in api
    assert "\\leftarrow" not in api
    assert "| ---" not in api
    assert "$" not in api.split('id="samplers"')[1].split('id="the-family')[0]
    assert 'href="#isotherm.warm_start"' in api


@pytest.fixture(scope="module")
def to_rest():
    return load("docstrings").to_rest


def load(name):
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        return __import__(name)
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(
    ("markdown", "rest"),
    [
        ("the step $h^2$, that is all", "the step :math:`h^2`, that is all"),
        ("over\n$a +\n  b$ lines", "over\n:math:`a + b` lines"),
        ("set `step_size` and ``this``", "set ``step_size`` and ``this``"),
        ("see `isotherm.sgld`", "see :py:obj:`isotherm.sgld`"),
        ("2$x$s", r"2\ :math:`x`\ s"),
        ("*emphasis* and 5 %", "*emphasis* and 5 %"),
        (">>> f('$x$', `y`)\n'$z$'", ">>> f('$x$', `y`)\n'$z$'"),
        ("so:\n\n    f(x)  # `y`", "so::\n\n    f(x)  # `y`"),
        ("x\n    $h$: a number", "x\n    :math:`h`: a number"),
    ],
)
def test_inline_markup(to_rest, markdown, rest):
    assert to_rest(markdown, {"isotherm.sgld"}.__contains__) == rest


def test_formulas_and_tables(to_rest):
    text = "Before\n$$ x \\\\\n   y. $$\nafter\n\n| a | `b` |\n| --- | --- |\n| $c$ | |"
    lines = [line.rstrip() for line in to_rest(text).splitlines()]
    assert lines == [
        "Before",
        "",
        ".. math::",
        "",
        "   x \\\\",
        "   y.",
        "",
        "after",
        "",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
        "   * - a",
        "     - ``b``",
        "   * - :math:`c`",
        "     -",
    ]


def test_references_become_a_list(to_rest):
    text = "References\n----------\nLi & Fan (2016), *A\nb*.\nDing (2014), *C*."
    assert to_rest(text).splitlines()[2:] == [
        "- Li & Fan (2016), *A",
        "  b*.",
        "- Ding (2014), *C*.",
    ]


@pytest.mark.parametrize("latex", [r"\tfrac12 x", r"\frac1{14}", r"a\Big/\mu", r"w_1 \dots w_m"])
def test_latex_that_docutils_does_not_support_is_rewritten(latex):
    assert load("mathml").to_mathml(latex).startswith("<math")

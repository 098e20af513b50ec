"""The report of the committed results in a real browser: keyboard, widths, dark mode, print."""

import base64
import shutil
from pathlib import Path

import pytest

import browser
from isotherm.paper.report.page import build

RESULTS = Path(__file__).parents[3] / "docs" / "results"
LUMINANCE = (
    "(() => { const color = getComputedStyle(document.body).backgroundColor;"
    " const [r, g, b] = color.match(/\\d+/g).map(Number);"
    " return 0.2126 * r + 0.7152 * g + 0.0722 * b; })()"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if browser.find() is None:
        pytest.skip("Chromium is not installed")
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(RESULTS, folder, dirs_exist_ok=True)
    with browser.Browser(folder / "profile") as tab:
        tab.resize(1280, 900)
        tab.open(build(folder))
        yield tab


def test_all_experiments_and_pictures_are_shown(page):
    experiments = sorted(path.parent.name for path in RESULTS.glob("*/result.json"))
    assert (
        page.ask("[...document.querySelectorAll('article')].map(a => a.id).sort()") == experiments
    )
    pictures = page.ask(
        "[...document.querySelectorAll('.picture > *')].map(p => p.tagName == 'IMG'"
        " ? p.complete && p.naturalWidth > 100 : p.getBoundingClientRect().width > 100)"
    )
    assert len(pictures) >= len(experiments) and all(pictures)
    assert page.errors == []


def test_keyboard_navigation_reaches_everything_in_order(page):
    wanted = page.ask("document.querySelectorAll('a, [tabindex=\"0\"]').length")
    seen = set()
    label = (
        "(e => e.getAttribute('href') || e.getAttribute('aria-label')"
        " || e.getAttribute('aria-labelledby'))(document.activeElement)"
    )
    top = "document.activeElement.getBoundingClientRect().top + scrollY"
    tops = []
    page.ask("document.activeElement.blur(); window.scrollTo(0, 0)")
    for _ in range(wanted):
        page.press("Tab", 9)
        tops.append(page.ask(top))
        seen.add((page.ask(label), tops[-1]))
    assert len(seen) == wanted
    assert tops[1:] == sorted(tops[1:])  # the first is the skip link
    assert page.ask("getComputedStyle(document.activeElement).outlineStyle") != "none"


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_page_never_scrolls_sideways(page, width):
    page.resize(width, 800)
    assert page.ask("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_dark_mode_and_print(page):
    page.resize(1280, 900)
    assert page.ask(LUMINANCE) > 200
    page.resize(1280, 900, dark=True)
    assert page.ask(LUMINANCE) < 60
    printed = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF") and len(printed) > 100_000


def test_errors_of_a_page_are_recorded(page, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='missing.png'><script>undefined.x</script>")
    page.open(bad)
    assert len(page.errors) >= 2
    page.errors.clear()

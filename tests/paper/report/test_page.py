"""The report page, built from result files that the tests write."""

import os
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from isotherm.paper.report.document import write_json
from isotherm.paper.report.figures import caption, panels, styled
from isotherm.paper.report.page import build
from isotherm.paper.report.svg import inline_svg
from isotherm.paper.report.text import inline, paragraphs

ATTACK = "<script>alert(1)</script>"


def save(folder, **changes):
    """Write the document of a run with one figure."""
    (folder / "figures").mkdir(parents=True)
    with styled():
        figure, axes = panels()
        axes.fill_between([0, 1, 2], [1.0, 3.0, 2.0], hatch="/")
        axes.imshow(np.eye(2))
        figure.savefig(folder / "figures/kl.svg")
    document = {
        "name": folder.name,
        "title": "Is `ABOBA` second order, bias $h^2$?",
        "description": "We look.",
        "paper": "Figure 1",
        "config": {"step_sizes": [0.1, 0.2]},
        "smoke": True,
        "seed": 0,
        "versions": {"python": "3.11", "isotherm": "0.1", "jax": "0.10", "numpy": "2.4"},
        "machine": {"cpus": 2, "platform": "Linux"},
        "started": "2026-01-01T00:00:00+00:00",
        "wall_time_seconds": 1.5,
        "command": f"isotherm run {folder.name} --smoke --seed 0",
        "rows": [{"h": 0.1, "kl": None, "kl_paper": 0.25}],
        "claims": [
            {"claim": "it is", "holds": True, "measured": "2.01", "expected": "2"},
            {"claim": "it is not", "holds": False, "measured": "2.01", "expected": "1"},
        ],
        "figures": [{"name": "kl", "svg": "figures/kl.svg", "png": "figures/kl.png"}],
    }
    write_json(folder / "result.json", document | changes)


class Page(HTMLParser):
    """Collects elements, and checks that they are nested correctly."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def values(self, name):
        return [attrs[name] for _, attrs in self.elements if name in attrs]


@pytest.fixture
def text(tmp_path):
    save(tmp_path / "double-well")
    save(tmp_path / "order")
    path = build(tmp_path)
    assert path == tmp_path / "report.html"
    return path.read_text(encoding="utf-8")


def test_experiments_are_in_the_given_order(tmp_path):
    for name in ("a", "b", "c"):
        save(tmp_path / name)
    articles = re.findall(r'<article id="(\w)"', build(tmp_path, order=["c", "x", "a"]).read_text())
    assert articles == ["c", "a", "b"]


def test_page_shows_the_results(text):
    assert 'Is <code>ABOBA</code> second order, bias <span class="maths">' in text
    for words in ("1/2 hold", "✓ holds", "✗ fails", "smoke run", "1.5 s", "kl paper", "step_sizes"):
        assert words in text
    assert "<code>isotherm run order --smoke --seed 0</code>" in text


def test_ids_are_unique_and_links_have_targets(text):
    page = Page(text)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    targets = [link[1:] for link in page.values("href") if link.startswith("#")]
    targets += re.findall(r"url\(#([^)]+)\)", text)
    targets += page.values("aria-labelledby")
    assert targets and set(targets) <= set(ids)


def test_page_loads_no_other_file(text):
    page = Page(text)
    links = page.values("href") + page.values("src") + page.values("xlink:href")
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    assert not {"script", "link", "iframe", "object", "img"} & {tag for tag, _ in page.elements}


def test_page_is_accessible(text):
    page = Page(text)
    pictures = [attrs for tag, attrs in page.elements if tag == "svg"]
    assert len(pictures) == 2
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in pictures)
    assert next(attrs for tag, attrs in page.elements if tag == "a")["class"] == "skip"
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(headings))


def test_text_from_a_result_is_never_markup(tmp_path):
    claim = dict.fromkeys(("claim", "measured", "expected"), f"`{ATTACK}` ${ATTACK}$ *{ATTACK}*")
    save(
        tmp_path / "evil",
        name=ATTACK,
        title=ATTACK,
        description=f"{ATTACK}\n\n- {ATTACK}",
        paper=ATTACK,
        config={ATTACK: ATTACK},
        command=ATTACK,
        rows=[{ATTACK: ATTACK, "on": '" onload="alert(1)'}],
        claims=[claim | {"holds": True}],
        figures=[{"name": ATTACK, "caption": f'"{ATTACK}', "svg": "figures/kl.svg", "png": ""}],
    )
    text = build(tmp_path).read_text(encoding="utf-8")
    page = Page(text)
    assert "<script" not in text and "&lt;script&gt;" in text
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)


def test_only_the_drawing_of_an_svg_is_kept():
    evil = """<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" onload="x()"
      xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" height="9pt" viewBox="0 0 9 9">
      <script>x()</script><style>@import "http://x"</style><foreignObject/><metadata>m</metadata>
      <a xlink:href="javascript:x()"><path d="M 0 0"/></a><image xlink:href="http://x/y.png"/>
      <use href="http://x#y"/>
      <path id="p" onclick="x()" style="fill: url(http://x)" d="M 1.2345 0"/>
      <g clip-path="url(#p)"><use xlink:href="#p"/></g></svg>"""
    clean = inline_svg(evil, prefix="f-", label='a "label"')
    assert clean.startswith("<svg ") and "?xml" not in clean
    assert not re.search(r"script|http|@import|onload|onclick|foreign|metadata|height", clean)
    assert '<path id="f-p" d="M 1.23 0" />' in clean
    assert 'clip-path="url(#f-p)"' in clean and '<use href="#f-p" />' in clean
    assert 'aria-label="a &quot;label&quot;"' in clean


@pytest.mark.parametrize("source", ["not xml", "<html></html>", ""])
def test_source_that_is_not_svg_raises(source):
    with pytest.raises(ValueError, match="Not an SVG image"):
        inline_svg(source, prefix="", label="")


def test_bad_directories_raise(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, not a folder with results"):
        build(tmp_path / "file")
    with pytest.raises(ValueError, match="No results under"):
        build(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/result.json").write_text("{")
    with pytest.raises(ValueError, match=r"result\.json` is damaged, it is not JSON"):
        build(tmp_path)
    (tmp_path / "broken/result.json").write_text("[]")
    with pytest.raises(ValueError, match="is not a result of isotherm: it lacks claims"):
        build(tmp_path)


def secret(folder):
    """A figure outside the folder of results, which no page may show."""
    path = folder / "secret.svg"
    path.write_text('<svg xmlns="http://www.w3.org/2000/svg"><text>SECRET</text></svg>')
    return path


def name_a_file_outside(runs, path):
    save(runs / "evil", figures=[{"name": "kl", "svg": "../../secret.svg", "png": ""}])


def name_an_absolute_path(runs, path):
    save(runs / "evil", figures=[{"name": "kl", "svg": str(path), "png": ""}])


def name_a_png_outside(runs, path):
    save(runs / "evil", figures=[{"name": "kl", "svg": "no.svg", "png": "../../secret.svg"}])


def link_the_figure(runs, path):
    save(runs / "evil")
    (runs / "evil/figures/kl.svg").unlink()
    (runs / "evil/figures/kl.svg").symlink_to(path)


def link_the_figures(runs, path):
    save(runs / "evil", figures=[{"name": "kl", "svg": "all/secret.svg", "png": ""}])
    (runs / "evil/all").symlink_to(path.parent)


def link_the_document(runs, path):
    save(path.parent / "elsewhere/evil", title="SECRET")
    (runs / "evil").mkdir()
    (runs / "evil/result.json").symlink_to(path.parent / "elsewhere/evil/result.json")


def link_the_folder(runs, path):
    save(path.parent / "elsewhere/evil", title="SECRET")
    (runs / "evil").symlink_to(path.parent / "elsewhere/evil")


def make_a_pipe(runs, path):
    save(runs / "evil")
    (runs / "evil/result.json").unlink()
    os.mkfifo(runs / "evil/result.json")


def nest_the_document(runs, path):
    (runs / "evil").mkdir()
    (runs / "evil/result.json").write_text("[" * 100_000)


def nest_the_figure(runs, path):
    save(runs / "evil")
    g = '<g xmlns="http://www.w3.org/2000/svg">'
    text = '<svg xmlns="http://www.w3.org/2000/svg">' + g * 5000 + "</g>" * 5000 + "</svg>"
    (runs / "evil/figures/kl.svg").write_text(text)


def enlarge_the_document(runs, path):
    (runs / "evil").mkdir()
    with (runs / "evil/result.json").open("wb") as file:
        file.truncate(10**12)  # sparse


def change_types(runs, path):
    save(runs / "evil", wall_time_seconds={"a": 1}, claims=7)


@pytest.mark.parametrize(
    "attack",
    [
        name_a_file_outside,
        name_an_absolute_path,
        name_a_png_outside,
        link_the_figure,
        link_the_figures,
        link_the_document,
        link_the_folder,
        make_a_pipe,
        nest_the_document,
        nest_the_figure,
        enlarge_the_document,
        change_types,
    ],
)
def test_a_hostile_result_shows_nothing_from_outside_and_the_others_are_shown(tmp_path, attack):
    runs = tmp_path / "runs"
    save(runs / "good")
    attack(runs, secret(tmp_path))
    broken = {}
    text = build(runs, broken=broken).read_text(encoding="utf-8")
    assert "SECRET" not in text and list(broken) == ["evil"] and broken["evil"]
    assert 'article id="good"' in text and 'article id="evil"' not in text
    assert "Results that cannot be shown" in text and "<code>evil</code>" in text
    Page(text)


def test_characters_that_cannot_be_written_do_not_hide_the_other_results(tmp_path):
    """Half of a surrogate pair in JSON, and a folder whose name is not UTF-8."""
    save(tmp_path / "good")
    save(tmp_path / "half", title="half a PAIR")
    half = tmp_path / "half" / "result.json"
    half.write_text(half.read_text(encoding="utf-8").replace("PAIR", r"\ud83d pair"))
    save(tmp_path / "broken", versions=[])
    (tmp_path / os.fsdecode(b"broken \xfe")).mkdir()
    (tmp_path / os.fsdecode(b"broken \xfe") / "result.json").write_text("{")
    broken = {}
    text = build(tmp_path, broken=broken).read_text(encoding="utf-8")
    assert sorted(broken) == ["broken", os.fsdecode(b"broken \xfe")]
    assert "result.json` is damaged: " in broken["broken"]
    assert 'article id="good"' in text and "half a \\ud83d pair" in text
    Page(text)


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("2 * 3 * 4 < 5", "2 * 3 * 4 &lt; 5"),
        ("**S** and *E*", "<strong>S</strong> and <em>E</em>"),
        (r"$\xi_{ij} \to 1$", '<span class="maths">ξ<sub>ij</sub> → 1</span>'),
        (r"$\frac{a}{b}$", r"<code>\frac{a}{b}</code>"),
    ],
)
def test_inline_markup(source, html):
    assert inline(source).replace("<i>ξ</i>", "ξ") == html


def test_prose_has_paragraphs_lists_and_headings():
    html = paragraphs("One\nline.\n\n- a\n  b\n- c\n\nReferences\n----------\nLi (2016).")
    assert html == (
        "<p>One\nline.</p>\n<ul><li>a\nb</li><li>c</li></ul>\n<h3>References</h3><p>Li (2016).</p>"
    )


def test_caption_of_a_figure():
    figure, axes = panels(2)
    assert caption(figure, "kl_h") == "kl h"
    axes[0].set(xlabel="h", ylabel="KL", title="S")
    assert caption(figure, "kl") == "S: KL against h"
    figure.set_label("Ours.")
    assert caption(figure, "kl") == "Ours."

"""What a reader sees stays, what a reader does not see goes, and no page takes for ever."""

import time

import pytest

from isotherm.data.wikitext import (
    DEEPEST,
    LONGEST,
    bag,
    is_monstrous,
    strip,
    strip_plainly,
    tokens,
)

HIDDEN = frozenset({"file", "image", "category"})

CASES = {
    "'''Ice''' is ''frozen'' water": "ice is frozen water",
    "[[solid]] [[solid|frozen]] [[solid]]s": "solid frozen solids",
    "[[Category:Ice]] [[File:a.png|thumb|A [[cat]] here]] [[de:Eis]] [[zh-min-nan:Peng]] ice": "ice",
    "[[:Category:Ice]] [[Star Wars: A New Hope]]": "categoryice star wars a new hope",
    "ice{{cite|title={{a|b}}}}water": "ice water",
    "ice<ref name='a'>cat</ref>, water<ref name=a/> dog": "ice water dog",
    "ice<!-- cat {{ [[ -->berg": "iceberg",
    "ice <math>x cat</math><gallery>cat</gallery> dog": "ice dog",
    "{| class='cat'\n| dog || fish\n|}\nice": "ice",
    "ice<br>water<br/>snow": "ice water snow",
    "<div class='cat'>ice <span>water</span></div>": "ice water",
    "== Ice ==\nwater": "ice water",
    "[http://cat.org ice] http://cat.org [http://dog.org]": "ice",
    "ice&nbsp;water&mdash;snow&amp;hail &lt;cat&gt;": "ice water snowhail cat",
    "* ice\n# water\n:; snow": "ice water snow",
}


@pytest.mark.parametrize("text", CASES)
def test_what_is_seen(text):
    stripped, properly = strip(text, HIDDEN)
    assert properly and " ".join(tokens(stripped)) == CASES[text]


@pytest.mark.parametrize("text", [text for text in CASES if "<!--" not in text])
def test_stripped_plainly_it_is_the_same_here(text):
    assert " ".join(tokens(strip_plainly(text, HIDDEN))) == CASES[text]


def test_tokens():
    words = "dont st us wide caf cat dog".split()
    assert tokens("Don't; 1st U.S.-wide\tCAFÉ\u00a0cat\u2013dog 42 -") == words
    assert tokens("") == tokens("42 …") == []


def test_bag_rises_and_leaves_strangers_out():
    counts = bag("dog cat emu cat".split(), {"cat": 3, "dog": 1})
    assert list(counts.items()) == [(1, 1), (3, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "{{a|" * 20_000 + "}}" * 20_000,
        "{|\n" * 50_000,
        "<ref>" * 50_000,
        "[[a|" * 50_000,
        "{{a|[[" * 30_000,
        "cat " * (LONGEST // 4 + 1),
        "<!--" * 100_000 + "{{" * 100,
        "[[a|b]] <ref>{{c}}</ref> {{d|e={{f|g}}}}\n{| class=h\n|-\n*}}}\n{| i] ]]" * 2000,
    ],
    ids=range(8),
)
def test_a_monstrous_page_is_stripped_plainly_and_soon(text):
    """The parser takes 33 s for 8000 templates that are never closed, and four times that for twice as many."""
    start = time.process_time()
    stripped, properly = strip(f"dog {text} fish", HIDDEN)
    assert time.process_time() - start < 2
    assert tokens(stripped)[0] == "dog"
    assert not properly or text.startswith("<!--")


def test_where_monsters_begin():
    deep = "{{a|" * DEEPEST + "}}" * DEEPEST
    assert not is_monstrous(deep * 10) and is_monstrous(deep[:4] + deep)
    assert not is_monstrous("a" * LONGEST) and is_monstrous("a" * (LONGEST + 1))
    assert not is_monstrous("{{a|}} {{{1|}}} {|\n|-\n|}\n{{{2|{{!}}}}}" * 1000)
    assert is_monstrous("{|\n}}" * (DEEPEST + 1))  # other brackets do not close a table
    assert not is_monstrous("<br> <li> <ref name=a /> [[a]] {{b}} <ref>c</ref>" * 1000)

"""Visible text is kept, markup is removed, and no page takes long."""

import time

import pytest

from isotherm.data.wikitext import (
    MAX_DEPTH,
    MAX_LENGTH,
    bag,
    is_too_complex,
    strip_markup,
    strip_with_regex,
    tokens,
)

HIDDEN = frozenset({"file", "image", "category"})

CASES = {
    "'''Ice''' is ''frozen'' water": "ice is frozen water",
    "[[solid]] [[solid|frozen]] [[solid]]s": "solid frozen solids",
    "[[Category:Ice]] [[File:a.png|thumb|A [[cat]] here]] [[de:Eis]] ice": "ice",
    "[[zh-min-nan:Peng]] ice": "ice",
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
def test_visible_text(text):
    stripped, parsed = strip_markup(text, HIDDEN)
    assert parsed and " ".join(tokens(stripped)) == CASES[text]


@pytest.mark.parametrize("text", [text for text in CASES if "<!--" not in text])
def test_regular_expressions_give_the_same_text_here(text):
    assert " ".join(tokens(strip_with_regex(text, HIDDEN))) == CASES[text]


def test_tokens():
    words = "dont st us wide caf cat dog".split()
    assert tokens("Don't; 1st U.S.-wide\tCAFÉ\u00a0cat\u2013dog 42 -") == words
    assert tokens("") == tokens("42 …") == []


def test_bag_is_sorted_and_has_only_words_of_the_vocabulary():
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
        "cat " * (MAX_LENGTH // 4 + 1),
        "<!--" * 100_000 + "{{" * 100,
        "[[a|b]] <ref>{{c}}</ref> {{d|e={{f|g}}}}\n{| class=h\n|-\n*}}}\n{| i] ]]" * 2000,
    ],
    ids=range(8),
)
def test_complex_pages_are_stripped_by_regular_expressions_in_short_time(text):
    """The parser takes 33 s for 8000 unclosed templates, and four times that for 16000."""
    start = time.process_time()
    stripped, parsed = strip_markup(f"dog {text} fish", HIDDEN)
    assert time.process_time() - start < 2
    assert tokens(stripped)[0] == "dog"
    assert not parsed or text.startswith("<!--")


def test_limits_of_complexity():
    deep = "{{a|" * MAX_DEPTH + "}}" * MAX_DEPTH
    assert not is_too_complex(deep * 10) and is_too_complex(deep[:4] + deep)
    assert not is_too_complex("a" * MAX_LENGTH) and is_too_complex("a" * (MAX_LENGTH + 1))
    assert not is_too_complex("{{a|}} {{{1|}}} {|\n|-\n|}\n{{{2|{{!}}}}}" * 1000)
    assert is_too_complex("{|\n}}" * (MAX_DEPTH + 1))  # only `|}` closes a table
    assert not is_too_complex("<br> <li> <ref name=a /> [[a]] {{b}} <ref>c</ref>" * 1000)

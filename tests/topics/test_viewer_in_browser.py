"""The page about topics in a real browser: contents, keyboard, widths, dark mode, hostile texts."""

import json

import numpy as np
import pytest
from scipy import sparse

import browser
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.estimators.lda import BayesianLDA
from isotherm.topics.viewer import distance_map

NAMES = [f"word{i}" for i in range(23)] + ["</script><b>"]
BACKGROUND = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
CHOSEN = "document.querySelector('#map [aria-checked=true]').id"
WORDS = "[...document.querySelectorAll('#words tbody tr td:first-child')].map(x => x.textContent)"
FAST = {"max_iter": 2, "sweeps": 10, "burn_in": 5, "num_draws": 5, "random_state": 0}


def documents():
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(4), np.ones((1, 6))) / 6
    return sparse.csr_array(rng.multinomial(30, rng.dirichlet(np.full(4, 0.2), 80) @ topics))


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    if browser.find() is None:
        pytest.skip("Chromium is not installed")
    with browser.Browser(tmp_path_factory.mktemp("profile")) as tab:
        tab.resize(1280, 900)
        yield tab


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder, counts = tmp_path_factory.mktemp("pages"), documents()
    lda = BayesianLDA(4, **FAST).fit(counts)
    titles = [f"text {j}" for j in range(79)] + ["<img src=x onerror=alert(1)>"]
    texts = ["An excerpt of a text. " * 30] * 80
    settings = {"vocabulary": NAMES, "titles": titles, "texts": texts}
    lda.write_page(folder / "lda.html", counts, title="<i>My</i> topics", **settings)
    dpfa = BayesianDPFA((4, 3, 2), start_documents=20, **FAST).fit(counts)
    dpfa.write_page(folder / "dpfa.html", counts, vocabulary=NAMES)
    return {"lda": folder / "lda.html", "dpfa": folder / "dpfa.html", "model": lda}


def test_everything_is_shown_and_nothing_is_executed(tab, pages):
    tab.open(pages["lda"])
    assert tab.errors == []
    assert tab.ask("document.querySelector('h1').textContent") == "<i>My</i> topics"
    assert tab.ask("document.querySelectorAll('#map circle').length") == 4
    assert tab.ask("document.querySelectorAll('#list tbody tr').length") == 4
    assert len(tab.ask(WORDS)) == 20
    assert tab.ask("document.querySelectorAll('#documents li').length") == 10
    assert tab.ask("document.querySelectorAll('#words .interval').length") == 20
    assert tab.ask("document.querySelectorAll('main img, main b, main i').length") == 0
    assert tab.ask("document.getElementById('layers').hidden") is True
    assert len(tab.ask("document.querySelector('#documents p').textContent")) < 260
    # The chosen topic is the largest one, and its words are those of the model.
    data = json.loads(tab.ask("document.getElementById('data').textContent"))
    largest = max(range(4), key=lambda k: data["topics"][k]["share"][0])
    assert tab.ask(CHOSEN) == f"topic-{largest}"
    top = {w.word for w in pages["model"].top_words(6, NAMES)[largest]}
    assert top == set(tab.ask(WORDS)[:6])


def test_no_circle_hides_the_number_of_another(tab, tmp_path):
    """More topics than subjects, so that several of them coincide."""
    counts = documents()
    model = BayesianLDA(12, **FAST).fit(counts)
    tab.open(model.write_page(tmp_path / "page.html", counts, vocabulary=NAMES))
    covered = """[...document.querySelectorAll('#map g')].filter(group => {
        const box = group.querySelector('text').getBoundingClientRect();
        const x = box.x + box.width / 2, y = box.y + box.height / 2;
        return document.elementFromPoint(x, y).parentNode !== group;
    }).length"""
    assert tab.ask("document.querySelectorAll('#map g').length") == 12
    assert tab.ask(covered) == 0 and tab.errors == []


def test_keyboard_chooses_topics_and_relevance(tab, pages):
    tab.open(pages["lda"])
    seen = []
    for _ in range(4):
        seen.append(tab.ask(CHOSEN))
        tab.press("ArrowRight", 39)
    assert len(set(seen)) == 4 and tab.ask(CHOSEN) == seen[0]
    tab.press("ArrowLeft", 37)
    assert tab.ask(CHOSEN) == seen[3]
    title = tab.ask("document.getElementById('words-title').textContent")
    assert title.startswith(f"Topic {seen[3][-1]}:")
    tab.ask("document.getElementById('lambda').focus()")
    before = tab.ask("document.getElementById('shown').textContent")
    tab.press("ArrowRight", 39)
    assert tab.ask("document.getElementById('shown').textContent") > before
    assert tab.ask(CHOSEN) == seen[3]  # arrows on the slider do not move on
    tab.ask("document.getElementById('lambda').blur(); window.scrollTo(0, 0)")
    reached = []
    for _ in range(10):
        tab.press("Tab", 9)
        reached.append(tab.ask("document.activeElement.id || document.activeElement.tagName"))
    assert seen[3] in reached and "lambda" in reached and reached.count("BUTTON") >= 4
    tab.ask("document.querySelector('#map [aria-checked=true]').focus()")
    tab.press("ArrowRight", 39)  # the focus moves with the chosen topic
    assert tab.ask("document.activeElement.id") == tab.ask(CHOSEN) == seen[0]
    tab.ask("document.querySelectorAll('#list button')[1].click()")
    assert tab.ask(CHOSEN) == seen[1]


def test_relevance_orders_words(tab, pages):
    tab.open(pages["lda"])
    set_slider = (
        "(v => {const s = document.getElementById('lambda'); s.value = v;"
        " s.dispatchEvent(new Event('input'))})"
    )
    tab.ask(f"{set_slider}(1)")
    bars = "[...document.querySelectorAll('#words .bar')].map(b => Number(b.getAttribute('width')))"
    widths = tab.ask(bars)
    assert widths == sorted(widths, reverse=True)
    tab.ask(f"{set_slider}(0)")
    assert tab.ask(bars) != widths


def test_layers_of_a_deep_model_are_a_graph(tab, pages):
    tab.open(pages["dpfa"])
    assert tab.errors == [] and tab.ask("document.getElementById('layers').hidden") is False
    assert tab.ask("document.querySelectorAll('#graph circle').length") == 4 + 3 + 2
    assert tab.ask("document.querySelectorAll('#graph g.chosen').length") == 1


@pytest.mark.parametrize("width", [360, 800, 1600])
@pytest.mark.parametrize("name", ["lda", "dpfa"])
def test_page_never_scrolls_sideways(tab, pages, name, width):
    tab.open(pages[name])
    tab.resize(width, 800)
    assert tab.ask("document.documentElement.scrollWidth") <= width


def test_dark_mode(tab, pages):
    tab.open(pages["lda"])
    tab.resize(1280, 900)
    assert tab.ask(BACKGROUND) > 200
    tab.resize(1280, 900, dark=True)
    assert tab.ask(BACKGROUND) < 60
    tab.resize(1280, 900)


def test_arguments_and_export(tmp_path):
    counts = documents()
    lda = BayesianLDA(4, **FAST).fit(counts)
    with pytest.raises(ValueError, match="`titles` must have one entry for each of 80 documents"):
        lda.write_page(tmp_path / "page.html", counts, titles=["one"])
    data = lda.to_pyldavis(counts, vocabulary=NAMES)
    assert set(data) == {
        "topic_term_dists",
        "doc_topic_dists",
        "doc_lengths",
        "vocab",
        "term_frequency",
    }
    np.testing.assert_allclose(data["topic_term_dists"].sum(1), 1, rtol=1e-4)
    np.testing.assert_allclose(data["doc_topic_dists"].sum(1), 1, rtol=1e-4)
    assert data["term_frequency"].sum() == data["doc_lengths"].sum() == counts.sum()
    assert data["vocab"] == NAMES


def test_a_table_that_is_given_is_not_computed_again(tmp_path, monkeypatch):
    counts = documents()
    model = BayesianLDA(4, **FAST).fit(counts)
    settings = {"measures": ["c_v", "npmi"], "level": 0.8, "vocabulary": NAMES}
    table = model.topic_table(counts, **settings)
    plain = model.write_page(tmp_path / "a.html", counts, vocabulary=NAMES, level=0.8)
    monkeypatch.setattr(BayesianLDA, "topic_table", None)
    given = model.write_page(tmp_path / "b.html", counts, vocabulary=NAMES, table=table)
    assert given.read_text(encoding="utf-8") == plain.read_text(encoding="utf-8")
    other = table._replace(rows=table.rows[:3])
    without = table._replace(rows=[{"share": row["share"]} for row in table.rows])
    for wrong in (other, without):
        with pytest.raises(ValueError, match="`table` must be of this model"):
            model.write_page(tmp_path / "c.html", counts, vocabulary=NAMES, table=wrong)


def test_the_map_keeps_distances_of_topics():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.ones(30), 3)  # three points fit into a plane without error
    places = distance_map(topics)
    for a in range(3):
        for b in range(a):
            middle = (topics[a] + topics[b]) / 2
            divergence = sum((x * np.log(x / middle)).sum() / 2 for x in (topics[a], topics[b]))
            assert np.linalg.norm(places[a] - places[b]) == pytest.approx(np.sqrt(divergence))
    assert distance_map(topics[:1]).tolist() == [[0, 0]]

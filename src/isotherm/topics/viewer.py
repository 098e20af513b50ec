r"""A page about the topics of a model: one HTML file that needs no network.

*Map.* Topics are points whose distances approximate the Jensen–Shannon distance between their
words (classical multidimensional scaling); the area of a point is the share of the topic.

*Words* are ordered by relevance (Sievert & Shirley),
$r(w \mid k) = \lambda\log\phi_{kw} + (1 - \lambda)\log(\phi_{kw}/p_w)
= \log\phi_{kw} - (1 - \lambda)\log p_w$, where $p_w$ is the frequency of the word in the documents.
For a given $\lambda$ it is an increasing function of $\phi_{kw}$, so the ends of a posterior
interval of $\phi_{kw}$ give those of the relevance.

*Layers* of a deep model are drawn as `BayesianDPFA.plot_graph` does.

References
----------
Sievert & Shirley (2014), *LDAvis: a method for visualizing and interpreting topics*.
"""

import json
import os
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from isotherm.io.files import atomically, explain_failure
from isotherm.topics.corpus import Corpus
from isotherm.topics.estimators.summaries import Activation
from isotherm.topics.estimators.topic_table import TopicTable
from isotherm.topics.estimators.unit_graph import choose_units

MAX_UNITS, MAX_LINKS, LEAST_CORRELATION = 14, 40, 0.01
"""Most units per layer and links between two layers, and the least correlation of a link."""
_LAMBDAS = np.linspace(0, 1, 11)


def distance_map(topics: np.ndarray) -> np.ndarray:
    r"""Place topics in the plane, (topics, 2), by the Jensen–Shannon distance between them.

    Examples
    --------
    >>> x = distance_map(np.array([[1.0, 0.0], [0.0, 1.0]]))
    >>> round(float(np.linalg.norm(x[0] - x[1])), 4)  # the square root of log 2
    0.8326
    """
    size = len(topics)
    entropy = _entropy(topics)
    squared = np.zeros((size, size))
    for k in range(size):
        middle = _entropy((topics + topics[k]) / 2)
        squared[k] = np.maximum(middle - (entropy + entropy[k]) / 2, 0)
    centre = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-centre @ squared @ centre / 2)
    coordinates = np.zeros((size, 2))
    used = min(2, size)
    coordinates[:, :used] = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :used]
    return coordinates


def _entropy(p: np.ndarray) -> np.ndarray:
    return -np.sum(p * np.log(np.maximum(p, 1e-300)), axis=1)


def pyldavis_data(
    topics: np.ndarray, proportions: np.ndarray, corpus: Corpus, vocabulary: Sequence[Any]
) -> dict[str, Any]:
    """Return the arguments of `pyLDAvis.prepare`."""
    return {
        "topic_term_dists": np.asarray(topics, np.float64),
        "doc_topic_dists": proportions,
        "doc_lengths": corpus.lengths,
        "vocab": list(map(str, vocabulary)),
        "term_frequency": np.bincount(corpus.words, corpus.counts, corpus.num_words),
    }


def page_data(
    draws: np.ndarray,
    mean: np.ndarray,
    proportions: np.ndarray,
    table: TopicTable,
    corpus: Corpus,
    *,
    names: Any,
    titles: Sequence[str],
    texts: Sequence[str] | None,
    num_words: int,
    num_documents: int,
) -> dict[str, Any]:
    """Return what the page shows, as objects that JSON can represent.

    Parameters
    ----------
    draws, mean
        Draws of the topics, (draws, topics, words), and their mean.
    proportions
        Topic proportions of the documents, (documents, topics).
    table
        Shares and coherence of the topics, with the measure `"npmi"`.
    corpus
        The documents.
    names, titles, texts
        Names of the words, titles of the documents and, if known, their texts.
    num_words, num_documents
        Words and documents to show for a topic.
    """
    overall = np.bincount(corpus.words, corpus.counts, corpus.num_words) + 0.5
    overall /= overall.sum()
    tail = (1 - table.level) / 2
    lower, upper = np.quantile(draws, [tail, 1 - tail], axis=0)
    places, topics = distance_map(np.asarray(mean, np.float64)), []
    for k, row in enumerate(table.rows):
        log_topic = np.log(np.maximum(mean[k], 1e-12))
        relevance = log_topic - (1 - _LAMBDAS[:, None]) * np.log(overall)
        shown = np.unique(np.argsort(-relevance, axis=1)[:, :num_words])
        best = np.argsort(-proportions[:, k], kind="stable")[:num_documents]
        topics.append(
            {
                "x": _round(places[k, 0]),
                "y": _round(places[k, 1]),
                "share": _rounded(row["share"]),
                "coherence": _rounded(row["npmi"]),
                "words": [
                    {
                        "word": str(names[w]),
                        "p": _rounded([mean[k, w], lower[k, w], upper[k, w]]),
                        "overall": _round(overall[w]),
                    }
                    for w in shown
                ],
                "documents": [
                    {
                        "title": str(titles[j]),
                        "share": _round(proportions[j, k]),
                        "text": "" if texts is None else _excerpt(texts[j]),
                    }
                    for j in best
                ],
            }
        )
    return {
        "topics": topics,
        "num_words": num_words,
        "summary": (
            f"{len(topics)} topics of {len(corpus):,} documents with {corpus.num_tokens:,} words; "
            f"intervals have a posterior probability of {table.level:.0%}."
        ),
    }


def layer_data(activation: Activation, words: Sequence[Sequence[Sequence[str]]]) -> dict[str, Any]:
    """Return the units and links of the layers of a deep model, for the page.

    Parameters
    ----------
    activation
        How often units are on, and their correlations.
    words
        Top words of every unit of every layer.
    """
    chosen, links = choose_units(activation, MAX_UNITS), []
    layers = [
        [
            {
                "unit": int(unit),
                "on": _round(activation.on[layer][unit]),
                "words": [str(word) for word in words[layer][unit]] or [f"unit {unit}"],
            }
            for unit in units
        ]
        for layer, units in enumerate(chosen)
    ]
    for layer, pair in enumerate(pairwise(chosen)):
        strength = activation.correlation[layer][np.ix_(*pair)]
        for cell in np.argsort(-np.abs(strength), axis=None)[:MAX_LINKS]:
            i, j = np.unravel_index(cell, strength.shape)
            if abs(strength[i, j]) >= LEAST_CORRELATION:
                r = _round(strength[i, j])
                links.append({"layer": layer, "below": int(i), "above": int(j), "r": r})
    return {"layers": layers, "links": links}


def write_page(path: str | os.PathLike[str], data: dict[str, Any], title: str) -> Path:
    """Write the page atomically and return its path."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder, path = Path(__file__).parent, Path(path)
    script = (folder / "viewer.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    # "<" cannot occur in the JSON, so no text can end the script element.
    content = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string((folder / "viewer.html").read_text(encoding="utf-8"))
    page = template.render(
        title=title,
        data=Markup(content),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )
    with (
        explain_failure(f"`{path}`", "the previous content is intact."),
        atomically(path) as draft,
    ):
        draft.write_text(page, encoding="utf-8")
    return path


def _excerpt(text: Any, length: int = 240) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= length else words[:length].rsplit(" ", 1)[0] + " …"


def _round(value: Any) -> float:
    return float(f"{float(value):.5g}")


def _rounded(values: Any) -> list[float]:
    return [_round(value) for value in values]

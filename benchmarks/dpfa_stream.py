"""DPFA and LDA on a stream of Wikipedia articles: isotherm, scikit-learn, gensim and tomotopy.

Each contestant runs in a process of its own and sees the same documents in the same order, 100 at a
time, once (tomotopy: all in memory, 50 sweeps). All have 128 topics and the priors 0.1 for
documents and 0.05 for words. All other settings are defaults, except that scikit-learn gets the
number of documents and gensim has scikit-learn's learning rate, with which it was best in
`lda_stream.py`. All are scored on the same 1000 test articles with 80 % of the tokens observed: the
topics of LDA with Gibbs fold-in by our function, the draws of DPFA by its own conditionals, with
the last 300 draws averaged (for our LDA the 20 that the estimator keeps). A single draw is scored
in the same way, for comparison with point estimates. Documents per second are per second of
processor time, without the scores. Memory is resident, at the mark and at its peak, including the
scores. Each finished contestant is written to `docs/results/dpfa_stream.json`, with a figure.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
from lda_stream import ALPHA, BATCH, BETA, batches, gensim_calls, sklearn
from lda_stream import ours as train_lda
from reporting import (
    RESULTS,
    alone,
    machine,
    megabytes,
    peak_megabytes,
    save,
    write_document,
)
from rich.console import Console
from rich.table import Table

TOPICS, LAYERS, FINAL = 128, (128, 64, 32), 300
MARKS = (20_000, 50_000, 100_000, 200_000, 228_600)
RESULT = RESULTS / "dpfa_stream.json"
PACKAGES = ("isotherm", "jax", "numpy", "numba", "scikit-learn", "gensim", "tomotopy")
COLUMNS = (
    "name",
    "documents",
    "perplexity",
    "averaged",
    "documents_per_second",
    "megabytes",
    "peak_megabytes",
)


def ours(num_topics: int, stream, total: int, seed: int, observer: Callable) -> None:
    """Train DPFA as the experiment `dpfa-wiki` does: weights by mSGNHT-S, topics by SGRLD."""
    del num_topics
    import isotherm
    from isotherm.topics.dpfa.initialization import learn_start
    from isotherm.topics.dpfa.model import DPFA
    from isotherm.topics.dpfa.perplexity import DPFAScore
    from isotherm.topics.dpfa.sgmcmc import DPFAChain

    model = DPFA(stream.num_words, LAYERS, BETA, p=None)
    documents = stream.batches(BATCH)
    warm = min(10_000, total // 2)
    start = learn_start(model, (next(documents).corpus for _ in range(warm // BATCH)), alpha=ALPHA)
    topics = isotherm.sgrld(None, lambda t: 0.003 * (1 + t / (warm / BATCH)) ** -0.7, BETA)
    chain = DPFAChain(model, topics, data_size=total, start=start, seed=seed)
    score = DPFAScore(observer.split)
    for batch in documents:
        chain.step(batch.corpus)
        seen = chain.documents_seen
        if total - seen < FINAL * BATCH:
            observer.pause(partial(score.add, chain.parameters()))

        def score_draws(last: bool = seen == total) -> dict:
            single = DPFAScore(observer.split)
            single.add(chain.parameters())
            scores = {"perplexity": single.result().value}
            if last:
                scores |= {"averaged": score.result().value, "draws": score.result().num_draws}
            return scores | {"on": chain.on_rates.tolist()}

        observer(seen, score_draws)
        if seen >= total:
            return


def lda(num_topics: int, stream, total: int, seed: int, observer: Callable) -> None:
    """Train `BayesianLDA` with its defaults."""

    def scored(get_topics: Callable) -> dict:
        from isotherm.topics.perplexity import perplexity

        mean, draws = get_topics()
        averaged = perplexity(draws, observer.split, ALPHA)
        return observer.lda(mean, None) | {"averaged": averaged.value, "draws": averaged.num_draws}

    train_lda(
        num_topics,
        stream,
        total,
        seed,
        lambda seen, get_topics: observer(seen, partial(scored, get_topics)),
    )


def tomotopy(num_topics: int, stream, total: int, seed: int, observer: Callable) -> None:
    """Train tomotopy's Gibbs sampler on all documents in memory: 50 sweeps, one thread."""
    import numpy as np
    import tomotopy as tp

    model = tp.LDAModel(k=num_topics, alpha=ALPHA, eta=BETA, seed=seed)
    for _, counts in batches(stream, total):
        for row in counts:
            model.add_doc([str(w) for w in np.repeat(row.indices, row.data)])
    model.train(50, workers=1)
    topics = np.full((num_topics, stream.num_words), 1e-12)
    columns = [int(word) for word in model.used_vocabs]
    topics[:, columns] = [model.get_topic_word_dist(k) for k in range(num_topics)]
    observer(total, lambda: (topics, np.array(model.alpha)))


CONTESTANTS = {
    "isotherm DPFA": ours,
    "isotherm LDA": lda,
    "scikit-learn LDA": sklearn,
    "gensim LDA": partial(gensim_calls, offset=10, decay=0.7),
    "tomotopy LDA, in memory": tomotopy,
}


class Observer:
    """Measures a contestant after batches at the `MARKS`; the time of scores is not counted."""

    def __init__(self, name: str, seed: int, total: int) -> None:
        from isotherm.topics.corpus import completion
        from isotherm.topics.corpus_readers import load_wiki

        self.name, self.seed, self.total = name, seed, total
        self.split = completion(load_wiki("test"), observed=0.8, seed=0)
        self.rows, self.uncounted, self.started = [], 0.0, time.process_time()

    def pause(self, work: Callable) -> None:
        """Run a function whose time is not counted."""
        clock = time.process_time()
        work()
        self.uncounted += time.process_time() - clock

    def __call__(self, seen: int, get_result: Callable) -> None:
        """Measure if `seen` is one of the `MARKS`, or the end.

        `get_result` returns scores, or topics and the learned prior (or `None`) of LDA.
        """
        if seen not in MARKS and seen != self.total:
            return
        clock = time.process_time()
        seconds = clock - self.started - self.uncounted
        row = {"name": self.name, "seed": self.seed, "documents": seen, "megabytes": megabytes()}
        row |= {"cpu_seconds": seconds, "documents_per_second": seen / seconds}
        result = get_result()
        row |= result if isinstance(result, dict) else self.lda(*result)
        self.rows.append(row | {"peak_megabytes": peak_megabytes()})
        print(self.rows[-1], flush=True)
        self.uncounted += time.process_time() - clock

    def lda(self, topics, alpha) -> dict:
        """Score a point estimate of LDA, also with its learned prior of documents if it has one."""
        from isotherm.topics.layout import as_topics
        from isotherm.topics.perplexity import perplexity

        topics = as_topics(topics)
        scores = {"perplexity": perplexity(topics, self.split, ALPHA).value}
        if alpha is not None:
            scores["with its own prior"] = perplexity(topics, self.split, alpha).value
        return scores


def measure(name: str, total: int, seed: int) -> list[dict]:
    """Train one contestant on the stream; return its measurements."""
    import warnings

    from isotherm.topics.corpus_readers import stream_wiki

    warnings.simplefilter("ignore")
    observer = Observer(name, seed, total)
    CONTESTANTS[name](TOPICS, stream_wiki(), total, seed, observer)
    return observer.rows


def show(rows: list[dict]) -> None:
    """Print the table."""
    table = Table(title="DPFA and LDA on a stream of Wikipedia articles")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        cells = [row.get(column, "") for column in COLUMNS]
        table.add_row(*(f"{x:,.0f}" if isinstance(x, float) else f"{x}" for x in cells))
    Console().print(table)


def plot(rows: list[dict], path: Path) -> None:
    """Draw perplexity against documents, and time and memory for all documents."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained", width_ratios=(2, 1, 1))
    ends = []
    for number, name in enumerate(names):
        mine = [row for row in rows if row["name"] == name]
        ends.append(mine[-1])
        axes[0].plot(
            [row["documents"] for row in mine],
            [row["perplexity"] for row in mine],
            "o-",
            ms=4,
            color=f"C{number}",
        )
        if "averaged" in mine[-1]:
            axes[0].plot(
                mine[-1]["documents"], mine[-1]["averaged"], "*", ms=12, color=f"C{number}"
            )
    axes[0].set(
        xlabel="documents seen", ylabel="test perplexity (star: draws averaged)", yscale="log"
    )
    keys = {"documents_per_second": "documents per CPU-second", "peak_megabytes": "peak megabytes"}
    for axis, (key, label) in zip(axes[1:], keys.items(), strict=True):
        axis.barh(
            names, [row.get(key, 0) for row in ends], color=[f"C{i}" for i in range(len(names))]
        )
        axis.invert_yaxis()
        axis.set_xlabel(label)
    axes[2].set_yticklabels([])
    save(figure, path)


def main() -> None:
    """Measure all contestants, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2000 documents; writes nothing")
    parser.add_argument(
        "--only", choices=CONTESTANTS, help="measure one contestant, keep the others"
    )
    arguments = parser.parse_args()
    rows = []
    total = 2000 if arguments.quick else MARKS[-1]
    for name in [arguments.only] if arguments.only else CONTESTANTS:
        where = machine(PACKAGES)
        measured = alone(measure, name, total, 0)
        rows += measured
        if not arguments.quick:
            merge(name, measured, where | {"load_average_after": os.getloadavg()[0]})
    show(rows)


def merge(name: str, rows: list[dict], where: dict) -> None:
    """Update the document with the rows of a contestant and its machine."""
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {"machines": {}, "rows": []}
    document["machines"][name] = where
    rows = [row for row in document["rows"] if row["name"] != name] + rows
    rows.sort(key=lambda row: list(CONTESTANTS).index(row["name"]))
    write_document(RESULT, document | {"rows": rows})
    plot(rows, RESULT.with_suffix(".png"))


if __name__ == "__main__":
    main()

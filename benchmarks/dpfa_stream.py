"""Deep Poisson factor analysis and LDA of a stream of Wikipedia articles beside scikit-learn and gensim online, tomotopy in memory.

Each contestant runs in a process of its own and sees the same documents in the same order, 100 at a time, once (tomotopy: all at once, 50 sweeps). All have 128 topics, priors
0.1 for documents and 0.05 for words; everything else is everybody's default, except that scikit-learn is told the number of documents and gensim has scikit-learn's
learning rate, with which it was best in `lda_stream.py`. All are scored on the same 1000 test articles, 80 % of the tokens observed: LDA's topics with Gibbs fold-in by our function, DPFA's draws by its own
conditionals, the last 300 averaged (of our LDA the 20 that the estimator keeps); the same function scores a single draw, as fair a match for a point estimate. Documents per second are per second of processor time, without the scores; memory is
resident, at the mark and at its peak, scores included. Whoever is through is put into `docs/results/dpfa_stream.json` and a picture beside it.
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
from lda_stream import ours as thermostat_lda
from reporting import RESULTS, alone, machine, megabytes, peak_megabytes, save
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


def ours(num_topics: int, stream, total: int, seed: int, watch: Callable) -> None:
    """Learn as the experiment `dpfa-wiki` does: weights by mSGNHT-S, topics by SGRLD."""
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
    score = DPFAScore(watch.split)
    for batch in documents:
        chain.step(batch.corpus)
        seen = chain.documents_seen
        if total - seen < FINAL * BATCH:
            watch.pause(partial(score.add, chain.parameters()))

        def look(last: bool = seen == total) -> dict:
            single = DPFAScore(watch.split)
            single.add(chain.parameters())
            found = {"perplexity": single.result().value}
            if last:
                found |= {"averaged": score.result().value, "draws": score.score.num_draws}
            return found | {"on": chain.on_rates.tolist()}

        watch(seen, look)
        if seen >= total:
            return


def lda(num_topics: int, stream, total: int, seed: int, watch: Callable) -> None:
    """Give the stream to `BayesianLDA` with its defaults."""

    def looked(look: Callable) -> dict:
        from isotherm.topics.perplexity import perplexity

        mean, draws = look()
        averaged = perplexity(draws, watch.split, ALPHA)
        return watch.lda(mean, None) | {"averaged": averaged.value, "draws": averaged.num_draws}

    thermostat_lda(
        num_topics, stream, total, seed, lambda seen, look: watch(seen, partial(looked, look))
    )


def tomotopy(num_topics: int, stream, total: int, seed: int, watch: Callable) -> None:
    """Give all documents to tomotopy's Gibbs sampler at once: 50 sweeps, one thread."""
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
    watch(total, lambda: (topics, np.array(model.alpha)))


CONTESTANTS = {
    "isotherm DPFA": ours,
    "isotherm LDA": lda,
    "scikit-learn LDA": sklearn,
    "gensim LDA": partial(gensim_calls, offset=10, decay=0.7),
    "tomotopy LDA, in memory": tomotopy,
}


class Watch:
    """Told after every batch how many documents were seen, and how to look; keeps the clock of the scores apart."""

    def __init__(self, name: str, seed: int, total: int) -> None:
        from isotherm.topics.corpus import completion
        from isotherm.topics.corpus_readers import load_wiki

        self.name, self.seed, self.total = name, seed, total
        self.split = completion(load_wiki("test"), observed=0.8, seed=0)
        self.rows, self.apart, self.started = [], 0.0, time.process_time()

    def pause(self, work: Callable) -> None:
        """Do something that is not learning."""
        clock = time.process_time()
        work()
        self.apart += time.process_time() - clock

    def __call__(self, seen: int, look: Callable) -> None:
        """Measure, if this is a mark."""
        if seen not in MARKS and seen != self.total:
            return
        clock = time.process_time()
        seconds = clock - self.started - self.apart
        row = {"name": self.name, "seed": self.seed, "documents": seen, "megabytes": megabytes()}
        row |= {"cpu_seconds": seconds, "documents_per_second": seen / seconds}
        found = look()
        row |= found if isinstance(found, dict) else self.lda(*found)
        self.rows.append(row | {"peak_megabytes": peak_megabytes()})
        print(self.rows[-1], flush=True)
        self.apart += time.process_time() - clock

    def lda(self, topics, alpha) -> dict:
        """Score a point estimate of LDA, also with the priors of documents that it has learnt, if it has."""
        from isotherm.topics.layout import as_topics
        from isotherm.topics.perplexity import perplexity

        topics = as_topics(topics)
        found = {"perplexity": perplexity(topics, self.split, ALPHA).value}
        if alpha is not None:
            found["with its own prior"] = perplexity(topics, self.split, alpha).value
        return found


def play(name: str, total: int, seed: int) -> list[dict]:
    """Run one contestant through the stream."""
    import warnings

    from isotherm.topics.corpus_readers import stream_wiki

    warnings.simplefilter("ignore")
    watch = Watch(name, seed, total)
    CONTESTANTS[name](TOPICS, stream_wiki(), total, seed, watch)
    return watch.rows


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
    """Draw perplexity over documents, and what everybody takes for all of them."""
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
    """Let everybody play, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2000 documents, writes nothing")
    parser.add_argument("--only", choices=CONTESTANTS, help="one contestant, the others stay")
    arguments = parser.parse_args()
    rows = []
    total = 2000 if arguments.quick else MARKS[-1]
    for name in [arguments.only] if arguments.only else CONTESTANTS:
        where = machine(PACKAGES)
        found = alone(play, name, total, 0)
        rows += found
        if not arguments.quick:
            merge(name, found, where | {"load_average_after": os.getloadavg()[0]})
    show(rows)


def merge(name: str, rows: list[dict], where: dict) -> None:
    """Put a contestant's rows, and where they were made, into the document."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {"machines": {}, "rows": []}
    known["machines"][name] = where
    rows = [row for row in known["rows"] if row["name"] != name] + rows
    rows.sort(key=lambda row: list(CONTESTANTS).index(row["name"]))
    RESULT.write_text(json.dumps(known | {"rows": rows}, indent=1) + "\n")
    plot(rows, RESULT.with_suffix(".png"))


if __name__ == "__main__":
    main()

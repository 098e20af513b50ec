"""Online LDA on a stream of Wikipedia articles: `BayesianLDA.partial_fit` beside scikit-learn and gensim.

Each contestant runs in a process of its own and sees the same documents in the same order, 100 at a time, once. Priors are the
same for all (0.1 for documents, 0.05 for words); everything else is everybody's default, except that scikit-learn and
gensim are told the true number of documents, which ours is not. gensim plays three times: told the number, not told (a call per
batch), and not told but with scikit-learn's learning rate (offset 10, decay 0.7) for its own (1, 0.5). The topics of all are scored by one function on the same 1000
test articles: half of the tokens observed, proportions by a fixed-point iteration that favours nobody. Settings of ours were
chosen on training articles. On the short stream everybody has three seeds, and our samplers play in place of the filter, once, each with
its default step size, mSGNHT and SGRLD also with one chosen on training articles. The long stream has one seed, and gensim only by calls: told the number it was worse there (4659 against 2601 after 50 000
articles in an earlier run). Whoever is through is put into `docs/results/lda_stream.json` and a picture beside it; `--resume` plays only those who are not there yet.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from reporting import RESULTS, alone, machine, megabytes, peak_megabytes, save
from rich.console import Console
from rich.table import Table

ALPHA, BETA, BATCH = 0.1, 0.05, 100
MARKS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 150_000, 200_000, 229_600)
RESULT = RESULTS / "lda_stream.json"
PACKAGES = ("isotherm", "jax", "numpy", "numba", "scikit-learn", "gensim")


Watch = Callable[[int, Callable], None]
"""Told after every batch how many documents were seen, and how to look at the topics."""


def ours(num_topics: int, stream, total: int, seed: int, watch: Watch, **settings) -> None:
    """Give the stream to isotherm's estimator with its defaults, or another sampler."""
    from isotherm.topics.estimators.lda import BayesianLDA

    model = BayesianLDA(
        num_topics, doc_topic_prior=ALPHA, topic_word_prior=BETA, random_state=seed, **settings
    )
    for first, counts in batches(stream, total):
        model.partial_fit(counts)
        watch(first + BATCH, lambda: (model.components_, model.draws_))


def sklearn(num_topics: int, stream, total: int, seed: int, watch: Watch) -> None:
    """Give it to scikit-learn's online variational Bayes."""
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(
        num_topics,
        doc_topic_prior=ALPHA,
        topic_word_prior=BETA,
        total_samples=total,
        random_state=seed,
    )
    for first, counts in batches(stream, total):
        model.partial_fit(counts)
        watch(first + BATCH, lambda: (model.components_, None))


def gensim_model(num_topics: int, num_words: int, seed: int, **settings):
    """Make gensim's online variational Bayes."""
    from gensim.models import LdaModel

    return LdaModel(
        num_topics=num_topics,
        id2word={i: str(i) for i in range(num_words)},
        chunksize=BATCH,
        alpha=[ALPHA] * num_topics,
        eta=BETA,
        eval_every=None,
        random_state=seed,
        **settings,
    )


def gensim(num_topics: int, stream, total: int, seed: int, watch: Watch) -> None:
    """Give it to gensim as one corpus that is read as it goes, so that it knows its size."""
    from gensim.matutils import Sparse2Corpus

    model = gensim_model(num_topics, stream.num_words, seed)

    class Articles:
        def __len__(self) -> int:
            return total

        def __iter__(self):
            for first, counts in batches(stream, total):
                watch(first, lambda: (model.get_topics(), None))  # all before were learned from
                yield from Sparse2Corpus(counts, documents_columns=False)

    model.update(Articles())
    watch(total, lambda: (model.get_topics(), None))


def gensim_calls(num_topics: int, stream, total: int, seed: int, watch: Watch, **settings) -> None:
    """Give it to gensim by a call of `update` per batch; it counts the documents it has seen."""
    from gensim.matutils import Sparse2Corpus

    model = gensim_model(num_topics, stream.num_words, seed, **settings)
    for first, counts in batches(stream, total):
        model.update(list(Sparse2Corpus(counts, documents_columns=False)))
        watch(first + BATCH, lambda: (model.get_topics(), None))


def batches(stream, total: int):
    """Go through the stream once: the number of documents before each batch, and its counts."""
    for first, (batch, _) in zip(range(0, total, BATCH), stream.batches(BATCH), strict=False):
        yield first, batch.to_csr()


CONTESTANTS = {
    "isotherm": ours,
    "scikit-learn": sklearn,
    "gensim": gensim,
    "gensim, call per batch": gensim_calls,
    "gensim, scikit-learn's rate": partial(gensim_calls, offset=10, decay=0.7),
}
LONG = ("isotherm", "scikit-learn", "gensim, call per batch")
SAMPLERS = {
    "msgnht": partial(ours, sampler="msgnht"),
    "msgnht, h = 0.05": partial(ours, sampler="msgnht", step_size=0.05),
    "sgrld": partial(ours, sampler="sgrld"),
    "sgrld, h = 0.3": partial(ours, sampler="sgrld", step_size=0.3),
    "scir": partial(ours, sampler="scir"),
    "psgld": partial(ours, sampler="psgld"),
}


def play(name: str, part: str, num_topics: int, limit: int, seed: int) -> list[dict]:
    """Run one contestant through the stream and score it at the marks."""
    import warnings

    from isotherm.topics.corpus import completion
    from isotherm.topics.corpus_readers import load_wiki, stream_wiki
    from isotherm.topics.layout import as_topics
    from isotherm.topics.perplexity import perplexity

    warnings.simplefilter("ignore")
    split = completion(load_wiki("test"), observed=0.5, seed=0)
    rows, scoring, started = [], 0.0, time.process_time()

    def watch(seen: int, look: Callable) -> None:
        nonlocal scoring
        if seen not in MARKS:
            return
        clock = time.process_time()
        mean, draws = look()
        found = perplexity(as_topics(mean), split, ALPHA, fold_in="fixed-point")
        row = {"name": name, "part": part, "num_topics": num_topics, "seed": seed}
        row |= {
            "documents": seen,
            "perplexity": found.value,
            "standard_error": found.standard_error,
        }
        if draws is not None:
            several = perplexity(draws, split, ALPHA, fold_in="fixed-point")
            row |= {"draws_averaged": several.num_draws, "perplexity_of_draws": several.value}
        row |= {"cpu_seconds": clock - started - scoring, "megabytes": megabytes()}
        rows.append(row | {"peak_megabytes": peak_megabytes()})
        print(rows[-1], flush=True)
        scoring += time.process_time() - clock

    (CONTESTANTS | SAMPLERS)[name](num_topics, stream_wiki(part), limit, seed, watch)
    return rows


class Game(NamedTuple):
    """Who plays, on what."""

    name: str
    part: str
    num_topics: int
    limit: int
    seed: int

    def made(self, row: dict) -> bool:
        """Tell whether a row is of this game."""
        return all(row[key] == getattr(self, key) for key in ("name", "part", "num_topics", "seed"))


def summary(rows: list[dict]) -> list[dict]:
    """Lay perplexities out for reading, a table per stream, averaged over seeds; and what they took."""
    found: dict[tuple, dict] = {}
    for row in rows:
        table = f"wiki_{row['part']}, {row['num_topics']} topics"
        if row["name"] in SAMPLERS:
            table = f"samplers on {table}"
        key = (table, row["documents"])
        line = found.setdefault(key, {"table": table, "documents": row["documents"]})
        line.setdefault(row["name"], []).append(row["perplexity"])
    for line in found.values():
        for name, values in line.items():
            if isinstance(values, list):
                spread = f" ± {np.std(values, ddof=1):.0f}" if len(values) > 1 else ""
                line[name] = f"{np.mean(values):.0f}{spread}"
    last = [row for row in rows if row["part"] == "train" and row["documents"] == MARKS[-1]]
    for row in last:
        found["cost", row["name"]] = {
            "table": "cost of the long stream",
            "contestant": row["name"],
            "perplexity": row["perplexity"],
            "documents per CPU-second": row["documents"] / row["cpu_seconds"],
            "megabytes": row["megabytes"],
            "peak megabytes": row["peak_megabytes"],
        }
    return sorted(found.values(), key=lambda line: line["table"])


def show(rows: list[dict]) -> None:
    """Print the tables."""
    lines = summary(rows)
    for title in dict.fromkeys(line["table"] for line in lines):
        mine = [line for line in lines if line["table"] == title]
        table = Table(title=title)
        columns = [key for key in dict.fromkeys(k for line in mine for k in line) if key != "table"]
        for column in columns:
            table.add_column(column, justify="right")
        for line in mine:
            cells = [line.get(column, "–") for column in columns]
            table.add_row(*(f"{x:,.0f}" if isinstance(x, float) else str(x) for x in cells))
        Console(width=160).print(table)


def plot(rows: list[dict], path: Path) -> None:
    """Draw perplexity over documents, one panel per stream."""
    streams = list(dict.fromkeys((row["part"], row["num_topics"]) for row in rows))
    figure, axes = plt.subplots(
        1, len(streams), figsize=(12, 4.2), layout="constrained", squeeze=False
    )
    palette = plt.colormaps["tab20"].colors  # pyright: ignore[reportAttributeAccessIssue]
    colors = dict(zip([*CONTESTANTS, *SAMPLERS], palette, strict=False))
    for axis, (part, topics) in zip(axes.flat, streams, strict=True):
        mine = [row for row in rows if row["part"] == part and row["seed"] == 0]
        for name in dict.fromkeys(row["name"] for row in mine):
            points = [(r["documents"], r["perplexity"]) for r in mine if r["name"] == name]
            style = "-" if name == "isotherm" else ":" if name in SAMPLERS else "--"
            axis.plot(
                *zip(*points, strict=True), style, marker="o", ms=3, label=name, color=colors[name]
            )
        axis.set(
            xscale="log",
            yscale="log",
            title=f"wiki_{part}, {topics} topics",
            xlabel="documents seen",
            ylabel="test perplexity",
        )
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    save(figure, path)


def main() -> None:
    """Let everybody play, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2000 documents, writes nothing")
    parser.add_argument("--resume", action="store_true", help="keep what is in the file")
    options = parser.parse_args()
    where = machine(PACKAGES)
    everyone = [*CONTESTANTS, *SAMPLERS]
    if options.quick:
        found = [alone(play, *Game(name, "small", 20, 2_000, 0)) for name in everyone]
        show([row for rows in found for row in rows])
        return
    games = [Game(name, "small", 128, 10_000, 0) for name in everyone]
    games += [Game(name, "small", 128, 10_000, seed) for seed in (1, 2) for name in CONTESTANTS]
    games += [Game(name, "train", 50, MARKS[-1], 0) for name in LONG]
    rows = json.loads(RESULT.read_text())["rows"] if options.resume else []
    for game in games:
        if any(game.made(row) for row in rows):
            continue
        rows += alone(play, *game)
        where["load_average_after"] = os.getloadavg()[0]
        document = {"machine": where, "summary": summary(rows), "rows": rows}
        RESULT.write_text(json.dumps(document, indent=1) + "\n")
        plot(rows, RESULT.with_suffix(".png"))
    show(rows)


if __name__ == "__main__":
    main()

"""Online LDA on a stream of Wikipedia articles: `BayesianLDA`, scikit-learn and gensim.

Each contestant runs in a process of its own and sees the same documents in the same order, 100 at a
time, once. Priors are the same for all (0.1 for documents, 0.05 for words). All other settings are
defaults, except that scikit-learn and gensim get the true number of documents, which
`BayesianLDA.partial_fit` does not need. gensim runs three times: with the number of documents,
without it (one call per batch), and without it but with scikit-learn's learning rate (offset 10,
decay 0.7) instead of its own (1, 0.5). The topics of all are scored by one function on the same
1000 test articles: half of the tokens are observed, and proportions come from a fixed-point
iteration that favours no method. Our defaults were chosen on training articles. On the short stream
all have three seeds. Our samplers also run there, once, instead of the filter, each with its
default step size, mSGNHT and SGRLD also with one chosen on training articles. The long stream has
one seed, and gensim only with one call per batch: with the number of documents it was worse there
(4659 against 2601 after 50 000 articles in an earlier run). Each finished contestant is written to
`docs/results/lda_stream.json`, with a figure; `--resume` runs only those that are missing.
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

ALPHA, BETA, BATCH = 0.1, 0.05, 100
MARKS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 150_000, 200_000, 229_600)
RESULT = RESULTS / "lda_stream.json"
PACKAGES = ("isotherm", "jax", "numpy", "numba", "scikit-learn", "gensim")


Observe = Callable[[int, Callable], None]
"""Called after every batch with the number of documents seen and a function that returns topics."""


def ours(num_topics: int, stream, total: int, seed: int, observe: Observe, **settings) -> None:
    """Train isotherm's estimator, by default with its default sampler."""
    from isotherm.topics.estimators.lda import BayesianLDA

    model = BayesianLDA(
        num_topics, doc_topic_prior=ALPHA, topic_word_prior=BETA, random_state=seed, **settings
    )
    for first, counts in batches(stream, total):
        model.partial_fit(counts)
        observe(first + BATCH, lambda: (model.components_, model.draws_["topics"][0]))


def sklearn(num_topics: int, stream, total: int, seed: int, observe: Observe) -> None:
    """Train scikit-learn's online variational Bayes."""
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
        observe(first + BATCH, lambda: (model.components_, None))


def gensim_model(num_topics: int, num_words: int, seed: int, **settings):
    """Build gensim's online variational Bayes."""
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


def gensim(num_topics: int, stream, total: int, seed: int, observe: Observe) -> None:
    """Train gensim on one corpus that is read on demand, so that its size is known."""
    from gensim.matutils import Sparse2Corpus

    model = gensim_model(num_topics, stream.num_words, seed)

    class Articles:
        def __len__(self) -> int:
            return total

        def __iter__(self):
            for first, counts in batches(stream, total):
                observe(first, lambda: (model.get_topics(), None))  # has learned those before
                yield from Sparse2Corpus(counts, documents_columns=False)

    model.update(Articles())
    observe(total, lambda: (model.get_topics(), None))


def gensim_calls(
    num_topics: int, stream, total: int, seed: int, observe: Observe, **settings
) -> None:
    """Train gensim with one call of `update` per batch; it counts the documents seen."""
    from gensim.matutils import Sparse2Corpus

    model = gensim_model(num_topics, stream.num_words, seed, **settings)
    for first, counts in batches(stream, total):
        model.update(list(Sparse2Corpus(counts, documents_columns=False)))
        observe(first + BATCH, lambda: (model.get_topics(), None))


def batches(stream, total: int):
    """Yield the number of documents before each batch, and the counts of the batch."""
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


def measure(name: str, part: str, num_topics: int, limit: int, seed: int) -> list[dict]:
    """Train one contestant on the stream, and score it after the `MARKS`."""
    import warnings

    from isotherm.topics.corpus import completion
    from isotherm.topics.corpus_readers import load_wiki, stream_wiki
    from isotherm.topics.layout import as_topics
    from isotherm.topics.perplexity import perplexity

    warnings.simplefilter("ignore")
    split = completion(load_wiki("test"), observed=0.5, seed=0)
    rows, scoring, started = [], 0.0, time.process_time()

    def observe(seen: int, get_topics: Callable) -> None:
        nonlocal scoring
        if seen not in MARKS:
            return
        clock = time.process_time()
        mean, draws = get_topics()
        score = perplexity(as_topics(mean), split, ALPHA, fold_in="fixed-point")
        row = {"name": name, "part": part, "num_topics": num_topics, "seed": seed}
        row |= {
            "documents": seen,
            "perplexity": score.value,
            "standard_error": score.standard_error,
        }
        if draws is not None:
            averaged = perplexity(draws, split, ALPHA, fold_in="fixed-point")
            row |= {"draws_averaged": averaged.num_draws, "perplexity_of_draws": averaged.value}
        row |= {"cpu_seconds": clock - started - scoring, "megabytes": megabytes()}
        rows.append(row | {"peak_megabytes": peak_megabytes()})
        print(rows[-1], flush=True)
        scoring += time.process_time() - clock

    (CONTESTANTS | SAMPLERS)[name](num_topics, stream_wiki(part), limit, seed, observe)
    return rows


class Job(NamedTuple):
    """A contestant, a stream and a seed: the arguments of `measure`."""

    name: str
    part: str
    num_topics: int
    limit: int
    seed: int

    def owns(self, row: dict) -> bool:
        """Return whether a row is a result of this job."""
        return all(row[key] == getattr(self, key) for key in ("name", "part", "num_topics", "seed"))


def summary(rows: list[dict]) -> list[dict]:
    """Return tables of perplexities averaged over seeds, one per stream, and of the costs."""
    lines: dict[tuple, dict] = {}
    for row in rows:
        table = f"wiki_{row['part']}, {row['num_topics']} topics"
        if row["name"] in SAMPLERS:
            table = f"samplers on {table}"
        key = (table, row["documents"])
        line = lines.setdefault(key, {"table": table, "documents": row["documents"]})
        line.setdefault(row["name"], []).append(row["perplexity"])
    for line in lines.values():
        for name, values in line.items():
            if isinstance(values, list):
                spread = f" ± {np.std(values, ddof=1):.0f}" if len(values) > 1 else ""
                line[name] = f"{np.mean(values):.0f}{spread}"
    last = [row for row in rows if row["part"] == "train" and row["documents"] == MARKS[-1]]
    for row in last:
        lines["cost", row["name"]] = {
            "table": "cost of the long stream",
            "contestant": row["name"],
            "perplexity": row["perplexity"],
            "documents per CPU-second": row["documents"] / row["cpu_seconds"],
            "megabytes": row["megabytes"],
            "peak megabytes": row["peak_megabytes"],
        }
    return sorted(lines.values(), key=lambda line: line["table"])


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
    """Draw perplexity against documents, one panel per stream."""
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
    """Measure all contestants, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2000 documents; writes nothing")
    parser.add_argument("--resume", action="store_true", help="keep the contestants in the file")
    options = parser.parse_args()
    where = machine(PACKAGES)
    everyone = [*CONTESTANTS, *SAMPLERS]
    if options.quick:
        results = [alone(measure, *Job(name, "small", 20, 2_000, 0)) for name in everyone]
        show([row for rows in results for row in rows])
        return
    jobs = [Job(name, "small", 128, 10_000, 0) for name in everyone]
    jobs += [Job(name, "small", 128, 10_000, seed) for seed in (1, 2) for name in CONTESTANTS]
    jobs += [Job(name, "train", 50, MARKS[-1], 0) for name in LONG]
    rows = json.loads(RESULT.read_text())["rows"] if options.resume else []
    for job in jobs:
        if any(job.owns(row) for row in rows):
            continue
        rows += alone(measure, *job)
        where["load_average_after"] = os.getloadavg()[0]
        write_document(RESULT, {"machine": where, "summary": summary(rows), "rows": rows})
        plot(rows, RESULT.with_suffix(".png"))
    show(rows)


if __name__ == "__main__":
    main()

"""Online LDA on a stream of Wikipedia articles: `ThermostatLDA.partial_fit` beside scikit-learn and gensim.

Each contestant runs in a process of its own and sees the same documents in the same order, 100 at a time, once. Priors are the
same for all (0.1 for documents, 0.05 for words); everything else is everybody's default, except that scikit-learn and
gensim are told the true number of documents, which ours is not. gensim plays three times: told the number, not told (a call per
batch), and not told but with scikit-learn's learning rate (offset 10, decay 0.7) for its own (1, 0.5). The topics of all are scored by one function on the same 1000
test articles: half of the tokens observed, proportions by a fixed-point iteration that favours nobody. Settings of ours were
chosen on training articles. On the short stream everybody has three seeds, and our samplers play in place of the filter, once, each with
its default step size, mSGNHT and SGRLD also with one chosen on training articles. The long stream has one seed, and gensim only by calls: told the number it was worse there (4659 against 2601 after 50 000
articles in an earlier run).
The full run rewrites `docs/results/lda_stream.json` and the tables in `docs/topics.md`.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from reporting import machine
from rich.console import Console
from rich.table import Table

ALPHA, BETA, BATCH = 0.1, 0.05, 100
MARKS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 150_000, 200_000, 229_600)
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "lda_stream.json"
PAGE = Path(__file__).parents[1] / "docs" / "topics.md"
PACKAGES = ("isotherm", "jax", "numpy", "numba", "scikit-learn", "gensim")


Watch = Callable[[int, Callable], None]
"""Told after every batch how many documents were seen, and how to look at the topics."""


def ours(num_topics: int, stream, total: int, seed: int, watch: Watch, **settings) -> None:
    """Give the stream to isotherm's estimator with its defaults, or another sampler."""
    from isotherm.estimators.topics import ThermostatLDA

    model = ThermostatLDA(
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
        num_topics=num_topics, id2word={i: str(i) for i in range(num_words)}, chunksize=BATCH,
        alpha=[ALPHA] * num_topics, eta=BETA, eval_every=None, random_state=seed, **settings,
    )  # fmt: skip


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


def megabytes() -> float:
    """Give the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def play(name: str, part: str, num_topics: int, limit: int, seed: int, queue) -> None:
    """Run one contestant through the stream and score it at the marks."""
    import warnings

    from isotherm.topics.corpora import load_wiki, stream_wiki
    from isotherm.topics.corpus import completion
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
        rows.append(row | {"cpu_seconds": clock - started - scoring, "megabytes": megabytes()})
        print(rows[-1], flush=True)
        scoring += time.process_time() - clock

    (CONTESTANTS | SAMPLERS)[name](num_topics, stream_wiki(part), limit, seed, watch)
    queue.put(rows)


def contest(part: str, num_topics: int, limit: int, seed: int = 0, names=CONTESTANTS) -> list[dict]:
    """Let everybody play, one after the other."""
    spawn, found = multiprocessing.get_context("spawn"), []
    for name in names:
        queue = spawn.Queue()
        process = spawn.Process(target=play, args=(name, part, num_topics, limit, seed, queue))
        process.start()
        found += queue.get()
        process.join()
    return found


def show(rows: list[dict]) -> None:
    """Print perplexities, averaged over seeds, side by side."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    table = Table(title="test perplexity after so many documents, batch 100")
    for column in ("stream", "topics", "documents", *names):
        table.add_column(column, justify="right")
    values = defaultdict(list)
    for r in rows:
        values[r["part"], r["num_topics"], r["documents"], r["name"]].append(r["perplexity"])
    for part, k, documents in dict.fromkeys(key[:3] for key in values):
        found = [values.get((part, k, documents, name), [np.nan]) for name in names]
        table.add_row(part, str(k), f"{documents:,}", *(f"{np.mean(x):,.1f}" for x in found))
    Console().print(table)


def write_page(rows: list[dict]) -> None:
    """Put the tables into the documentation: the contest, and our samplers beside the filter."""
    values = defaultdict(list)
    for r in rows:
        values[r["part"], r["num_topics"], r["documents"], r["name"]].append(r["perplexity"])
    lines = [f"| stream, topics | documents | {' | '.join(CONTESTANTS)} |"]
    lines.append("| --- |" + " --: |" * (1 + len(CONTESTANTS)))
    for part, k, documents in dict.fromkeys(key[:3] for key in values):
        cells = [written(values[part, k, documents, name]) for name in CONTESTANTS]
        lines.append(f"| `wiki_{part}`, {k} | {documents} | {' | '.join(cells)} |")
    seen = {key[3] for key in values}
    names = ["isotherm", *(name for name in SAMPLERS if name in seen)]
    lines += ["", f"| documents | {' | '.join(names)} |", "| --: |" + " --: |" * len(names)]
    for part, k, documents in dict.fromkeys(key[:3] for key in values if key[3] in SAMPLERS):
        cells = [written(values[part, k, documents, name][:1]) for name in names]
        lines.append(f"| {documents} | {' | '.join(cells)} |")
    head, rest = PAGE.read_text().split("<!-- results -->\n")
    tail = rest.split("<!-- end of results -->")[1]
    block = "\n".join(lines)
    PAGE.write_text(f"{head}<!-- results -->\n{block}\n<!-- end of results -->{tail}")


def written(values: list[float]) -> str:
    """Write a mean, with the standard deviation over seeds if there are several."""
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.0f}" if len(values) > 1 else ""
    return f"{np.mean(values):.0f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2000 documents, writes nothing")
    parser.add_argument("--small-topics", type=int, default=128, help="topics on the first 10 000")
    parser.add_argument("--topics", type=int, default=50, help="topics on the whole stream")
    arguments = parser.parse_args()
    where = machine(PACKAGES)
    if arguments.quick:
        show(contest("small", 20, 2_000, names=CONTESTANTS | SAMPLERS))
        return
    rows = contest("small", arguments.small_topics, 10_000, names=CONTESTANTS | SAMPLERS)
    for seed in (1, 2):
        rows += contest("small", arguments.small_topics, 10_000, seed)
    show(rows)
    rows += contest("train", arguments.topics, 229_600, names=LONG)
    show(rows)
    where |= {"load_average_after": os.getloadavg()[0]}
    RESULTS.write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")
    write_page(rows)


if __name__ == "__main__":
    main()

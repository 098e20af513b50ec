"""Does depth pay? DPFA with one, two and three layers, LDA and tomotopy: held-out perplexity.

All learn from the same documents, each in a process of its own, and are scored on the same held-out
halves of test documents, 20 draws of each chain averaged (tomotopy: its last state after 200
sweeps, or 20 states of 400). Both estimators have two chains by default and are measured with one,
too, and `BayesianDPFA` with the stochastic gradients that it uses on streams. The corpora are ICML
abstracts (30 topics; a fifth of the documents is for the test), 4000 Wikipedia articles (128
topics, 1000 test articles) and 4000 docstrings of Python packages (`docstrings.py`; 128 topics,
1000 test docstrings), on which no default was chosen. A full run writes
`docs/results/deep_topics.json`; `--quick` uses ICML and one seed, and writes nothing.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import product

from lda_in_memory import tomotopy
from reporting import RESULTS, alone, machine, write_document

RESULT = RESULTS / "deep_topics.json"
PACKAGES = ("isotherm", "numpy", "numba", "tomotopy")
SIZES = {"ICML": (30, 15, 8), "Wikipedia": (128, 64, 32), "docstrings": (128, 64, 32)}
"""Corpora, and the units per layer."""


def lda(train, split, layers: tuple[int, ...], seed: int, **settings) -> dict:
    """Fit BayesianLDA."""
    from isotherm.topics.estimators.lda import BayesianLDA

    return fitted(BayesianLDA(layers[0], random_state=seed, **settings), train, split)


def dpfa(train, split, layers: tuple[int, ...], seed: int, *, depth: int, **settings) -> dict:
    """Fit BayesianDPFA with the first `depth` layers."""
    from isotherm.topics.estimators.dpfa import BayesianDPFA

    return fitted(BayesianDPFA(layers[:depth], random_state=seed, **settings), train, split)


def fitted(model, train, split) -> dict:
    """Fit an estimator and score it."""
    clock = time.process_time()
    model.fit(train)
    seconds = time.process_time() - clock
    value = model.perplexity(observed=split.observed, scored=split.scored)
    return {"perplexity": value, "cpu_seconds": seconds}


def peer(train, split, layers: tuple[int, ...], seed: int, **settings) -> dict:
    """Fit tomotopy's LDA, which learns its prior of documents."""
    row = tomotopy(train, split, layers[0], seed, **settings)
    return {name: row[name] for name in ("perplexity", "cpu_seconds")}


CONTESTANTS: dict[str, Callable[..., dict]] = {
    "LDA": lda,
    "LDA, one chain": partial(lda, num_chains=1),
    "DPFA, 3 layers": partial(dpfa, depth=3),
    "DPFA, 3 layers, one chain": partial(dpfa, depth=3, num_chains=1),
    "DPFA, 1 layer": partial(dpfa, depth=1),
    "DPFA, 2 layers": partial(dpfa, depth=2),
    "tomotopy LDA": peer,
    "tomotopy LDA, 20 draws": partial(peer, sweeps=400, draws=20),
    "DPFA, 3 layers, stochastic gradients": partial(dpfa, depth=3, inference="sgmcmc"),
}


@cache
def documents(name: str):
    """Return the training documents and the split test documents."""
    from docstrings import load_docstrings

    from isotherm.topics.corpus import completion, train_test
    from isotherm.topics.corpus_readers import load_icml, load_wiki

    if name == "ICML":
        train, test = train_test(load_icml(), test=0.2, seed=0)
    elif name == "Wikipedia":
        train, test = load_wiki("small")[:4000], load_wiki("test")
    else:
        corpus = load_docstrings()
        train, test = corpus[:4000], corpus[4000:5000]
    return train, completion(test, observed=0.5, seed=0)


def measure(name: str, corpus: str, seed: int, train, split) -> dict:
    """Fit and score one contestant."""
    row = {"method": name, "corpus": corpus, "documents": len(train), "seed": seed}
    return row | CONTESTANTS[name](train, split, SIZES[corpus], seed)


def summary(rows: list[dict]) -> list[dict]:
    """Average over seeds; differences are from LDA with the same seed."""
    table = []
    for corpus, name in dict.fromkeys((row["corpus"], row["method"]) for row in rows):
        mine = {
            row["seed"]: row for row in rows if (row["corpus"], row["method"]) == (corpus, name)
        }
        values = [row["perplexity"] for row in mine.values()]
        base = {
            row["seed"]: row["perplexity"]
            for row in rows
            if (row["corpus"], row["method"]) == (corpus, "LDA")
        }
        changes = [100 * (mine[seed]["perplexity"] / base[seed] - 1) for seed in mine]
        spread = [f" ± {statistics.stdev(x):.1f}" if len(x) > 1 else "" for x in (values, changes)]
        table.append(
            {
                "corpus": corpus,
                "method": name,
                "perplexity": f"{statistics.mean(values):.1f}{spread[0]}",
                "against LDA": "" if name == "LDA" else f"{statistics.mean(changes):+.1f} %",
                "CPU seconds": round(
                    statistics.mean(row["cpu_seconds"] for row in mine.values()), 1
                ),
                "percent": statistics.mean(changes),
                "mean perplexity": statistics.mean(values),
            }
        )
    return table


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ICML, one seed; write nothing")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the result file")
    parser.add_argument("--corpora", nargs="+", default=list(SIZES), choices=list(SIZES))
    options = parser.parse_args()
    rows = json.loads(RESULT.read_text())["rows"] if options.resume else []
    document = {"machine": machine(PACKAGES)}
    known = {(row["corpus"], row["method"], row["seed"]) for row in rows}
    names = ["ICML"] if options.quick else options.corpora
    for seed, corpus, name in product(
        range(1 if options.quick else options.seeds), names, CONTESTANTS
    ):
        if (corpus, name, seed) in known:
            continue
        rows.append(alone(measure, name, corpus, seed, *documents(corpus)))
        print(rows[-1], flush=True)
        document |= {"summary": summary(rows), "rows": rows}
        if not options.quick:
            write_document(RESULT, document)


if __name__ == "__main__":
    main()

"""Topic kernels and tomotopy: token updates per second on one thread, and perplexity.

Contestants run in this process in turns: in every round each makes some sweeps, in rotated order.
Rates are per second of wall time and of processor time; on a busy machine only the latter is
meaningful. Hyperparameters are fixed in both packages. A full run writes
`docs/results/topics_speed.json` and a figure.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tomotopy
from reporting import RESULTS, machine, rotated, save, write_document
from rich.console import Console
from rich.table import Table

from isotherm.topics import layout
from isotherm.topics.corpus import Corpus, completion, train_test
from isotherm.topics.corpus_readers import load_icml, load_wiki
from isotherm.topics.expected_counts import gibbs_counts
from isotherm.topics.gibbs import GibbsLDA
from isotherm.topics.perplexity import CompletionScore, perplexity, unigram

ALPHA, BETA = 0.1, 0.05
TOPICS = (30, 128)
RESULT = RESULTS / "topics_speed.json"
PACKAGES = ("isotherm", "numpy", "numba", "llvmlite", "tomotopy")
GOALS = {30: 15e6, 128: 8e6}
"""Token updates per second that the semi-collapsed kernel should reach, by number of topics."""


class Tomotopy:
    """tomotopy's LDA on a `Corpus`, with the interface of `GibbsLDA`."""

    def __init__(self, corpus: Corpus, num_topics: int, seed: int) -> None:
        self.model = tomotopy.LDAModel(k=num_topics, alpha=ALPHA, eta=BETA, seed=seed)
        self.model.optim_interval = 0
        self.vocabulary = [str(word) for word in range(corpus.num_words)]
        tokens, starts = corpus.tokens().astype(str), corpus.token_starts
        for begin, end in itertools.pairwise(starts):
            self.model.add_doc(tokens[begin:end].tolist())

    def sweep(self, num_sweeps: int) -> None:
        """Make sweeps with one worker."""
        self.model.train(num_sweeps, workers=1)

    def topics(self) -> np.ndarray:
        """Return the topics over our vocabulary."""
        weights = [self.model.get_topic_word_dist(k) for k in range(self.model.k)]
        return layout.as_topics(weights, list(self.model.used_vocabs), onto=self.vocabulary)


@dataclass
class Contestant:
    """A kernel that updates tokens, and its measured rates."""

    name: str
    corpus: str
    num_topics: int
    updates: int
    run: Callable[[], object]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Time one run."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.run()
        self.cpu.append(self.updates / (time.process_time() - cpu))
        self.wall.append(self.updates / (time.perf_counter() - wall))

    def result(self) -> dict:
        """Return the rates of all rounds and their medians."""
        row = {"name": self.name, "corpus": self.corpus, "num_topics": self.num_topics}
        row |= {"wall": statistics.median(self.wall), "cpu": statistics.median(self.cpu)}
        return row | {"wall_rates": self.wall, "cpu_rates": self.cpu}


def contestants(corpora: dict[str, Corpus], updates: int) -> list[Contestant]:
    """Return all contestants; each run makes about `updates` token updates."""
    everyone = []
    for (name, corpus), k in ((c, k) for c in corpora.items() for k in TOPICS):
        sweeps = max(1, updates // corpus.num_tokens)
        ours, theirs = GibbsLDA(corpus, k, alpha=ALPHA, beta=BETA), Tomotopy(corpus, k, seed=1)
        for label, chain in (("collapsed", ours), ("tomotopy", theirs)):
            chain.sweep(20)  # compiles, and moves away from the random start
            run = lambda chain=chain, sweeps=sweeps: chain.sweep(sweeps)  # noqa: E731
            everyone.append(Contestant(label, name, k, sweeps * corpus.num_tokens, run))
        for size in (5, 100, len(corpus)):
            everyone.append(semi_collapsed(name, corpus, ours.topics(), size, updates))
    return everyone


def semi_collapsed(
    name: str, corpus: Corpus, topics: np.ndarray, size: int, updates: int
) -> Contestant:
    """Build the semi-collapsed kernel on batches: 20 sweeps each, one to initialize, and counts."""
    rows, alpha, batches, total = layout.word_major(topics), np.full(len(topics), ALPHA), [], 0
    while total < updates:
        first = (len(batches) * size) % max(1, len(corpus) - size + 1)
        batches.append(corpus[first : first + size])
        total += 21 * batches[-1].num_tokens

    def run() -> None:
        for step, batch in enumerate(batches):
            gibbs_counts(rows, batch, alpha, sweeps=20, burn_in=10, seed=0, step=step)

    gibbs_counts(rows, corpus[:1], alpha, sweeps=2, burn_in=1, seed=0)  # compiles
    label = f"semi-collapsed, batch {size}"
    return Contestant(label, name, len(topics), total, run)


def ratios(rows: list[dict]) -> list[dict]:
    """Return how many times faster than tomotopy our collapsed sampler is: medians over rounds."""
    rates = {(row["name"], row["corpus"], row["num_topics"]): row for row in rows}
    result = []
    for (name, corpus, k), row in rates.items():
        if name == "collapsed":
            peer = rates["tomotopy", corpus, k]
            pairs = {
                kind: zip(row[kind], peer[kind], strict=True)
                for kind in ("wall_rates", "cpu_rates")
            }
            medians = {
                kind[:-6]: statistics.median(a / b for a, b in p) for kind, p in pairs.items()
            }
            result.append({"corpus": corpus, "num_topics": k, **medians})
    return result


def converged(corpus: Corpus, seeds: range, burn_in: int, draws: int, thin: int = 10) -> dict:
    """Score the topics of both packages on the same split: 30 topics, averaged draws, seeds."""
    train, test = train_test(corpus, test=0.2, seed=0)
    known = np.unique(train.words)  # the only words that tomotopy knows
    train, test = train.select_words(known), test.select_words(known)
    split, scores = completion(test, observed=0.5, seed=0), {}
    for name, make in (("isotherm", GibbsLDA), ("tomotopy", Tomotopy)):
        for fold_in in ("gibbs", "fixed-point"):
            scores[name, fold_in] = []
        for seed in seeds:
            settings = {"alpha": ALPHA, "beta": BETA} if make is GibbsLDA else {}
            chain = make(train, 30, seed=seed + 1, **settings)
            both = [CompletionScore(split, ALPHA, fold_in=f) for f in ("gibbs", "fixed-point")]
            chain.sweep(burn_in)
            for _ in range(draws):
                chain.sweep(thin)
                for score in both:
                    score.add(chain.topics())
            for score in both:
                scores[name, score.fold_in].append(score.result().value)
    plain = perplexity(unigram(train), split, ALPHA)
    report = {"unigram": plain.value, "num_draws": draws, "burn_in": burn_in, "thin": thin}
    report |= {"observed": split.fraction, "num_tokens": plain.num_tokens, "fold_in": {}}
    for fold_in in ("gibbs", "fixed-point"):
        a, b = np.array(scores["isotherm", fold_in]), np.array(scores["tomotopy", fold_in])
        error = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)) / b.mean()
        report["fold_in"][fold_in] = {
            "isotherm": a.tolist(),
            "tomotopy": b.tolist(),
            "ratio": float(a.mean() / b.mean()),
            "ratio_error": float(error),
        }
    return report


def show(rows: list[dict], ratios: list[dict], scores: dict) -> None:
    """Print rates, ratios and perplexities."""
    table = Table(title="million token updates per second, one thread (medians)")
    for name in ("contestant", "corpus", "topics", "wall", "processor"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        speeds = [f"{row[kind] / 1e6:.1f}" for kind in ("wall", "cpu")]
        table.add_row(row["name"], row["corpus"], str(row["num_topics"]), *speeds)
    console = Console(width=110, highlight=False)
    console.print(table)
    for row in ratios:
        console.print(
            f"collapsed / tomotopy, {row['corpus']}, {row['num_topics']} topics: "
            f"{row['wall']:.2f} (wall), {row['cpu']:.2f} (processor)"
        )
    for fold_in, row in scores["fold_in"].items():
        ours, theirs = np.mean(row["isotherm"]), np.mean(row["tomotopy"])
        console.print(
            f"perplexity on ICML ({fold_in}): {ours:.1f} against {theirs:.1f}, ratio "
            f"{row['ratio']:.4f} ± {row['ratio_error']:.4f} over {len(row['isotherm'])} seeds each"
        )


def plot(rows: list[dict], path: Path) -> None:
    """Draw token updates per second of processor time, a panel per corpus and number of topics."""
    settings = list(dict.fromkeys((row["corpus"], row["num_topics"]) for row in rows))
    figure, axes = plt.subplots(
        1, len(settings), figsize=(13, 3), layout="constrained", sharey=True
    )
    for axis, (corpus, k) in zip(axes, settings, strict=True):
        mine = [row for row in rows if (row["corpus"], row["num_topics"]) == (corpus, k)]
        names = [row["name"].replace(str(max_batch(rows, corpus)), "all") for row in mine]
        for name, row in zip(names, mine, strict=True):
            color = "0.75" if row["name"] == "tomotopy" else "C0"
            axis.barh(name, row["cpu"] / 1e6, color=color)
            ends = [min(row["cpu_rates"]) / 1e6, max(row["cpu_rates"]) / 1e6]
            axis.plot(ends, [name, name], color="0.2", lw=1)
        axis.set(title=f"{corpus}, {k} topics", xlabel="million updates per CPU-second")
    axes[0].invert_yaxis()
    save(figure, path)


def max_batch(rows: list[dict], corpus: str) -> int:
    """Return the size of the batch of all documents."""
    sizes = [row["name"].split()[-1] for row in rows if row["corpus"] == corpus]
    return max(int(size) for size in sizes if size.isdigit())


def claims(rows: list[dict], ratios: list[dict], scores: dict) -> list[dict]:
    """Check the goals, by processor time."""
    checked = []

    def claim(text: str, measured: float, expected: float, holds: bool) -> None:
        entry = {"claim": text, "holds": bool(holds), "measured": float(measured)}
        checked.append(entry | {"expected": expected})

    for row in ratios:
        setting = f"{row['corpus']}, {row['num_topics']} topics"
        claim(f"collapsed / tomotopy, {setting}", row["cpu"], 1, row["cpu"] >= 1)
    for row in rows:
        if row["name"].startswith("semi"):
            goal, setting = GOALS[row["num_topics"]], f"{row['corpus']}, {row['num_topics']} topics"
            claim(f"{row['name']}, {setting}", row["cpu"], goal, row["cpu"] >= goal)
    for fold_in, row in scores["fold_in"].items():
        off = abs(row["ratio"] - 1)
        claim(f"perplexity off tomotopy's ({fold_in} fold-in)", off, 0.01, off <= 0.01)
    return checked


def main() -> None:
    """Measure all contestants in turns, and compare perplexities."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short check that writes nothing")
    quick = parser.parse_args().quick
    where, icml = machine(PACKAGES), load_icml()
    corpora = {"icml": icml, "wiki": load_wiki("small")[: 1000 if quick else 5000]}
    everyone = contestants(corpora, updates=10**6 if quick else 10**7)
    for r in range(2 if quick else 7):
        for contestant in rotated(everyone, r):
            contestant.measure()
    rows = [contestant.result() for contestant in everyone]
    scores = converged(icml, *((range(2), 50, 10) if quick else (range(8), 1000, 100)))
    show(rows, ratios(rows), scores)
    document = {
        "machine": where | {"load_average_after": os.getloadavg()[0]},
        "contestants": rows,
        "ratios": ratios(rows),
        "perplexity": scores,
        "claims": claims(rows, ratios(rows), scores),
    }
    for claim in document["claims"]:
        print("holds" if claim["holds"] else "FAILS", claim["claim"])
    if not quick:
        write_document(RESULT, document)
        plot(rows, RESULT.with_suffix(".png"))


if __name__ == "__main__":
    main()

"""LDA in memory beside tomotopy, with fixed and learned priors: held-out perplexity and CPU time.

All learn from the same documents, each in a process of its own, and are scored on the same held-out
halves of test documents, with the prior of documents that they use or have learned. The corpora are
ICML abstracts with 30 topics, Reuters articles and news items with 20 (`small_corpora.py`; of these
three a fifth of the documents is for the test, and the seed determines the split), 5000 docstrings
of Python packages with 20 and with 128 topics (1000 test docstrings, `docstrings.py`), and 2000
Wikipedia articles with 128 topics (500 test articles). Nothing was chosen on docstrings and news.
Contestants take turns, seed by seed, and processor times are medians over seeds. tomotopy makes 200
sweeps with one worker, and fits its prior of documents every ten sweeps (its default). Its last
state is scored, or 20 states of the second half are averaged; or it makes 400 sweeps. Ours is also
scored with one matrix of topics, `components_`. A full run writes
`docs/results/lda_in_memory.json`; `--quick` uses ICML and one seed, and writes nothing.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from reporting import RESULTS, alone, machine, write_document

ALPHA, BETA, SWEEPS = 0.1, 0.05, 200
RESULT = RESULTS / "lda_in_memory.json"
PACKAGES = ("isotherm", "numpy", "numba", "tomotopy")
FIXED = {"doc_topic_prior": ALPHA, "topic_word_prior": BETA}


def ours(train, split, num_topics: int, seed: int, **settings) -> dict:
    """Fit isotherm's estimator."""
    from isotherm.topics.estimators.lda import BayesianLDA
    from isotherm.topics.perplexity import perplexity

    model = BayesianLDA(num_topics, random_state=seed, **settings)
    BayesianLDA(2, max_iter=1, **settings).fit([[1, 2], [2, 1]])  # loads the kernels
    clock = time.process_time()
    model.fit(train)
    seconds = time.process_time() - clock
    value = model.perplexity(observed=split.observed, scored=split.scored)
    alpha, beta = model.doc_topic_prior_, model.topic_word_prior_
    point = perplexity(model.components_, split, alpha).value
    chains = getattr(model._learner, "num_predicting", 1)
    more = {"one_matrix": point, "predicting_chains": chains}
    return result(value, seconds, alpha, beta) | more


def tomotopy(
    train, split, num_topics: int, seed: int, *, sweeps: int = SWEEPS, draws: int = 1
) -> dict:
    """Fit tomotopy's LDA; average the predictions of draws from the second half of the sweeps."""
    from tomotopy import LDAModel

    from isotherm.topics.layout import as_topics
    from isotherm.topics.perplexity import CompletionScore

    model = LDAModel(k=num_topics, alpha=ALPHA, eta=BETA, seed=seed)
    words, starts = train.tokens().astype(str), train.token_starts
    names = [str(word) for word in range(train.num_words)]
    score = CompletionScore(split, ALPHA)
    clock = time.process_time()
    for begin, end in itertools.pairwise(starts):
        if end > begin:
            model.add_doc(words[begin:end].tolist())
    seconds = time.process_time() - clock
    interval = sweeps // 2 // draws
    for i in range(draws):
        clock = time.process_time()
        model.train(interval if i else sweeps - interval * (draws - 1), workers=1)
        seconds += time.process_time() - clock
        topics = [model.get_topic_word_dist(k) for k in range(num_topics)]
        # Words that are in no training document get the smallest probability.
        rare = float(np.min(topics))
        topics = as_topics(topics, list(model.used_vocabs), onto=names, missing=rare)
        score.add(topics, alpha=np.array(model.alpha))
    return result(score.result().value, seconds, np.array(model.alpha), BETA)


def result(value: float, seconds: float, alpha: np.ndarray, beta: float) -> dict:
    """Return what is measured of one contestant."""
    total = float(np.sum(alpha))
    return {"perplexity": value, "cpu_seconds": seconds, "alpha_sum": total, "beta": float(beta)}


CORPORA = {
    "ICML": (30, 4),
    "Reuters": (20, 4),
    "news": (20, 4),
    "docstrings, 20 topics": (20, 2),
    "docstrings, 128 topics": (128, 2),
    "Wikipedia": (128, 2),
}
"""Numbers of topics and of seeds."""
CONTESTANTS: dict[str, Callable[..., dict]] = {
    "isotherm": ours,
    "isotherm, one chain": partial(ours, num_chains=1),
    "isotherm, fixed priors": partial(ours, **FIXED),
    "isotherm, filter, fixed priors": partial(ours, sampler="filter", **FIXED),
    "tomotopy, α learned": tomotopy,
    "tomotopy, α learned, 20 draws": partial(tomotopy, draws=20),
    "tomotopy, α learned, 400 sweeps, 20 draws": partial(tomotopy, sweeps=2 * SWEEPS, draws=20),
}


def documents(corpus: str, seed: int):
    """Return the training documents and the split test documents."""
    from docstrings import load_docstrings
    from small_corpora import load_news, load_reuters

    from isotherm.topics.corpus import completion, train_test
    from isotherm.topics.corpus_readers import load_icml, load_wiki

    small = {"ICML": load_icml, "Reuters": load_reuters, "news": load_news}
    if corpus in small:
        train, test = train_test(small[corpus](), test=0.2, seed=seed)
    elif corpus == "Wikipedia":
        train, test = load_wiki("small")[:2000], load_wiki("test")[:500]
    else:
        train, test = load_docstrings()[:5000], load_docstrings()[5000:6000]
    return train, completion(test, observed=0.5, seed=0)


def measure(name: str, corpus: str, seed: int, train, split) -> dict:
    """Fit and score one contestant."""
    num_topics, _ = CORPORA[corpus]
    row = {"name": name, "corpus": corpus, "documents": len(train), "seed": seed}
    return row | CONTESTANTS[name](train, split, num_topics, seed)


def summary(rows: list[dict]) -> list[dict]:
    """Average over seeds."""
    table = []
    for corpus, name in dict.fromkeys((row["corpus"], row["name"]) for row in rows):
        mine = [row for row in rows if (row["corpus"], row["name"]) == (corpus, name)]
        values = [row["perplexity"] for row in mine]
        spread = f" ± {statistics.stdev(values):.0f}" if len(values) > 1 else ""
        table.append(
            {
                "corpus": corpus,
                "method": name,
                "perplexity": f"{statistics.mean(values):.0f}{spread}",
                "mean perplexity": statistics.mean(values),
                "with one matrix": one_matrix(mine),
                "CPU seconds": round(statistics.median(row["cpu_seconds"] for row in mine), 2),
                "sum of α": round(statistics.mean(row["alpha_sum"] for row in mine), 1),
                "β": round(statistics.mean(row["beta"] for row in mine), 4),
            }
        )
    return table


def one_matrix(rows: list[dict]) -> str:
    """Return the mean perplexity of one matrix of topics; that of one state is the same."""
    if "draws" in rows[0]["name"]:
        return ""
    return f"{statistics.mean(row.get('one_matrix', row['perplexity']) for row in rows):.0f}"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ICML, one seed; write nothing")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the result file")
    options = parser.parse_args()
    quick = options.quick
    jobs = [(corpus, seed) for corpus, (_, seeds) in CORPORA.items() for seed in range(seeds)]
    jobs = jobs[:1] if quick else jobs
    rows = json.loads(RESULT.read_text())["rows"] if options.resume else []
    known = {(row["corpus"], row["name"], row["seed"]) for row in rows}
    document = {"machine": machine(PACKAGES)}
    for corpus, seed in jobs:
        left = [name for name in CONTESTANTS if (corpus, name, seed) not in known]
        train, split = documents(corpus, seed) if left else (None, None)
        for name in left:
            rows.append(alone(measure, name, corpus, seed, train, split))
            print(rows[-1], flush=True)
            document |= {"summary": summary(rows), "rows": rows}
            if not quick:
                write_document(RESULT, document)


if __name__ == "__main__":
    main()

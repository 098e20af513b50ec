"""One table about all topics: shares, top words, coherence, agreement with labels."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from isotherm.topics.coherence import (
    MEASURES,
    check_measure,
    count_windows,
    diversity,
    label_agreement,
    score_words,
    top_words,
)
from isotherm.topics.corpus import Corpus
from isotherm.topics.estimators.summaries import DrawnShares


class Interval(NamedTuple):
    """A posterior mean and the ends of a central credible interval."""

    mean: float
    lower: float
    upper: float


class TopicTable(NamedTuple):
    """Summary of topics; prints as a table."""

    rows: list[dict[str, Any]]
    """One per topic: `topic`, `share`, the measures of coherence (`Interval`), `words`."""
    totals: dict[str, Interval]
    """Mean coherence, `diversity` of the 25 top words and, with labels, `nmi` and `purity`."""
    level: float
    """Posterior probability of the intervals."""

    def records(self) -> list[dict[str, Any]]:
        """Return the rows with plain numbers, for `pandas.DataFrame`."""
        return [dict(_flatten(row)) for row in self.rows]

    def __str__(self) -> str:
        """Format the table as plain text, the largest topic first."""
        names = [name for name in self.rows[0] if name not in ("topic", "words")]
        lines = ["topic" + "".join(f"{name:>24}" for name in names) + "  words"]
        for row in sorted(self.rows, key=lambda row: -row["share"].mean):
            cells = "".join(f"{_format(row[name]):>24}" for name in names)
            lines.append(f"{row['topic']:>5}{cells}  {' '.join(map(str, row['words']))}")
        lines += [f"{name}: {_format(value)}" for name, value in self.totals.items()]
        lines.append(f"posterior mean (interval of {self.level:.0%})")
        return "\n".join(lines)

    __repr__ = __str__


def _format(value: Interval) -> str:
    return f"{value.mean:.3f} ({value.lower:.3f}, {value.upper:.3f})"


def _flatten(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Interval):
            yield name, value.mean
            yield f"{name}_lower", value.lower
            yield f"{name}_upper", value.upper
        else:
            yield name, " ".join(map(str, value)) if isinstance(value, list) else value


def make_table(
    draws: np.ndarray,
    mean: np.ndarray,
    drawn: DrawnShares,
    reference: Any,
    *,
    labels: Any,
    measures: Sequence[str],
    names: Any,
    num_words: int,
    level: float,
) -> TopicTable:
    """Compute the table.

    Parameters
    ----------
    draws, mean
        Draws of the topics, (draws, topics, words), and their mean.
    drawn
        Shares of topics and main topics of documents, for the same draws.
    reference
        Documents or texts for the coherence.
    labels
        Labels of the documents, or `None`.
    measures
        Measures of coherence.
    names
        Names of the words, or `None`.
    num_words
        Top words per topic.
    level
        Posterior probability of the intervals.
    """
    num_words = min(num_words, mean.shape[1])
    scores = _coherences(draws, reference, measures, names, num_words)
    shares = _intervals(drawn.shares, level)
    columns = {name: _intervals(values, level) for name, values in scores.items()}
    top = top_words(mean, num_words)
    rows = []
    for k, words in enumerate(top):
        row = {"topic": k, "share": shares[k], **{name: x[k] for name, x in columns.items()}}
        row["words"] = [int(w) if names is None else str(names[w]) for w in words]
        rows.append(row)
    totals = {name: values.mean(1) for name, values in scores.items()}
    totals["diversity"] = np.array([diversity(topics) for topics in draws])
    if labels is not None:
        agreement = [label_agreement(topics, np.asarray(labels)) for topics in drawn.main_topics]
        totals["nmi"], totals["purity"] = np.array(agreement).T
    summary = {name: _intervals(x[:, None], level)[0] for name, x in totals.items()}
    return TopicTable(rows, summary, level)


def _coherences(
    draws: np.ndarray, reference: Any, measures: Sequence[str], names: Any, num_words: int
) -> dict[str, np.ndarray]:
    """Compute each measure of every draw and topic, (draws, topics)."""
    for measure in measures:
        check_measure(measure)
    if num_words < 2:
        raise ValueError(f"`num_words` must be at least 2, got {num_words}.")
    tops = np.stack([top_words(topics, num_words) for topics in draws])
    if len(measures) > 1 and not isinstance(reference, Corpus):
        reference = list(reference)  # read once for each size of the window
    windows: dict[int | None, Any] = {}
    scores = {}
    for measure in measures:
        size = MEASURES[measure].window
        if size not in windows:
            words, shape = np.unique(tops), draws.shape[2]
            windows[size] = count_windows(words, reference, shape, window=size, vocabulary=names)
        scores[measure] = np.stack([score_words(top, windows[size], measure) for top in tops])
    return scores


def _intervals(values: np.ndarray, level: float) -> list[Interval]:
    """Summarize draws, (draws, topics), for each topic."""
    tail = (1 - level) / 2
    ends = np.quantile(values, [tail, 1 - tail], axis=0)
    summary = np.stack([values.mean(0), *ends], axis=1)
    return [Interval(*map(float, x)) for x in summary]

r"""Perplexity of held-out words by document completion, the same for every model.

Of each test document some tokens are observed and the others scored
(`isotherm.topics.corpus.completion`). For draws $\phi^{(1)}, \dots, \phi^{(S)}$ of the topics,

$$ \bar p_{jw} = \frac1S \sum_s \sum_k \theta^{(s)}_{jk}\,\phi^{(s)}_{kw}, \qquad
   \text{perplexity} = \exp\Bigl(-\frac{\sum_{jw} n_{jw}\log\bar p_{jw}}{\sum_{jw} n_{jw}}\Bigr), $$

where $\theta^{(s)}_j$ comes from the *observed* tokens and $\phi^{(s)}$, and $n_{jw}$ counts *scored* tokens. Probabilities are
averaged before the logarithm is taken, so a point estimate ($S = 1$) and a posterior are scored by
the same rule. Only scored cells are kept, not words times documents.

The share of observed tokens, the number of draws and the fold-in all change the value: it means
nothing without them, so `Perplexity` carries them.

Its standard error says how much the value would change with another sample of test documents of the same
kind, topics given: the value is a function of a ratio of sums over documents, $\ell_j = \sum_w n_{jw}\log\bar p_{jw}$ over
$n_j$, and the delta method gives
$\mathrm{se} = \text{perplexity}\cdot\sqrt{\tfrac{J}{J-1}\sum_j (\ell_j - \hat L n_j)^2}\,/\sum_j n_j$ with $\hat L = \sum_j\ell_j/\sum_j n_j$.
Two models scored on the same documents differ by much less than this: compare them by their difference.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from isotherm.topics import expected_counts, kernels, layout
from isotherm.topics.corpus import Completion, Corpus

FoldIn = Literal["gibbs", "fixed-point"]


class Perplexity(NamedTuple):
    """A perplexity, and all that it depends on."""

    value: float
    standard_error: float
    """Over test documents, by the delta method; NaN for a single document."""
    num_draws: int
    """How many draws of the topics were averaged."""
    num_documents: int
    """Test documents with scored tokens."""
    num_tokens: int
    """Tokens scored."""
    observed: float
    """Share of tokens that was observed."""
    seed: int
    """Of the split."""
    fold_in: str
    """How proportions were found."""

    def __str__(self) -> str:
        return (
            f"{self.value:.1f} ± {self.standard_error:.1f} ({self.observed:.0%} observed, draws averaged: "
            f"{self.num_draws}, {self.num_documents} documents, {self.num_tokens} tokens, {self.fold_in})"
        )


class CompletionScore:
    r"""A running perplexity: add draws of the topics as they come, ask whenever you like.

    Parameters
    ----------
    split
        Test documents, as `isotherm.topics.corpus.completion` splits them.
    alpha
        $\alpha$ of the documents: a number or one per topic.
    fold_in
        `"gibbs"` estimates the posterior mean of $\theta$ by sweeps; `"fixed-point"` iterates to a mode,
        without random numbers, and favours nobody's sampler (see `isotherm.topics.expected_counts`).
    sweeps, burn_in
        Gibbs sweeps per draw, and how many of them are not averaged.
    warm
        Keep the assignments of one draw as the start for the next, which then needs no burn-in. For
        successive states of one chain, whose topics keep their labels.
    seed
        Of the sweeps.
    threads
        At most so many threads; the value does not depend on it.
    """

    def __init__(
        self,
        split: Completion,
        alpha: Any,
        *,
        fold_in: FoldIn = "gibbs",
        sweeps: int = 20,
        burn_in: int = 10,
        warm: bool = False,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        if fold_in not in ("gibbs", "fixed-point"):
            raise ValueError(f"`fold_in` must be 'gibbs' or 'fixed-point', got {fold_in!r}.")
        if split.scored.num_tokens == 0:
            raise ValueError("`split` has no scored tokens.")
        expected_counts.check_sweeps(sweeps, burn_in)
        self.split, self.alpha, self.fold_in, self.warm = split, alpha, fold_in, warm
        self.sweeps, self.burn_in, self.seed, self.threads = sweeps, burn_in, seed, threads
        self.num_draws = 0
        self.sums = np.zeros(len(split.scored.counts))
        """Sum over draws of the probability of every scored cell."""
        self.assignments: np.ndarray | None = None

    def add(self, topics: Any, *, alpha: Any = None, theta: Any = None) -> None:
        r"""Add a draw.

        Parameters
        ----------
        topics
            $\phi$, (topics, words), rows that sum to 1.
        alpha
            $\alpha$ of this draw, for models that learn it.
        theta
            Proportions (documents, topics) that the model has found for the observed tokens by
            itself; rows are normalised.
        """
        topics = check_topics(topics, self.split.observed.num_words)
        rows = layout.word_major(topics)
        if theta is None:
            prior = layout.as_alpha(self.alpha if alpha is None else alpha, len(topics))
            theta = self._proportions(rows, prior)
        else:
            theta = _check_theta(theta, (len(self.split.scored), len(topics)))
        x = self.split.scored
        kernels.predict_cells(x.indptr, x.words, rows, np.ascontiguousarray(theta), self.sums)
        self.num_draws += 1

    def _proportions(self, rows: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        observed = self.split.observed
        if self.fold_in == "fixed-point":
            return expected_counts.fold_in_fixed_point(
                rows, observed, alpha, threads=self.threads
            ).theta
        start = self.assignments if self.warm else None
        burnt = 0 if start is None else self.burn_in
        theta, assignments = expected_counts.fold_in(
            rows,
            observed,
            alpha,
            sweeps=self.sweeps - burnt,
            burn_in=self.burn_in - burnt,
            seed=self.seed,
            step=self.num_draws,
            assignments=start,
            threads=self.threads,
        )
        if self.warm:
            self.assignments = assignments
        return theta

    def log_probabilities(self) -> np.ndarray:
        r"""Give $\log\bar p$ of every scored cell, in the order of `split.scored.words`."""
        if self.num_draws == 0:
            raise ValueError("There is nothing to score: `add` a draw of the topics first.")
        with np.errstate(divide="ignore"):
            return np.log(self.sums / self.num_draws)

    def result(self) -> Perplexity:
        """Give the perplexity of all draws so far."""
        x = self.split.scored
        terms = np.concatenate([[0.0], np.cumsum(x.counts * self.log_probabilities())])
        log_likelihood = np.diff(terms[x.indptr])
        lengths = self.split.scored.lengths
        used = lengths > 0
        value, error = _ratio(log_likelihood[used], lengths[used])
        how = "fixed-point fold-in"
        if self.fold_in == "gibbs":
            how = f"{self.sweeps} sweeps, {self.burn_in} burnt" + ", warm" * self.warm
        return Perplexity(
            value,
            error,
            self.num_draws,
            int(used.sum()),
            int(lengths.sum()),
            self.split.fraction,
            self.split.seed,
            how,
        )

    def state(self) -> dict[str, Any]:
        """Give what it takes to go on in another process."""
        nothing = np.empty(0, np.int32)
        assignments = nothing if self.assignments is None else self.assignments
        return {"num_draws": self.num_draws, "sums": self.sums.copy(), "assignments": assignments}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of a score with the same split and settings."""
        sums = np.array(state["sums"], np.float64)
        if sums.shape != self.sums.shape:
            raise ValueError("`state` is of another split.")
        assignments = np.array(state["assignments"], np.int32)
        self.assignments = assignments if len(assignments) else None
        self.num_draws, self.sums = int(state["num_draws"]), sums


def perplexity(topics: Any, split: Completion, alpha: Any, **settings: Any) -> Perplexity:
    r"""Score topics, ours or foreign, by document completion.

    Parameters
    ----------
    topics
        One draw or point estimate (topics, words), several of them (draws, topics, words), or
        anything that gives one after the other. Rows sum to 1; `layout.as_topics` makes those of
        scikit-learn, gensim and tomotopy so.
    split, alpha, settings
        As in `CompletionScore`.

    Examples
    --------
    >>> from isotherm.topics.corpus import as_corpus, completion
    >>> split = completion(as_corpus([[2, 2, 2, 2]]), seed=0)
    >>> round(perplexity(np.full((1, 4), 0.25), split, alpha=0.1).value, 6)
    4.0
    """
    score = CompletionScore(split, alpha, **settings)
    for draw in _one_by_one(topics):
        score.add(draw)
    return score.result()


def unigram(corpus: Corpus, beta: float = 0.05) -> np.ndarray:
    """Make the one topic of no topic model, (1, words): word frequencies, smoothed by `beta`."""
    totals = np.bincount(corpus.words, corpus.counts, corpus.num_words) + beta
    return (totals / totals.sum())[None]


def _one_by_one(topics: Any) -> Iterable[Any]:
    if isinstance(topics, np.ndarray) and topics.ndim == 2:
        return [topics]
    return topics


def check_topics(topics: Any, num_words: int) -> np.ndarray:
    """Check that topics are distributions over the words of a corpus."""
    topics = np.asarray(topics)
    if topics.ndim != 2 or topics.shape[1] != num_words:
        raise ValueError(f"`topics` must have shape (topics, {num_words}), got {topics.shape}.")
    if not (topics >= 0).all():
        raise ValueError("`topics` must be numbers that are not negative.")
    off = np.abs(topics.sum(1, dtype=np.float64) - 1).max()
    if not off < 1e-3:
        raise ValueError(
            f"`topics` must sum to 1 (`layout.as_topics` makes them), off by {off:.3g}."
        )
    return topics


def _check_theta(theta: Any, shape: tuple[int, int]) -> np.ndarray:
    theta = np.asarray(theta, np.float32)
    if theta.shape != shape:
        raise ValueError(f"`theta` must have shape {shape}, got {theta.shape}.")
    totals = theta.sum(1, keepdims=True)
    if not ((theta >= 0).all() and (totals > 0).all()):
        raise ValueError("`theta` must not be negative, and every row must have mass.")
    return theta / totals


def _ratio(log_likelihood: np.ndarray, lengths: np.ndarray) -> tuple[float, float]:
    """Give the perplexity and its standard error over documents."""
    total, size = lengths.sum(), len(lengths)
    mean = log_likelihood.sum() / total
    if not np.isfinite(mean):
        return float("inf"), float("nan")
    value = float(np.exp(-mean))
    if size < 2:
        return value, float("nan")
    spread = np.sqrt(size / (size - 1) * np.sum((log_likelihood - mean * lengths) ** 2))
    return value, float(value * spread / total)

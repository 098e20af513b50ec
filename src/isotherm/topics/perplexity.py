r"""Perplexity of held-out words by document completion.

Of each test document some tokens are observed and the others scored
(`isotherm.topics.corpus.completion`). For draws $\phi^{(1)}, \dots, \phi^{(S)}$ of the topics,

$$ \bar p_{jw} = \frac1S \sum_s \sum_k \theta^{(s)}_{jk}\,\phi^{(s)}_{kw}, \qquad
   \text{perplexity} = \exp\Bigl(-\frac{\sum_{jw} n_{jw}\log\bar p_{jw}}{\sum_{jw} n_{jw}}\Bigr), $$

where $\theta^{(s)}_j$ is estimated from the *observed* tokens and $\phi^{(s)}$ (fold-in), and
$n_{jw}$ counts *scored* tokens. Probabilities are averaged before the logarithm is taken, so a
point estimate ($S = 1$) and a posterior are scored by the same rule. Only the non-zero cells of the
scored tokens are stored, not a matrix of documents by words.

The value depends on the fraction of observed tokens, the number of draws and the fold-in, so
`Perplexity` contains them.

The standard error is over samples of test documents, given the topics. The value is a function of a
ratio of sums over documents, $\ell_j = \sum_w n_{jw}\log\bar p_{jw}$ over $n_j$, and the delta
method gives, with $\hat L = \sum_j\ell_j/\sum_j n_j$,

$$ \mathrm{se} = \text{perplexity}\cdot
   \sqrt{\tfrac{J}{J-1}\sum_j (\ell_j - \hat L n_j)^2}\,/\sum_j n_j . $$

The difference of two models on the same documents has a much smaller standard error: compare models
by their difference.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from isotherm.topics import expected_counts, kernels, layout
from isotherm.topics.corpus import Completion, Corpus
from isotherm.topics.state import StateDict

FoldIn = Literal["gibbs", "fixed-point"]


class Perplexity(NamedTuple):
    """A perplexity, and everything it depends on."""

    value: float
    standard_error: float
    """Over test documents, by the delta method; NaN for one document or infinite perplexity."""
    num_draws: int
    """Number of draws of the topics that were averaged."""
    num_documents: int
    """Number of test documents with scored tokens."""
    num_tokens: int
    """Number of scored tokens."""
    observed: float
    """Fraction of tokens that was observed."""
    seed: int
    """Seed of the split."""
    fold_in: str
    """How proportions were estimated."""

    def __str__(self) -> str:
        return (
            f"{self.value:.1f} ± {self.standard_error:.1f} ({self.observed:.0%} observed, "
            f"draws averaged: {self.num_draws}, {self.num_documents} documents, "
            f"{self.num_tokens} tokens, {self.fold_in})"
        )


class CompletionScore:
    r"""Running perplexity: draws of the topics are added one by one, and scored at any time.

    Parameters
    ----------
    split
        Test documents, split by `isotherm.topics.corpus.completion`.
    alpha
        $\alpha$ of the documents: a number or one per topic.
    fold_in
        `"gibbs"` estimates the posterior mean of $\theta$ by sweeps; `"fixed-point"` iterates to a
        mode, without random numbers, for comparisons that should not depend on a sampler
        (`isotherm.topics.expected_counts`).
    sweeps, burn_in
        Gibbs sweeps per draw, and how many of them are discarded.
    warm
        Whether to start the sweeps of a draw from the assignments of the previous draw, without
        burn-in. Use it for successive states of one chain, whose topics keep their labels.
    seed
        Seed of the sweeps.
    threads
        Maximum number of threads; the value does not depend on it.
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
            raise ValueError(
                "There are no tokens to score: the documents are empty, or have one word each, "
                "which is observed."
            )
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
            Proportions (documents, topics) that the model itself has estimated from the observed
            tokens; rows are normalized.
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
        skipped = 0 if start is None else self.burn_in
        theta, assignments = expected_counts.fold_in(
            rows,
            observed,
            alpha,
            sweeps=self.sweeps - skipped,
            burn_in=self.burn_in - skipped,
            seed=self.seed,
            step=self.num_draws,
            assignments=start,
            threads=self.threads,
        )
        if self.warm:
            self.assignments = assignments
        return theta

    def log_probabilities(self) -> np.ndarray:
        r"""Return $\log\bar p$ of every scored cell, in the order of `split.scored.words`."""
        if self.num_draws == 0:
            raise ValueError(
                "There are no draws to score: call `add` with a draw of the topics first."
            )
        with np.errstate(divide="ignore"):
            return np.log(self.sums / self.num_draws)

    def document_log_likelihoods(self) -> np.ndarray:
        r"""Return $\ell_j$, the log probability of the scored tokens of each document."""
        x = self.split.scored
        terms = np.concatenate([[0.0], np.cumsum(x.counts * self.log_probabilities())])
        return np.diff(terms[x.indptr])

    def result(self) -> Perplexity:
        """Return the perplexity of all draws added so far."""
        log_likelihood = self.document_log_likelihoods()
        lengths = self.split.scored.lengths
        used = lengths > 0
        value, error = perplexity_with_error(log_likelihood[used], lengths[used])
        method = "fixed-point fold-in"
        if self.fold_in == "gibbs":
            method = f"{self.sweeps} sweeps, {self.burn_in} burn-in" + ", warm" * self.warm
        return Perplexity(
            value,
            error,
            self.num_draws,
            int(used.sum()),
            int(lengths.sum()),
            self.split.fraction,
            self.split.seed,
            method,
        )

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        state = {"num_draws": np.array(self.num_draws), "sums": self.sums.copy()}
        if self.assignments is not None:
            state["assignments"] = self.assignments.copy()
        return state

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a score with the same split and settings, bit for bit."""
        sums = np.array(state["sums"], np.float64)
        if sums.shape != self.sums.shape:
            raise ValueError("`state` has another split than this score.")
        self.assignments = None
        if "assignments" in state:
            self.assignments = np.array(state["assignments"], np.int32)
        self.num_draws, self.sums = int(state["num_draws"]), sums


def perplexity(topics: Any, split: Completion, alpha: Any, **settings: Any) -> Perplexity:
    r"""Compute the perplexity of topics, of this or another package, by document completion.

    Parameters
    ----------
    topics
        One draw or point estimate (topics, words), several draws (draws, topics, words), or an
        iterable of draws. Rows sum to 1; `layout.as_topics` converts topics of scikit-learn, gensim
        and tomotopy.
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
    for draw in _iterate_draws(topics):
        score.add(draw)
    return score.result()


def prequential_perplexity(predicted: np.ndarray) -> float:
    """Return the perplexity of tokens predicted before they were learned, NaN if there were none.

    Parameters
    ----------
    predicted
        Sums over scored batches: log likelihood of the predicted tokens, and their number.

    Examples
    --------
    >>> round(prequential_perplexity(np.array([-2 * np.log(10.0), 2])), 6)
    10.0
    """
    log_likelihood, num_tokens = predicted
    return float(np.exp(-log_likelihood / num_tokens)) if num_tokens else float("nan")


def unigram(corpus: Corpus, beta: float = 0.05) -> np.ndarray:
    """Return the unigram model as one topic, (1, words): word frequencies, smoothed by `beta`."""
    totals = np.bincount(corpus.words, corpus.counts, corpus.num_words) + beta
    return (totals / totals.sum())[None]


def _iterate_draws(topics: Any) -> Iterable[Any]:
    if isinstance(topics, np.ndarray) and topics.ndim == 2:
        return [topics]
    return topics


def check_topics(topics: Any, num_words: int) -> np.ndarray:
    """Check that topics are distributions over the words of a corpus; return them as an array."""
    topics = np.asarray(topics)
    if topics.ndim != 2 or topics.shape[1] != num_words:
        raise ValueError(f"`topics` must have shape (topics, {num_words}), got {topics.shape}.")
    if not (topics >= 0).all():
        raise ValueError("`topics` must not be negative or NaN.")
    off = np.abs(topics.sum(1, dtype=np.float64) - 1).max()
    if not off < 1e-3:
        raise ValueError(
            f"Rows of `topics` must sum to 1 (see `layout.as_topics`), but one is off by {off:.3g}."
        )
    return topics


def _check_theta(theta: Any, shape: tuple[int, int]) -> np.ndarray:
    theta = np.asarray(theta, np.float32)
    if theta.shape != shape:
        raise ValueError(f"`theta` must have shape {shape}, got {theta.shape}.")
    totals = theta.sum(1, keepdims=True)
    if not ((theta >= 0).all() and (totals > 0).all()):
        raise ValueError("`theta` must not be negative, and every row must have a positive sum.")
    return theta / totals


def perplexity_with_error(log_likelihood: np.ndarray, lengths: np.ndarray) -> tuple[float, float]:
    """Compute the perplexity and its standard error over documents."""
    total, size = lengths.sum(), len(lengths)
    mean = log_likelihood.sum() / total
    if not np.isfinite(mean):
        return float("inf"), float("nan")
    value = float(np.exp(-mean))
    if size < 2:
        return value, float("nan")
    spread = np.sqrt(size / (size - 1) * np.sum((log_likelihood - mean * lengths) ** 2))
    return value, float(value * spread / total)

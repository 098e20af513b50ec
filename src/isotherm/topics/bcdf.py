r"""Latent Dirichlet allocation by Bayesian conditional density filtering: one pass over a stream.

The posterior of the topics given all documents so far is replaced by a Dirichlet with expected
counts, $\phi_k \mid \text{past} \sim \mathrm{Dir}(\beta + a_k)$. A batch arrives; its assignments
are drawn from

$$ p(z \mid w, a) \propto \prod_j\prod_k\Gamma(\alpha_k + n_{jk\cdot})\,
   \prod_k \frac{\prod_w\Gamma(\beta + a_{kw} + n_{kw})}{\Gamma(V\beta + a_{k\cdot} + n_{k\cdot})},
   \qquad a \leftarrow a + \mathrm E[n], $$

and the batch is discarded. There is no step size. Guhaniyogi et al. alternate draws of topics,
proportions and assignments; here topics and proportions are integrated out, which has the same
target for $z$ and mixes faster.

Poor assignments of the first batches stay in $a$, which is the main error on a stream. So old
counts can be discounted: with $J_t$ documents seen, $B$ of them in this batch, and a decay
$\kappa \le 1$,

$$ a \leftarrow (1 - \rho_t)\,\frac{J_t}{J_{t-1}}\,a + \rho_t\,\frac{J_t}{B}\,\mathrm E[n], \qquad
   \rho_t = (B/J_t)^\kappa . $$

The total of $a$ always corresponds to all documents seen. $\kappa = 1$ is the sum above;
$\kappa < 1$ gives later batches more weight, as in online variational Bayes. Unlike there, a
collapsed Gibbs sampler, which includes the batch's own counts, estimates $\mathrm E[n]$.

References
----------
Guhaniyogi, Qamar & Dunson (2014), *Bayesian conditional density filtering*.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from isotherm.topics import counter_rng, kernels, layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.dirichlet_priors import (
    PriorSums,
    Shape,
    check_prior_counts,
    check_shape,
    document_sums,
    word_sums,
)
from isotherm.topics.expected_counts import check_sweeps, doc_topic_counts, sweep_collapsed
from isotherm.topics.state import StateDict


class BCDFLDA:
    r"""Conditional density filter for the topics of a stream.

    Parameters
    ----------
    num_topics, num_words
        $K$ and $V$.
    alpha
        $\alpha$ of the documents: a number (symmetric) or one per topic.
    beta
        $\beta$, symmetric.
    sweeps, burn_in
        Gibbs sweeps per batch, after one that initializes the assignments, and how many of them are
        discarded.
    decay
        $\kappa$, above 0.5 and at most 1; with 1 old counts are never discounted.
    data_size
        Upper limit of $J_t$ in the factors $J_t/J_{t-1}$ and $J_t/B$ (not in $\rho_t$), for a
        stream that repeats its documents; by default none.
    prior_counts
        Pseudo-counts that are added to $\beta$, (topics, words), for topics that are expected to
        have certain words; they are never discounted.
    learn_alpha, learn_beta
        Whether to learn $\alpha$ (`"asymmetric"`: one per topic, `"symmetric"`: one for all, or
        `None`) and $\beta$ from the stream (`isotherm.topics.dirichlet_priors`); `alpha` and `beta`
        are then the first values. $\beta$ is learned from the first `data_size` documents only.
    seed
        Seed of all random numbers.

    Examples
    --------
    >>> from isotherm.topics.corpus import as_corpus
    >>> corpus = as_corpus([[3, 1, 0], [0, 1, 4], [2, 2, 0], [0, 0, 5]])
    >>> filter = BCDFLDA(2, corpus.num_words)
    >>> filter.update(corpus[:2])
    >>> filter.update(corpus[2:])
    >>> filter.topics().shape, round(float(filter.counts.sum()))
    ((2, 3), 18)
    """

    def __init__(
        self,
        num_topics: int,
        num_words: int,
        *,
        alpha: Any = 0.1,
        beta: float = 0.05,
        sweeps: int = 100,
        burn_in: int = 60,
        decay: float = 1.0,
        data_size: float = np.inf,
        prior_counts: Any = None,
        learn_alpha: Shape | None = None,
        learn_beta: bool = False,
        seed: int = 0,
    ) -> None:
        if num_topics < 1 or num_words < 1:
            raise ValueError(
                "`num_topics` and `num_words` must be at least 1, "
                f"got {num_topics} and {num_words}."
            )
        if not (beta > 0 and np.isfinite(beta)):
            raise ValueError(f"`beta` must be positive, got {beta}.")
        if not 0.5 < decay <= 1:
            raise ValueError(f"`decay` must be above 0.5 and at most 1, got {decay}.")
        if not data_size >= 1:
            raise ValueError(f"`data_size` must be at least 1, got {data_size}.")
        check_sweeps(sweeps, burn_in)
        self.decay, self.data_size = decay, data_size
        self.num_topics, self.num_words, self.beta = num_topics, num_words, beta
        self.alpha = layout.as_alpha(alpha, num_topics)
        self.sweeps, self.burn_in, self.seed = sweeps, burn_in, seed
        self.num_batches = self.num_documents = 0
        self.counts = np.zeros((num_words, layout.padded_size(num_topics)))
        """$a$: expected counts of all documents seen, word-major, float64."""
        self.prior_counts = check_prior_counts(prior_counts, num_topics, num_words)
        self.learn_alpha: Shape | None = check_shape(learn_alpha)
        self.learn_beta = learn_beta
        size = 1 if learn_alpha == "symmetric" else num_topics
        self.alpha_sums = PriorSums(np.zeros(size), 0.0)
        self.beta_sums = PriorSums(np.zeros(1), 0.0)

    def update(self, batch: Corpus) -> None:
        """Update the expected counts with a batch."""
        if batch.num_words != self.num_words:
            raise ValueError(f"`batch` has {batch.num_words} words, the filter {self.num_words}.")
        if len(batch) == 0:
            raise ValueError("`batch` has no documents.")
        words, word_rows = kernels.distinct_words(batch.words, batch.num_words)
        expected, prior_sums = self._expected_counts(batch, words, word_rows)
        num_documents = self.num_documents + len(batch)
        old, new = min(self.num_documents, self.data_size), min(num_documents, self.data_size)
        rate = (len(batch) / num_documents) ** self.decay
        kept, weight = (1 - rate) * new / old if old else 0.0, rate * new / len(batch)
        if old:
            self.counts *= kept
        self.counts[words] += weight * expected
        self._update_priors(*prior_sums, kept, weight)
        self.num_batches += 1
        self.num_documents = num_documents

    def update_all(self, batches: Iterable[Corpus]) -> None:
        """Update the expected counts with several batches, one after the other."""
        for batch in batches:
            self.update(batch)

    def _update_priors(
        self, alpha: PriorSums | None, beta: PriorSums | None, kept: float, weight: float
    ) -> None:
        if alpha is not None:
            self.alpha_sums = self.alpha_sums.discount(kept, alpha, weight)
            value = self.alpha_sums.value()
            self.alpha = layout.as_alpha(np.broadcast_to(value, self.num_topics), self.num_topics)
        if beta is not None:
            self.beta_sums = self.beta_sums.discount(kept, beta, weight)
            self.beta = float(self.beta_sums.value().item())

    def _expected_counts(
        self, batch: Corpus, words: np.ndarray, word_rows: np.ndarray
    ) -> tuple[np.ndarray, tuple[PriorSums | None, PriorSums | None]]:
        r"""Average the counts of the batch over kept sweeps, (distinct words, padded).

        The second result is the terms of the batch for learning $\alpha$ and $\beta$, or `None`.
        """
        size = self.counts.shape[1]
        shape = self._counts_and_prior()
        word_topics, totals = shape.astype(np.float32), shape.sum(0)
        tokens, cells = batch.tokens(), size * np.repeat(word_rows, batch.counts).astype(np.int64)
        assignments = np.full(len(tokens), -1, np.int32)
        key = counter_rng.purpose_key(self.seed, "collapsed")
        rounds, starts = 1 + self.sweeps, batch.token_starts
        sums = np.zeros(len(words) * size)
        for sweep in range(rounds):
            step = self.num_batches * rounds + sweep
            sweep_collapsed(
                tokens,
                starts,
                assignments,
                word_topics,
                totals,
                self.alpha,
                self.beta,
                counter_rng.streams(key, step, batch.documents),
            )
            if sweep > self.burn_in:
                sums += np.bincount(cells + assignments, minlength=len(sums))
        expected = sums.reshape(-1, size) / (self.sweeps - self.burn_in)
        return expected, self._prior_sums(batch, words, cells, assignments)

    def _prior_sums(
        self, batch: Corpus, words: np.ndarray, cells: np.ndarray, assignments: np.ndarray
    ) -> tuple[PriorSums | None, PriorSums | None]:
        alpha = beta = None
        size, used = self.counts.shape[1], slice(self.num_topics)
        if self.learn_alpha is not None:
            n = doc_topic_counts(batch, assignments, size)[:, used]
            alpha = document_sums(n, self.alpha.astype(np.float64), self.learn_alpha)
        if self.learn_beta and self.num_documents < self.data_size:
            n = np.bincount(cells + assignments, minlength=len(words) * size).reshape(-1, size)
            shape = self._counts_and_prior()
            past, totals = shape[words][:, used], shape.sum(0)[used]
            beta = word_sums(past, totals, n[:, used], self.beta, self.num_words)
        return alpha, beta

    def _counts_and_prior(self) -> np.ndarray:
        """Return the counts plus the pseudo-counts, without a copy if there are none."""
        return self.counts if self.prior_counts.size == 1 else self.counts + self.prior_counts

    def topics(self) -> np.ndarray:
        r"""Compute $\mathrm E[\phi]$, (topics, words), float32; rows sum to 1."""
        shape = layout.topic_major(self._counts_and_prior(), self.num_topics) + self.beta
        return (shape / shape.sum(1, keepdims=True)).astype(np.float32)

    def draw(self, index: int = 0) -> np.ndarray:
        r"""Draw $\phi_k \sim \mathrm{Dir}(\beta + a_k)$, (topics, words), float32.

        Different values of `index` give independent draws.
        """
        rng = counter_rng.generator(self.seed, "topics", self.num_batches * 2**20 + index)
        shape = layout.topic_major(self._counts_and_prior(), self.num_topics) + self.beta
        return draw_topics(rng, shape)

    def start_from(
        self, counts: np.ndarray, num_documents: int, alpha: np.ndarray, beta: float
    ) -> None:
        """Start from counts and priors that were learned from earlier documents.

        `counts`, (topics, words), include the pseudo-counts `prior_counts`.
        """
        self.counts[:, : self.num_topics] = counts.T
        self.counts -= np.minimum(self.prior_counts, self.counts)
        self.num_documents, self.beta = num_documents, beta
        self.alpha = layout.as_alpha(alpha, self.num_topics)
        if self.learn_alpha is not None:
            value = self.alpha[:1] if self.learn_alpha == "symmetric" else self.alpha
            self.alpha_sums = PriorSums(value.astype(np.float64) * num_documents, num_documents)
        if self.learn_beta:
            self.beta_sums = PriorSums(np.full(1, beta * num_documents), num_documents)

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        state = {
            "counts": self.counts.copy(),
            "num_batches": np.array(self.num_batches),
            "num_documents": np.array(self.num_documents),
        }
        if self.learn_alpha is not None:
            state["alpha"] = np.array(self.alpha)
            state["alpha_tables"] = np.array(self.alpha_sums.tables)
            state["alpha_exposure"] = np.array(self.alpha_sums.exposure)
        if self.learn_beta:
            state["beta"] = np.array(self.beta)
            state["beta_tables"] = np.array(self.beta_sums.tables)
            state["beta_exposure"] = np.array(self.beta_sums.exposure)
        return state

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a filter with the same settings, bit for bit."""
        counts = np.array(state["counts"], np.float64)
        if counts.shape != self.counts.shape:
            raise ValueError("`state` has another vocabulary or number of topics than this filter.")
        self.counts = counts
        self.num_batches = int(state["num_batches"])
        self.num_documents = int(state["num_documents"])
        if self.learn_alpha is not None:
            self.alpha = layout.as_alpha(state["alpha"], self.num_topics)
            tables = np.array(state["alpha_tables"], np.float64)
            self.alpha_sums = PriorSums(tables, float(state["alpha_exposure"]))
        if self.learn_beta:
            self.beta = float(state["beta"])
            tables = np.array(state["beta_tables"], np.float64)
            self.beta_sums = PriorSums(tables, float(state["beta_exposure"]))


def draw_topics(rng: np.random.Generator, shape: np.ndarray) -> np.ndarray:
    r"""Draw topics from Dirichlet distributions with the given shapes, (topics, words), float32."""
    gamma = rng.standard_gamma(shape)
    return (gamma / gamma.sum(1, keepdims=True)).astype(np.float32)

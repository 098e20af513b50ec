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
$\kappa < 1$ gives later batches more weight, as in online variational Bayes, but the batch is
counted by a collapsed Gibbs sampler that includes the batch's own counts.

References
----------
Guhaniyogi, Qamar & Dunson (2014), *Bayesian conditional density filtering*.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from isotherm.topics import counter_rng, kernels, layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.expected_counts import check_sweeps
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
        Upper limit of $J_t$, for a stream that repeats its documents; by default none.
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

    def update(self, batch: Corpus) -> None:
        """Update the expected counts with a batch."""
        if batch.num_words != self.num_words:
            raise ValueError(f"`batch` has {batch.num_words} words, the filter {self.num_words}.")
        if len(batch) == 0:
            raise ValueError("`batch` has no documents.")
        words, word_rows = kernels.distinct_words(batch.words, batch.num_words)
        expected = self._expected_counts(batch, words, word_rows)
        num_documents = self.num_documents + len(batch)
        old, new = min(self.num_documents, self.data_size), min(num_documents, self.data_size)
        rate = (len(batch) / num_documents) ** self.decay
        if old:
            self.counts *= (1 - rate) * new / old
        self.counts[words] += rate * new / len(batch) * expected
        self.num_batches += 1
        self.num_documents = num_documents

    def update_all(self, batches: Iterable[Corpus]) -> None:
        """Update the expected counts with several batches, one after the other."""
        for batch in batches:
            self.update(batch)

    def _expected_counts(
        self, batch: Corpus, words: np.ndarray, word_rows: np.ndarray
    ) -> np.ndarray:
        """Average the counts of the batch over kept sweeps, (distinct words, padded)."""
        size = self.counts.shape[1]
        word_topics, totals = self.counts.astype(np.float32), self.counts.sum(0)
        tokens, cells = batch.tokens(), size * np.repeat(word_rows, batch.counts).astype(np.int64)
        assignments = np.full(len(tokens), -1, np.int32)
        key = counter_rng.purpose_key(self.seed, "collapsed")
        rounds = 1 + self.sweeps
        sums = np.zeros(len(words) * size)
        for sweep in range(rounds):
            step = self.num_batches * rounds + sweep
            kernels.sweep_collapsed(
                tokens,
                batch.token_starts,
                assignments,
                word_topics,
                totals,
                layout.padded(self.alpha),
                np.float32(self.beta),
                counter_rng.streams(key, step, batch.documents)[None],
                1,
            )
            if sweep > self.burn_in:
                sums += np.bincount(cells + assignments, minlength=len(sums))
        return sums.reshape(-1, size) / (self.sweeps - self.burn_in)

    def topics(self) -> np.ndarray:
        r"""Compute $\mathrm E[\phi]$, (topics, words), float32; rows sum to 1."""
        shape = layout.topic_major(self.counts, self.num_topics) + self.beta
        return (shape / shape.sum(1, keepdims=True)).astype(np.float32)

    def draw(self, index: int = 0) -> np.ndarray:
        r"""Draw $\phi_k \sim \mathrm{Dir}(\beta + a_k)$, (topics, words), float32.

        Different values of `index` give independent draws.
        """
        rng = counter_rng.generator(self.seed, "topics", self.num_batches * 2**20 + index)
        gamma = rng.standard_gamma(layout.topic_major(self.counts, self.num_topics) + self.beta)
        return (gamma / gamma.sum(1, keepdims=True)).astype(np.float32)

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        return {
            "counts": self.counts.copy(),
            "num_batches": np.array(self.num_batches),
            "num_documents": np.array(self.num_documents),
        }

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a filter with the same settings, bit for bit."""
        counts = np.array(state["counts"], np.float64)
        if counts.shape != self.counts.shape:
            raise ValueError("`state` has another vocabulary or number of topics than this filter.")
        self.counts = counts
        self.num_batches = int(state["num_batches"])
        self.num_documents = int(state["num_documents"])

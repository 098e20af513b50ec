r"""Learn the Dirichlet priors of LDA: $\alpha$ of documents and $\beta$ of words.

Write $n_{jk}$ for the tokens of topic $k$ in document $j$, $N_j = \sum_k n_{jk}$,
$A = \sum_k\alpha_k$. With the hyperprior $\alpha_k \sim \Gamma(a, \text{rate } b)$ and proportions
integrated out,

$$ p(\alpha \mid n) \propto p(\alpha)\prod_j\frac{\Gamma(A)}{\Gamma(A + N_j)}
   \prod_k\frac{\Gamma(\alpha_k + n_{jk})}{\Gamma(\alpha_k)} . $$

*All documents* (Gibbs). Given $q_j \sim \mathrm{Beta}(A, N_j)$ and tables
$t_{jk} \sim \mathrm{CRT}(n_{jk}, \alpha_k)$ the conditional is a gamma distribution,

$$ \alpha_k \mid t, q \sim \Gamma\Bigl(a + \sum_j t_{jk},\
   \text{rate } b - \sum_j\log q_j\Bigr), $$

an exact Gibbs step. For a symmetric prior, one $\alpha$ for all topics, the sum is also over $k$
and the logarithms count $K$ times. $\beta$ is the same with words in place of topics and topics in
place of documents.

*A stream* (filter, stochastic gradients). Replacing tables and logarithms by their means,

$$ \alpha_k \leftarrow \frac{a + \sum_j\alpha_k[\digamma(\alpha_k + n_{jk}) - \digamma(\alpha_k)]}
   {b + \sum_j[\digamma(A + N_j) - \digamma(A)]} , $$

is Minka's fixed-point iteration for the maximum of $p(\alpha \mid n)$. Numerator and denominator
are sums over documents, so they are discounted in the same way as the counts of the filter. There
is one step of the iteration per batch.

$\beta$ of a filter is learned from how well the past predicts the words of the next batch: with
counts $m_{kw}$ of the past and $n_{kw}$ of the batch, the words of a topic have the probability
$\prod_k\frac{\Gamma(V\beta + m_k)}{\Gamma(V\beta + m_k + n_k)}
\prod_w\frac{\Gamma(\beta + m_{kw} + n_{kw})}{\Gamma(\beta + m_{kw})}$, and the same bounds as
Minka's give

$$ \beta \leftarrow \frac{a + \sum_{kw}\beta
   [\digamma(\beta + m_{kw} + n_{kw}) - \digamma(\beta + m_{kw})]}
   {b + V\sum_k[\digamma(V\beta + m_k + n_k) - \digamma(V\beta + m_k)]} . $$

References
----------
Minka (2000), *Estimating a Dirichlet distribution*. Wallach, Mimno & McCallum (2009), *Rethinking
LDA: why priors matter*, NeurIPS: asymmetric $\alpha$ with symmetric $\beta$ is the useful
combination. Teh et al. (2006), *Hierarchical Dirichlet processes*, JASA, appendix A.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import digamma

from isotherm.topics import kernels, layout

Shape = Literal["asymmetric", "symmetric"]
HYPER_SHAPE, HYPER_RATE = 1.0, 1.0
"""$a$ and $b$ of the hyperprior."""
SMALLEST = 1e-4
"""Lower limit of a learned prior: the kernels multiply it in single precision."""


def check_shape(shape: Any) -> Shape | None:
    """Check the argument `learn_alpha` of a learner, and return it."""
    if shape not in (None, "asymmetric", "symmetric"):
        raise ValueError(f"`learn_alpha` must be 'asymmetric', 'symmetric' or None, got {shape!r}.")
    return shape


def check_prior_counts(counts: Any, num_topics: int, num_words: int) -> np.ndarray:
    """Check pseudo-counts (topics, words) and return them word-major and padded; `None` is 0."""
    padded = np.zeros((num_words, layout.padded_size(num_topics)))
    if counts is None:
        return padded[:1, :1]
    counts = np.asarray(counts, np.float64)
    if counts.shape != (num_topics, num_words):
        raise ValueError(
            f"`prior_counts` must have shape ({num_topics}, {num_words}), got {counts.shape}."
        )
    if not ((counts >= 0) & np.isfinite(counts)).all():
        raise ValueError("`prior_counts` must be finite and not negative.")
    padded[:, :num_topics] = counts.T
    return padded


class PriorSums(NamedTuple):
    """Numerator and denominator of the fixed point, sums over documents without the hyperprior."""

    tables: np.ndarray
    """The numerator: one number per topic, or one number for a symmetric prior."""
    exposure: float
    """The denominator."""

    def value(self) -> np.ndarray:
        """Return the next value of the prior."""
        return np.maximum((HYPER_SHAPE + self.tables) / (HYPER_RATE + self.exposure), SMALLEST)

    def discount(self, old: float, new: "PriorSums", weight: float) -> "PriorSums":
        """Return `old` times these sums plus `weight` times the `new` ones."""
        return PriorSums(
            old * self.tables + weight * new.tables, old * self.exposure + weight * new.exposure
        )


def document_sums(doc_topics: np.ndarray, alpha: np.ndarray, shape: Shape) -> PriorSums:
    r"""Compute the sums of the fixed point of $\alpha$.

    Parameters
    ----------
    doc_topics
        $n_{jk}$, (documents, topics), whole numbers.
    alpha
        Current $\alpha$, (topics,).
    shape
        `"asymmetric"`: every topic has its own $\alpha_k$; `"symmetric"`: one $\alpha$ for all.

    Examples
    --------
    >>> sums = document_sums(np.array([[2, 0]]), np.array([1.0, 1.0]), "asymmetric")
    >>> sums.tables, round(sums.exposure, 4)
    (array([1.5, 0. ]), 0.8333)
    """
    total = alpha.sum()
    exposure = float(np.sum(digamma(total + doc_topics.sum(1)) - digamma(total)))
    tables = expected_tables(doc_topics, alpha)
    if shape == "symmetric":
        return PriorSums(tables.sum(), len(alpha) * exposure)
    return PriorSums(tables, exposure)


def word_sums(
    past: np.ndarray, past_totals: np.ndarray, counts: np.ndarray, beta: float, num_words: int
) -> PriorSums:
    r"""Compute the sums of the fixed point of $\beta$ from a batch, given the past.

    Parameters
    ----------
    past, past_totals
        $m_{kw}$ for the distinct words of the batch, (distinct words, topics), and $m_k$, the sum
        over all words.
    counts
        $n_{kw}$ of the batch, (distinct words, topics), whole numbers.
    beta
        Current $\beta$.
    num_words
        $V$.
    """
    some = counts > 0
    before = beta + past[some]
    tables = beta * np.sum(digamma(before + counts[some]) - digamma(before))
    mass = num_words * beta + past_totals
    exposure = num_words * np.sum(digamma(mass + counts.sum(0)) - digamma(mass))
    return PriorSums(tables, float(exposure))


def draw_document_prior(
    rng: np.random.Generator,
    token_starts: np.ndarray,
    assignments: np.ndarray,
    alpha: np.ndarray,
    shape: Shape,
) -> np.ndarray:
    r"""Draw $\alpha$ given the topics of all tokens, (topics,).

    Parameters
    ----------
    rng
        Random generator.
    token_starts, assignments
        Index of each document's first token, then the number of tokens; the topic of every token.
    alpha, shape
        As in `document_sums`.
    """
    lengths, size = np.diff(token_starts), len(alpha)
    rate = -draw_log_beta(rng, float(alpha.sum()), lengths[lengths > 0]).sum()
    found = kernels.documents_with_at_least(token_starts, assignments, size)
    tables = draw_table_sums(rng, *found, alpha)
    if shape == "symmetric":
        tables, rate = tables.sum(), size * rate
    drawn = rng.gamma(HYPER_SHAPE + tables) / (HYPER_RATE + rate)
    return np.broadcast_to(np.maximum(drawn, SMALLEST), (size,))


def draw_log_beta(rng: np.random.Generator, a: float, b: np.ndarray) -> np.ndarray:
    r"""Draw $\log q$ for $q \sim \mathrm{Beta}(a, b)$; $q$ itself underflows for small $a$."""
    size = len(b)
    log_first = np.log(rng.standard_gamma(a + 1, size)) - rng.standard_exponential(size) / a
    return log_first - np.logaddexp(log_first, np.log(rng.standard_gamma(b)))


def draw_word_prior(
    rng: np.random.Generator, word_topics: np.ndarray, totals: np.ndarray, beta: float
) -> float:
    r"""Draw $\beta$ given the tokens of all topics.

    Parameters
    ----------
    rng
        Random generator.
    word_topics
        $n_{kw}$, (words, padded), float32.
    totals
        $n_k$, (topics,).
    beta
        Current $\beta$.
    """
    num_words, at_least = len(word_topics), kernels.cells_with_at_least(word_topics)
    tables = draw_table_sums(rng, at_least, np.array([0, len(at_least)]), np.array([beta])).sum()
    rate = -draw_log_beta(rng, num_words * beta, totals[totals > 0]).sum()
    drawn = rng.gamma(HYPER_SHAPE + tables) / (HYPER_RATE + num_words * rate)
    return float(np.maximum(drawn, SMALLEST).item())


def expected_tables(counts: np.ndarray, rates: np.ndarray) -> np.ndarray:
    r"""Compute $r_k\sum[\digamma(n_k + r_k) - \digamma(r_k)]$ over all axes but the last.

    Examples
    --------
    >>> expected_tables(np.array([[2], [0]]), np.array([1.0]))
    array([1.5])
    """
    flat = counts.reshape(-1, counts.shape[-1])
    some = flat > 0
    topic = np.nonzero(some)[1]
    r = rates[topic]
    means = r * (digamma(flat[some] + r) - digamma(r))
    return np.bincount(topic, means, counts.shape[-1])


def draw_table_sums(
    rng: np.random.Generator, at_least: np.ndarray, starts: np.ndarray, rates: np.ndarray
) -> np.ndarray:
    """Draw the number of tables of each topic, summed over documents, (topics,).

    The $i$-th token opens a table with probability $r/(r + i - 1)$, independently, so tables are
    binomial variables over the documents with at least $i$ tokens.

    Parameters
    ----------
    rng
        Random generator.
    at_least, starts
        As returned by `isotherm.topics.kernels.documents_with_at_least`.
    rates
        $r$, (topics,).
    """
    sizes = np.diff(starts)
    r = np.repeat(rates.astype(np.float64), sizes)
    before = np.arange(len(at_least)) - np.repeat(starts[:-1], sizes)
    drawn = rng.binomial(at_least, r / (r + before))
    return np.diff(np.concatenate([[0], np.cumsum(drawn)])[starts])

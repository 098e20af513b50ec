r"""Summaries of posterior draws: topic shares, top words, words of units, co-activation of units.

*Words of a unit* of layer $\ell \ge 2$ of a deep model are those that become more frequent when the
unit is on. Its layer is set to its prior means, the unit to 1 or 0, and means are propagated down,
$m^{(\ell-1)} = \sigma(W^{(\ell-1)}m^{(\ell)} + c^{(\ell-1)})$. The words have the weights

$$ \Bigl(\sum_k \bigl(m^{(1)}_{k,\text{on}} - m^{(1)}_{k,\text{off}}\bigr)\,
   \frac{r_kp_k}{1 - p_k}\,\phi_{kv}\Bigr)_+ , $$

normalized to sum 1, since a topic that is on has the expected intensity $r_kp_k/(1 - p_k)$. A unit
that only switches topics off has no words.

*Co-activation* of two units of adjacent layers is the correlation of their states.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from isotherm.topics import counter_rng, layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import local_gibbs
from isotherm.topics.dpfa.model import Parameters, draw_units
from isotherm.topics.expected_counts import doc_topic_counts, fold_in

WARM_SWEEPS = 10
"""Sweeps per draw after the first, which start from the state of the previous draw.

With fewer the proportions have a visible Monte Carlo error: on Wikipedia a perplexity of 1228 with
3 sweeps, 1210 with 10 and 1205 with 20, for the same 20 draws.
"""
_CHUNK = 1000
"""Number of documents whose local variables are in memory at a time."""


class TopicShares(NamedTuple):
    """Posterior means of topic shares, and the ends of credible intervals."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class TopWord(NamedTuple):
    """A word of a topic."""

    word: Any
    """The word, or its column if there is no vocabulary."""
    probability: float
    """Its posterior mean in the topic."""
    membership: float
    """Fraction of the draws in which it is among the topic's top words."""


def draw_proportions(
    draws: np.ndarray,
    corpus: Corpus,
    alpha: np.ndarray,
    *,
    sweeps: int,
    burn_in: int,
    seed: int,
    threads: int,
) -> Iterator[np.ndarray]:
    r"""Draw the proportions of documents, (documents, topics), for every draw of the topics.

    Topics are assigned to words by Gibbs sweeps, then $\theta_j \sim \mathrm{Dir}(\alpha + n_j)$.
    """
    for i, topics in enumerate(draws):
        z = fold_in(
            layout.word_major(topics),
            corpus,
            alpha,
            sweeps=sweeps,
            burn_in=burn_in,
            seed=seed,
            step=i,
            threads=threads,
        ).assignments
        n = doc_topic_counts(corpus, z, len(alpha))
        rng = counter_rng.generator(seed, "topics", -2 - i)
        theta = rng.standard_gamma(n + alpha)
        yield theta / theta.sum(1, keepdims=True)


def summarize_shares(values: np.ndarray, level: float) -> TopicShares:
    """Compute means and central credible intervals over draws, the first axis."""
    tail = (1 - level) / 2
    return TopicShares(values.mean(0), *np.quantile(values, [tail, 1 - tail], axis=0))


def top_words(
    mean: np.ndarray, draws: np.ndarray, num_words: int, names: Any
) -> list[list[TopWord]]:
    """List the most probable words of each topic, and how often they are top words in the draws.

    Words of probability zero are not listed.
    """
    size, lists = min(num_words, mean.shape[1]), []
    ranked = np.argpartition(-draws, size - 1, axis=2)[:, :, :size]
    for k, topic in enumerate(mean):
        membership = np.bincount(ranked[:, k].ravel(), minlength=len(topic)) / len(ranked)
        words = np.argsort(-topic)[:size]
        lists.append(
            [
                TopWord(
                    int(w) if names is None else names[w], float(topic[w]), float(membership[w])
                )
                for w in words
                if topic[w] > 0
            ]
        )
    return lists


class DocumentSummary(NamedTuple):
    """Latent variables of documents, averaged over draws."""

    shares: np.ndarray
    r"""$\mathrm E[\theta]$, normalized for every draw, (documents, topics)."""
    intensities: np.ndarray
    r"""$\mathrm E[\theta]$, (documents, topics)."""
    units: tuple[np.ndarray, ...]
    """Probability that a unit is on, (documents, units) for each layer."""
    activation: "Activation"
    drawn: "DrawnShares"


class DrawnShares(NamedTuple):
    """Shares of topics and main topics of documents, for every draw."""

    shares: np.ndarray
    """Mean share of each topic over documents, (draws, topics)."""
    main_topics: np.ndarray
    """Topic with the largest share of each document, (draws, documents)."""


class Activation(NamedTuple):
    """How often units are on, and how they are correlated."""

    on: tuple[np.ndarray, ...]
    """Fraction of documents in which each unit is on, for each layer."""
    correlation: tuple[np.ndarray, ...]
    """Correlation with units of the layer above, (units, units above); 0 for constant units."""


def numbered_by_words(corpus: Corpus) -> Corpus:
    """Renumber documents by a hash of their words, so that random numbers depend only on words."""
    cells = counter_rng.fold(
        counter_rng.as_uint64(corpus.words), counter_rng.as_uint64(corpus.counts)
    )
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(cells, dtype=np.uint64)])
    return replace(corpus, documents=np.diff(sums[corpus.indptr]).astype(np.int64))


class ActivationSums:
    """Sums over states of units, for means and correlations."""

    def __init__(self) -> None:
        self.number = 0
        self.on: list[np.ndarray] = []
        self.both: list[np.ndarray] = []

    def add(self, layers: tuple[np.ndarray, ...]) -> None:
        """Add states of all layers, each (rows, units)."""
        h = [np.asarray(x, np.float32) for x in layers]
        on, both = [x.sum(0) for x in h], [a.T @ b for a, b in pairwise(h)]
        first = self.number == 0
        self.on = on if first else [x + y for x, y in zip(self.on, on, strict=True)]
        self.both = both if first else [x + y for x, y in zip(self.both, both, strict=True)]
        self.number += len(h[0])

    def result(self) -> Activation:
        """Return means, and correlations between adjacent layers."""
        on = [x.astype(np.float64) / self.number for x in self.on]
        spread, correlation = [np.sqrt(x * (1 - x)) for x in on], []
        for layer, both in enumerate(self.both):
            scale = np.outer(spread[layer], spread[layer + 1])
            excess = both / self.number - np.outer(on[layer], on[layer + 1])
            where = scale > 1e-9
            correlation.append(np.divide(excess, scale, out=np.zeros_like(scale), where=where))
        return Activation(tuple(on), tuple(correlation))


def summarize_documents(
    draws: list[Parameters],
    corpus: Corpus,
    *,
    sweeps: int,
    burn_in: int,
    seed: int,
    threads: int,
) -> DocumentSummary:
    """Sweep documents for every draw, starting from the state of the previous draw.

    Parameters
    ----------
    draws
        Draws of one chain, whose topics keep their labels.
    corpus
        The documents.
    sweeps, burn_in
        Sweeps for the first draw, and how many of them are discarded.
    seed, threads
        As in `isotherm.topics.dpfa.local_gibbs.sweep`.
    """
    sums, parts = ActivationSums(), []
    shares = np.zeros((len(draws), draws[0].topics.shape[0]))
    main_topics = np.zeros((len(draws), len(corpus)), np.int32)
    for first in range(0, len(corpus), _CHUNK):
        part, state, means = corpus[first : first + _CHUNK], None, []
        for i, draw in enumerate(draws):
            num_sweeps, num_discarded = (sweeps, burn_in) if state is None else (WARM_SWEEPS, 0)
            result = local_gibbs.sweep(
                local_gibbs.prepare_parameters(draw),
                part,
                sweeps=num_sweeps,
                burn_in=num_discarded,
                thin=1,
                seed=seed,
                step=i,
                state=state,
                count_words=False,
                threads=threads,
            )
            state, theta = result.state, result.intensities.astype(np.float64)
            layers = [h.mean(0, dtype=np.float64) for h in result.units]
            normalized = theta / theta.sum(1, keepdims=True)
            shares[i] += normalized.sum(0) / len(corpus)
            main_topics[i, first : first + _CHUNK] = normalized.argmax(1)
            means.append([normalized, theta, *layers])
            sums.add(tuple(h.reshape(-1, h.shape[-1]) for h in result.units))
        parts.append([np.mean(x, axis=0) for x in zip(*means, strict=True)])
    mean, intensities, *units = (np.concatenate(x) for x in zip(*parts, strict=True))
    drawn = DrawnShares(shares, main_topics)
    return DocumentSummary(mean, intensities, tuple(units), sums.result(), drawn)


def prior_activation(
    draws: list[Parameters], *, seed: int, num_documents: int = 1000
) -> Activation:
    """Compute the activation of units under the prior that the network has learned."""
    rng, sums = counter_rng.generator(seed, "documents", -1), ActivationSums()
    for draw in draws:
        sums.add(draw_units(rng, draw, num_documents))
    return sums.result()


def unit_words(parameters: Parameters, layer: int) -> np.ndarray:
    """Compute the words of every unit of a layer, (units, words); layer 1 is the topics."""
    if layer == 1:
        return np.asarray(parameters.topics, np.float64)
    means = expit(parameters.biases[-1])
    for i in range(len(parameters.biases) - 2, layer - 2, -1):
        means = expit(parameters.weights[i] @ means + parameters.biases[i])
    on, off = (np.tile(means, (len(means), 1)) for _ in range(2))
    np.fill_diagonal(on, 1.0)
    np.fill_diagonal(off, 0.0)
    for i in range(layer - 2, -1, -1):
        w, c = parameters.weights[i], parameters.biases[i]
        on, off = expit(on @ w.T + c), expit(off @ w.T + c)
    size = parameters.rates * parameters.p / (1 - parameters.p)
    weights = np.maximum(((on - off) * size) @ parameters.topics, 0.0)
    totals = weights.sum(1, keepdims=True)
    return np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)

r"""Ways to read draws of deep Poisson factor analysis: documents, words of units, units that go together.

*Words of a unit* of layer $\ell \ge 2$ are those that become more frequent when it goes on. Its layer is set to the prior's means, the unit to 1 or 0, and
means are passed down, $m^{(\ell-1)} = \sigma(W^{(\ell-1)}m^{(\ell)} + c^{(\ell-1)})$. The words have the weights

$$ \Bigl(\sum_k \bigl(m^{(1)}_{k,\text{on}} - m^{(1)}_{k,\text{off}}\bigr)\,\frac{r_kp_k}{1 - p_k}\,\phi_{kv}\Bigr)_+ , $$

since a topic that is on has the expected intensity $r_kp_k/(1 - p_k)$. They are normalised. A unit that only switches topics off has no words.

*Co-activation* of two units of neighbouring layers is the correlation of their states.
"""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from isotherm.topics import counter_rng
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import local_gibbs
from isotherm.topics.dpfa.model import Parameters, draw_units

WARM_SWEEPS = 3
"""Sweeps per draw after the first, from where the last draw left the documents."""
_CHUNK = 1000
"""Documents whose local variables are in memory at a time."""


class DocumentReading(NamedTuple):
    """What draws say about documents; means over draws."""

    shares: np.ndarray
    r"""$\mathrm E[\theta]$, normalised for every draw, (documents, topics)."""
    intensities: np.ndarray
    r"""$\mathrm E[\theta]$, (documents, topics)."""
    units: tuple[np.ndarray, ...]
    """Probability that a unit is on, (documents, units) for each layer."""
    activation: "Activation"


class Activation(NamedTuple):
    """Which units are on, and which go together."""

    on: tuple[np.ndarray, ...]
    """Share of documents in which each unit is on, for each layer."""
    correlation: tuple[np.ndarray, ...]
    """Correlation of units with those of the layer above, (units, units above); 0 for units that never change."""


def numbered_by_words(corpus: Corpus) -> Corpus:
    """Give documents numbers by what is in them, so that nothing random depends on their order or company."""
    cells = counter_rng.fold(
        counter_rng.as_words(corpus.words), counter_rng.as_words(corpus.counts)
    )
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(cells, dtype=np.uint64)])
    return replace(corpus, documents=np.diff(sums[corpus.indptr]).astype(np.int64))


class ActivationSums:
    """Adds up states of units."""

    def __init__(self) -> None:
        self.number = 0
        self.on: list[np.ndarray] = []
        self.both: list[np.ndarray] = []

    def add(self, layers: tuple[np.ndarray, ...]) -> None:
        """Add states, each layer (rows, units)."""
        h = [np.asarray(x, np.float32) for x in layers]
        on, both = [x.sum(0) for x in h], [a.T @ b for a, b in pairwise(h)]
        first = self.number == 0
        self.on = on if first else [x + y for x, y in zip(self.on, on, strict=True)]
        self.both = both if first else [x + y for x, y in zip(self.both, both, strict=True)]
        self.number += len(h[0])

    def result(self) -> Activation:
        """Average, and correlate neighbouring layers."""
        on = [x.astype(np.float64) / self.number for x in self.on]
        spread, correlation = [np.sqrt(x * (1 - x)) for x in on], []
        for layer, both in enumerate(self.both):
            scale = np.outer(spread[layer], spread[layer + 1])
            excess = both / self.number - np.outer(on[layer], on[layer + 1])
            where = scale > 1e-9
            correlation.append(np.divide(excess, scale, out=np.zeros_like(scale), where=where))
        return Activation(tuple(on), tuple(correlation))


def read_documents(
    draws: list[Parameters],
    corpus: Corpus,
    *,
    sweeps: int,
    burn_in: int,
    seed: int,
    threads: int,
) -> DocumentReading:
    """Sweep documents for every draw, each from where the last one left them.

    Parameters
    ----------
    draws
        Draws of one chain, so that topics keep their labels.
    corpus
        The documents.
    sweeps, burn_in
        For the first draw.
    seed, threads
        As in `isotherm.topics.dpfa.local_gibbs.sweep`.
    """
    sums, parts = ActivationSums(), []
    for first in range(0, len(corpus), _CHUNK):
        part, state, means = corpus[first : first + _CHUNK], None, []
        for i, draw in enumerate(draws):
            how = (sweeps, burn_in) if state is None else (WARM_SWEEPS, 0)
            found = local_gibbs.sweep(
                local_gibbs.prepare_parameters(draw),
                part,
                sweeps=how[0],
                burn_in=how[1],
                thin=1,
                seed=seed,
                step=i,
                state=state,
                tally=False,
                threads=threads,
            )
            state, theta = found.state, found.intensities.astype(np.float64)
            layers = [h.mean(0, dtype=np.float64) for h in found.units]
            means.append([theta / theta.sum(1, keepdims=True), theta, *layers])
            sums.add(tuple(h.reshape(-1, h.shape[-1]) for h in found.units))
        parts.append([np.mean(x, axis=0) for x in zip(*means, strict=True)])
    shares, intensities, *units = (np.concatenate(x) for x in zip(*parts, strict=True))
    return DocumentReading(shares, intensities, tuple(units), sums.result())


def prior_activation(
    draws: list[Parameters], *, seed: int, num_documents: int = 1000
) -> Activation:
    """Draw documents from the binary layers alone: what the network has learned of units."""
    rng, sums = counter_rng.generator(seed, "documents", -1), ActivationSums()
    for draw in draws:
        sums.add(draw_units(rng, draw, num_documents))
    return sums.result()


def unit_words(parameters: Parameters, layer: int) -> np.ndarray:
    """Compute the words of every unit of a layer, (units, words); layer 1 are the topics."""
    if layer == 1:
        return np.asarray(parameters.topics, np.float64)
    means = expit(parameters.biases[-1])
    for place in range(len(parameters.biases) - 2, layer - 2, -1):
        means = expit(parameters.weights[place] @ means + parameters.biases[place])
    on, off = (np.tile(means, (len(means), 1)) for _ in range(2))
    np.fill_diagonal(on, 1.0)
    np.fill_diagonal(off, 0.0)
    for place in range(layer - 2, -1, -1):
        w, c = parameters.weights[place], parameters.biases[place]
        on, off = expit(on @ w.T + c), expit(off @ w.T + c)
    size = parameters.rates * parameters.p / (1 - parameters.p)
    weights = np.maximum(((on - off) * size) @ parameters.topics, 0.0)
    totals = weights.sum(1, keepdims=True)
    return np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)

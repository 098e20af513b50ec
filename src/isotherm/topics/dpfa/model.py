r"""Deep Poisson factor analysis: the model, its parameters and its simulator.

Word $v$ of document $j$, with topics $k$ and binary layers $\ell = 1, \dots, L$ (layer 1 has a unit
per topic):

$$ \begin{aligned}
x_{vj} &\sim \mathrm{Poisson}\Bigl(\sum_k \phi_{kv}\theta_{kj}\Bigr), &
\phi_k &\sim \mathrm{Dir}(\eta), \\
\theta_{kj} &\sim \Gamma\Bigl(r_k h^{(1)}_{kj},\ \tfrac{p_k}{1 - p_k}\Bigr), &
r_k &\sim \Gamma(\gamma_0, 1/c_0), \\
\gamma_0 &\sim \Gamma(e_0, 1/f_0), &
p_k &\sim \mathrm{Beta}(a_0, b_0), \\
h^{(\ell)}_j &\sim \mathrm{Bernoulli}\bigl(\sigma(W^{(\ell)}h^{(\ell+1)}_j + c^{(\ell)})\bigr), &
W, c &\sim \mathcal N(0, 1),
\end{aligned} $$

where $\Gamma$ has shape and *scale*, and the top layer has $W = 0$: the papers call its $c^{(L)}$
$b$. A topic whose unit is off has no tokens in the document. With $\theta$ integrated out, the
number of tokens $n_{kj}$ of a topic is negative binomial,
$\Pr(n) \propto \Gamma(n + r_k)\,p_k^n/n!$, if the unit is on. A model of depth 1 is the negative
binomial focused topic model, with a normal prior on the logits. The paper does not specify the
prior of $p_k$; the authors' code fixes $p = 1/2$, which is the default here.

Each of $r$, $\gamma_0$ and $p$ is fixed if it is a number, and sampled if it is `None`.

References
----------
Gan, Chen, Henao, Carlson & Carin (2015), *Scalable deep Poisson factor analysis for topic
modeling*, ICML. Li, Chen, Fan & Carin (2016), *High-order stochastic gradient thermostats*, AAAI,
appendix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from isotherm.schedules import require_positive
from isotherm.topics.corpus import Corpus, as_corpus


class Parameters(NamedTuple):
    """Global parameters, shared by all documents."""

    topics: np.ndarray
    r"""$\phi$, (topics, words), rows that sum to 1."""
    weights: tuple[np.ndarray, ...]
    r"""$W^{(\ell)}$, (units of layer $\ell$, units of layer $\ell + 1$); not for the top layer."""
    biases: tuple[np.ndarray, ...]
    r"""$c^{(\ell)}$ of every layer, including the top layer."""
    rates: np.ndarray
    """$r$, (topics,)."""
    gamma0: float
    r"""$\gamma_0$."""
    p: np.ndarray
    """$p$, (topics,)."""


def parameter_arrays(parameters: Parameters) -> dict[str, np.ndarray]:
    r"""Return parameters as arrays by name; `weights1` is $W^{(1)}$, `biases1` is $c^{(1)}$."""
    arrays = {
        name: np.array(getattr(parameters, name)) for name in ("topics", "rates", "gamma0", "p")
    }
    arrays |= {f"weights{i}": np.array(w) for i, w in enumerate(parameters.weights, 1)}
    return arrays | {f"biases{i}": np.array(c) for i, c in enumerate(parameters.biases, 1)}


class Simulated(NamedTuple):
    """Simulated documents and their latent variables."""

    corpus: Corpus
    units: tuple[np.ndarray, ...]
    r"""$h^{(\ell)}$, (documents, units) for every layer, bool."""
    intensities: np.ndarray
    r"""$\theta$, (documents, topics)."""
    counts: np.ndarray
    """$n$, number of tokens of each topic, (documents, topics)."""


@dataclass(frozen=True)
class DPFA:
    r"""The model: sizes, priors, and which rates are fixed.

    Parameters
    ----------
    num_words
        $V$.
    layers
        Units per binary layer, from the bottom; the first number is the number of topics.
    eta
        $\eta$, the Dirichlet prior of the topics.
    r, gamma0, p
        A positive number for a fixed value ($0 < p < 1$), or `None` to sample it.
    c0, e0, f0
        Priors of $r$ and $\gamma_0$.
    a0, b0
        Prior of $p$.

    Examples
    --------
    >>> model = DPFA(num_words=20, layers=(4, 2), r=1.0)
    >>> rng = np.random.default_rng(0)
    >>> simulated = model.draw_documents(rng, model.draw(rng), 10)
    >>> len(simulated.corpus), simulated.intensities.shape
    (10, (10, 4))
    """

    num_words: int
    layers: tuple[int, ...] = (128, 64, 32)
    eta: float = 0.05
    r: float | None = None
    gamma0: float | None = None
    p: float | None = 0.5
    c0: float = 1.0
    e0: float = 0.01
    f0: float = 0.01
    a0: float = 1.0
    b0: float = 1.0

    def __post_init__(self) -> None:
        if self.num_words < 1:
            raise ValueError(f"`num_words` must be at least 1, got {self.num_words}.")
        if len(self.layers) == 0 or min(self.layers) < 1:
            raise ValueError(f"`layers` must be one or more positive sizes, got {self.layers}.")
        for name in ("eta", "c0", "e0", "f0", "a0", "b0"):
            require_positive(name, getattr(self, name))
        for name in ("r", "gamma0"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        if self.p is not None and not 0 < self.p < 1:
            raise ValueError(f"`p` must be between 0 and 1, got {self.p}.")

    def parameters_from(self, arrays: Mapping[str, np.ndarray]) -> Parameters:
        """Convert the arrays of `parameter_arrays` to parameters, and check their shapes."""
        shapes = [(f"biases{i}", (size,)) for i, size in enumerate(self.layers, 1)]
        shapes += [(f"weights{i}", shape) for i, shape in enumerate(pairwise(self.layers), 1)]
        shapes += [("topics", (self.num_topics, self.num_words))]
        if any(name not in arrays or arrays[name].shape != shape for name, shape in shapes):
            raise ValueError("`state` has another vocabulary or other layers than the model.")
        return Parameters(
            np.array(arrays["topics"]),
            tuple(np.array(arrays[f"weights{i}"]) for i in range(1, self.depth)),
            tuple(np.array(arrays[f"biases{i}"]) for i in range(1, self.depth + 1)),
            np.array(arrays["rates"]),
            float(arrays["gamma0"]),
            np.array(arrays["p"]),
        )

    @property
    def num_topics(self) -> int:
        """$K$, the units of layer 1."""
        return self.layers[0]

    @property
    def depth(self) -> int:
        """$L$, the number of binary layers."""
        return len(self.layers)

    def require_documents(self, name: str, corpus: Corpus) -> None:
        """Check that a corpus has documents and the vocabulary of the model."""
        if corpus.num_words != self.num_words:
            raise ValueError(f"`{name}` has {corpus.num_words} words, the model {self.num_words}.")
        if len(corpus) == 0:
            raise ValueError(f"`{name}` has no documents.")

    def draw(self, rng: np.random.Generator) -> Parameters:
        """Draw the parameters from the prior, except those that are fixed."""
        below, above = self.layers[:-1], self.layers[1:]
        gamma0 = rng.gamma(self.e0, 1 / self.f0) if self.gamma0 is None else self.gamma0
        size = self.num_topics
        rates = rng.gamma(gamma0, 1 / self.c0, size) if self.r is None else np.full(size, self.r)
        p = rng.beta(self.a0, self.b0, size) if self.p is None else np.full(size, self.p)
        return Parameters(
            rng.dirichlet(np.full(self.num_words, self.eta), size),
            tuple(rng.standard_normal(shape) for shape in zip(below, above, strict=True)),
            tuple(rng.standard_normal(units) for units in self.layers),
            rates,
            float(gamma0),
            p,
        )

    def draw_documents(
        self, rng: np.random.Generator, parameters: Parameters, num_documents: int
    ) -> Simulated:
        """Draw documents, from the top layer down to the words."""
        units = draw_units(rng, parameters, num_documents)
        theta = draw_intensities(rng, parameters, np.zeros(units[0].shape), units[0], prior=True)
        counts = rng.poisson(theta)
        shape = (num_documents, self.num_words)
        x = np.zeros(shape, np.int64)
        for k, topic in enumerate(parameters.topics):
            x += rng.multinomial(counts[:, k], topic / topic.sum())
        return Simulated(as_corpus(x), units, theta, counts)


def draw_units(
    rng: np.random.Generator, parameters: Parameters, num_documents: int
) -> tuple[np.ndarray, ...]:
    """Draw the binary layers of documents, from the top down."""
    logits: np.ndarray = np.broadcast_to(
        parameters.biases[-1], (num_documents, len(parameters.biases[-1]))
    )
    units = [rng.random(logits.shape) < expit(logits)]
    for w, c in zip(parameters.weights[::-1], parameters.biases[-2::-1], strict=True):
        logits = units[0] @ w.T + c
        units.insert(0, rng.random(logits.shape) < expit(logits))
    return tuple(units)


def draw_intensities(
    rng: np.random.Generator,
    parameters: Parameters,
    counts: np.ndarray,
    on: np.ndarray,
    *,
    prior: bool = False,
) -> np.ndarray:
    r"""Draw intensities $\theta_{kj} \mid n_{kj}, h_{kj} \sim \Gamma(n_{kj} + r_k h_{kj},\ p_k)$.

    Parameters
    ----------
    rng
        Random generator.
    parameters
        Only $r$ and $p$ are used.
    counts, on
        $n$ and $h^{(1)}$, (…, topics).
    prior
        Whether to use the scale of the prior, $p/(1 - p)$; `counts` must then be 0.
    """
    scale = parameters.p / (1 - parameters.p) if prior else parameters.p
    return rng.standard_gamma(counts + parameters.rates * on) * scale

r"""Deep Poisson factor analysis by collapsed Gibbs sampling, all documents in memory.

One sweep draws the assignments of all tokens and the binary units of every document with topics and
intensities integrated out (`isotherm.topics.dpfa.collapsed_kernels`), and, given these, $r$, $p$,
$\gamma_0$ (`isotherm.topics.dpfa.rates`), weights and biases (`isotherm.topics.dpfa.conjugate`) and
optionally $\eta$ (`isotherm.topics.dirichlet_priors`). The chain targets the posterior without
error, needs memory proportional to the number of tokens, and a pass over all tokens per draw. Given
the assignments topics are Dirichlet, with mean
$\mathrm E[\phi_{kw} \mid z] = (n_{kw} + \eta)/(n_{k\cdot} + V\eta)$.

Updates that hold the topics fixed while they draw assignments mix far more slowly.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from isotherm.topics import counter_rng, expected_counts, layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.dirichlet_priors import check_prior_counts, draw_word_prior
from isotherm.topics.dpfa import collapsed_kernels, conjugate, local_gibbs, rates
from isotherm.topics.dpfa.belief_network import Network
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.local_gibbs import LocalState
from isotherm.topics.dpfa.model import DPFA, Parameters
from isotherm.topics.dpfa.rates import Rates
from isotherm.topics.state import StateDict, load_tree, tree_state_dict


class DPFAGibbs:
    r"""A Markov chain of the local variables of all documents, and of weights, biases and rates.

    Parameters
    ----------
    model
        The model.
    corpus
        The documents.
    learn_eta
        Whether to draw $\eta$ from its conditional after every sweep; that of the model is then the
        first value.
    prior_counts
        Pseudo-counts that are added to $\eta$, (topics, words), for topics that are expected to
        have certain words.
    network_every
        Sweeps between two updates of weights and biases, which take about as long as a sweep.
    seed
        Seed of all random numbers.
    parameters
        Initial weights, biases and rates; the topics are not used. By default weights and biases
        are 0, and, unless the model fixes them, $r = \gamma_0 = 1$ and $p = 1/2$.

    Examples
    --------
    >>> rng, model = np.random.default_rng(0), DPFA(6, layers=(3, 2), r=2.0)
    >>> chain = DPFAGibbs(model, model.draw_documents(rng, model.draw(rng), 10).corpus)
    >>> chain.sweep(5)
    >>> chain.parameters().topics.shape, chain.num_sweeps
    ((3, 6), 5)
    """

    def __init__(
        self,
        model: DPFA,
        corpus: Corpus,
        *,
        learn_eta: bool = False,
        prior_counts: Any = None,
        network_every: int = 1,
        seed: int = 0,
        parameters: Parameters | None = None,
    ) -> None:
        model.require_documents("corpus", corpus)
        if learn_eta and prior_counts is not None:
            raise ValueError("`learn_eta` must be False if there are `prior_counts`.")
        if network_every < 1:
            raise ValueError(f"`network_every` must be at least 1, got {network_every}.")
        self.model, self.corpus, self.seed = model, corpus, seed
        self.learn_eta, self.eta, self.network_every = learn_eta, float(model.eta), network_every
        self.prior_counts = check_prior_counts(prior_counts, model.num_topics, corpus.num_words)
        if parameters is None:
            parameters = first_parameters(model, seed)
        self.network: Network = Network(parameters.weights, parameters.biases)
        self.rates, self.num_sweeps = as_rates(parameters), 0
        self.on_rates = np.full(model.depth, np.nan)
        self._words, self._starts = corpus.tokens(), corpus.token_starts
        self.start_from(np.full(len(self._words), -1, np.int32))

    def start_from(self, assignments: np.ndarray, units: np.ndarray | None = None) -> None:
        """Start from the topics of all tokens, -1 for those that have none.

        Without `units` (`isotherm.topics.dpfa.local_gibbs.LocalState`) they are drawn from the
        prior.
        """
        shape = (len(self.corpus), self.model.depth, self._prepare().bias.shape[1])
        self._fresh = units is None
        units = np.zeros(shape, np.uint8) if units is None else units.copy()
        self.local = LocalState(assignments.astype(np.int32), units)
        self._count()

    def _count(self) -> None:
        shape = (self.corpus.num_words, layout.padded_size(self.model.num_topics))
        self._totals, self._word_topics = np.zeros(shape[1], np.int64), np.zeros(shape, np.float32)
        if self.prior_counts.any():
            self._totals = self.prior_counts.sum(0)
            self._word_topics += self.prior_counts
        given = self.local.assignments >= 0
        assignments = self.local.assignments[given]
        np.add.at(self._word_topics, (self._words[given], assignments), np.float32(1))
        self._totals += np.bincount(assignments, minlength=shape[1])

    def _prepare(self) -> local_gibbs.KernelParameters:
        no_words = np.zeros((0, layout.padded_size(self.model.num_topics)), np.float32)
        return local_gibbs.prepare(no_words, *self.network, self.rates.rates, self.rates.p)

    def sweep(self, num_sweeps: int = 1) -> None:
        """Draw all local variables and all parameters, `num_sweeps` times."""
        for _ in range(num_sweeps):
            self._sweep()

    def _sweep(self) -> None:
        self._sweep_documents()
        rng = counter_rng.generator(self.seed, "rates", self.num_sweeps)
        units = tuple(
            self.local.units[:, layer, :size].astype(float)
            for layer, size in enumerate(self.model.layers)
        )
        if self.num_sweeps % self.network_every == 0:
            moments = conjugate.draw_moments(rng, self.network, units)
            self.network = conjugate.draw_network(rng, moments)
        size, assignments = self.model.num_topics, self.local.assignments
        counts = expected_counts.doc_topic_counts(self.corpus, assignments, size)
        self.rates = rates.gibbs_update(self.model, rng, self.rates, counts, units[0])
        if self.learn_eta:
            totals = self._totals[:size]
            self.eta = draw_word_prior(rng, self._word_topics, totals, self.eta)
        self.on_rates = np.array([layer.mean() for layer in units])
        self.num_sweeps += 1

    def _sweep_documents(self) -> None:
        prepared, starts = self._prepare(), self._starts
        key = counter_rng.purpose_key(self.seed, "collapsed")
        streams = counter_rng.streams(key, self.num_sweeps, self.corpus.documents)
        per_token = expected_counts.token_seconds(len(self._words), 1, len(prepared.rates))
        for first, last in expected_counts.document_runs(starts, per_token):
            collapsed_kernels.sweep_documents(
                self._words,
                starts[first : last + 1],
                streams[first:last],
                *prepared[1:],
                np.float32(self.eta),
                self.local.assignments,
                self.local.units[first:last],
                int(self._fresh),
                self._word_topics,
                self._totals,
            )
        self._fresh = False

    def counts(self) -> np.ndarray:
        r"""Return $n_{kw}$ plus the pseudo-counts, (topics, words), float32."""
        return layout.topic_major(self._word_topics, self.model.num_topics)

    def parameters(self) -> Parameters:
        """Return the last draw, with topics drawn from their law given the assignments."""
        rng = counter_rng.generator(self.seed, "topics", self.num_sweeps)
        return self.with_topics(conjugate.draw_topics(rng, self.counts().T, self.eta))

    def mean_parameters(self) -> Parameters:
        """Return the last draw, with the mean of the topics given the assignments."""
        return self.with_topics(mean_topics(self.counts(), self.eta))

    def with_topics(self, topics: np.ndarray) -> Parameters:
        """Return the last draw with these topics."""
        return Parameters(topics, *self.network, self.rates.rates, self.rates.gamma0, self.rates.p)

    def draws(self, num_draws: int, *, thin: int = 1, burn_in: int = 0) -> Iterator[Parameters]:
        """Run the chain and yield the parameters of every `thin`-th sweep after the burn-in."""
        self.sweep(burn_in)
        for _ in range(num_draws):
            self.sweep(thin)
            yield self.parameters()

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        return tree_state_dict(self._state())

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a chain with the same model and corpus, bit for bit."""
        mismatch = "`state` has another corpus or other layers than this chain."
        new = load_tree(self._state(), state, mismatch)
        self.network, self.local = new["network"], new["local"]
        self.rates = new["rates"]._replace(gamma0=float(new["rates"].gamma0))
        self.eta, self.num_sweeps = float(new["eta"]), int(new["num_sweeps"])
        self.on_rates, self._fresh = new["on_rates"], bool((new["local"].assignments < 0).any())
        self._count()

    def _state(self) -> dict[str, Any]:
        return {
            "network": self.network,
            "rates": self.rates,
            "local": self.local,
            "on_rates": self.on_rates,
            "eta": self.eta,
            "num_sweeps": self.num_sweeps,
        }


def mean_topics(counts: np.ndarray, eta: float) -> np.ndarray:
    """Compute the mean of topics (topics, words) given counts of the same shape, float32."""
    shape = counts + np.float32(eta)
    return shape / shape.sum(1, keepdims=True, dtype=np.float64).astype(np.float32)


def first_parameters(model: DPFA, seed: int, start: Start | None = None) -> Parameters:
    """Return initial parameters: topics at random or drawn given `start`, zero weights."""
    rng = counter_rng.generator(seed, "topics", -1)
    pairs = zip(model.layers[:-1], model.layers[1:], strict=True)
    if start is None:
        topics = rng.dirichlet(np.ones(model.num_words), model.num_topics)
        initial = rates.initial_rates(model)
    else:
        topics = conjugate.draw_topics(rng, start.counts, model.eta)
        initial = rates.initial_rates(model, start.r, start.p)
    return Parameters(
        topics,
        tuple(np.zeros(pair) for pair in pairs),
        tuple(np.zeros(size) for size in model.layers),
        initial.rates,
        initial.gamma0,
        initial.p,
    )


def as_rates(parameters: Parameters) -> Rates:
    r"""Return $r$, $\gamma_0$ and $p$ of the parameters."""
    masses = np.stack([parameters.p, 1 - parameters.p])
    return Rates(parameters.rates, parameters.gamma0, masses)

r"""Deep Poisson factor analysis by Bayesian conditional density filtering: one pass, no step size.

The filter keeps sufficient statistics of all past documents: counts of words per topic, moments of
the regressions of the binary layers, and the tables, tokens and uses of each topic. For each batch
it runs `rounds` rounds. In every round but the first, the parameters are drawn from their exact
conditionals (`isotherm.topics.dpfa.conjugate`, `isotherm.topics.dpfa.rates`) given the statistics
of the past *and* the current statistics of the batch. Then the local variables of the batch are
swept given the parameters. The statistics of the batch, averaged over the rounds after `burn_in`,
are added to those of the past, and the batch is discarded.

The approximation is that Pólya-Gamma variables and tables are drawn at the parameters of their own
round and never redrawn. Nothing is scaled, and statistics of the past are not discounted. With
depth 1 the model is the negative binomial focused topic model (NB-FTM), with a normal prior on the
logits.

References
----------
Guhaniyogi, Qamar & Dunson (2014), *Bayesian conditional density filtering*.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from isotherm.models.polya_gamma import polya_gamma
from isotherm.topics import counter_rng
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import conjugate, local_gibbs, rates
from isotherm.topics.dpfa.belief_network import Network
from isotherm.topics.dpfa.conjugate import Moments
from isotherm.topics.dpfa.gibbs import as_rates, first_parameters
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.model import DPFA, Parameters, parameter_arrays
from isotherm.topics.state import (
    StateDict,
    join_states,
    load_tree,
    split_state,
    tree_state_dict,
)


class SufficientStatistics(NamedTuple):
    """Sums over documents that determine the conditionals of the parameters."""

    words: np.ndarray
    """Counts (words, topics)."""
    moments: Moments
    tables: np.ndarray
    """Number of tables of each topic (`isotherm.topics.dpfa.rates`)."""
    tokens: np.ndarray
    """Number of tokens of each topic."""
    used: np.ndarray
    """Number of documents in which each topic is on."""


class DPFAFilter:
    """Conditional density filter for the parameters of a stream.

    Parameters
    ----------
    model
        The model.
    rounds, burn_in
        Rounds per batch, and how many of them are discarded.
    sweeps
        Gibbs sweeps over the batch per round.
    start
        Initialization from the first documents (`isotherm.topics.dpfa.initialization.learn_start`).
        Their counts of words are part of the past, but they add nothing to the other statistics.
        Without it topics start at random.
    seed
        Seed of all random numbers.
    threads
        Maximum number of threads for the sweeps.

    Examples
    --------
    >>> rng, model = np.random.default_rng(0), DPFA(6, layers=(3, 2), r=2.0)
    >>> filter = DPFAFilter(model)
    >>> filter.step(model.draw_documents(rng, model.draw(rng), 10).corpus)
    >>> filter.documents_seen, filter.parameters().topics.shape
    (10, (3, 6))
    """

    def __init__(
        self,
        model: DPFA,
        *,
        rounds: int = 10,
        burn_in: int = 6,
        sweeps: int = 10,
        start: Start | None = None,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        local_gibbs.kept_sweep_index(rounds, burn_in, 1)
        local_gibbs.kept_sweep_index(sweeps, 0, 1)
        self.model, self.rounds, self.burn_in = model, rounds, burn_in
        self.sweeps, self.seed, self.threads = sweeps, seed, threads
        self.current = first_parameters(model, seed, start)
        self.statistics = self._zero_statistics()
        self.num_batches = self.documents_seen = 0
        if start is not None:
            self.statistics = self.statistics._replace(words=start.counts.astype(float))
            self.documents_seen = start.documents
        self.on_rates = np.full(model.depth, np.nan)
        """Fraction of units that were on in the last batch, per layer."""

    def _zero_statistics(self) -> SufficientStatistics:
        size = self.model.num_topics
        zeros = np.zeros((3, size))
        moments = conjugate.zero_moments(self.model.layers)
        return SufficientStatistics(np.zeros((self.model.num_words, size)), moments, *zeros)

    def step(self, batch: Corpus) -> None:
        """Learn from a batch."""
        self.model.require_documents("batch", batch)
        rng = counter_rng.generator(self.seed, "rates", self.num_batches)
        local, current, mean, result = None, None, self._zero_statistics(), None
        weight = 1 / (self.rounds - self.burn_in)
        for i in range(self.rounds):
            if current is not None:
                self.current = self._draw(rng, add(self.statistics, current))
            result = local_gibbs.sweep(
                local_gibbs.prepare_parameters(self.current),
                batch,
                sweeps=self.sweeps,
                burn_in=self.sweeps - 1,
                thin=1,
                seed=self.seed,
                step=self.num_batches * self.rounds + i,
                state=local,
                threads=self.threads,
            )
            local, current = result.state, self._batch_statistics(rng, result)
            if i >= self.burn_in:
                mean = add(mean, current, weight)
        assert result is not None  # `rounds` is at least 1
        self.statistics, self.on_rates = add(self.statistics, mean), result.on_rates()
        self.num_batches += 1
        self.documents_seen += len(batch)

    def _batch_statistics(
        self, rng: np.random.Generator, result: local_gibbs.SweepResult
    ) -> SufficientStatistics:
        words = result.all_word_counts(self.model.num_words).astype(float)
        units, network = tuple(x[0] for x in result.units), Network(*self.current[1:3])
        counts = result.counts[0]
        return SufficientStatistics(
            words,
            # The package's variables: the numbers of `dpfa-wiki` can be computed again bit for bit.
            conjugate.draw_moments(rng, network, units, polya_gamma),
            rates.draw_tables(rng, counts, self.current.rates),
            counts.sum(0).astype(float),
            units[0].sum(0).astype(float),
        )

    def _draw(self, rng: np.random.Generator, statistics: SufficientStatistics) -> Parameters:
        words, moments, *sums = statistics
        topics = conjugate.draw_topics(rng, words, self.model.eta)
        network = conjugate.draw_network(rng, moments)
        new = rates.draw_from_sums(self.model, rng, as_rates(self.current), *sums)
        return Parameters(topics, *network, new.rates, new.gamma0, new.p)

    def parameters(self) -> Parameters:
        """Return the last draw."""
        return self.current

    def draw(self, index: int = 0) -> Parameters:
        """Draw parameters given all documents so far.

        Different values of `index` give independent draws.
        """
        rng = counter_rng.generator(self.seed, "topics", self.num_batches * 2**20 + index)
        return self._draw(rng, self.statistics)

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        numbers = {"num_batches": self.num_batches, "documents_seen": self.documents_seen}
        return join_states(
            parameters=parameter_arrays(self.current),
            statistics=tree_state_dict(self.statistics),
        ) | {name: np.array(number) for name, number in numbers.items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a filter with the same settings, bit for bit."""
        self.current = self.model.parameters_from(split_state(state, "parameters"))
        mismatch = "`state` has another vocabulary or other layers than the model."
        self.statistics = load_tree(self.statistics, split_state(state, "statistics"), mismatch)
        self.num_batches = int(state["num_batches"])
        self.documents_seen = int(state["documents_seen"])


def add(
    a: SufficientStatistics, b: SufficientStatistics, scale: float = 1.0
) -> SufficientStatistics:
    """Return `a` plus `scale` times `b`."""
    moments = conjugate.add_moments(a.moments, b.moments, scale)
    tables, tokens, used = (x + scale * y for x, y in zip(a[2:], b[2:], strict=True))
    return SufficientStatistics(a.words + scale * b.words, moments, tables, tokens, used)

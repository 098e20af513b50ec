r"""Deep Poisson factor analysis by Bayesian conditional density filtering: one pass over a stream, no step size.

What documents of the past say about the parameters is kept as sums: counts of words per topic, moments of the regressions
of the binary layers, tables, tokens and uses of each topic. A batch arrives; in `rounds` rounds the parameters are drawn from their
exact conditionals (`isotherm.topics.dpfa.conjugate`, `isotherm.topics.dpfa.rates`) given the sums of the past *and* of the batch as it stands, and the batch's local
variables are swept given the parameters. Then the batch's sums, averaged over the rounds after `burn_in`, are added to those of the past and
the batch is forgotten.

Pólya-Gamma variables and tables are drawn at the parameters of their own round, and not again: that is the approximation. Nothing is scaled and
nothing of the past is forgotten. With depth 1 this is NB-FTM by BCDF, with a normal prior on the logits.

References
----------
Guhaniyogi, Qamar & Dunson (2014), *Bayesian conditional density filtering*.
"""

from typing import Any, NamedTuple

import numpy as np

from isotherm.topics import counter_rng
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import conjugate, local_gibbs, rates
from isotherm.topics.dpfa.belief_network import Network
from isotherm.topics.dpfa.conjugate import Moments
from isotherm.topics.dpfa.gibbs import (
    arrays_parameters,
    as_rates,
    first_parameters,
    parameter_arrays,
)
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.model import DPFA, Parameters


class Sums(NamedTuple):
    """What some documents say."""

    words: np.ndarray
    """Counts (words, topics)."""
    moments: Moments
    tables: np.ndarray
    tokens: np.ndarray
    used: np.ndarray
    """Documents in which each topic is on."""


class DPFAFilter:
    """Parameters of a stream.

    Parameters
    ----------
    model
        The model.
    rounds, burn_in
        Draws of the parameters per batch, and how many of them are not averaged.
    sweeps
        Sweeps over the batch per round.
    start
        What the first documents said (`isotherm.topics.dpfa.initialization.learn_start`): their words count as those of the past, what the
        binary layers would have been does not. Without it topics start at random.
    seed
        Which random numbers.
    threads
        At most so many, for the sweeps.

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
        local_gibbs.keep_places(rounds, burn_in, 1)
        local_gibbs.keep_places(sweeps, 0, 1)
        self.model, self.rounds, self.burn_in = model, rounds, burn_in
        self.sweeps, self.seed, self.threads = sweeps, seed, threads
        self.current = first_parameters(model, seed, start)
        self.past, self.num_batches, self.documents_seen = self._nothing(), 0, 0
        if start is not None:
            self.past = self.past._replace(words=start.counts.astype(float))
            self.documents_seen = start.documents
        self.on_rates = np.full(model.depth, np.nan)

    def _nothing(self) -> Sums:
        size = self.model.num_topics
        zeros = np.zeros((3, size))
        moments = conjugate.no_moments(self.model.layers)
        return Sums(np.zeros((self.model.num_words, size)), moments, *zeros)

    def step(self, batch: Corpus) -> None:
        """Learn from a batch."""
        self.model.require_documents("batch", batch)
        rng = counter_rng.generator(self.seed, "rates", self.num_batches)
        local, present, mean, found = None, None, self._nothing(), None
        share = 1 / (self.rounds - self.burn_in)
        for i in range(self.rounds):
            if present is not None:
                self._draw(rng, add(self.past, present))
            found = local_gibbs.sweep(
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
            local, present = found.state, self._sums(rng, found)
            if i >= self.burn_in:
                mean = add(mean, present, share)
        assert found is not None  # there is a round
        self.past, self.on_rates = add(self.past, mean), found.on_rates()
        self.num_batches += 1
        self.documents_seen += len(batch)

    def _sums(self, rng: np.random.Generator, found: local_gibbs.Swept) -> Sums:
        words = found.all_word_counts(self.model.num_words).astype(float)
        units, network = tuple(x[0] for x in found.units), Network(*self.current[1:3])
        counts = found.counts[0]
        return Sums(
            words,
            conjugate.draw_moments(rng, network, units),
            rates.draw_tables(rng, counts, self.current.rates),
            counts.sum(0).astype(float),
            units[0].sum(0).astype(float),
        )

    def _draw(self, rng: np.random.Generator, sums: Sums) -> None:
        topics = conjugate.draw_topics(rng, sums.words, self.model.eta)
        network = conjugate.draw_network(rng, sums.moments)
        moved = rates.draw_given(
            self.model, rng, as_rates(self.current), sums.tables, sums.tokens, sums.used
        )
        self.current = Parameters(topics, *network, moved.rates, moved.gamma0, moved.p)

    def parameters(self) -> Parameters:
        """Give the last draw."""
        return self.current

    def draw(self, index: int = 0) -> Parameters:
        """Draw parameters given all documents so far; another `index` is another draw."""
        rng = counter_rng.generator(self.seed, "topics", self.num_batches * 2**20 + index)
        old = self.current
        self._draw(rng, self.past)
        found, self.current = self.current, old
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """Give what it takes to go on, as arrays by name."""
        found = parameter_arrays(self.current)
        found |= {f"past{i}": x.copy() for i, x in enumerate(_leaves(self.past))}
        return found | {"numbers": np.array([self.num_batches, self.documents_seen])}

    def restore(self, arrays: dict[str, Any]) -> None:
        """Go on from the arrays of a filter with the same settings, bit for bit."""
        self.current = arrays_parameters(arrays, self.model)
        leaves = [np.array(arrays[f"past{i}"]) for i in range(4 + 2 * self.model.depth)]
        depth = self.model.depth
        moments = Moments(tuple(leaves[1 : 1 + depth]), tuple(leaves[1 + depth : 1 + 2 * depth]))
        self.past = Sums(leaves[0], moments, *leaves[1 + 2 * depth :])
        self.num_batches, self.documents_seen = (int(n) for n in arrays["numbers"])


def _leaves(sums: Sums) -> list[np.ndarray]:
    return [sums.words, *sums.moments.precision, *sums.moments.shift, *sums[2:]]


def add(a: Sums, b: Sums, scale: float = 1.0) -> Sums:
    """Compute the sums of `a` and `scale` times `b`."""
    moments = conjugate.add_moments(a.moments, b.moments, scale)
    tables, tokens, used = (x + scale * y for x, y in zip(a[2:], b[2:], strict=True))
    return Sums(a.words + scale * b.words, moments, tables, tokens, used)

r"""Deep Poisson factor analysis by Gibbs sampling: exact conditionals, all documents in memory.

One sweep draws the local variables of every document (`isotherm.topics.dpfa.kernels`) and, given
these, weights, biases and topics (`isotherm.topics.dpfa.conjugate`) and $r$, $p$ and $\gamma_0$
(`isotherm.topics.dpfa.rates`). The chain targets the posterior without error, but needs memory
proportional to the number of tokens, and a pass over all tokens per draw. It is for small corpora,
and a reference for the other algorithms.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from isotherm.topics import counter_rng
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import conjugate, local_gibbs, rates
from isotherm.topics.dpfa.belief_network import Network
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.local_gibbs import LocalState
from isotherm.topics.dpfa.model import DPFA, Parameters, parameter_arrays
from isotherm.topics.dpfa.rates import Rates
from isotherm.topics.state import StateDict


class DPFAGibbs:
    r"""A Markov chain of the parameters and of the local variables of all documents.

    Parameters
    ----------
    model
        The model.
    corpus
        The documents.
    sweeps
        Sweeps over documents per draw of the parameters.
    seed
        Seed of all random numbers.
    threads
        Maximum number of threads for the sweeps.
    parameters
        Initial parameters; by default topics are drawn from $\mathrm{Dir}(1)$, weights and biases
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
        sweeps: int = 1,
        seed: int = 0,
        threads: int = 1,
        parameters: Parameters | None = None,
    ) -> None:
        model.require_documents("corpus", corpus)
        local_gibbs.kept_sweep_index(sweeps, 0, 1)
        self.model, self.corpus, self.sweeps = model, corpus, sweeps
        self.seed, self.threads, self.num_sweeps = seed, threads, 0
        self.current = first_parameters(model, seed) if parameters is None else parameters
        self.local: LocalState | None = None
        self.on_rates = np.full(model.depth, np.nan)

    def sweep(self, num_sweeps: int = 1) -> None:
        """Draw all local variables and all parameters, `num_sweeps` times."""
        for _ in range(num_sweeps):
            self._sweep()

    def _sweep(self) -> None:
        result = local_gibbs.sweep(
            local_gibbs.prepare_parameters(self.current),
            self.corpus,
            sweeps=self.sweeps,
            burn_in=self.sweeps - 1,
            thin=1,
            seed=self.seed,
            step=self.num_sweeps,
            state=self.local,
            threads=self.threads,
        )
        rng = counter_rng.generator(self.seed, "rates", self.num_sweeps)
        counts = result.all_word_counts(self.model.num_words).astype(float)
        old, units = self.current, tuple(x[0] for x in result.units)
        network = Network(old.weights, old.biases)
        network = conjugate.draw_network(rng, conjugate.draw_moments(rng, network, units))
        new = rates.gibbs_update(self.model, rng, as_rates(old), result.counts[0], units[0])
        topics = conjugate.draw_topics(rng, counts, self.model.eta)
        self.current = Parameters(topics, *network, new.rates, new.gamma0, new.p)
        self.local, self.on_rates = result.state, result.on_rates()
        self.num_sweeps += 1

    def parameters(self) -> Parameters:
        """Return the last draw."""
        return self.current

    def draws(self, num_draws: int, *, thin: int = 1, burn_in: int = 0) -> Iterator[Parameters]:
        """Run the chain and yield the parameters of every `thin`-th sweep after the burn-in."""
        self.sweep(burn_in)
        for _ in range(num_draws):
            self.sweep(thin)
            yield self.current

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        state = parameter_arrays(self.current) | local_gibbs.local_state_dict(self.local)
        return state | {"num_sweeps": np.array(self.num_sweeps)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a chain with the same model and corpus, bit for bit."""
        self.current = self.model.parameters_from(state)
        self.local = local_gibbs.load_local_state(state)
        self.num_sweeps = int(state["num_sweeps"])


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

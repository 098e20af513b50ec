r"""Deep Poisson factor analysis by batch Gibbs sampling: every conditional exact, all documents in memory.

One sweep draws the local variables of every document (`isotherm.topics.dpfa.kernels`), then topics, weights and biases
(`isotherm.topics.dpfa.conjugate`), then $r$, $p$ and $\gamma_0$ (`isotherm.topics.dpfa.rates`). It targets the posterior without error; the
price is memory proportional to the number of tokens, and a step through all of them per draw. For small corpora, and to judge the
other two routes by.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from isotherm.topics import counter_rng
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import conjugate, local_gibbs, rates
from isotherm.topics.dpfa.belief_network import Network
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.local_gibbs import State
from isotherm.topics.dpfa.model import DPFA, Parameters
from isotherm.topics.dpfa.rates import Rates


class DPFAGibbs:
    r"""A chain of everything.

    Parameters
    ----------
    model
        The model.
    corpus
        The documents.
    sweeps
        Sweeps over documents per draw of what they share.
    seed
        Which random numbers.
    threads
        At most so many, for the documents.
    parameters
        Where to start; by default topics are drawn from $\mathrm{Dir}(1)$, weights are 0 and what is sampled of the rates is 1.

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
        local_gibbs.keep_places(sweeps, 0, 1)
        self.model, self.corpus, self.sweeps = model, corpus, sweeps
        self.seed, self.threads, self.num_sweeps = seed, threads, 0
        self.current = first_parameters(model, seed) if parameters is None else parameters
        self.local: State | None = None
        self.on_rates = np.full(model.depth, np.nan)

    def sweep(self, num_sweeps: int = 1) -> None:
        """Draw everything again, `num_sweeps` times."""
        for _ in range(num_sweeps):
            self._sweep()

    def _sweep(self) -> None:
        found = local_gibbs.sweep(
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
        counts = found.all_word_counts(self.model.num_words).astype(float)
        old, units = self.current, tuple(x[0] for x in found.units)
        network = Network(old.weights, old.biases)
        network = conjugate.draw_network(rng, conjugate.draw_moments(rng, network, units))
        moved = rates.draw(self.model, rng, as_rates(old), found.counts[0], units[0])
        topics = conjugate.draw_topics(rng, counts, self.model.eta)
        self.current = Parameters(topics, *network, moved.rates, moved.gamma0, moved.p)
        self.local, self.on_rates = found.state, found.on_rates()
        self.num_sweeps += 1

    def parameters(self) -> Parameters:
        """Give the last draw."""
        return self.current

    def draws(self, num_draws: int, *, thin: int = 1, burn_in: int = 0) -> Iterator[Parameters]:
        """Run the chain and give the parameters of every `thin`-th sweep after the burn-in."""
        self.sweep(burn_in)
        for _ in range(num_draws):
            self.sweep(thin)
            yield self.current

    def arrays(self) -> dict[str, np.ndarray]:
        """Give what it takes to go on, as arrays by name."""
        found = parameter_arrays(self.current) | {"num_sweeps": np.array(self.num_sweeps)}
        if self.local is not None:
            found |= {"assignments": self.local.assignments, "units": self.local.units}
        return found

    def restore(self, arrays: dict[str, Any]) -> None:
        """Go on from the arrays of a chain with the same model and corpus, bit for bit."""
        self.current = arrays_parameters(arrays, self.model)
        self.num_sweeps, self.local = int(arrays["num_sweeps"]), None
        if "units" in arrays:
            self.local = State(arrays["assignments"].copy(), arrays["units"].copy())


def first_parameters(model: DPFA, seed: int, start: Start | None = None) -> Parameters:
    """Draw topics, given the first documents or at random, and set weights to 0 and the rates to where they start."""
    rng = counter_rng.generator(seed, "topics", -1)
    pairs = zip(model.layers[:-1], model.layers[1:], strict=True)
    if start is None:
        topics = rng.dirichlet(np.ones(model.num_words), model.num_topics)
        begin = rates.start(model)
    else:
        topics = conjugate.draw_topics(rng, start.counts, model.eta)
        begin = rates.start(model, start.r, start.p)
    return Parameters(
        topics,
        tuple(np.zeros(pair) for pair in pairs),
        tuple(np.zeros(size) for size in model.layers),
        begin.rates,
        begin.gamma0,
        begin.p,
    )


def as_rates(parameters: Parameters) -> Rates:
    r"""Take $r$, $\gamma_0$ and $p$ out of the parameters."""
    masses = np.stack([parameters.p, 1 - parameters.p])
    return Rates(parameters.rates, parameters.gamma0, masses)


def parameter_arrays(parameters: Parameters) -> dict[str, np.ndarray]:
    """Lay parameters out as arrays by name."""
    found = {
        name: np.array(getattr(parameters, name)) for name in ("topics", "rates", "gamma0", "p")
    }
    found |= {f"weights{i}": np.array(w) for i, w in enumerate(parameters.weights)}
    return found | {f"biases{i}": np.array(c) for i, c in enumerate(parameters.biases)}


def arrays_parameters(arrays: dict[str, Any], model: DPFA) -> Parameters:
    """Read parameters back, and check that they are of the model."""
    depth = model.depth
    biases = tuple(np.array(arrays[f"biases{i}"]) for i in range(depth) if f"biases{i}" in arrays)
    shape = (model.num_topics, model.num_words)
    if tuple(map(len, biases)) != model.layers or arrays["topics"].shape != shape:
        raise ValueError("`arrays` are of another vocabulary or of other layers.")
    return Parameters(
        np.array(arrays["topics"]),
        tuple(np.array(arrays[f"weights{i}"]) for i in range(depth - 1)),
        biases,
        np.array(arrays["rates"]),
        float(arrays["gamma0"]),
        np.array(arrays["p"]),
    )

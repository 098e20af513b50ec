r"""Deep Poisson factor analysis of a stream, by stochastic gradients.

A step takes a batch of documents and forgets it. Its local variables are swept given topics and weights where their
samplers want a gradient; then topics move (`isotherm.topics.topic_updates`, `isotherm.topics.scir`), weights and biases of the binary layers move
(`isotherm.topics.dpfa.belief_network`), and $r$, $\gamma_0$, $p$ move (`isotherm.topics.dpfa.rates`). Memory does not grow with the stream.

Step $t$ is a function of the seed, the state, $t$ and the batch, so a chain may go on anywhere. The number of threads changes nothing,
nor does that of processes.
"""

from typing import Any

import jax
import numpy as np

from isotherm.exceptions import DivergedError
from isotherm.samplers.msgnht import msgnht
from isotherm.schedules import as_schedule
from isotherm.topics import counter_rng, distributed
from isotherm.topics.corpus import Corpus, completion
from isotherm.topics.dpfa import kernels, local_gibbs, rates
from isotherm.topics.dpfa.belief_network import NetworkMove
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.model import DPFA, Parameters
from isotherm.topics.dpfa.perplexity import predict
from isotherm.topics.dpfa.rates import Rates
from isotherm.topics.lda import TopicsDivergedError, as_move
from isotherm.topics.topic_updates import Form, Move
from isotherm.types import Sampler, ScalarOrSchedule


class WeightsDivergedError(DivergedError):
    """Weights of the binary layers became too large or left the real numbers."""

    def __init__(self, step: int, why: str) -> None:
        self.chain, self.leaf, self.run = 0, "weights", None  # type: ignore[assignment]
        self.first_step, self.last_step = step - 1, step
        RuntimeError.__init__(self, f"After {step} batches: {why}")


def falling_rate(step: Any) -> Any:
    r"""Give the default step of $r$ and $p$: $0.1/\sqrt{1 + t/100}$, far at first since where they start is a guess."""
    return 0.1 / (1 + step / 100) ** 0.5


class DPFAChain:
    r"""A chain of topics, weights and rates.

    Parameters
    ----------
    model
        The model.
    topics
        What moves the topics: a sampler of the core with one gradient per step, built with `grad_fn=None` (for example
        `isotherm.sgrld(None, step_size, prior=model.eta)`), or `isotherm.topics.scir.SCIR`, or a move of your own.
    network
        What moves weights and biases; by default the paper's mSGNHT-S with $h = 10^{-4}$, $D = 40$.
    data_size
        $J$, the number of documents the posterior is given.
    start
        What the first documents said (`isotherm.topics.dpfa.initialization.learn_start`); without it topics start at random.
    form
        What a position of the topics' sampler means, as in `isotherm.topics.lda.LDAChain`.
    inner_steps
        Steps of the network's sampler per batch.
    rate_step
        $h$ of $r$ and $p$: a number or a schedule of the number of batches; by default `falling_rate`.
    sweeps, burn_in, thin
        Gibbs sweeps per batch, how many are not kept, and that every `thin`-th is kept after that.
    score_every
        Predict a part of every so manyth batch before learning from it; 0 never does.
    seed
        Which random numbers.
    threads
        At most so many, for the sweeps.
    shared
        Whether the processes of `jax.distributed` share every batch (`isotherm.topics.distributed`): each gives `step` its own documents.

    Examples
    --------
    >>> from isotherm.topics.scir import SCIR
    >>> rng, model = np.random.default_rng(0), DPFA(6, layers=(3, 2))
    >>> corpus = model.draw_documents(rng, DPFA(6, layers=(3, 2), r=3.0).draw(rng), 20).corpus
    >>> chain = DPFAChain(model, SCIR(0.1), data_size=20)
    >>> chain.step(corpus)
    >>> chain.documents_seen, chain.parameters().topics.shape, chain.on_rates.shape
    (20, (3, 6), (2,))
    """

    kernel: Any = staticmethod(kernels.sweep_documents)
    """What sweeps the documents."""
    step_hint = "Try a smaller `step_size`."

    def __init__(
        self,
        model: DPFA,
        topics: Sampler | Move,
        network: Sampler | None = None,
        *,
        data_size: float,
        start: Start | None = None,
        form: Form | None = None,
        inner_steps: int = 1,
        rate_step: ScalarOrSchedule | None = None,
        sweeps: int = 25,
        burn_in: int = 20,
        thin: int = 2,
        score_every: int = 0,
        seed: int = 0,
        threads: int = 1,
        shared: bool = False,
    ) -> None:
        if not data_size > 0:
            raise ValueError(f"`data_size` must be positive, got {data_size}.")
        if score_every < 0:
            raise ValueError(f"`score_every` must not be negative, got {score_every}.")
        local_gibbs.keep_places(sweeps, burn_in, thin)
        network = msgnht(None, 1e-4, 40.0) if network is None else network
        self.model, self.data_size, self.seed, self.threads = model, data_size, seed, threads
        self.shared = shared
        self.settings: dict[str, Any] = {"sweeps": sweeps, "burn_in": burn_in, "thin": thin}
        self.rate_step = as_schedule(falling_rate if rate_step is None else rate_step)
        self.score_every = score_every
        self.topics_move = as_move(topics, form)
        self.network_move: Any = NetworkMove(network, model.layers, inner_steps)
        shape, counts = (model.num_words, model.num_topics), None
        self.rates, self.num_batches, self.documents_seen = rates.start(model), 0, 0
        if start is not None:
            counts = (start.counts + model.eta) * (data_size / start.documents)
            mass = float(counts.sum() / model.num_topics)
            self.rates, self.documents_seen = rates.start(model, *start[2:], mass), start.documents
        self.topics_state = self.topics_move.start(seed, shape, counts)
        self.network_state = self.network_move.start(seed)
        self.on_rates = np.full(model.depth, np.nan)
        """Share of units that were on in the last batch, per layer."""
        self.predicted = np.zeros(2)
        """Log likelihood and number of the tokens predicted so far."""

    def step(self, batch: Corpus) -> None:
        """Learn from a batch."""
        size = distributed.count(batch) if self.shared else len(batch)
        self.model.require_documents("batch", batch)
        topics = self.topics_move.open(self.seed, self.topics_state)
        if not topics.finite:
            raise TopicsDivergedError(self.topics_move.name, self.num_batches)
        network = self.network_move.open(self.seed, self.network_state)
        try:
            prepared = local_gibbs.prepare(
                topics.rows, *network.network, self.rates.rates, self.rates.p
            )
        except FloatingPointError as error:
            raise WeightsDivergedError(self.num_batches, f"{error} {self.step_hint}") from error
        if self.score_every and self.num_batches % self.score_every == 0:
            self._predict(prepared, batch)
        settings: dict[str, Any] = {
            "seed": self.seed,
            "step": self.num_batches,
            "threads": self.threads,
            "kernel": self.kernel,
        }
        found = local_gibbs.sweep(prepared, batch, **self.settings, **settings)
        if self.shared:
            found = found.joined(self.model.num_words)
        counts = found.all_word_counts(self.model.num_words)
        scale = self.data_size / size
        self.topics_state = self.topics_move.close(self.seed, topics, counts, scale)
        self.network_state = self.network_move.close(
            self.seed, network, found.units, self.data_size
        )
        self.rates = self._move_rates(found)
        self.on_rates = found.on_rates()
        self.num_batches += 1
        self.documents_seen += size

    def _move_rates(self, found: local_gibbs.Swept) -> Rates:
        return rates.move(
            self.model,
            counter_rng.generator(self.seed, "rates", self.num_batches),
            self.rates,
            found.counts,
            found.units[0],
            data_size=self.data_size,
            step_size=float(self.rate_step(np.asarray(self.num_batches))),  # type: ignore[arg-type]
        )

    def _predict(self, prepared: local_gibbs.Prepared, batch: Corpus) -> None:
        split = completion(batch, observed=0.8, seed=self.seed)
        step = -1 - self.num_batches  # not the numbers of the sweeps that learn
        found = predict(
            prepared,
            split,
            **self.settings,
            seed=self.seed,
            step=step,
            threads=self.threads,
            kernel=self.kernel,
        )
        self.predicted = self.predicted + (distributed.add(found) if self.shared else found)

    def prequential_perplexity(self) -> float:
        """Give the perplexity of the tokens that were predicted before they were learnt, of the whole stream so far.

        A fifth of the tokens of a scored batch is predicted from the others. The difference of two values of `predicted` gives that of a stretch.
        """
        if self.predicted[1] == 0:
            return float("nan")
        return float(np.exp(-self.predicted[0] / self.predicted[1]))

    def parameters(self) -> Parameters:
        """Give the state of the chain as parameters of the model."""
        topics = np.ascontiguousarray(self.topics_move.topics(self.topics_state).T)
        if not np.isfinite(topics.sum()):
            raise TopicsDivergedError(self.topics_move.name, self.num_batches)
        network = jax.tree.map(np.asarray, self.network_state.position)
        return Parameters(
            topics,
            network.weights,
            network.biases,
            self.rates.rates,
            self.rates.gamma0,
            self.rates.p,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Give what it takes to go on, as arrays by name."""
        leaves = jax.tree.leaves(self._state())
        return {f"leaf{i}": np.array(leaf) for i, leaf in enumerate(leaves)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Go on from the arrays of a chain with the same settings, bit for bit."""
        leaves, structure = jax.tree.flatten(self._state())
        new = [np.array(arrays[f"leaf{i}"]) for i in range(len(arrays))]
        if [x.shape for x in new] != [np.shape(x) for x in leaves]:
            raise ValueError("`arrays` are of another sampler, another vocabulary or other layers.")
        self.topics_state, self.network_state, numbers, self.on_rates, self.predicted, found = (
            jax.tree.unflatten(structure, new)
        )
        self.rates = Rates(found.rates, float(found.gamma0), found.masses)
        self.num_batches, self.documents_seen = (int(n) for n in numbers)

    def _state(self) -> Any:
        numbers = np.array([self.num_batches, self.documents_seen])
        return (
            self.topics_state,
            self.network_state,
            numbers,
            self.on_rates,
            self.predicted,
            self.rates,
        )

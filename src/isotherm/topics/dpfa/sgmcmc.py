r"""Deep Poisson factor analysis of a stream, by stochastic-gradient MCMC.

In a step, the local variables of a batch of documents are swept given topics and weights, at the
positions where their samplers evaluate the gradient. Then the topics
(`isotherm.topics.topic_updates`, `isotherm.topics.scir`), the weights and biases of the binary
layers (`isotherm.topics.dpfa.belief_network`) and $r$, $\gamma_0$, $p$
(`isotherm.topics.dpfa.rates`) are updated. The batch is discarded: memory does not grow with the
stream.

Step $t$ is a function of the seed, the state, $t$ and the batch, so a chain can be resumed at any
step. Results do not depend on the number of threads or processes.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.exceptions import DivergedError
from isotherm.samplers.msgnht import msgnht
from isotherm.schedules import as_schedule
from isotherm.topics import counter_rng, distributed
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa import kernels, local_gibbs, rates
from isotherm.topics.dpfa.belief_network import Network, NetworkUpdate
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.model import DPFA, Parameters
from isotherm.topics.dpfa.perplexity import predict_batch
from isotherm.topics.dpfa.rates import Rates
from isotherm.topics.lda import TopicsDivergedError, as_topic_update
from isotherm.topics.perplexity import prequential_perplexity
from isotherm.topics.state import StateDict, load_tree, tree_state_dict
from isotherm.topics.topic_updates import Parametrization, TopicUpdate
from isotherm.types import Sampler, ScalarOrSchedule


class WeightsDivergedError(DivergedError):
    """Weights of the binary layers became too large or are not finite."""

    def __init__(self, step: int, why: str) -> None:
        self.chain, self.leaf, self.run = 0, "weights", None  # type: ignore[assignment]
        self.first_step, self.last_step = step - 1, step
        RuntimeError.__init__(self, f"After {step} batches: {why}")


def default_rate_step(step: Any) -> Any:
    r"""Return the default step size of $r$ and $p$: $0.1/\sqrt{1 + t/100}$.

    It is large at first, since the initial values are rough.
    """
    return 0.1 / (1 + step / 100) ** 0.5


class DPFAChain:
    r"""A Markov chain of topics, weights and rates.

    Parameters
    ----------
    model
        The model.
    topics
        Sampler of the topics: one of the core with one gradient per step, built with `grad_fn=None`
        (for example `isotherm.sgrld(None, step_size, prior=model.eta)`),
        `isotherm.topics.scir.SCIR`, or another `isotherm.topics.topic_updates.TopicUpdate`.
    network
        Sampler of weights and biases; by default the paper's mSGNHT-S with $h = 10^{-4}$, $D = 40$.
    data_size
        $J$, the number of documents that the posterior is conditioned on.
    start
        Initialization from the first documents (`isotherm.topics.dpfa.initialization.learn_start`);
        without it topics start at random.
    parametrization
        What the position of the topics' sampler means, as in `isotherm.topics.lda.LDAChain`.
    inner_steps
        Steps of the network's sampler per batch.
    rate_step
        $h$ of $r$ and $p$: a number, or a schedule over batches; by default `default_rate_step`.
    sweeps, burn_in, thin
        Gibbs sweeps per batch, how many are discarded, and the interval between kept sweeps after
        that.
    score_every
        Predict a part of every `score_every`-th batch before learning from it; 0 means never.
    seed
        Seed of all random numbers.
    threads
        Maximum number of threads for the sweeps.
    shared
        Whether the processes of `jax.distributed` share every batch
        (`isotherm.topics.distributed`): each process passes its own documents to `step`.

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
    """Compiled Gibbs sweep over documents."""
    divergence_hint = "Try a smaller `step_size`."

    def __init__(
        self,
        model: DPFA,
        topics: Sampler | TopicUpdate,
        network: Sampler | None = None,
        *,
        data_size: float,
        start: Start | None = None,
        parametrization: Parametrization | None = None,
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
        local_gibbs.kept_sweep_index(sweeps, burn_in, thin)
        network = msgnht(None, 1e-4, 40.0) if network is None else network
        self.model, self.data_size, self.seed, self.threads = model, data_size, seed, threads
        self.shared = shared
        self.settings: dict[str, Any] = {"sweeps": sweeps, "burn_in": burn_in, "thin": thin}
        self.rate_step = as_schedule(default_rate_step if rate_step is None else rate_step)
        self.score_every = score_every
        self.topic_update = as_topic_update(topics, parametrization)
        self.network_update: Any = NetworkUpdate(network, model.layers, inner_steps)
        shape, counts = (model.num_words, model.num_topics), None
        self.rates, self.num_batches, self.documents_seen = rates.initial_rates(model), 0, 0
        if start is not None:
            counts = (start.counts + model.eta) * (data_size / start.documents)
            mass = float(counts.sum() / model.num_topics)
            self.rates = rates.initial_rates(model, start.r, start.p, mass)
            self.documents_seen = start.documents
        self.topics_state = self.topic_update.init(seed, shape, counts)
        self.network_state = self.network_update.init(seed)
        self.on_rates = np.full(model.depth, np.nan)
        """Fraction of units that were on in the last batch, per layer."""
        self.predicted = np.zeros(2)
        """Log likelihood and number of the tokens predicted before they were learned."""

    def continue_from(self, parameters: Parameters) -> None:
        """Take weights, biases and rates from another algorithm; topics stay as they are."""
        position = jax.tree.map(
            lambda x: jnp.asarray(x, jnp.float32), Network(parameters.weights, parameters.biases)
        )
        self.network_state = self.network_state._replace(position=position)
        mass, p = self.rates.masses[0], parameters.p
        masses = np.stack([mass, mass * (1 - p) / p])
        self.rates = Rates(parameters.rates, parameters.gamma0, masses)

    def step(self, batch: Corpus) -> None:
        """Learn from a batch."""
        size = distributed.count_documents(batch) if self.shared else len(batch)
        self.model.require_documents("batch", batch)
        topics = self.topic_update.begin_step(self.seed, self.topics_state)
        if not topics.finite:
            raise TopicsDivergedError(self.topic_update.name, self.num_batches)
        network = self.network_update.begin_step(self.seed, self.network_state)
        try:
            prepared = local_gibbs.prepare(
                topics.rows, *network.network, self.rates.rates, self.rates.p
            )
        except FloatingPointError as error:
            raise WeightsDivergedError(
                self.num_batches, f"{error} {self.divergence_hint}"
            ) from error
        if self.score_every and self.num_batches % self.score_every == 0:
            self._predict(prepared, batch)
        settings: dict[str, Any] = {
            "seed": self.seed,
            "step": self.num_batches,
            "threads": self.threads,
            "kernel": self.kernel,
        }
        result = local_gibbs.sweep(prepared, batch, **self.settings, **settings)
        if self.shared:
            result = result.all_gather(self.model.num_words)
        counts = result.all_word_counts(self.model.num_words)
        scale = self.data_size / size
        self.topics_state = self.topic_update.finish_step(self.seed, topics, counts, scale)
        self.network_state = self.network_update.finish_step(
            self.seed, network, result.units, self.data_size
        )
        self.rates = self._update_rates(result)
        self.on_rates = result.on_rates()
        self.num_batches += 1
        self.documents_seen += size

    def _update_rates(self, result: local_gibbs.SweepResult) -> Rates:
        return rates.cir_update(
            self.model,
            counter_rng.generator(self.seed, "rates", self.num_batches),
            self.rates,
            result.counts,
            result.units[0],
            data_size=self.data_size,
            step_size=float(self.rate_step(np.asarray(self.num_batches))),  # type: ignore[arg-type]
        )

    def _predict(self, prepared: local_gibbs.KernelParameters, batch: Corpus) -> None:
        predicted = predict_batch(
            prepared,
            batch,
            **self.settings,
            seed=self.seed,
            num_batches=self.num_batches,
            threads=self.threads,
            kernel=self.kernel,
        )
        if self.shared:
            predicted = distributed.all_reduce(predicted)
        self.predicted = self.predicted + predicted

    def prequential_perplexity(self) -> float:
        """Return the perplexity of all tokens that were predicted before they were learned.

        A fifth of the tokens of a scored batch is predicted from the others. For a part of the
        stream, pass the difference of two values of `predicted` to
        `isotherm.topics.perplexity.prequential_perplexity`.
        """
        return prequential_perplexity(self.predicted)

    def parameters(self) -> Parameters:
        """Return the current parameters of the model."""
        topics = np.ascontiguousarray(self.topic_update.topics(self.topics_state).T)
        if not np.isfinite(topics.sum()):
            raise TopicsDivergedError(self.topic_update.name, self.num_batches)
        network = jax.tree.map(np.asarray, self.network_state.position)
        return Parameters(
            topics,
            network.weights,
            network.biases,
            self.rates.rates,
            self.rates.gamma0,
            self.rates.p,
        )

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        return tree_state_dict(self._state())

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a chain with the same settings, bit for bit."""
        mismatch = (
            "`state` has another sampler, another vocabulary or other layers than this chain."
        )
        new = load_tree(self._state(), state, mismatch)
        self.topics_state, self.network_state = new["topics"], new["network"]
        self.rates = new["rates"]._replace(gamma0=float(new["rates"].gamma0))
        self.on_rates, self.predicted = new["on_rates"], new["predicted"]
        self.num_batches, self.documents_seen = int(new["num_batches"]), int(new["documents_seen"])

    def _state(self) -> dict[str, Any]:
        return {
            "topics": self.topics_state,
            "network": self.network_state,
            "rates": self.rates,
            "on_rates": self.on_rates,
            "predicted": self.predicted,
            "num_batches": self.num_batches,
            "documents_seen": self.documents_seen,
        }

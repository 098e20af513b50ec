r"""Latent Dirichlet allocation by stochastic-gradient MCMC.

Topics are sampled; proportions and assignments of documents are integrated out.

Semi-collapsed posterior of the topics $\phi$, given documents $j = 1, \dots, J$:

$$ p(\phi \mid w) \propto p(\phi)\prod_j\sum_{z_j} p(w_j, z_j \mid \alpha, \phi), \qquad
   p(w_j, z_j \mid \alpha, \phi) \propto
   \prod_k \Gamma(\alpha_k + n_{jk\cdot})\prod_w\phi_{kw}^{n_{jkw}} . $$

The gradient of its logarithm needs only $\mathrm E[n_{jkw}]$ under $p(z_j \mid w_j, \phi)$
(Fisher's identity). For a batch $S$ it is estimated by Gibbs sweeps
(`isotherm.topics.expected_counts.gibbs_counts`) and scaled by $J/|S|$. A *topic update*
(`isotherm.topics.topic_updates`) then changes the topics: any sampler of the core on
expanded-natural topics, `isotherm.sgrld` on expanded-mean topics, SCIR (`isotherm.topics.scir`) or
TLASGR (`isotherm.topics.tlasgr`).

Step $t$ of a chain is a function of the seed, the state, $t$ and the batch, so a chain can be
resumed at any step. Results do not depend on the number of threads or processes.

References
----------
Patterson & Teh (2013), *Stochastic gradient Riemannian Langevin dynamics on the
probability simplex*, NeurIPS. Ding et al. (2014), *Bayesian sampling using stochastic gradient
thermostats*, NeurIPS.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from isotherm.exceptions import DivergedError
from isotherm.loop.progress import make_progress
from isotherm.topics import distributed, layout
from isotherm.topics.corpus import Corpus, minibatch
from isotherm.topics.expected_counts import check_sweeps, gibbs_counts
from isotherm.topics.state import StateDict, load_tree, tree_state_dict
from isotherm.topics.topic_updates import (
    ExpandedMean,
    ExpandedNatural,
    Parametrization,
    SamplerUpdate,
    TopicUpdate,
)
from isotherm.types import Sampler


class TopicsDivergedError(DivergedError):
    """The topics are no longer finite. Draws that were returned before are not affected."""

    def __init__(self, name: str, step: int) -> None:
        self.chain, self.leaf, self.run = 0, "topics", None  # type: ignore[assignment]
        self.first_step, self.last_step = step - 1, step
        advice = "a smaller `step_size` or a larger batch"
        if name.endswith(" euler"):
            advice = (
                "a smaller `step_size`, a larger batch, or the integrator 'ABOBA', which is stable "
                "at larger steps"
            )
        RuntimeError.__init__(
            self, f"{name} diverged: after {step} steps the topics are not finite. Try {advice}."
        )


class LDAChain:
    r"""A Markov chain of topics.

    Parameters
    ----------
    sampler
        A sampler of the core with one gradient per step, built with `grad_fn=None`, or
        `isotherm.topics.scir.SCIR`, or another `isotherm.topics.topic_updates.TopicUpdate`.
    num_topics, num_words
        $K$ and $V$.
    data_size
        $J$, the number of documents that the posterior is conditioned on. The counts of a batch are
        scaled to it.
    alpha
        $\alpha$ of the documents: a number (symmetric) or one per topic.
    parametrization
        What the sampler's position means. By default `ExpandedMean()` for `isotherm.sgrld`,
        otherwise `ExpandedNatural()`, whose prior is $\mathcal N(0.1, 1)$.
    sweeps, burn_in
        Gibbs sweeps per batch, after one that initializes the assignments, and how many of them are
        discarded.
    seed
        Seed of all random numbers.
    threads
        Maximum number of threads for the sweeps.
    shared
        Whether the processes of `jax.distributed` share every batch
        (`isotherm.topics.distributed`): each process passes its own documents to `step`.

    Examples
    --------
    >>> import isotherm
    >>> from isotherm.topics.corpus import as_corpus
    >>> corpus = as_corpus([[3, 1, 0], [0, 1, 4], [2, 2, 0], [0, 0, 5]])
    >>> sampler = isotherm.msgnht(None, step_size=0.02, diffusion=0.75)
    >>> chain = LDAChain(sampler, 2, corpus.num_words, data_size=len(corpus))
    >>> chain.advance(corpus, num_steps=20, batch_size=2)
    >>> chain.topics().shape, chain.num_steps
    ((2, 3), 20)
    """

    def __init__(
        self,
        sampler: Sampler | TopicUpdate,
        num_topics: int,
        num_words: int,
        *,
        data_size: float,
        alpha: Any = 0.1,
        parametrization: Parametrization | None = None,
        sweeps: int = 10,
        burn_in: int = 5,
        seed: int = 0,
        threads: int = 1,
        shared: bool = False,
    ) -> None:
        if num_topics < 1 or num_words < 1:
            raise ValueError(
                "`num_topics` and `num_words` must be at least 1, "
                f"got {num_topics} and {num_words}."
            )
        if not data_size > 0:
            raise ValueError(f"`data_size` must be positive, got {data_size}.")
        check_sweeps(sweeps, burn_in)
        self.topic_update = as_topic_update(sampler, parametrization)
        self.num_topics, self.num_words, self.data_size = num_topics, num_words, data_size
        self.alpha = layout.as_alpha(alpha, num_topics)
        self.sweeps, self.burn_in, self.seed, self.threads = sweeps, burn_in, seed, threads
        self.shared = shared
        self.sampler_state = self.topic_update.init(seed, (num_words, num_topics))
        """State of the sampler; its position is word-major."""

    @property
    def num_steps(self) -> int:
        """Number of steps taken."""
        return int(self.sampler_state.step_index)

    def step(self, batch: Corpus) -> None:
        """Take one step with a batch of documents."""
        if batch.num_words != self.num_words:
            raise ValueError(f"`batch` has {batch.num_words} words, the chain {self.num_words}.")
        size = distributed.count_documents(batch) if self.shared else len(batch)
        if size == 0:
            raise ValueError("`batch` has no documents.")
        half = self.topic_update.begin_step(self.seed, self.sampler_state)
        if not half.finite:
            raise TopicsDivergedError(self.topic_update.name, self.num_steps)
        expected = gibbs_counts(
            half.rows,
            batch,
            self.alpha,
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            seed=self.seed,
            step=self.num_steps,
            threads=self.threads,
        )
        counts = np.zeros((self.num_words, self.num_topics), np.float32)
        counts[expected.words] = expected.counts
        if self.shared:
            counts = distributed.all_reduce_counts(counts, self.sweeps - self.burn_in)
        self.sampler_state = self.topic_update.finish_step(
            self.seed, half, counts, self.data_size / size
        )

    def advance(
        self, corpus: Corpus, num_steps: int, batch_size: int, *, progress: bool | None = False
    ) -> None:
        """Take steps with batches of a corpus, drawn independently without replacement."""
        with make_progress(progress, num_steps, f"{self.topic_update.name}, LDA") as bar:
            for _ in range(num_steps):
                batch = minibatch(corpus, batch_size, seed=self.seed, step=self.num_steps)
                self.step(distributed.local_documents(batch) if self.shared else batch)
                bar.advance(1, None, None)

    def draws(
        self, corpus: Corpus, num_draws: int, *, batch_size: int, thin: int = 1, burn_in: int = 0
    ) -> Iterator[np.ndarray]:
        """Run the chain and yield the topics of every `thin`-th step after the burn-in."""
        self.advance(corpus, burn_in, batch_size)
        for _ in range(num_draws):
            self.advance(corpus, thin, batch_size)
            yield self.topics()

    def topics(self) -> np.ndarray:
        r"""Return $\phi$, (topics, words), float32; rows sum to 1."""
        topics = np.ascontiguousarray(self.topic_update.topics(self.sampler_state).T, np.float32)
        if not np.isfinite(topics.sum()):
            raise TopicsDivergedError(self.topic_update.name, self.num_steps)
        return topics

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        return tree_state_dict(self.sampler_state)

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a chain with the same settings, bit for bit."""
        mismatch = "`state` has another sampler, vocabulary or number of topics than this chain."
        self.sampler_state = load_tree(self.sampler_state, state, mismatch)


def as_topic_update(
    sampler: Sampler | TopicUpdate, parametrization: Parametrization | None = None
) -> TopicUpdate:
    """Return a sampler of the core as a topic update; a topic update is returned as it is."""
    if not isinstance(sampler, Sampler):
        if not hasattr(sampler, "begin_step"):
            raise ValueError(f"Expected a sampler or a topic update, got {sampler!r}.")
        if parametrization is not None:
            raise ValueError(
                f"`parametrization` is for samplers of the core; {sampler.name} has its own."
            )
        return sampler
    if parametrization is None:
        parametrization = ExpandedMean() if sampler.traits.name == "sgrld" else ExpandedNatural()
    return SamplerUpdate(sampler, parametrization)

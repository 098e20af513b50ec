r"""Latent Dirichlet allocation by stochastic gradients: topics move, documents are integrated out.

Semi-collapsed posterior of the topics $\phi$, given documents $j = 1, \dots, J$:

$$ p(\phi \mid w) \propto p(\phi)\prod_j\sum_{z_j} p(w_j, z_j \mid \alpha, \phi), \qquad
   p(w_j, z_j \mid \alpha, \phi) \propto \prod_k \Gamma(\alpha_k + n_{jk\cdot})\prod_w\phi_{kw}^{n_{jkw}} . $$

The gradient of its logarithm needs $\mathrm E[n_{jkw}]$ under $p(z_j \mid w_j, \phi)$ and nothing else (Fisher's identity). For
a batch $S$ it is estimated by Gibbs sweeps (`isotherm.topics.expected_counts.gibbs_counts`) and scaled by $J/|S|$.
A *move* (`isotherm.topics.topic_updates`) takes it from there: any sampler of the core on
expanded-natural topics, `isotherm.sgrld` on expanded-mean topics, or SCIR (`isotherm.topics.scir`).

Step $t$ of a chain is a function of the seed, the state, $t$ and the batch, so a chain may go on anywhere. The
number of threads changes nothing, nor does that of processes.

References
----------
Patterson & Teh (2013), *Stochastic gradient Riemannian Langevin dynamics on the probability
simplex*, NeurIPS. Ding et al. (2014), *Bayesian sampling using stochastic gradient thermostats*, NeurIPS.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from isotherm.exceptions import DivergedError
from isotherm.loop.progress import make_progress
from isotherm.topics import distributed, layout
from isotherm.topics.corpus import Corpus, minibatch
from isotherm.topics.expected_counts import check_sweeps, gibbs_counts
from isotherm.topics.topic_updates import ExpandedMean, Form, Move, Natural, SamplerMove
from isotherm.types import Sampler


class TopicsDivergedError(DivergedError):
    """Topics left the real numbers; the draws made before are with whoever asked for them."""

    def __init__(self, name: str, step: int) -> None:
        self.chain, self.leaf, self.run = 0, "topics", None  # type: ignore[assignment]
        self.first_step, self.last_step = step - 1, step
        RuntimeError.__init__(
            self,
            f"{name} diverged: after {step} steps the topics are not finite. Try a smaller `step_size`, "
            "a larger batch, or the integrator 'ABOBA', which is stable at larger steps.",
        )


class LDAChain:
    r"""A chain of topics.

    Parameters
    ----------
    sampler
        Any sampler of the core with one gradient per step, built with `grad_fn=None`, or
        `isotherm.topics.scir.SCIR`, or a move of your own.
    num_topics, num_words
        $K$ and $V$.
    data_size
        $J$, the number of documents the posterior is given. It scales the counts of a batch.
    alpha
        $\alpha$ of the documents: a number (symmetric) or one per topic.
    form
        What the position means. By default `ExpandedMean()` for `isotherm.sgrld`, else `Natural()`,
        whose prior is $\mathcal N(0.1, 1)$.
    sweeps, burn_in
        Gibbs sweeps per batch, after one that fills in, and how many of them are not averaged.
    seed
        Which random numbers.
    threads
        At most so many, for the sweeps.
    shared
        Whether the processes of `jax.distributed` share every batch (`isotherm.topics.distributed`): each gives `step` its own documents.

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
        sampler: Sampler | Move,
        num_topics: int,
        num_words: int,
        *,
        data_size: float,
        alpha: Any = 0.1,
        form: Form | None = None,
        sweeps: int = 10,
        burn_in: int = 5,
        seed: int = 0,
        threads: int = 1,
        shared: bool = False,
    ) -> None:
        if num_topics < 1 or num_words < 1:
            raise ValueError(f"There must be topics and words, got {num_topics=}, {num_words=}.")
        if not data_size > 0:
            raise ValueError(f"`data_size` must be positive, got {data_size}.")
        check_sweeps(sweeps, burn_in)
        self.move = as_move(sampler, form)
        self.num_topics, self.num_words, self.data_size = num_topics, num_words, data_size
        self.alpha = layout.as_alpha(alpha, num_topics)
        self.sweeps, self.burn_in, self.seed, self.threads = sweeps, burn_in, seed, threads
        self.shared = shared
        self.chain = self.move.start(seed, (num_words, num_topics))
        """State of the sampler; its position is word-major."""

    @property
    def num_steps(self) -> int:
        """How many steps the chain has taken."""
        return int(self.chain.step_index)

    def step(self, batch: Corpus) -> None:
        """Take one step with the documents given."""
        if batch.num_words != self.num_words:
            raise ValueError(f"`batch` has {batch.num_words} words, the chain {self.num_words}.")
        size = distributed.count(batch) if self.shared else len(batch)
        if size == 0:
            raise ValueError("`batch` has no documents.")
        opened = self.move.open(self.seed, self.chain)
        if not opened.finite:
            raise TopicsDivergedError(self.move.name, self.num_steps)
        found = gibbs_counts(
            opened.rows,
            batch,
            self.alpha,
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            seed=self.seed,
            step=self.num_steps,
            threads=self.threads,
        )
        counts = np.zeros((self.num_words, self.num_topics), np.float32)
        counts[found.words] = found.counts
        if self.shared:
            counts = distributed.add_counts(counts, self.sweeps - self.burn_in)
        self.chain = self.move.close(self.seed, opened, counts, self.data_size / size)

    def advance(
        self, corpus: Corpus, num_steps: int, batch_size: int, *, progress: bool | None = False
    ) -> None:
        """Take steps with batches of a corpus, drawn afresh without replacement at every step."""
        with make_progress(progress, num_steps, f"{self.move.name}, LDA") as bar:
            for _ in range(num_steps):
                batch = minibatch(corpus, batch_size, seed=self.seed, step=self.num_steps)
                self.step(distributed.own_part(batch) if self.shared else batch)
                bar.advance(1, None, None)

    def draws(
        self, corpus: Corpus, num_draws: int, *, batch_size: int, thin: int = 1, burn_in: int = 0
    ) -> Iterator[np.ndarray]:
        """Run the chain and give the topics of every `thin`-th step after the burn-in."""
        self.advance(corpus, burn_in, batch_size)
        for _ in range(num_draws):
            self.advance(corpus, thin, batch_size)
            yield self.topics()

    def topics(self) -> np.ndarray:
        r"""Give $\phi$, (topics, words), float32; rows sum to 1."""
        found = np.ascontiguousarray(self.move.topics(self.chain).T, np.float32)
        if not np.isfinite(found.sum()):
            raise TopicsDivergedError(self.move.name, self.num_steps)
        return found

    def state(self) -> dict[str, np.ndarray]:
        """Give what it takes to go on, as arrays by name."""
        leaves = jax.tree.leaves(self.chain)
        return {f"leaf{i}": np.array(leaf) for i, leaf in enumerate(leaves)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state of a chain with the same settings, bit for bit."""
        leaves, structure = jax.tree.flatten(self.chain)
        new = [np.asarray(state[f"leaf{i}"]) for i in range(len(state))]
        if [(x.shape, x.dtype) for x in new] != [(x.shape, x.dtype) for x in leaves]:
            raise ValueError("`state` is of another sampler, another vocabulary or other topics.")
        self.chain = jax.tree.unflatten(structure, [x.copy() for x in new])


def as_move(sampler: Sampler | Move, form: Form | None = None) -> Move:
    """Make a move of a sampler, and let a move pass."""
    if not isinstance(sampler, Sampler):
        if not hasattr(sampler, "start"):
            raise ValueError(f"This is neither a sampler nor a move: {sampler!r}.")
        if form is not None:
            raise ValueError(f"`form` is for samplers of the core, {sampler.name} has its own.")
        return sampler
    if form is None:
        form = ExpandedMean() if sampler.traits.name == "sgrld" else Natural()
    return SamplerMove(sampler, form)

r"""Latent Dirichlet allocation by collapsed Gibbs sampling.

$$ \phi_k \sim \mathrm{Dir}(\beta), \quad \theta_j \sim \mathrm{Dir}(\alpha), \quad
   z_{ji} \sim \theta_j, \quad w_{ji} \sim \phi_{z_{ji}} . $$

Topics and proportions are integrated out; the state of the chain is the assignments $z$. A sweep
draws the assignment of every token from its exact conditional (`isotherm.topics.kernels`). The
chain targets $p(z \mid w)$ without error, needs memory proportional to the number of tokens, and
runs on one thread. Given $z$ the posterior mean of the topics is
$\mathrm E[\phi_{kw} \mid z] = (n_{kw} + \beta)/(n_{k\cdot} + V\beta)$.

Topics do not switch labels in runs of practical length, so topics of several sweeps of *one* chain
can be averaged; topics of different chains cannot.

References
----------
Griffiths & Steyvers (2004), *Finding scientific topics*, PNAS.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import gammaln

from isotherm.loop.progress import make_progress
from isotherm.topics import counter_rng, layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.dirichlet_priors import (
    Shape,
    check_prior_counts,
    check_shape,
    draw_document_prior,
    draw_word_prior,
)
from isotherm.topics.expected_counts import doc_topic_counts, sweep_collapsed, sweep_two_collapsed
from isotherm.topics.state import StateDict

PRIOR_INTERVAL, FIRST_SWEEPS = 5, 20
"""Learned priors are drawn after each of the first sweeps, and then in this interval of sweeps."""
_CHUNK = 2**22
"""Tokens between two updates of the progress bar."""


class GibbsLDA:
    r"""A Markov chain of topic assignments.

    Parameters
    ----------
    corpus
        The documents.
    num_topics
        $K$.
    alpha
        $\alpha$: a number (symmetric) or one per topic.
    beta
        $\beta$, symmetric.
    prior_counts
        Pseudo-counts that are added to $\beta$, (topics, words), for topics that are expected to
        have certain words.
    learn_alpha, learn_beta
        Whether to draw $\alpha$ (`"asymmetric"`: one per topic, `"symmetric"`: one for all, or
        `None`) and $\beta$ from their conditionals under a gamma hyperprior
        (`isotherm.topics.dirichlet_priors`), after each of the first `FIRST_SWEEPS` sweeps and then
        after every `PRIOR_INTERVAL`-th, which costs a twentieth of the time of the sweeps; `alpha`
        and `beta` are then the first values.
    seed
        Seed of all random numbers. The same seed gives the same chain on any machine.

    Examples
    --------
    >>> from isotherm.topics.corpus import as_corpus
    >>> chain = GibbsLDA(as_corpus([[3, 1, 0], [0, 1, 4]]), num_topics=2)
    >>> chain.sweep(10)
    >>> chain.topics().shape
    (2, 3)
    """

    def __init__(
        self,
        corpus: Corpus,
        num_topics: int,
        *,
        alpha: Any = 0.1,
        beta: float = 0.05,
        prior_counts: Any = None,
        learn_alpha: Shape | None = None,
        learn_beta: bool = False,
        seed: int = 0,
    ) -> None:
        if num_topics < 1:
            raise ValueError(f"`num_topics` must be at least 1, got {num_topics}.")
        if not (beta > 0 and np.isfinite(beta)):
            raise ValueError(f"`beta` must be positive, got {beta}.")
        self.corpus, self.num_topics, self.beta, self.seed = corpus, num_topics, beta, seed
        self.alpha = layout.as_alpha(alpha, num_topics)
        self.prior_counts = check_prior_counts(prior_counts, num_topics, corpus.num_words)
        self.learn_alpha: Shape | None = check_shape(learn_alpha)
        self.learn_beta = learn_beta
        if learn_beta and prior_counts is not None:
            raise ValueError("`learn_beta` must be False if there are `prior_counts`.")
        self._words, self._starts = corpus.tokens(), corpus.token_starts
        self._key = counter_rng.purpose_key(seed, "collapsed")
        if len(self._words) == 0:
            raise ValueError("`corpus` has no tokens.")
        self.num_sweeps = 0
        self.assignments = np.full(len(self._words), -1, np.int32)
        """Topic of every token; -1 before the first sweep."""
        self._count()

    def _count(self) -> None:
        shape = (self.corpus.num_words, layout.padded_size(self.num_topics))
        self._totals = np.zeros(shape[1], np.int64)
        self._word_topics = np.zeros(shape, np.float32)
        if self.prior_counts.any():
            self._totals = self.prior_counts.sum(0)
            self._word_topics += self.prior_counts
        if self.assignments[0] >= 0:
            np.add.at(self._word_topics, (self._words, self.assignments), np.float32(1))
            self._totals += np.bincount(self.assignments, minlength=shape[1])

    def counts(self) -> np.ndarray:
        r"""Return $n_{kw}$ plus the pseudo-counts, (topics, words), float32."""
        return layout.topic_major(self._word_topics, self.num_topics)

    def sweep(self, num_sweeps: int = 1, *, progress: bool | None = False) -> None:
        """Draw every assignment `num_sweeps` times; the first sweep of a chain initializes them.

        Parameters
        ----------
        num_sweeps
            Number of sweeps.
        progress
            Whether to show a progress bar; `None` shows it if stderr is a terminal.
        """
        chunk = max(1, _CHUNK // len(self._words))
        with make_progress(progress, num_sweeps, f"Gibbs, {self.num_topics} topics") as bar:
            while num_sweeps > 0:
                now = min(chunk, num_sweeps)
                self._run(now)
                bar.advance(now, None, None)
                num_sweeps -= now

    def _run(self, num_sweeps: int) -> None:
        for _ in range(num_sweeps):
            sweep_collapsed(self._words, self._starts, *self._state())
            self._finish_sweep()

    def _state(self) -> tuple[Any, ...]:
        """Return what a sweep changes, what it depends on, and its random streams."""
        streams = counter_rng.streams(self._key, self.num_sweeps, self.corpus.documents)
        counts = self.assignments, self._word_topics, self._totals
        return (*counts, self.alpha, self.beta, streams)

    def _finish_sweep(self) -> None:
        self.num_sweeps += 1
        if self.num_sweeps <= FIRST_SWEEPS or self.num_sweeps % PRIOR_INTERVAL == 0:
            self._draw_priors()

    def _draw_priors(self) -> None:
        if self.learn_alpha is None and not self.learn_beta:
            return
        rng = counter_rng.generator(self.seed, "rates", self.num_sweeps)
        if self.learn_alpha is not None:
            alpha = self.alpha.astype(np.float64)
            drawn = draw_document_prior(
                rng, self._starts, self.assignments, alpha, self.learn_alpha
            )
            self.alpha = layout.as_alpha(drawn, self.num_topics)
        if self.learn_beta:
            totals = self._totals[: self.num_topics]
            self.beta = draw_word_prior(rng, self._word_topics, totals, self.beta)

    def draws(
        self, num_draws: int, *, thin: int = 1, burn_in: int = 0, progress: bool | None = False
    ) -> Iterator[np.ndarray]:
        """Run the chain and yield the topics of every `thin`-th sweep after the burn-in.

        Their mean estimates the posterior mean of the topics; a score should average predictive
        probabilities over them (`isotherm.topics.perplexity`).
        """
        self.sweep(burn_in, progress=progress)
        for _ in range(num_draws):
            self.sweep(thin)
            yield self.topics()

    def topics(self) -> np.ndarray:
        r"""Compute $\mathrm E[\phi \mid z]$, (topics, words), float32; rows sum to 1."""
        counts = self.counts() + np.float32(self.beta)
        return counts / counts.sum(1, keepdims=True, dtype=np.float64).astype(np.float32)

    def proportions(self) -> np.ndarray:
        r"""Compute $\mathrm E[\theta \mid z]$, (documents, topics), float32; rows sum to 1."""
        n = self._doc_topics() + self.alpha
        return (n / n.sum(1, keepdims=True)).astype(np.float32)

    def _doc_topics(self) -> np.ndarray:
        return doc_topic_counts(self.corpus, self.assignments, self.num_topics)

    def log_joint(self) -> float:
        r"""Compute $\log p(w, z)$; burn-in is over when it has stopped increasing."""
        alpha = self.alpha.astype(np.float64)
        n, prior = self._word_topics[:, : self.num_topics], np.zeros((1, 1))
        if self.prior_counts.any():
            prior = self.prior_counts[:, : self.num_topics]
        mass = self.beta * len(n) + np.broadcast_to(prior.sum(0), self.num_topics)
        words = gammaln(mass).sum() - gammaln(mass + (n - prior).sum(0, dtype=np.float64)).sum()
        cells = np.nonzero(n)  # the terms of all others are zero
        before = self.beta + np.broadcast_to(prior, n.shape)[cells]
        words += (gammaln(self.beta + n[cells].astype(np.float64)) - gammaln(before)).sum()
        m = self._doc_topics()
        document, topic = np.nonzero(m)
        topics = (gammaln(m[document, topic] + alpha[topic]) - gammaln(alpha[topic])).sum()
        topics += (gammaln(alpha.sum()) - gammaln(m.sum(1) + alpha.sum())).sum()
        return float(words + topics)

    def state_dict(self) -> StateDict:
        """Return everything needed to resume: assignments, number of sweeps, learned priors."""
        state = {"assignments": self.assignments.copy(), "num_sweeps": np.array(self.num_sweeps)}
        if self.learn_alpha is not None:
            state["alpha"] = np.array(self.alpha)
        if self.learn_beta:
            state["beta"] = np.array(self.beta)
        return state

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a chain with the same corpus and settings, bit for bit."""
        assignments = np.array(state["assignments"], np.int32)
        if assignments.shape != self.assignments.shape or assignments.max() >= self.num_topics:
            raise ValueError("`state` has another corpus or number of topics than this chain.")
        self.assignments, self.num_sweeps = assignments, int(state["num_sweeps"])
        if self.learn_alpha is not None:
            self.alpha = layout.as_alpha(state["alpha"], self.num_topics)
        if self.learn_beta:
            self.beta = float(state["beta"])
        self._count()


def sweep_chains(chains: Sequence[GibbsLDA]) -> None:
    """Make one sweep of each of several chains over one corpus, with the same number of topics.

    The result is that of `chain.sweep()` for each. Pairs of chains take little more than half the
    time, since a processor can work on two of them at once.
    """
    for pair in (chains[i : i + 2] for i in range(0, len(chains), 2)):
        if len(pair) == 1:
            pair[0].sweep()
            continue
        a, b = pair
        states = zip(a._state(), b._state(), strict=True)
        sweep_two_collapsed(a._words, a._starts, *states)
        a._finish_sweep()
        b._finish_sweep()

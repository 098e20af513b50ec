"""Topics that a deep binary network switches on, with scikit-learn's interface and draws from the posterior."""

from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.metaestimators import available_if

from isotherm.topics import counter_rng
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.estimators.dpfa_learners import Plan, Stream, Sweeps
from isotherm.topics.estimators.dpfa_results import DeepTopics
from isotherm.topics.estimators.stream_progress import DocumentBar

_PASSES = {"sgmcmc": 10, "filtering": 1, "gibbs": 200}


def _takes_streams(estimator: "BayesianDPFA") -> bool:
    if estimator.inference == "gibbs":
        raise AttributeError("`inference='gibbs'` needs all documents at once: use `fit`.")
    return True


class BayesianDPFA(DeepTopics):
    r"""Deep Poisson factor analysis whose topics and weights are draws from their posterior.

    Topics are switched on and off in each document by binary units, those by a second layer, and so on
    (`isotherm.topics.dpfa.model`). Takes what `sklearn.feature_extraction.text.CountVectorizer` gives, sparse, never made dense. Memory does not
    grow with the documents, except for `inference="gibbs"`: `partial_fit` takes streams.

    Parameters
    ----------
    layers
        Units per binary layer, from below; the first number is that of the topics.
    inference
        `"sgmcmc"`: weights by a thermostat, topics by `sampler` (`isotherm.topics.dpfa.sgmcmc`). `"filtering"`: one pass without a step
        size (`isotherm.topics.dpfa.bcdf`). `"gibbs"`: exact, all documents in memory (`isotherm.topics.dpfa.gibbs`).
    topic_word_prior
        $\eta$, Dirichlet prior of the words of a topic; `None` is 0.05.
    r, p
        A number to fix $r$ or $p$ of all topics at, or `None` to sample them.
    sampler
        What moves the topics: `"scir"`, `"sgrld"`, … as in `BayesianLDA`, or a sampler object built with `grad_fn=None`.
    step_size
        $h$ of the topics' sampler, a number or a schedule; `None` has a default for each.
    weight_step_size, diffusion, integrator
        $h$, $D$ and scheme of the thermostat of the weights; `"ABOBA"` is mSGNHT-S, `"euler"` mSGNHT-E. Without a step size it is $0.3/\sqrt J$ for $J$
        documents. The paper has $10^{-4}$ and 40, with which weights hardly move in a thousand batches.
    batch_size
        Documents per update.
    max_iter
        How often `fit` goes through the documents; `None` is 10 for `"sgmcmc"`, 1 for `"filtering"`, which must not see documents twice, and
        200 for `"gibbs"`.
    total_samples
        Number of documents the posterior is given in `partial_fit`; `None` is as many as were seen.
    start_documents
        So many of the first documents are read by a filter of plain LDA, whose topics the model starts from; 0 starts at random, which takes much
        longer. In a stream the layers begin to learn after them. `None` is 10 000 in `fit` and 1000 in `partial_fit`; for 128 topics
        10 000 are better there, too.
    num_draws
        How many draws to keep.
    sweeps, burn_in
        Gibbs sweeps per batch, and how many of them are not kept. Filtering makes them in five rounds.
    evaluate_every
        Predict a part of every so manyth batch before learning from it; 0 never does.
    fractional
        What to do with counts that are not whole: `"refuse"`, or `"round"` them.
    n_jobs
        Threads for sweeps, -1 for one per core; results do not depend on it.
    random_state
        Seed. The same one gives the same draws on any number of threads.
    verbose
        Show a progress bar with documents per second and the running perplexity.

    Attributes
    ----------
    components_
        Posterior mean of the topics, (topics, words); rows sum to 1.
    draws_
        Draws of the topics, (draws, topics, words).
    parameters_
        Draws of everything: a list of `isotherm.topics.dpfa.model.Parameters`.
    on_rates_
        Share of units that were on in the last batch, per layer. A layer that is always on or always off does nothing.
    prequential_perplexity_
        Perplexity of tokens that were predicted before they were learnt, of the last ten batches that were scored: a fifth of the tokens from the others.
    n_documents_seen_, n_batch_iter_, n_iter_
        How much was learned from.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> texts = ["cat dog cat", "dog cat", "stocks bonds", "bonds stocks stocks"] * 10
    >>> counts = CountVectorizer().fit_transform(texts)
    >>> model = BayesianDPFA((2, 2), random_state=0).fit(counts)
    >>> model.transform(counts).argmax(1)[:4].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    def __init__(
        self,
        layers: tuple[int, ...] = (128, 64, 32),
        *,
        inference: str = "sgmcmc",
        topic_word_prior: float | None = None,
        r: float | None = None,
        p: float | None = None,
        sampler: Any = "scir",
        step_size: Any = None,
        weight_step_size: float | None = None,
        diffusion: float = 10.0,
        integrator: str = "ABOBA",
        batch_size: int = 100,
        max_iter: int | None = None,
        total_samples: float | None = None,
        start_documents: int | None = None,
        num_draws: int = 20,
        sweeps: int = 25,
        burn_in: int = 20,
        evaluate_every: int = 10,
        fractional: str = "refuse",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.layers = layers
        self.inference = inference
        self.topic_word_prior = topic_word_prior
        self.r = r
        self.p = p
        self.sampler = sampler
        self.step_size = step_size
        self.weight_step_size = weight_step_size
        self.diffusion = diffusion
        self.integrator = integrator
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.total_samples = total_samples
        self.start_documents = start_documents
        self.num_draws = num_draws
        self.sweeps = sweeps
        self.burn_in = burn_in
        self.evaluate_every = evaluate_every
        self.fractional = fractional
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from these documents.

        Parameters
        ----------
        X
            (documents, words), counts, dense or SciPy sparse.
        y
            Ignored.
        """
        del y
        corpus = self._corpus(X, reset=True)
        plan, passes = self._plan(corpus, total=len(corpus)), self._passes()
        shuffled = corpus[self._order(len(corpus), 0)]
        first = min(10_000 if self.start_documents is None else self.start_documents, len(corpus))
        if self.inference == "filtering":
            first = min(first, len(corpus) // 2)  # the others have to teach the layers
        start = self._batches(shuffled[:first])
        with self._bar(passes * len(corpus)) as bar:
            if self.inference == "gibbs":
                self._learner = learner = Sweeps(plan, self.num_draws)
                learner.run(corpus, start, passes, bar.advance)
                self.n_documents_seen_, self.n_batch_iter_ = passes * len(corpus), passes
            else:
                self._stream(plan, wait=0).begin(start)
                if self.inference == "filtering":
                    self.n_documents_seen_, shuffled = first, shuffled[first:]
                    bar.advance(first)
                self._learn(shuffled, bar)
                for epoch in range(1, passes):
                    self._learn(corpus[self._order(len(corpus), epoch)], bar)
        self.n_iter_ = passes
        return self

    @available_if(_takes_streams)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Go on with documents of a stream.

        Parameters
        ----------
        X, y
            As in `fit`.
        """
        del y
        fresh = not self.__sklearn_is_fitted__()
        corpus = self._corpus(X, reset=fresh)
        if fresh:
            wait = 1000 if self.start_documents is None else self.start_documents
            self._stream(self._plan(corpus, self.total_samples), wait)
        with self._bar(len(corpus)) as bar:
            self._learn(corpus, bar)
        return self

    def _order(self, size: int, epoch: int) -> np.ndarray:
        return counter_rng.generator(self._seed, "documents", epoch).permutation(size)

    def _batches(self, corpus: Corpus) -> list[Corpus]:
        size = self.batch_size
        return [corpus[first : first + size] for first in range(0, len(corpus), size)]

    def _bar(self, total: int) -> DocumentBar:
        return DocumentBar(bool(self.verbose), total, f"DPFA, {self.inference}")

    def _stream(self, plan: Plan, wait: int) -> Stream:
        self._learner = stream = Stream(plan, self.num_draws, wait, self.evaluate_every)
        self.n_documents_seen_ = self.n_batch_iter_ = 0
        return stream

    def _learn(self, corpus: Corpus, bar: DocumentBar) -> None:
        learner = self._learner
        assert isinstance(learner, Stream)
        for batch in self._batches(corpus):
            learner.update(batch)
            self.n_documents_seen_ += len(batch)
            self.n_batch_iter_ += 1
            bar.advance(len(batch), learner.perplexity(), waiting=learner.chain is None)

    def _passes(self) -> int:
        if self.max_iter is None:
            return _PASSES[self.inference]
        check_scalar(self.max_iter, "max_iter", Integral, min_val=1)
        if self.inference == "filtering" and self.max_iter > 1:
            raise ValueError(
                "`max_iter` must be 1 for `inference='filtering'`, which adds up what documents say, "
                f"got {self.max_iter}."
            )
        return self.max_iter

    def _plan(self, corpus: Corpus, total: float | None) -> Plan:
        """Check the settings."""
        for name in ("batch_size", "num_draws", "sweeps"):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        check_scalar(self.evaluate_every, "evaluate_every", Integral, min_val=0)
        if self.start_documents is not None:
            check_scalar(self.start_documents, "start_documents", Integral, min_val=0)
        check_scalar(self.diffusion, "diffusion", Real, min_val=0)
        if self.inference not in _PASSES:
            known = ", ".join(map(repr, _PASSES))
            raise ValueError(f"`inference` must be one of {known}, got {self.inference!r}.")
        if self.fractional not in ("refuse", "round"):
            raise ValueError(f"`fractional` must be 'refuse' or 'round', got {self.fractional!r}.")
        if corpus.num_tokens == 0:
            raise ValueError("`X` has no words in it: every count is zero.")
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        eta = 0.05 if self.topic_word_prior is None else self.topic_word_prior
        model = DPFA(corpus.num_words, tuple(self.layers), eta, self.r, p=self.p)
        network = (self.weight_step_size, self.diffusion, self.integrator)
        return Plan(
            model,
            self.inference,
            self.sampler,
            self.step_size,
            network,
            total,
            self.batch_size,
            self.sweeps,
            self.burn_in,
            self._seed,
            self._threads,
        )

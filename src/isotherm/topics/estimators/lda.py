"""Latent Dirichlet allocation with scikit-learn's interface and posterior draws."""

from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.utils import check_scalar
from sklearn.utils.validation import check_is_fitted

from isotherm.topics import layout
from isotherm.topics.corpus import Corpus, completion
from isotherm.topics.estimators.base import TopicEstimator
from isotherm.topics.estimators.learners import LDAChainLearner, LDAFilterLearner, LDAPlan
from isotherm.topics.estimators.summaries import (
    TopicShares,
    TopWord,
    top_words,
    topic_shares,
)
from isotherm.topics.expected_counts import fold_in_fixed_point
from isotherm.topics.perplexity import perplexity

_COUNTS = {
    "n_components": 1,
    "batch_size": 1,
    "max_iter": 1,
    "num_draws": 1,
    "sweeps": 1,
    "burn_in": 0,
}
"""Integer settings and their least values."""


class BayesianLDA(TopicEstimator):
    r"""Latent Dirichlet allocation with draws from the posterior of the topics.

    Accepts the output of `sklearn.feature_extraction.text.CountVectorizer`; sparse input is not
    converted to a dense array. Names are those of scikit-learn's `LatentDirichletAllocation` where
    it has them. Memory does not grow with the number of documents: use `partial_fit` for streams.

    The default is conditional density filtering with discounted counts (`isotherm.topics.bcdf`):
    the words of a batch are assigned to topics by collapsed Gibbs sweeps given all previous
    batches, and draws are from the Dirichlet posterior of the topics. It has no step size. With
    another `sampler` the topics are drawn by stochastic-gradient MCMC (`isotherm.topics.lda`).

    Parameters
    ----------
    n_components
        $K$, the number of topics.
    doc_topic_prior
        $\alpha$, Dirichlet prior of the topics of a document; `None` is 0.1.
    topic_word_prior
        $\beta$, Dirichlet prior of the words of a topic; `None` is 0.05. Samplers other than
        `"filter"`, `"scir"`, `"sgrld"` and `"tlasgr"` use the prior $\mathcal N(0.1, 1)$ of
        expanded-natural topics instead.
    sampler
        `"filter"`, `"scir"`, `"sgrld"`, `"tlasgr"`, `"msgnht"`, `"sgnht"`, `"sghmc"`, `"sgld"`,
        `"psgld"`, or a sampler object built with `grad_fn=None`.
    step_size
        $h$ of a named sampler, a number or a schedule; `None` is a default for each sampler. The
        filter has no step size.
    learning_decay
        $\kappa$ in (0.5, 1] of the filter: smaller values discount old counts faster, 1 never does.
    batch_size
        Documents per update.
    max_iter
        Number of passes of `fit` over the documents.
    total_samples
        Number of documents that the posterior is conditioned on in `partial_fit`; `None` is the
        number of documents seen.
    num_draws
        Number of draws to keep.
    sweeps, burn_in
        Gibbs sweeps per batch, and how many of them are discarded.
    fractional
        What to do with counts that are not integers: `"refuse"` or `"round"`.
    n_jobs
        Number of threads for the sweeps of samplers and for `transform`, -1 for one per core;
        results do not depend on it.
    random_state
        Seed. The same seed gives the same topics on any number of threads.
    verbose
        Show a progress bar.

    Attributes
    ----------
    components_
        Posterior mean of the topics, (topics, words); rows sum to 1.
    draws_
        Posterior draws: `{"topics": (1, draw, topic, word)}`.
    n_documents_seen_, n_batch_iter_, n_iter_
        Number of documents and batches learned from, and of passes of `fit`.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> texts = ["cat dog cat", "dog cat", "stocks bonds", "bonds stocks stocks"] * 10
    >>> counts = CountVectorizer().fit_transform(texts)
    >>> lda = BayesianLDA(2, random_state=0).fit(counts)
    >>> lda.transform(counts).argmax(1)[:4].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    def __init__(
        self,
        n_components: int = 10,
        *,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        sampler: Any = "filter",
        step_size: Any = None,
        learning_decay: float = 0.7,
        batch_size: int = 100,
        max_iter: int = 10,
        total_samples: float | None = None,
        num_draws: int = 20,
        sweeps: int = 30,
        burn_in: int = 15,
        fractional: str = "refuse",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.sampler = sampler
        self.step_size = step_size
        self.learning_decay = learning_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.total_samples = total_samples
        self.num_draws = num_draws
        self.sweeps = sweeps
        self.burn_in = burn_in
        self.fractional = fractional
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the topics of documents.

        Parameters
        ----------
        X
            (documents, words), counts, dense or SciPy sparse.
        y
            Ignored.
        """
        del y
        corpus = self._corpus(X, reset=True)
        self._build_learner(corpus, total=len(corpus))
        with self._bar(self.max_iter * len(corpus)) as bar:
            for epoch in range(self.max_iter):
                self._learn(self._shuffled(corpus, epoch), bar)
        self.n_iter_ = self.max_iter
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from more documents of a stream.

        Parameters
        ----------
        X, y
            As in `fit`.
        """
        del y
        return self._partial_fit(X)

    def transform(self, X: Any, *, normalize: bool = True) -> np.ndarray:
        """Estimate the topic proportions of documents, (documents, topics).

        Parameters
        ----------
        X
            As in `fit`.
        normalize
            Whether rows sum to 1; otherwise they sum to the length of the document plus the prior.
        """
        check_is_fitted(self)
        corpus = self._corpus(X, reset=False)
        rows = layout.word_major(self.components_)
        theta = fold_in_fixed_point(rows, corpus, self._alpha, threads=self._threads).theta
        if not normalize:
            theta = theta * (corpus.lengths + self._alpha.sum())[:, None]
        return theta.astype(np.float64)

    def topic_shares(
        self, X: Any, *, level: float = 0.9, per_document: bool = False
    ) -> TopicShares:
        r"""Compute credible intervals for the shares of topics.

        For each draw of the topics, topics are assigned to words by Gibbs sweeps and the
        proportions of each document are drawn from their Dirichlet posterior. The share of a topic
        is the mean over documents.

        Parameters
        ----------
        X
            As in `fit`.
        level
            Posterior probability of an interval.
        per_document
            Whether to compute intervals for each document, (documents, topics), instead of for the
            mean over documents, (topics,).
        """
        check_is_fitted(self)
        check_scalar(level, "level", Real, min_val=0, max_val=1, include_boundaries="neither")
        return topic_shares(
            self._topic_draws,
            self._corpus(X, reset=False),
            self._alpha,
            level=level,
            per_document=per_document,
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            seed=self._seed,
            threads=self._threads,
        )

    def top_words(self, num_words: int = 10, vocabulary: Any = None) -> list[list[TopWord]]:
        """List the top words of each topic, and how often they are top words in the draws.

        Parameters
        ----------
        num_words
            Number of words per topic.
        vocabulary
            Names of the columns; by default the feature names seen in `fit`, if there were any.
        """
        check_is_fitted(self)
        return top_words(self.components_, self._topic_draws, num_words, self._names(vocabulary))

    def perplexity(self, X: Any) -> float:
        """Compute the perplexity of documents by completion: half of the tokens observed.

        Predictions are averaged over draws. This is not the bound of
        `LatentDirichletAllocation.perplexity`. For other splits and a standard error, pass
        `draws_["topics"][0]` to `isotherm.topics.perplexity.perplexity`.
        """
        check_is_fitted(self)
        split = completion(self._corpus(X, reset=False), seed=0)
        return perplexity(self._topic_draws, split, self._alpha, threads=self._threads).value

    @property
    def _n_features_out(self) -> int:
        return self.n_components

    @property
    def _topic_draws(self) -> np.ndarray:
        """Draws of the topics, (draws, topics, words)."""
        return self.draws_["topics"][0]

    def _begin_stream(self, corpus: Corpus) -> None:
        self._build_learner(corpus, self.total_samples)

    def _build_learner(self, corpus: Corpus, total: float | None) -> None:
        """Check the settings and build a learner."""
        self._check_settings(_COUNTS, ("doc_topic_prior", "topic_word_prior", "step_size"))
        check_scalar(
            self.learning_decay,
            "learning_decay",
            Real,
            min_val=0.5,
            max_val=1,
            include_boundaries="right",
        )
        self._begin(corpus)
        alpha = 0.1 if self.doc_topic_prior is None else self.doc_topic_prior
        self._alpha = layout.as_alpha(alpha, self.n_components)
        plan = LDAPlan(
            self.sampler,
            self.step_size,
            self._word_prior,
            self.learning_decay,
            (self.n_components, corpus.num_words),
            total,
            self._threads,
            {"sweeps": self.sweeps, "burn_in": self.burn_in, "seed": self._seed, "alpha": alpha},
        )
        is_filter = isinstance(self.sampler, str) and self.sampler == "filter"
        learner = LDAFilterLearner if is_filter else LDAChainLearner
        self._set_learner(learner(plan, self.num_draws))

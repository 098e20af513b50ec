"""Topics of counted words, with scikit-learn's interface and draws from the posterior."""

from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted

from isotherm.loop.progress import make_progress
from isotherm.topics import counter_rng, layout
from isotherm.topics.bcdf import BCDFLDA
from isotherm.topics.corpus import Corpus, completion
from isotherm.topics.estimators.base import CountsTransformer
from isotherm.topics.estimators.lda_learners import Chain, Filter, Learner, Plan, check_settings
from isotherm.topics.estimators.lda_summaries import (
    TopicShares,
    TopWord,
    top_words,
    topic_shares,
)
from isotherm.topics.expected_counts import fold_in_fixed_point
from isotherm.topics.perplexity import perplexity


class BayesianLDA(CountsTransformer):
    r"""Latent Dirichlet allocation whose topics are draws from their posterior.

    Takes what `sklearn.feature_extraction.text.CountVectorizer` gives, sparse, never made dense. Names
    are those of scikit-learn's `LatentDirichletAllocation` where it has them. Memory does not grow with the
    documents: `partial_fit` takes streams.

    The default learner is conditional density filtering that forgets (`isotherm.topics.bcdf`): a batch's
    words are assigned to topics by collapsed Gibbs sweeps given all batches before, and draws come from
    the Dirichlet posterior of the topics. It has no step size. `sampler` puts a stochastic-gradient chain in its place
    (`isotherm.topics.lda`), which draws the topics themselves.

    Parameters
    ----------
    n_components
        $K$, the number of topics.
    doc_topic_prior
        $\alpha$, Dirichlet prior of the topics of a document; `None` is 0.1.
    topic_word_prior
        $\beta$, Dirichlet prior of the words of a topic; `None` is 0.05. Samplers other than `"filter"`, `"scir"`,
        `"sgrld"` and `"tlasgr"` have the prior $\mathcal N(0.1, 1)$ of expanded-natural topics instead.
    sampler
        `"filter"`, `"scir"`, `"sgrld"`, `"tlasgr"`, `"msgnht"`, `"sgnht"`, `"sghmc"`, `"sgld"`, `"psgld"`, or a sampler object
        built with `grad_fn=None`.
    step_size
        $h$ of a named sampler, a number or a schedule; `None` has a default for each. The filter has none.
    learning_decay
        $\kappa$ in (0.5, 1]: how slowly the filter forgets; 1 is never.
    batch_size
        Documents per update.
    max_iter
        How often `fit` goes through the documents.
    total_samples
        Number of documents the posterior is given in `partial_fit`; `None` is as many as were seen.
    num_draws
        How many draws to keep.
    sweeps, burn_in
        Gibbs sweeps per batch, and how many of them are not averaged.
    fractional
        What to do with counts that are not whole: `"refuse"`, or `"round"` them.
    n_jobs
        Threads for sweeps of samplers and `transform`, -1 for one per core; results do not depend on it.
    random_state
        Seed. The same one gives the same topics on any number of threads.
    verbose
        Show a progress bar.

    Attributes
    ----------
    components_
        Posterior mean of the topics, (topics, words); rows sum to 1.
    draws_
        Draws of the topics, (draws, topics, words).
    n_documents_seen_, n_batch_iter_, n_iter_
        How much was learned from.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> texts = ["cat dog cat", "dog cat", "stocks bonds", "bonds stocks stocks"] * 10
    >>> counts = CountVectorizer().fit_transform(texts)
    >>> lda = BayesianLDA(2, random_state=0).fit(counts)
    >>> lda.transform(counts).argmax(1)[:4].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    _learner: Learner

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
        """Learn the topics of these documents.

        Parameters
        ----------
        X
            (documents, words), counts, dense or SciPy sparse.
        y
            Ignored.
        """
        del y
        corpus = self._corpus(X, reset=True)
        self._begin(corpus, total=len(corpus))
        size, steps = self.batch_size, -(-len(corpus) // self.batch_size)
        with make_progress(bool(self.verbose), self.max_iter * steps, "LDA") as bar:
            for epoch in range(self.max_iter):
                rng = counter_rng.generator(self._seed, "documents", epoch)
                shuffled = corpus[rng.permutation(len(corpus))]
                for first in range(0, len(corpus), size):
                    self._update(shuffled[first : first + size])
                    bar.advance(1, None, None)
        self.n_iter_ = self.max_iter
        return self

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
            self._begin(corpus, self.total_samples)
        for first in range(0, len(corpus), self.batch_size):
            self._update(corpus[first : first + self.batch_size])
        return self

    def transform(self, X: Any, *, normalize: bool = True) -> np.ndarray:
        """Find the topics of documents, (documents, topics).

        Parameters
        ----------
        X
            As in `fit`.
        normalize
            Whether rows sum to 1, or to the length of the document and the prior.
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
        r"""Give credible intervals for the shares of topics.

        For each draw of the topics, words are assigned by Gibbs sweeps and the proportions of each document are drawn
        from their Dirichlet posterior. The share of a topic is the mean over documents.

        Parameters
        ----------
        X
            As in `fit`.
        level
            Posterior probability of an interval.
        per_document
            Whether to give them for each document, (documents, topics), instead of for all, (topics,).
        """
        check_is_fitted(self)
        check_scalar(level, "level", Real, min_val=0, max_val=1, include_boundaries="neither")
        return topic_shares(
            self.draws_,
            self._corpus(X, reset=False),
            self._alpha,
            level=level,
            per_document=per_document,
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            seed=self._seed,
            threads=self._threads,
        )

    def top_words(self, n_words: int = 10, vocabulary: Any = None) -> list[list[TopWord]]:
        """List the top words of each topic, with the probability that they are such.

        Parameters
        ----------
        n_words
            How many per topic.
        vocabulary
            Names of the columns; by default those seen in `fit`, if there were any.
        """
        check_is_fitted(self)
        return top_words(self.components_, self.draws_, n_words, self._names(vocabulary))

    def perplexity(self, X: Any) -> float:
        """Score documents by completion: half of their tokens observed, draws averaged.

        This is not the bound of `LatentDirichletAllocation.perplexity`. Give `isotherm.topics.perplexity` the
        `draws_` for other splits and a standard error.
        """
        check_is_fitted(self)
        split = completion(self._corpus(X, reset=False), seed=0)
        return perplexity(self.draws_, split, self._alpha, threads=self._threads).value

    def score(self, X: Any, y: Any = None) -> float:
        """Give the mean log probability of a held-out token: minus the log of `perplexity`."""
        del y
        return -float(np.log(self.perplexity(X)))

    @property
    def draws_(self) -> np.ndarray:
        """Draws of the topics, (draws, topics, words)."""
        check_is_fitted(self)
        return self._learner.draws()

    @property
    def components_(self) -> np.ndarray:
        """Posterior mean of the topics, (topics, words)."""
        check_is_fitted(self)
        return self._learner.mean()

    @property
    def _n_features_out(self) -> int:
        return self.n_components

    def _update(self, batch: Corpus) -> None:
        self._learner.update(batch)
        self.n_documents_seen_ += len(batch)
        self.n_batch_iter_ += 1

    def _begin(self, corpus: Corpus, total: float | None) -> None:
        """Check the settings and make a learner."""
        check_settings(self)
        if corpus.num_tokens == 0:
            raise ValueError("`X` has no words in it: every count is zero.")
        alpha = 0.1 if self.doc_topic_prior is None else self.doc_topic_prior
        beta = 0.05 if self.topic_word_prior is None else self.topic_word_prior
        self._alpha = layout.as_alpha(alpha, self.n_components)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        shared = {
            "sweeps": self.sweeps,
            "burn_in": self.burn_in,
            "seed": self._seed,
            "alpha": alpha,
        }
        sizes = (self.n_components, corpus.num_words)
        if isinstance(self.sampler, str) and self.sampler == "filter":
            limit = np.inf if total is None else total
            model = BCDFLDA(*sizes, beta=beta, decay=self.learning_decay, data_size=limit, **shared)
            self._learner = Filter(model, self.num_draws)
        else:
            plan = Plan(self.sampler, self.step_size, beta, sizes, self._threads, shared)
            self._learner = Chain(plan, self.num_draws, total)
        self.n_documents_seen_ = self.n_batch_iter_ = 0

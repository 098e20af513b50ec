"""Latent Dirichlet allocation with scikit-learn's interface and posterior draws."""

from collections.abc import Iterator
from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.utils import check_scalar
from sklearn.utils.validation import check_is_fitted

from isotherm.topics import layout
from isotherm.topics.corpus import Corpus
from isotherm.topics.estimators.base import TopicEstimator
from isotherm.topics.estimators.inputs import (
    SEEDS_FIX_PRIOR,
    check_doc_prior,
    is_learned,
    seed_counts,
)
from isotherm.topics.estimators.learners import (
    GibbsLDALearner,
    LDAChainLearner,
    LDAFilterLearner,
    LDALearner,
    LDAPlan,
)
from isotherm.topics.estimators.progress import DocumentBar
from isotherm.topics.estimators.summaries import (
    DrawnShares,
    TopicShares,
    TopWord,
    draw_proportions,
    summarize_shares,
    top_words,
)
from isotherm.topics.expected_counts import check_sweeps, fold_in_fixed_point
from isotherm.topics.perplexity import CompletionScore

_COUNTS = {
    "n_components": 1,
    "batch_size": 1,
    "num_draws": 1,
    "num_chains": 1,
    "sweeps": 1,
    "burn_in": 0,
}
"""Integer settings and their smallest values."""
_DOC_PRIORS: dict[str, Any] = {"gibbs": "learned", "filter": 0.1}
"""Learners that can learn the priors, and their default of `doc_topic_prior`."""


class BayesianLDA(TopicEstimator):
    r"""Latent Dirichlet allocation with draws from the posterior of the topics.

    Accepts the output of `sklearn.feature_extraction.text.CountVectorizer`; sparse input is not
    converted to a dense array. Names are those of scikit-learn's `LatentDirichletAllocation` where
    it has them. With `partial_fit`, for streams, memory does not grow with the number of documents.

    By default `fit` draws by collapsed Gibbs sampling over all documents (`isotherm.topics.gibbs`)
    and `partial_fit` by conditional density filtering with discounted counts
    (`isotherm.topics.bcdf`): the words of a batch are assigned to topics by collapsed Gibbs sweeps
    given all previous batches, and draws are from the Dirichlet posterior of the topics. Neither
    has a step size. With another `sampler` the topics are drawn by stochastic-gradient MCMC
    (`isotherm.topics.lda`).

    Parameters
    ----------
    n_components
        $K$, the number of topics.
    doc_topic_prior
        $\alpha$, Dirichlet prior of the topics of a document: a number, one number per topic,
        `"learned"` (one per topic, from the documents) or `"learned-symmetric"` (one for all).
        `None` is `"learned"` with Gibbs sampling, where it predicts held-out documents better, and
        0.1 otherwise. With the filter `"learned-symmetric"` helps if there are many topics; other
        samplers cannot learn it.
    topic_word_prior
        $\beta$, Dirichlet prior of the words of a topic, a number or `"learned"`. `None` is
        `"learned"` with Gibbs sampling without `seed_words`, and 0.05 otherwise. Samplers other
        than `"gibbs"`, `"filter"`, `"scir"`, `"sgrld"` and `"tlasgr"` use the prior
        $\mathcal N(0.1, 1)$ of expanded-natural topics instead.
    seed_words
        Words that some topics are expected to have, `{topic: [word, …]}`, by name or by column:
        each gets a pseudo-count of 10 in the prior of that topic. `{topic: {word: pseudo-count}}`
        sets other pseudo-counts. Needs Gibbs sampling or the filter. Names need a `Corpus` with a
        vocabulary or a DataFrame.
    sampler
        `"auto"`: `"gibbs"` in `fit` and `"filter"` in `partial_fit`. Others: `"scir"`, `"sgrld"`,
        `"tlasgr"`, `"msgnht"`, `"sgnht"`, `"sghmc"`, `"sgld"`, `"psgld"`, or a sampler object built
        with `grad_fn=None`. `partial_fit` after a `fit` by Gibbs sampling continues with the
        filter.
    step_size
        $h$ of a named sampler, a number or a schedule; `None` is a default for each sampler. Gibbs
        sampling and the filter have no step size.
    learning_decay
        $\kappa$ in (0.5, 1] of the filter: smaller values discount old counts faster, 1 never does.
    batch_size
        Documents per update.
    max_iter
        Number of passes of `fit` over the documents. `None` is 10, and with Gibbs sampling 8 to 12:
        one more for every 40 topics.
    total_samples
        Number of documents that the posterior is conditioned on in `partial_fit`; `None` is the
        number of documents seen.
    num_draws
        Number of draws to keep, of each chain.
    num_chains
        Number of chains of Gibbs sampling. Predictions (`perplexity`, `score`) are averaged over
        all of them, which is better than one chain with as many sweeps as all together; a chain
        that is far less probable than the best, since topics are merged, is left out. Topics of
        different chains do not correspond, so everything about topics (`components_`, `transform`,
        `top_words`, `topic_table`, …) is from the chain whose last state is the most probable.
    sweeps, burn_in
        Gibbs sweeps per batch, and how many of them are discarded. With Gibbs sampling a fit makes
        `max_iter * sweeps` sweeps over all documents, divided among the starts and the chains, and
        keeps draws from the second half of those of the chains.
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
        Posterior draws: `{"topics": (chain, draw, topic, word)}`; the first chain is the one that
        `components_` is the mean of. Only Gibbs sampling has several.
    doc_topic_prior_, topic_word_prior_
        $\alpha$, (topics,), and $\beta$, as given or learned.
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

    _learner: LDALearner

    def __init__(
        self,
        n_components: int = 10,
        *,
        doc_topic_prior: Any = None,
        topic_word_prior: Any = None,
        seed_words: Any = None,
        sampler: Any = "auto",
        step_size: Any = None,
        learning_decay: float = 0.7,
        batch_size: int = 100,
        max_iter: int | None = None,
        total_samples: float | None = None,
        num_draws: int = 20,
        num_chains: int = 2,
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
        self.seed_words = seed_words
        self.sampler = sampler
        self.step_size = step_size
        self.learning_decay = learning_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.total_samples = total_samples
        self.num_draws = num_draws
        self.num_chains = num_chains
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
        self._build_learner(corpus, total=len(corpus), sampler=self._sampler("gibbs"))
        passes = self._passes
        with self._bar(passes * len(corpus)) as bar:
            if isinstance(self._learner, GibbsLDALearner):
                self._run_gibbs(self._learner, corpus, passes, bar)
            else:
                for epoch in range(passes):
                    self._learn(self._shuffled(corpus, epoch), bar, new=epoch == 0)
        self.n_iter_ = passes
        return self

    def _run_gibbs(
        self, learner: GibbsLDALearner, corpus: Corpus, passes: int, bar: DocumentBar
    ) -> None:
        # The bar counts `len(corpus)` documents per pass, and a pass is `sweeps` sweeps.
        done, per_sweep, total = 0, len(corpus) / self.sweeps, passes * len(corpus)

        def report() -> None:
            nonlocal done
            done += 1
            before = min(round((done - 1) * per_sweep), total)
            bar.advance(min(round(done * per_sweep), total) - before)

        learner.run(corpus, passes * self.sweeps, report)
        self.n_documents_seen_, self.n_batch_iter_ = passes * len(corpus), passes

    @property
    def _passes(self) -> int:
        """Number of passes of `fit`, after the learner has been built."""
        if self.max_iter is not None:
            return self.max_iter
        if isinstance(self._learner, GibbsLDALearner):
            return min(8 + self.n_components // 40, 12)
        return 10

    def _sampler(self, automatic: str) -> Any:
        is_auto = isinstance(self.sampler, str) and self.sampler == "auto"
        return automatic if is_auto else self.sampler

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from more documents of a stream.

        Parameters
        ----------
        X, y
            As in `fit`.
        """
        del y
        learner = getattr(self, "_learner", None)
        if isinstance(learner, GibbsLDALearner):
            self._refuse_changed_settings()
            self._learner = learner.as_filter(self.total_samples)
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
        theta = list(self._draw_proportions(self._corpus(X, reset=False)))
        values = theta if per_document else [x.mean(0) for x in theta]
        return summarize_shares(np.array(values), level)

    def _draw_proportions(self, corpus: Corpus) -> Iterator[np.ndarray]:
        return draw_proportions(
            self._topic_draws,
            corpus,
            self._alpha,
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            seed=self._seed,
            threads=self._threads,
        )

    def _drawn_shares(self, X: Any) -> DrawnShares:
        corpus = self._corpus(X, reset=False)
        shares, main_topics = [], []
        for theta in self._draw_proportions(corpus):
            shares.append(theta.mean(0))
            main_topics.append(theta.argmax(1))
        return DrawnShares(np.array(shares), np.array(main_topics))

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

    def _score(self, X: Any, observed: Any, scored: Any) -> CompletionScore:
        check_is_fitted(self)
        split = self._split(X, observed, scored)
        score = CompletionScore(split, self._alpha, threads=self._threads)
        for topics, alpha in self._learner.conditional_means():
            score.add(topics, alpha=alpha)
        return score

    @property
    def doc_topic_prior_(self) -> np.ndarray:
        r"""$\alpha$, (topics,), as given or learned."""
        check_is_fitted(self)
        return np.array(self._learner.alpha(), np.float64)

    @property
    def topic_word_prior_(self) -> float:
        r"""$\beta$, as given or learned."""
        check_is_fitted(self)
        return self._learner.beta()

    @property
    def _n_features_out(self) -> int:
        return len(self._learner.alpha())

    @property
    def _alpha(self) -> np.ndarray:
        alpha = self._learner.alpha()
        return layout.as_alpha(alpha, len(alpha))

    def _begin_stream(self, corpus: Corpus) -> None:
        sampler = self._sampler("filter")
        if isinstance(sampler, str) and sampler == "gibbs":
            raise ValueError("`sampler='gibbs'` needs all documents at once: use `fit`.")
        self._build_learner(corpus, self.total_samples, sampler)

    def _build_learner(self, corpus: Corpus, total: float | None, sampler: Any) -> None:
        """Check the settings and build a learner."""
        given = {} if self.max_iter is None else {"max_iter": 1}
        self._check_settings(_COUNTS | given, ("step_size",))
        check_scalar(
            self.learning_decay,
            "learning_decay",
            Real,
            min_val=0.5,
            max_val=1,
            include_boundaries="right",
        )
        check_sweeps(self.sweeps, self.burn_in)
        name = sampler if isinstance(sampler, str) else None
        learner = {"gibbs": GibbsLDALearner, "filter": LDAFilterLearner}.get(
            name or "", LDAChainLearner
        )
        if name != "gibbs":
            self._warn_unused("only Gibbs sampling in `fit` has several chains", "num_chains")
        if name in _DOC_PRIORS:
            self._warn_unused(f"sampler {name!r} has no step size", "step_size")
        elif name is None:
            self._warn_unused("a `sampler` object has its own", "step_size")
        alpha, priors = self._priors(name, corpus.num_words)
        self._begin(corpus)
        plan = LDAPlan(
            sampler,
            self.step_size,
            self._word_prior,
            self.learning_decay,
            (self.n_components, corpus.num_words),
            total,
            self._threads,
            {"sweeps": self.sweeps, "burn_in": self.burn_in, "seed": self._seed, "alpha": alpha},
            priors,
        )
        several = (self.num_chains,) if learner is GibbsLDALearner else ()
        self._set_learner(learner(plan, self.num_draws, *several))

    def _priors(self, sampler: str | None, num_words: int) -> tuple[np.ndarray, dict[str, Any]]:
        r"""Check the priors; return $\alpha$, and what filters and Gibbs samplers learn."""
        prior = self.doc_topic_prior
        if prior is None:
            prior = _DOC_PRIORS.get(sampler or "", 0.1)
        alpha, shape = check_doc_prior(prior, self.n_components)
        learn_beta = is_learned(self.topic_word_prior)
        if self.topic_word_prior is None and self.seed_words is None:
            learn_beta = sampler == "gibbs"
        shapes = (self.n_components, num_words)
        seeds = seed_counts(self.seed_words, self._names(None), shapes)
        if sampler in _DOC_PRIORS:
            if seeds is not None and learn_beta:
                raise ValueError(SEEDS_FIX_PRIOR)
            return alpha, {"learn_alpha": shape, "learn_beta": learn_beta, "prior_counts": seeds}
        for given, what in [
            (shape is not None, "`doc_topic_prior='learned'`"),
            (learn_beta, "`topic_word_prior='learned'`"),
            (seeds is not None, "`seed_words`"),
        ]:
            if given:
                raise ValueError(
                    f"{what} needs Gibbs sampling or the filter: `sampler` must be 'auto', "
                    "'gibbs' or 'filter'."
                )
        return alpha, {}

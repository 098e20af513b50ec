"""What the topic estimators share: checks of counts and settings, learning from batches, draws."""

from abc import abstractmethod
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm.data.word_counts import CountError
from isotherm.schedules import require_positive
from isotherm.topics import counter_rng
from isotherm.topics.corpus import Corpus, as_corpus
from isotherm.topics.estimators.learners import Learner
from isotherm.topics.estimators.progress import DocumentBar


class TopicEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """An estimator of topics from counts (documents, words), in memory or from a stream."""

    topic_word_prior: float | None
    step_size: Any
    batch_size: int
    total_samples: float | None
    fractional: str
    n_jobs: int | None
    random_state: Any
    verbose: bool
    n_documents_seen_: int
    n_batch_iter_: int
    _learner: Any
    """A `Learner`."""
    _seed: int

    @abstractmethod
    def _begin_stream(self, corpus: Corpus) -> None:
        """Check the settings and build a learner for `partial_fit`."""

    @abstractmethod
    def perplexity(self, X: Any) -> float:
        """Compute the perplexity of documents by completion."""

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log probability of a held-out token: minus the log of `perplexity`."""
        del y
        return -float(np.log(self.perplexity(X)))

    @property
    def draws_(self) -> dict[str, np.ndarray]:
        """Posterior draws by name, with leading axes (chain, draw)."""
        check_is_fitted(self)
        return self._learner.draws()

    @property
    def components_(self) -> np.ndarray:
        """Posterior mean of the topics, (topics, words)."""
        check_is_fitted(self)
        return self._learner.mean_topics()

    def _partial_fit(self, X: Any) -> Self:
        fresh = not self.__sklearn_is_fitted__()
        corpus = self._corpus(X, reset=fresh)
        if fresh:
            self._begin_stream(corpus)
        with self._bar(len(corpus)) as bar:
            self._learn(corpus, bar)
        return self

    def _set_learner(self, learner: Learner) -> None:
        self._learner = learner
        self.n_documents_seen_ = self.n_batch_iter_ = 0

    def _learn(self, corpus: Corpus, bar: DocumentBar) -> None:
        """Learn from documents, batch by batch."""
        for batch in self._batches(corpus):
            self._learner.update(batch)
            self.n_documents_seen_ += len(batch)
            self.n_batch_iter_ += 1
            perplexity = self._learner.prequential_perplexity()
            bar.advance(len(batch), perplexity, waiting=self._learner.waiting)

    def _batches(self, corpus: Corpus) -> Iterator[Corpus]:
        size = self.batch_size
        return (corpus[first : first + size] for first in range(0, len(corpus), size))

    def _shuffled(self, corpus: Corpus, epoch: int) -> Corpus:
        """Return the documents in the random order of an epoch."""
        rng = counter_rng.generator(self._seed, "documents", epoch)
        return corpus[rng.permutation(len(corpus))]

    def _bar(self, num_documents: int) -> DocumentBar:
        return DocumentBar(bool(self.verbose), num_documents, type(self).__name__)

    def _check_settings(self, counts: dict[str, int], positive: tuple[str, ...]) -> None:
        """Check settings, also those that the chosen learner does not use.

        Parameters
        ----------
        counts
            Names of integer settings, with their least values.
        positive
            Names of settings that are `None`, positive numbers or schedules.
        """
        for name, least in counts.items():
            check_scalar(getattr(self, name), name, Integral, min_val=least)
        if self.n_jobs is not None:
            check_scalar(self.n_jobs, "n_jobs", Integral)
            if self.n_jobs == 0:
                raise ValueError("`n_jobs` must not be 0; use -1 for one thread per core.")
        for name in positive:
            value = getattr(self, name)
            if value is not None:
                require_positive(name, value)
        if self.total_samples is not None:
            check_scalar(self.total_samples, "total_samples", Real, min_val=1)
            if not np.isfinite(self.total_samples):
                raise ValueError(f"`total_samples` must be finite, got {self.total_samples}.")
        if self.fractional not in ("refuse", "round"):
            raise ValueError(f"`fractional` must be 'refuse' or 'round', got {self.fractional!r}.")

    def _begin(self, corpus: Corpus) -> None:
        """Check that there are words to learn from, and fix the seed."""
        if corpus.num_tokens == 0:
            raise ValueError("`X` has no words: every count is zero.")
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))

    @property
    def _word_prior(self) -> float:
        return 0.05 if self.topic_word_prior is None else self.topic_word_prior

    @property
    def _threads(self) -> int:
        """Number of threads, with the conventions of scikit-learn: `None` is 1, -1 is all cores."""
        return effective_n_jobs(self.n_jobs or 1)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether the estimator has learned from any document."""
        return hasattr(self, "_learner")

    def __sklearn_tags__(self) -> Any:
        """Declare sparse, non-negative integer input."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # scikit-learn's name for integers
        return tags

    def _names(self, vocabulary: Any) -> Any:
        """Return `vocabulary`, or the feature names seen in `fit`, or `None`."""
        return getattr(self, "feature_names_in_", None) if vocabulary is None else vocabulary

    def _corpus(self, X: Any, *, reset: bool) -> Corpus:
        """Check counts as scikit-learn does and convert them; `fractional` may round them."""
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32, np.int64, np.int32],
            reset=reset,
        )
        values = X.data if sparse.issparse(X) else X
        if values.size and values.min() < 0:
            raise ValueError(f"Negative values in data passed to {type(self).__name__}.")
        if self.fractional == "round":
            X = X.rint() if sparse.issparse(X) else np.rint(X)
        first = 0 if reset else self.n_documents_seen_
        try:
            return as_corpus(X, documents=first + np.arange(X.shape[0]))
        except CountError as error:
            if np.array_equal(values, np.rint(values)):
                raise
            hint = "Weights such as tf-idf are not counts; `fractional='round'` rounds them."
            raise ValueError(f"{error} {hint}") from None

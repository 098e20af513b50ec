"""What the topic estimators share: checks of counts and settings, learning from batches, draws."""

import inspect
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm.data.word_counts import CountError
from isotherm.exceptions import PolicyWarning
from isotherm.loop.user_warnings import Message, warn_user
from isotherm.schedules import require_positive
from isotherm.topics import counter_rng
from isotherm.topics.corpus import Completion, Corpus, as_corpus, completion
from isotherm.topics.estimators.inputs import (
    check_word_prior,
    refuse_texts,
    same_setting,
    word_names,
)
from isotherm.topics.estimators.learners import Learner
from isotherm.topics.estimators.progress import DocumentBar
from isotherm.topics.estimators.stream_order import StreamOrder
from isotherm.topics.estimators.summaries import DrawnShares
from isotherm.topics.estimators.topic_table import TopicTable, make_table
from isotherm.topics.perplexity import CompletionScore
from isotherm.tree import refuse_masked

_ANY_TIME = {"batch_size", "fractional", "max_iter", "n_jobs", "verbose"}
"""Settings that may change between two calls of `partial_fit`."""


class TopicEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """An estimator of topics from counts (documents, words), in memory or from a stream."""

    topic_word_prior: Any
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
    _settings: dict[str, Any]
    """Settings with which the learner was built."""
    _order: StreamOrder | None = None
    _vocabulary: tuple[str, ...] | None = None
    """Words of the `Corpus` that was fitted."""

    @abstractmethod
    def _begin_stream(self, corpus: Corpus) -> None:
        """Check the settings and build a learner for `partial_fit`."""

    def perplexity(self, X: Any = None, *, observed: Any = None, scored: Any = None) -> float:
        """Compute the perplexity of documents by completion.

        A part of the tokens of each document is observed (half of them, if `X` is given), and the
        others are predicted. Predictions are averaged over draws. This is not the bound of
        scikit-learn's `LatentDirichletAllocation.perplexity`. `log_likelihoods` has the terms of
        each document, for standard errors.

        Parameters
        ----------
        X
            Documents, as in `fit`, whose tokens are split at random.
        observed, scored
            A split of your own instead of `X`: counts of the observed tokens, and of the tokens to
            predict, of the same documents.
        """
        return self._score(X, observed, scored).result().value

    @abstractmethod
    def _score(self, X: Any, observed: Any, scored: Any) -> CompletionScore:
        """Return the score of all draws on the scored tokens of documents."""

    def log_likelihoods(self, observed: Any, scored: Any) -> np.ndarray:
        """Compute the log probability of the scored tokens of each document, (documents,).

        Compare two models by their differences, document by document: the mean shows how much
        better one of them is, and the standard error is that of paired data.

        Parameters
        ----------
        observed, scored
            Counts of the observed tokens, and of the tokens to predict, of the same documents.
        """
        return self._score(None, observed, scored).document_log_likelihoods()

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log probability of a held-out token: minus the log of `perplexity`."""
        del y
        return -float(np.log(self.perplexity(X)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file without pickle; loading it executes no code.

        A loaded model gives the same results, and continues a stream bit for bit.

        Parameters
        ----------
        path
            A name that ends in `.nc` (netCDF), `.zarr` (a folder) or `.safetensors`. Needs
            `isotherm[files]`.
        """
        from isotherm.topics.estimators.saved_models import save_model

        check_is_fitted(self)
        save_model(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; loading executes no code from the file.

        Parameters
        ----------
        path
            The file, or the folder of a `.zarr`.
        """
        from isotherm.topics.estimators.saved_models import load_model

        return load_model(cls, path)

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

    def topic_table(
        self,
        X: Any,
        y: Any = None,
        *,
        measures: Sequence[str] = ("c_v", "npmi"),
        reference: Any = None,
        vocabulary: Any = None,
        num_words: int = 10,
        level: float = 0.9,
    ) -> TopicTable:
        """Summarize the topics in one table: shares, top words, coherence, with intervals.

        Every number is the posterior mean over draws, with a central credible interval. The table
        has a row per topic, and totals over topics: coherence, diversity and, if there are labels,
        how well the main topics of documents agree with them.

        Parameters
        ----------
        X
            Documents, as in `fit`.
        y
            A label for each document, for NMI and purity.
        measures
            Measures of coherence (`isotherm.topics.coherence`).
        reference
            Documents or texts to compute coherence from; by default `X`.
        vocabulary
            As in `top_words`.
        num_words
            Number of words per topic.
        level
            Posterior probability of an interval.
        """
        check_is_fitted(self)
        check_scalar(level, "level", Real, min_val=0, max_val=1, include_boundaries="neither")
        corpus = self._corpus(X, reset=False)
        return make_table(
            self._topic_draws,
            self.components_,
            self._drawn_shares(corpus),
            corpus if reference is None else reference,
            labels=y,
            measures=measures,
            names=self._names(vocabulary),
            num_words=num_words,
            level=level,
        )

    def write_page(
        self,
        path: str | os.PathLike[str],
        X: Any,
        *,
        vocabulary: Any = None,
        titles: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        title: str = "Topics",
        num_words: int = 20,
        num_documents: int = 10,
        level: float = 0.9,
        table: TopicTable | None = None,
    ) -> Path:
        """Write a page about the topics, one HTML file that needs no network; return its path.

        It has a map of the topics, their words by relevance with posterior intervals, their
        documents and, for `BayesianDPFA`, a graph of the layers.

        Parameters
        ----------
        path
            The file to write.
        X
            Documents, as in `fit`.
        vocabulary
            As in `top_words`.
        titles, texts
            A title, and the text, of each document; by default its row, and nothing.
        title
            Title of the page.
        num_words, num_documents
            Words and documents to show for a topic.
        level
            Posterior probability of the intervals.
        table
            What `topic_table` returned for the same documents, with the measure `"npmi"`, to save
            the time of computing it again; its level is then that of the page.
        """
        from isotherm.topics import viewer

        if table is None:
            table = self.topic_table(X, measures=["npmi"], vocabulary=vocabulary, level=level)
        elif len(table.rows) != len(self.components_) or "npmi" not in table.rows[0]:
            raise ValueError('`table` must be of this model, with the measure "npmi".')
        corpus, names = self._corpus(X, reset=False), self._names(vocabulary)
        for name, values in (("titles", titles), ("texts", texts)):
            if values is not None and len(values) != len(corpus):
                raise ValueError(
                    f"`{name}` must have one entry for each of {len(corpus)} documents, "
                    f"got {len(values)}."
                )
        data = viewer.page_data(
            self._topic_draws,
            self.components_,
            self.transform(X),
            table,
            corpus,
            names=np.arange(corpus.num_words) if names is None else names,
            titles=[f"Document {j}" for j in range(len(corpus))] if titles is None else titles,
            texts=texts,
            num_words=num_words,
            num_documents=num_documents,
        )
        return viewer.write_page(path, data | self._layer_data(corpus, vocabulary), title)

    def to_pyldavis(self, X: Any, *, vocabulary: Any = None) -> dict[str, Any]:
        """Return the arguments of `pyLDAvis.prepare`, as a dictionary.

        Parameters
        ----------
        X
            Documents, as in `fit`.
        vocabulary
            As in `top_words`.
        """
        from isotherm.topics import viewer

        check_is_fitted(self)
        corpus, names = self._corpus(X, reset=False), self._names(vocabulary)
        words = range(corpus.num_words) if names is None else names
        return viewer.pyldavis_data(self.components_, self.transform(X), corpus, words)

    def _layer_data(self, corpus: Corpus, vocabulary: Any) -> dict[str, Any]:
        """Return what the page shows about layers; an empty dictionary for a shallow model."""
        del corpus, vocabulary
        return {}

    @abstractmethod
    def transform(self, X: Any, *, normalize: bool = True) -> np.ndarray:
        """Estimate the topic proportions of documents."""

    @abstractmethod
    def _drawn_shares(self, X: Any) -> DrawnShares:
        """Draw the proportions of documents, for every draw of the topics."""

    @property
    def _topic_draws(self) -> np.ndarray:
        """Draws of the topics, (draws, topics, words)."""
        return self.draws_["topics"][0]

    def _partial_fit(self, X: Any) -> Self:
        fresh = not self.__sklearn_is_fitted__()
        if not fresh:
            self._refuse_changed_settings()
        corpus = self._corpus(X, reset=fresh)
        if fresh:
            self._begin_stream(corpus)
        if self._order is None:
            self._order = StreamOrder(corpus.num_words)
        with self._bar(len(corpus)) as bar:
            self._learn(corpus, bar, order=self._order)
        return self

    def _set_learner(self, learner: Learner) -> None:
        self._learner, self._order = learner, None
        self._settings = self.get_params(deep=False)
        self.n_documents_seen_ = self.n_batch_iter_ = 0

    def _refuse_changed_settings(self) -> None:
        for name, value in self.get_params(deep=False).items():
            old = self._settings[name]
            if name not in _ANY_TIME and not same_setting(old, value):
                raise ValueError(
                    f"`{name}` was {old!r} when learning began and is {value!r} now. To continue, "
                    f"set it back; to start again with the new value, use `fit` or a `clone`."
                )

    def _learn(
        self,
        corpus: Corpus,
        bar: DocumentBar,
        *,
        new: bool = True,
        order: StreamOrder | None = None,
    ) -> None:
        """Learn from documents, batch by batch.

        Parameters
        ----------
        corpus
            The documents.
        bar
            Progress bar.
        new
            Whether the learner has not seen the documents before.
        order
            Comparison of batches, for documents in an order that the user has chosen.
        """
        for batch in self._batches(corpus):
            self._learner.update(batch, new=new)
            self.n_documents_seen_ += len(batch)
            self.n_batch_iter_ += 1
            perplexity = self._learner.running_perplexity()
            bar.advance(len(batch), perplexity, waiting=self._learner.waiting)
            if order is not None:
                _warn_if_sorted(order, batch)

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
        """Check settings, including those that the chosen learner does not use.

        Parameters
        ----------
        counts
            Names of integer settings, with their smallest values.
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
        """Check that there are words to learn from, and set the seed."""
        if corpus.num_tokens == 0:
            raise ValueError("`X` has no words: every count is zero.")
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))

    @property
    def _word_prior(self) -> float:
        return check_word_prior(self.topic_word_prior)

    def _warn_unused(self, reason: str, *names: str) -> None:
        """Warn about settings that are not the default but have no effect, with the reason."""
        defaults = inspect.signature(type(self)).parameters
        for name in names:
            default = defaults[name].default
            if not same_setting(getattr(self, name), default):
                text = f"`{name}` has no effect: {reason}. Leave it at {default!r}."
                warn_user(Message(text, UserWarning))

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
        """Return `vocabulary`, or the names of words seen in `fit`, or `None`."""
        if vocabulary is None:
            vocabulary = getattr(self, "feature_names_in_", self._vocabulary)
        return word_names(vocabulary, self.n_features_in_)

    def _split(self, X: Any, observed: Any, scored: Any) -> Completion:
        """Split the tokens of documents into halves, or check a split that is given."""
        if X is not None:
            if observed is not None or scored is not None:
                raise ValueError("Pass either `X`, or `observed` and `scored`, not both.")
            return completion(self._corpus(X, reset=False), seed=0)
        if observed is None or scored is None:
            raise ValueError("Pass `X`, or both `observed` and `scored`.")
        parts = [self._corpus(part, reset=False) for part in (observed, scored)]
        if len(parts[0]) != len(parts[1]):
            raise ValueError(
                "`observed` and `scored` must be parts of the same documents, got "
                f"{len(parts[0])} and {len(parts[1])} documents."
            )
        known, hidden = (part.num_tokens for part in parts)
        return Completion(parts[0], parts[1], known / max(known + hidden, 1), 0)

    def _corpus(self, X: Any, *, reset: bool) -> Corpus:
        """Check counts as scikit-learn does and convert them; `fractional` may round them."""
        if isinstance(X, Corpus):
            return self._own_corpus(X, reset=reset)
        refuse_texts(X)
        refuse_masked(X=X)
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32, np.int64, np.int32],
            reset=reset,
        )
        self._vocabulary = None if reset else self._vocabulary
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

    def _own_corpus(self, corpus: Corpus, *, reset: bool) -> Corpus:
        """Accept a corpus; its documents are numbered like the rows of a matrix."""
        if reset:
            self.n_features_in_, self._vocabulary = corpus.num_words, corpus.vocabulary
            vars(self).pop("feature_names_in_", None)
        elif corpus.num_words != self.n_features_in_:
            raise ValueError(
                f"`X` has {corpus.num_words} words, but {type(self).__name__} was fitted with "
                f"{self.n_features_in_}."
            )
        elif None not in (corpus.vocabulary, self._vocabulary):
            if corpus.vocabulary != self._vocabulary:
                raise ValueError("`X` has another vocabulary than the corpus that was fitted.")
        first = 0 if reset else self.n_documents_seen_
        return replace(corpus, documents=first + np.arange(len(corpus)))


def _warn_if_sorted(order: StreamOrder, batch: Corpus) -> None:
    known = order.found
    order.add(batch)
    if order.found and not known:
        text = (
            "The last batches differ from those before them far more than random batches do: the "
            "documents seem to be sorted, and topics of earlier documents are forgotten. Shuffle "
            "the documents, or pass them through `shuffle_buffer` of "
            "`isotherm.topics.corpus_readers`."
        )
        warn_user(Message(text, PolicyWarning))

"""What estimators of topics share: they read counts of words."""

from typing import Any

import numpy as np
from joblib import effective_n_jobs
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import validate_data

from isotherm.data.word_counts import CountError
from isotherm.topics.corpus import Corpus, as_corpus


class CountsTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """An estimator of counts, (documents, words), that numbers the documents it has seen."""

    fractional: str
    n_jobs: int | None
    n_documents_seen_: int

    @property
    def _threads(self) -> int:
        """Threads to use, as scikit-learn counts them: none is 1, -1 is a thread per core."""
        return effective_n_jobs(self.n_jobs or 1)

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether any document was seen."""
        return hasattr(self, "_learner")

    def __sklearn_tags__(self) -> Any:
        """Say that input is sparse counts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # scikit-learn's name for whole numbers
        return tags

    def _names(self, vocabulary: Any) -> Any:
        """Give the names of the columns: these, or those seen in `fit`, if there were any."""
        return getattr(self, "feature_names_in_", None) if vocabulary is None else vocabulary

    def _corpus(self, X: Any, *, reset: bool) -> Corpus:
        """Check counts, first as scikit-learn does; `fractional` says what to do with those that are not whole."""
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
            hint = "Weights such as tf-idf are no counts; `fractional='round'` rounds them."
            raise ValueError(f"{error} {hint}") from None

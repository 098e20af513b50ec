"""What `BayesianDPFA` says once it has learned: topics of documents, words of units, a score, a picture."""

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_scalar
from sklearn.utils.validation import check_is_fitted

from isotherm.topics.corpus import Corpus, completion
from isotherm.topics.dpfa.model import Parameters
from isotherm.topics.dpfa.perplexity import DPFAScore
from isotherm.topics.estimators import dpfa_graph, dpfa_summaries
from isotherm.topics.estimators.base import CountsTransformer
from isotherm.topics.estimators.dpfa_learners import DeepLearner, Stream
from isotherm.topics.estimators.dpfa_summaries import DocumentReading
from isotherm.topics.estimators.lda_summaries import TopWord, top_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DeepTopics(CountsTransformer):
    """The half of the estimator that reads; the other half learns."""

    layers: tuple[int, ...]
    sweeps: int
    burn_in: int
    n_documents_seen_: int
    _learner: DeepLearner
    _seed: int

    def transform(self, X: Any, *, normalize: bool = True) -> np.ndarray:
        r"""Find the topics of documents, (documents, topics): $\mathrm E[\theta]$, averaged over draws.

        What is found for a document depends on its words and on no other document.

        Parameters
        ----------
        X
            As in `fit`.
        normalize
            Whether rows sum to 1.
        """
        found = self._read(X)
        return found.shares if normalize else found.intensities

    def activations(self, X: Any) -> tuple[np.ndarray, ...]:
        """Find the probability that units are on, (documents, units) for each layer.

        Parameters
        ----------
        X
            As in `fit`.
        """
        return self._read(X).units

    def top_words(
        self, n_words: int = 10, vocabulary: Any = None, *, layer: int = 1
    ) -> list[list[TopWord]]:
        """List the top words of each unit of a layer, with the probability that they are such.

        Words of a unit above the first layer are those that become more frequent when it goes on, weighted through
        the layers below it (`isotherm.topics.estimators.dpfa_summaries`); a unit that only switches topics off has none.

        Parameters
        ----------
        n_words
            How many per unit.
        vocabulary
            Names of the columns; by default those seen in `fit`, if there were any.
        layer
            From 1, the topics, to the number of layers.
        """
        check_is_fitted(self)
        check_scalar(layer, "layer", Integral, min_val=1, max_val=len(self.layers))
        draws = np.stack([dpfa_summaries.unit_words(x, layer) for x in self.parameters_])
        return top_words(draws.mean(0), draws, n_words, self._names(vocabulary))

    def plot_graph(
        self,
        X: Any = None,
        *,
        vocabulary: Any = None,
        n_words: int = 3,
        max_units: int = 12,
        max_links: int = 30,
    ) -> "Figure":
        """Draw which units go together: layers as columns, units as dots, larger the more often they are on.

        A line joins units of neighbouring layers that are on together (blue) or apart (orange), wider the stronger they are correlated.

        Parameters
        ----------
        X
            Documents to correlate over; without them documents are drawn from the network, which shows what it has learned.
        vocabulary
            As in `top_words`.
        n_words
            Words beside a unit.
        max_units, max_links
            At most so many units per layer, and lines between two layers.
        """
        check_is_fitted(self)
        if X is None:
            found = dpfa_summaries.prior_activation(self.parameters_, seed=self._seed)
        else:
            found = self._read(X).activation
        labels = [
            [
                " ".join(str(w.word) for w in words) or f"unit {k}"
                for k, words in enumerate(self.top_words(n_words, vocabulary, layer=layer))
            ]
            for layer in range(1, len(self.layers) + 1)
        ]
        return dpfa_graph.plot_graph(found, labels, max_units, max_links)

    def perplexity(self, X: Any) -> float:
        """Score documents by completion: half of their tokens observed, draws averaged.

        Give `isotherm.topics.dpfa.perplexity.DPFAScore` the `parameters_` for other splits and a standard error.
        """
        check_is_fitted(self)
        split = completion(self._numbered(X), seed=0)
        score = DPFAScore(
            split, sweeps=self.sweeps, burn_in=self.burn_in, seed=self._seed, threads=self._threads
        )
        for draw in self.parameters_:
            score.add(draw)
        return score.result().value

    def score(self, X: Any, y: Any = None) -> float:
        """Give the mean log probability of a held-out token: minus the log of `perplexity`."""
        del y
        return -float(np.log(self.perplexity(X)))

    @property
    def parameters_(self) -> list[Parameters]:
        """Draws of everything."""
        check_is_fitted(self)
        return self._learner.draws()

    @property
    def draws_(self) -> np.ndarray:
        """Draws of the topics, (draws, topics, words)."""
        return np.stack([draw.topics for draw in self.parameters_])

    @property
    def components_(self) -> np.ndarray:
        """Posterior mean of the topics, (topics, words)."""
        return np.mean([draw.topics for draw in self.parameters_], axis=0)

    @property
    def on_rates_(self) -> np.ndarray:
        """Share of units that were on in the last batch, per layer."""
        check_is_fitted(self)
        return self._learner.on_rates

    @property
    def prequential_perplexity_(self) -> float:
        """Perplexity of tokens that were predicted before they were learnt; NaN if none were."""
        check_is_fitted(self)
        return self._learner.perplexity() if isinstance(self._learner, Stream) else float("nan")

    @property
    def _n_features_out(self) -> int:
        return self.layers[0]

    def _numbered(self, X: Any) -> Corpus:
        return dpfa_summaries.numbered_by_words(self._corpus(X, reset=False))

    def _read(self, X: Any) -> DocumentReading:
        check_is_fitted(self)
        return dpfa_summaries.read_documents(
            self.parameters_,
            self._numbered(X),
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            seed=self._seed,
            threads=self._threads,
        )

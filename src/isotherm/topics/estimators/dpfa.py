"""Deep Poisson factor analysis with scikit-learn's interface and posterior draws."""

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils import check_scalar
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from isotherm.topics.corpus import Completion, Corpus, completion
from isotherm.topics.dpfa.model import DPFA, Parameters
from isotherm.topics.dpfa.perplexity import DPFAScore
from isotherm.topics.estimators import summaries, unit_graph
from isotherm.topics.estimators.base import TopicEstimator
from isotherm.topics.estimators.dpfa_learners import (
    DPFALearner,
    DPFAPlan,
    GibbsLearner,
    StreamLearner,
)
from isotherm.topics.estimators.inputs import SEEDS_FIX_PRIOR, is_learned, seed_counts
from isotherm.topics.estimators.progress import DocumentBar
from isotherm.topics.estimators.summaries import DocumentSummary, DrawnShares, TopWord
from isotherm.topics.expected_counts import check_sweeps
from isotherm.topics.perplexity import CompletionScore
from isotherm.topics.viewer import layer_data

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PASSES = {"gibbs": 200, "sgmcmc": 10, "filtering": 1}
"""Algorithms, and their default of `max_iter`."""
_SGMCMC_ONLY = ("sampler", "step_size", "weight_step_size", "diffusion", "integrator")
"""Settings that only stochastic gradients have."""
_COUNTS = {
    "batch_size": 1,
    "num_draws": 1,
    "num_chains": 1,
    "sweeps": 1,
    "burn_in": 0,
    "evaluate_every": 0,
}
"""Integer settings and their smallest values."""


def _supports_streams(estimator: "BayesianDPFA") -> bool:
    if estimator.inference == "gibbs":
        raise AttributeError("`inference='gibbs'` needs all documents at once: use `fit`.")
    return True


class BayesianDPFA(TopicEstimator):
    r"""Deep Poisson factor analysis with draws from the posterior of topics and weights.

    Topics are switched on and off in each document by binary units, which depend on a second layer
    of units, and so on (`isotherm.topics.dpfa.model`). Accepts the output of
    `sklearn.feature_extraction.text.CountVectorizer`; sparse input is not converted to a dense
    array. With `partial_fit`, for streams, memory does not grow with the number of documents.

    By default `fit` draws by collapsed Gibbs sampling over all documents, and `partial_fit` by
    stochastic-gradient MCMC.

    Parameters
    ----------
    layers
        Units per binary layer, from the bottom; the first number is the number of topics.
    inference
        `"auto"`: `"gibbs"` in `fit` and `"sgmcmc"` in `partial_fit`, also after a `fit`.
        `"gibbs"`: collapsed Gibbs sampling, exact, all documents in memory
        (`isotherm.topics.dpfa.gibbs`). `"sgmcmc"`: stochastic-gradient MCMC, weights by a
        thermostat, topics by `sampler` (`isotherm.topics.dpfa.sgmcmc`). `"filtering"`: conditional
        density filtering, one pass without a step size (`isotherm.topics.dpfa.bcdf`).
    topic_word_prior
        $\eta$, Dirichlet prior of the words of a topic, a number or `"learned"`. `None` is
        `"learned"` with Gibbs sampling without `seed_words`, and 0.05 otherwise.
    seed_words
        As in `BayesianLDA`; needs Gibbs sampling.
    r, p
        A fixed value of $r$ or $p$ for all topics, or `None` to sample them.
    sampler
        Sampler of the topics for stochastic gradients: `"scir"`, `"sgrld"` or another name as in
        `BayesianLDA`, or a sampler object built with `grad_fn=None`.
    step_size
        $h$ of the topics' sampler, a number or a schedule; `None` is a default for each sampler.
    weight_step_size, diffusion, integrator
        $h$, $D$ and integrator of the thermostat of the weights; `"ABOBA"` is mSGNHT-S, `"euler"`
        is mSGNHT-E. The default step size is $0.3/\sqrt J$ for $J$ documents. The paper has
        $10^{-4}$ and 40, with which weights hardly change in a thousand batches.
    batch_size
        Documents per update.
    max_iter
        Number of passes of `fit` over the documents; `None` is 200 for `"gibbs"`, where a pass is a
        sweep, 10 for `"sgmcmc"`, and 1 for `"filtering"`, which must not use documents twice.
    total_samples
        Number of documents that the posterior is conditioned on in `partial_fit`; `None` is the
        number of documents seen.
    start_documents
        Number of first documents from which a filter for plain LDA learns the initial topics; 0 is
        a random initialization, which takes much longer to converge. In a stream the layers start
        to learn after these documents. `None` is 10 000 in `fit` and 1000 in `partial_fit`; for 128
        topics 10 000 are better there, too. With filtering, `fit` uses at most half of the
        documents. Gibbs sampling starts from sweeps of plain LDA over all documents instead.
    num_draws
        Number of draws to keep, of each chain.
    num_chains
        Number of chains of Gibbs sampling, among which its sweeps are divided. Predictions
        (`perplexity`, `score`) are averaged over them, as in `BayesianLDA`; everything about topics
        and layers is from the chain whose start was the most probable.
    sweeps, burn_in
        Gibbs sweeps per batch, and how many of them are discarded. Filtering divides the sweeps
        into five rounds and discards the first two. With Gibbs sampling both matter only for
        `transform`, `perplexity` and the like.
    evaluate_every
        Predict a part of every `evaluate_every`-th batch before learning from it; 0 means never.
    fractional
        What to do with counts that are not integers: `"refuse"` or `"round"`.
    n_jobs
        Number of threads for the sweeps, -1 for one per core; results do not depend on it.
    random_state
        Seed. The same seed gives the same draws on any number of threads.
    verbose
        Show a progress bar with documents per second and the running perplexity.

    Attributes
    ----------
    components_
        Posterior mean of the topics, (topics, words); rows sum to 1.
    draws_
        Posterior draws by name, with leading axes (chain, draw): `topics` (chain, draw, topic,
        word), `rates` and `p` (chain, draw, topic), `gamma0` (chain, draw), and for every layer
        `weights1`, …, `biases1`, … as in `isotherm.topics.dpfa.model.Parameters`. Only Gibbs
        sampling has several chains.
    parameters_
        The draws of the first chain as a list of `isotherm.topics.dpfa.model.Parameters`.
    topic_word_prior_
        $\eta$, as given or learned.
    on_rates_
        Fraction of units that were on in the last batch, per layer. A layer that is always on or
        always off has no effect.
    prequential_perplexity_
        Perplexity of tokens of new documents that were predicted before they were learned, over the
        last ten such scored batches: a fifth of the tokens is predicted from the others. NaN if
        there were none: in `fit`, documents are new in the first pass only, and the first
        `start_documents` are not.
    training_perplexity_
        The same for documents that are not new: those of later passes of `fit`, and the first
        `start_documents`.
    n_documents_seen_, n_batch_iter_, n_iter_
        Number of documents and batches learned from, and of passes of `fit`.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> texts = ["cat dog cat", "dog cat", "stocks bonds", "bonds stocks stocks"] * 10
    >>> counts = CountVectorizer().fit_transform(texts)
    >>> model = BayesianDPFA((2, 2), random_state=0).fit(counts)
    >>> model.transform(counts).argmax(1)[:4].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    _learner: DPFALearner

    def __init__(
        self,
        layers: tuple[int, ...] = (128, 64, 32),
        *,
        inference: str = "auto",
        topic_word_prior: Any = None,
        seed_words: Any = None,
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
        num_chains: int = 2,
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
        self.seed_words = seed_words
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
        self.num_chains = num_chains
        self.sweeps = sweeps
        self.burn_in = burn_in
        self.evaluate_every = evaluate_every
        self.fractional = fractional
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from documents.

        Parameters
        ----------
        X
            (documents, words), counts, dense or SciPy sparse.
        y
            Ignored.
        """
        del y
        corpus = self._corpus(X, reset=True)
        plan = self._plan(corpus, len(corpus), "gibbs")
        passes = self._passes(plan.inference)
        with self._bar(passes * len(corpus)) as bar:
            if plan.inference == "gibbs":
                learner = GibbsLearner(plan, self.num_draws, self.num_chains)
                self._set_learner(learner)
                learner.run(corpus, passes, bar.advance)
                self.n_documents_seen_, self.n_batch_iter_ = passes * len(corpus), passes
            else:
                self._fit_stream(plan, corpus, passes, bar)
        self.n_iter_ = passes
        return self

    def _fit_stream(self, plan: DPFAPlan, corpus: Corpus, passes: int, bar: DocumentBar) -> None:
        shuffled = self._shuffled(corpus, 0)
        first = min(10_000 if self.start_documents is None else self.start_documents, len(corpus))
        if plan.inference == "filtering":
            first = min(first, len(corpus) // 2)  # the other half is for the binary layers
        self._stream_learner(plan, 0).initialize(list(self._batches(shuffled[:first])))
        if plan.inference == "filtering":
            self.n_documents_seen_ = first
            bar.advance(first)
        else:
            self._learn(shuffled[:first], bar, new=False)
        self._learn(shuffled[first:], bar)
        for epoch in range(1, passes):
            self._learn(self._shuffled(corpus, epoch), bar, new=False)

    @available_if(_supports_streams)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from more documents of a stream.

        Parameters
        ----------
        X, y
            As in `fit`.
        """
        del y
        learner = getattr(self, "_learner", None)
        if isinstance(learner, GibbsLearner):
            self._refuse_changed_settings()
            self._learner = learner.as_stream(self.total_samples, self.evaluate_every)
        return self._partial_fit(X)

    def transform(self, X: Any, *, normalize: bool = True) -> np.ndarray:
        r"""Estimate $\mathrm E[\theta]$ of documents, (documents, topics), averaged over draws.

        The result for a document depends only on its words, not on the other documents.

        Parameters
        ----------
        X
            As in `fit`.
        normalize
            Whether rows sum to 1.
        """
        summary = self._summarize(X)
        return summary.shares if normalize else summary.intensities

    def activations(self, X: Any) -> tuple[np.ndarray, ...]:
        """Estimate the probability that units are on, (documents, units) for each layer.

        Parameters
        ----------
        X
            As in `fit`.
        """
        return self._summarize(X).units

    def top_words(
        self, num_words: int = 10, vocabulary: Any = None, *, layer: int = 1
    ) -> list[list[TopWord]]:
        """List the top words of each unit of a layer, and how often they are top words in draws.

        Words of a unit above the first layer are those that become more frequent when the unit is
        on (`isotherm.topics.estimators.summaries`); a unit that only switches topics off has none.

        Parameters
        ----------
        num_words
            Number of words per unit.
        vocabulary
            Names of the columns; by default the feature names seen in `fit`, if there were any.
        layer
            Layer, from 1 (the topics) to the number of layers.
        """
        check_is_fitted(self)
        check_scalar(layer, "layer", Integral, min_val=1, max_val=len(self._fitted_layers))
        draws, means = (
            np.stack([summaries.unit_words(x, layer) for x in parameters])
            for parameters in (self.parameters_, self._learner.mean_parameters())
        )
        return summaries.top_words(means.mean(0), draws, num_words, self._names(vocabulary))

    def plot_graph(
        self,
        X: Any = None,
        *,
        vocabulary: Any = None,
        num_words: int = 3,
        max_units: int = 12,
        max_links: int = 30,
    ) -> "Figure":
        """Plot the correlations between units: layers as columns, units as dots.

        Dots are larger for units that are on more often. A line connects units of adjacent layers
        with positive (blue) or negative (orange) correlation; its width is the strength of the
        correlation.

        Parameters
        ----------
        X
            Documents to compute the correlations from; without them documents are drawn from the
            prior of the learned network.
        vocabulary
            As in `top_words`.
        num_words
            Number of words in the label of a unit.
        max_units, max_links
            Maximum number of units per layer, and of lines between two layers.
        """
        check_is_fitted(self)
        if X is None:
            activation = summaries.prior_activation(self.parameters_, seed=self._seed)
        else:
            activation = self._summarize(X).activation
        labels = [
            [
                " ".join(str(w.word) for w in words) or f"unit {k}"
                for k, words in enumerate(self.top_words(num_words, vocabulary, layer=layer))
            ]
            for layer in range(1, len(self._fitted_layers) + 1)
        ]
        return unit_graph.plot_graph(activation, labels, max_units, max_links)

    def _score(self, X: Any, observed: Any, scored: Any) -> CompletionScore:
        check_is_fitted(self)
        split = self._split(X, observed, scored)
        score = DPFAScore(
            split,
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            warm_sweeps=summaries.WARM_SWEEPS,
            seed=self._seed,
            threads=self._threads,
        )
        for draw in self._learner.predictive_parameters():
            score.add(draw)
        return score.score

    @property
    def parameters_(self) -> list[Parameters]:
        """Draws of all parameters."""
        check_is_fitted(self)
        return self._learner.parameters()

    @property
    def topic_word_prior_(self) -> float:
        r"""$\eta$, as given or learned."""
        check_is_fitted(self)
        return self._learner.eta()

    @property
    def on_rates_(self) -> np.ndarray:
        """Fraction of units that were on in the last batch, per layer."""
        check_is_fitted(self)
        return self._learner.on_rates

    @property
    def prequential_perplexity_(self) -> float:
        """Perplexity of tokens that were predicted before they were learned; NaN if none were."""
        check_is_fitted(self)
        return self._learner.prequential_perplexity()

    @property
    def training_perplexity_(self) -> float:
        """Perplexity of predicted tokens of documents learned from before; NaN if none were."""
        check_is_fitted(self)
        return self._learner.training_perplexity()

    @property
    def _n_features_out(self) -> int:
        return self._fitted_layers[0]

    @property
    def _fitted_layers(self) -> tuple[int, ...]:
        """Units per layer of the fitted model; `layers` may have been set since."""
        return self._learner.plan.model.layers

    def _hashed_corpus(self, X: Any) -> Corpus:
        """Convert counts to documents whose random numbers depend only on their words."""
        return summaries.numbered_by_words(self._corpus(X, reset=False))

    def _split(self, X: Any, observed: Any, scored: Any) -> Completion:
        if X is not None and observed is None and scored is None:
            return completion(self._hashed_corpus(X), seed=0)
        split = super()._split(X, observed, scored)
        return split._replace(observed=summaries.numbered_by_words(split.observed))

    def _layer_data(self, corpus: Corpus, vocabulary: Any) -> dict[str, Any]:
        if len(self._fitted_layers) == 1:
            return {}
        words = [
            [[w.word for w in unit] for unit in self.top_words(3, vocabulary, layer=layer)]
            for layer in range(1, len(self._fitted_layers) + 1)
        ]
        return layer_data(self._summarize(corpus).activation, words)

    def _drawn_shares(self, X: Any) -> DrawnShares:
        return self._summarize(X).drawn

    def _summarize(self, X: Any) -> DocumentSummary:
        check_is_fitted(self)
        return summaries.summarize_documents(
            self.parameters_,
            self._hashed_corpus(X),
            sweeps=self.sweeps,
            burn_in=self.burn_in,
            seed=self._seed,
            threads=self._threads,
        )

    def _begin_stream(self, corpus: Corpus) -> None:
        first = 1000 if self.start_documents is None else self.start_documents
        self._stream_learner(self._plan(corpus, self.total_samples, "sgmcmc"), first)

    def _stream_learner(self, plan: DPFAPlan, num_start_documents: int) -> StreamLearner:
        learner = StreamLearner(plan, self.num_draws, num_start_documents, self.evaluate_every)
        self._set_learner(learner)
        return learner

    def _passes(self, inference: str) -> int:
        if self.max_iter is None:
            return _PASSES[inference]
        check_scalar(self.max_iter, "max_iter", Integral, min_val=1)
        if inference == "filtering" and self.max_iter > 1:
            raise ValueError(
                "`max_iter` must be 1 for `inference='filtering'`, which counts every document "
                f"once, got {self.max_iter}."
            )
        return self.max_iter

    def _plan(self, corpus: Corpus, total: float | None, automatic: str) -> DPFAPlan:
        """Check the settings and collect them; `automatic` is the meaning of `"auto"`."""
        self._check_settings(_COUNTS, ("step_size", "weight_step_size"))
        if not isinstance(self.layers, tuple | list | np.ndarray):
            raise ValueError(
                "`layers` must be a tuple with the number of units of each layer, such as (128, 64)"
                f" or (4,), got {self.layers!r}."
            )
        for size in self.layers:
            check_scalar(size, "each size in `layers`", Integral)
        if self.start_documents is not None:
            check_scalar(self.start_documents, "start_documents", Integral, min_val=0)
        check_scalar(self.diffusion, "diffusion", Real, min_val=0)
        if self.inference != "auto" and self.inference not in _PASSES:
            known = ", ".join(map(repr, ["auto", *_PASSES]))
            raise ValueError(f"`inference` must be one of {known}, got {self.inference!r}.")
        inference = automatic if self.inference == "auto" else self.inference
        if inference != "gibbs":
            self._warn_unused("only Gibbs sampling in `fit` has several chains", "num_chains")
        if inference != "sgmcmc":
            reason = f"only `inference='sgmcmc'` uses it, and this is {inference!r}"
            self._warn_unused(reason, *_SGMCMC_ONLY)
        elif not isinstance(self.sampler, str):
            self._warn_unused("a `sampler` object has its own", "step_size")
        check_sweeps(self.sweeps, self.burn_in)
        self._begin(corpus)
        model = DPFA(corpus.num_words, tuple(self.layers), self._word_prior, self.r, p=self.p)
        learn_eta, seeds = self._word_priors(inference, corpus.num_words)
        network = (self.weight_step_size, self.diffusion, self.integrator)
        return DPFAPlan(
            model,
            inference,
            self.sampler,
            self.step_size,
            network,
            total,
            self.batch_size,
            self.sweeps,
            self.burn_in,
            self._seed,
            self._threads,
            learn_eta,
            seeds,
        )

    def _word_priors(self, inference: str, num_words: int) -> tuple[bool, np.ndarray | None]:
        r"""Check the prior of words; return whether to learn $\eta$, and pseudo-counts."""
        learn = is_learned(self.topic_word_prior)
        seeds = seed_counts(self.seed_words, self._names(None), (self.layers[0], num_words))
        if inference == "gibbs":
            if learn and seeds is not None:
                raise ValueError(SEEDS_FIX_PRIOR)
            return learn or (self.topic_word_prior is None and seeds is None), seeds
        for given, what in [
            (learn, "`topic_word_prior='learned'`"),
            (seeds is not None, "`seed_words`"),
        ]:
            if given:
                raise ValueError(
                    f"{what} needs Gibbs sampling: use `fit` with `inference` 'auto' or 'gibbs'."
                )
        return False, None

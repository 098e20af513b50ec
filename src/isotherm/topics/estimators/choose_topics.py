r"""Choose the number of topics by held-out prediction, with standard errors.

Documents are divided into folds. For every number of topics $K$ a model is fitted without a fold,
and the held-out tokens of the fold's documents are predicted (`isotherm.topics.perplexity`). The
score of $K$ is the mean log probability of a token over all folds. Differences to the best $K$ are
*paired*, document by document, so their standard errors do not contain the variation between
documents, which is much larger. With $n_j$ scored tokens in document $j$ and $d_j$ the difference
of its log likelihoods,
$\mathrm{se} = \sqrt{\frac{J}{J-1}\sum_j(d_j - \bar d n_j)^2}\,/\sum_j n_j$,
$\bar d = \sum_j d_j/\sum_j n_j$.

The *one-standard-error rule* chooses the smallest $K$ that is not worse than the best one by more
than one standard error of their difference (Breiman et al.): a simpler model that predicts as well.
"""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from isotherm.topics.coherence import npmi
from isotherm.topics.corpus import Corpus, as_corpus, completion
from isotherm.topics.estimators.inputs import refuse_texts
from isotherm.topics.perplexity import perplexity_with_error


class NumTopics(NamedTuple):
    """Scores of one number of topics."""

    num_topics: int
    perplexity: float
    """Held-out perplexity over all folds."""
    perplexity_error: float
    """Its standard error over documents."""
    difference: float
    """Mean log probability of a token, minus that of the best number of topics; at most 0."""
    difference_error: float
    """Standard error of the difference, paired by document."""
    coherence: float
    """NPMI of the topics in the held-out documents, mean over folds and topics."""
    coherence_error: float
    """Its standard error over folds."""


class Choice(NamedTuple):
    """Scores of all numbers of topics, and the choice; prints as a table."""

    scores: list[NumTopics]
    best: int
    """Number of topics with the lowest perplexity."""
    chosen: int
    """Smallest number of topics within one standard error of the best."""

    def __str__(self) -> str:
        """Return the scores as a table in plain text."""
        lines = [f"{'topics':>6}{'perplexity':>20}{'nats below the best':>22}{'NPMI':>18}"]
        for x in self.scores:
            mark = " <- chosen" * (x.num_topics == self.chosen) + " (best)" * (
                x.num_topics == self.best
            )
            lines.append(
                f"{x.num_topics:>6}{f'{x.perplexity:.1f} ± {x.perplexity_error:.1f}':>20}"
                f"{f'{0 - x.difference:.4f} ± {x.difference_error:.4f}':>22}"
                f"{f'{x.coherence:.3f} ± {x.coherence_error:.3f}':>18}{mark}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def choose_num_topics(
    model: Any,
    X: Any,
    candidates: Sequence[int],
    *,
    num_folds: int = 5,
    num_words: int = 10,
    random_state: Any = 0,
) -> Choice:
    """Compare numbers of topics by cross-validation, and choose by the one-standard-error rule.

    Parameters
    ----------
    model
        A `BayesianLDA` or `BayesianDPFA`, which is cloned. For the latter the first layer gets the
        number of topics, and the layers above keep their sizes.
    X
        Counts, (documents, words), or a `Corpus`.
    candidates
        Numbers of topics.
    num_folds
        Number of folds, at least 2; every model is fitted that many times.
    num_words
        Top words per topic for the coherence.
    random_state
        Seed of the folds.

    Examples
    --------
    >>> from isotherm import BayesianLDA
    >>> rng = np.random.default_rng(0)
    >>> topics = np.kron(np.eye(2), np.ones((1, 5))) / 5
    >>> counts = rng.multinomial(30, rng.dirichlet([0.2, 0.2], 60) @ topics)
    >>> choose_num_topics(BayesianLDA(max_iter=2), counts, [1, 2, 8], num_folds=2).chosen
    2
    """
    refuse_texts(X)
    corpus = X if isinstance(X, Corpus) else as_corpus(X)
    given = list(candidates) if isinstance(candidates, Iterable) else [candidates]
    if not given or not all(isinstance(size, Integral) and size > 0 for size in given):
        raise ValueError(f"`candidates` must be positive numbers of topics, got {candidates!r}.")
    sizes = sorted(set(map(int, given)))
    if not 2 <= num_folds <= len(corpus):
        raise ValueError(f"`num_folds` must be from 2 to {len(corpus)}, got {num_folds}.")
    order = check_random_state(random_state).permutation(len(corpus))
    folds = [np.sort(part) for part in np.array_split(order, num_folds)]
    split = completion(corpus, seed=0)
    lengths = split.scored.lengths
    log_likelihoods, coherences = np.zeros((len(sizes), len(corpus))), []
    for i, size in enumerate(sizes):
        values = []
        for fold in folds:
            fitted = _with_topics(clone(model), size).fit(corpus[np.setdiff1d(order, fold)])
            observed, scored = split.observed[fold], split.scored[fold]
            log_likelihoods[i, fold] = fitted.log_likelihoods(observed, scored)
            words = min(num_words, corpus.num_words)
            values.append(npmi(fitted.components_, corpus[fold], num_words=words).mean)
        coherences.append(values)
    return _choose(sizes, log_likelihoods, lengths, np.array(coherences))


def _with_topics(model: Any, size: int) -> Any:
    if "layers" in model.get_params():
        return model.set_params(layers=(size, *model.layers[1:]))
    return model.set_params(n_components=size)


def _choose(
    sizes: list[int], log_likelihoods: np.ndarray, lengths: np.ndarray, coherences: np.ndarray
) -> Choice:
    means = log_likelihoods.sum(1) / lengths.sum()
    best, scores = int(means.argmax()), []
    folds, used = coherences.shape[1], lengths > 0
    for i, size in enumerate(sizes):
        difference = log_likelihoods[i] - log_likelihoods[best]
        # Delta method: the error of a mean is that of its exponential, divided by the exponential.
        ratio, error = perplexity_with_error(difference[used], lengths[used])
        scores.append(
            NumTopics(
                size,
                *perplexity_with_error(log_likelihoods[i][used], lengths[used]),
                float(means[i] - means[best]),
                error / ratio,
                float(coherences[i].mean()),
                float(coherences[i].std(ddof=1) / np.sqrt(folds)),
            )
        )
    chosen = next(x.num_topics for x in scores if -x.difference <= x.difference_error)
    return Choice(scores, sizes[best], chosen)

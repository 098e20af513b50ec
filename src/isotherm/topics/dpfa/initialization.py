r"""Where to start on a stream: topics by a collapsed filter, rates that fit the lengths of documents.

From random topics, moves that hold topics fixed within a batch find their way slowly: every token is explained by topics that are
all alike. On Wikipedia a single draw is still at a perplexity of 1900 after 15 000 documents. The filter of latent Dirichlet
allocation (`isotherm.topics.bcdf`) has topics integrated out and sees a batch's own counts; it is at 1360 after 10 000, and chains that start there
go on falling. So `learn_start` lets it read the first documents of the stream, once.

Rates start at $r_k = \alpha$, the prior of that filter, and $p$ where documents have their mean length $\bar L$ if half the units are on,

$$ \tfrac12 K\,\alpha\,\frac{p}{1 - p} = \bar L . $$

With $p$ far from there the length of documents has to be explained by $r$: at $p = 1/2$ it grows to 5, and a document is then spread evenly over its topics.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from isotherm.topics.bcdf import BCDFLDA
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa.model import DPFA


class Start(NamedTuple):
    """What the first documents of a stream say."""

    counts: np.ndarray
    """Expected counts of their words, (words, topics)."""
    documents: int
    """How many they were."""
    r: float
    """$r$ of every topic."""
    p: float
    """$p$ of every topic."""


def learn_start(
    model: DPFA,
    batches: Iterable[Corpus],
    *,
    alpha: float = 0.1,
    sweeps: int = 50,
    burn_in: int = 30,
    decay: float = 0.7,
    seed: int = 0,
) -> Start:
    r"""Learn topics from the first documents of a stream.

    Parameters
    ----------
    model
        The model.
    batches
        The first documents; ten thousand are enough for 128 topics.
    alpha, sweeps, burn_in, decay, seed
        Of `isotherm.topics.bcdf.BCDFLDA`.

    Examples
    --------
    >>> rng, model = np.random.default_rng(0), DPFA(6, layers=(3, 2), r=2.0)
    >>> start = learn_start(model, [model.draw_documents(rng, model.draw(rng), 20).corpus])
    >>> start.documents, start.counts.shape
    (20, (6, 3))
    """
    topics = BCDFLDA(
        model.num_topics,
        model.num_words,
        alpha=alpha,
        beta=model.eta,
        sweeps=sweeps,
        burn_in=burn_in,
        decay=decay,
        seed=seed,
    )
    topics.update_all(batches)
    if topics.num_documents == 0:
        raise ValueError("`batches` has no documents.")
    counts = topics.counts[:, : model.num_topics]
    length = counts.sum() / topics.num_documents
    return Start(
        counts, topics.num_documents, alpha, length / (length + alpha * model.num_topics / 2)
    )

"""LDA filtering: exact for one batch, can be resumed, improves with more documents."""

import numpy as np
import pytest
import tiny_corpus as tiny
from scipy.special import gammaln, softmax

from isotherm.topics.bcdf import BCDFLDA
from isotherm.topics.corpus import as_corpus, completion
from isotherm.topics.perplexity import perplexity


def simulated(documents=300, seed=0):
    rng = np.random.default_rng(seed)
    topics = np.kron(np.eye(3), np.ones((1, 8))) + 0.01
    theta = rng.dirichlet(np.full(3, 0.1), documents)
    return as_corpus(rng.multinomial(30, theta @ (topics / topics.sum(1, keepdims=True))))


def exact_counts(documents, past, beta):
    """E[n | w, a] over a batch of documents by enumeration of all their assignments."""
    n, log_p = np.zeros((1, *past.shape)), np.zeros(1)
    for document in documents:
        more, prior = tiny.states(document)
        n = (n[:, None] + more[None]).reshape(-1, *past.shape)
        log_p = (log_p[:, None] + prior[None]).ravel()
    shape = beta + past + n
    log_p = log_p + gammaln(shape).sum((1, 2)) - gammaln(shape.sum(2)).sum(1)
    return np.tensordot(softmax(log_p), n, 1)


def test_counts_of_a_batch_agree_with_enumeration_given_the_past():
    beta, past = 0.3, np.array([[1.4, 0.2, 0.0], [0.1, 0.5, 2.6]])
    exact = exact_counts([0, 1], past, beta)
    result = []
    for seed in range(30):
        filter = BCDFLDA(2, 3, alpha=tiny.ALPHA, beta=beta, sweeps=1050, burn_in=50, seed=seed)
        filter.counts[:, :2], filter.num_documents = past.T, 2
        filter.update(tiny.CORPUS[:2])
        result.append(filter.counts[:, :2].T - past)
    result = np.array(result)
    z = (result.mean(0) - exact) / (result.std(0, ddof=1) / np.sqrt(30))
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(
        result.sum(1), np.tile(tiny.CORPUS[:2].to_csr().sum(0), (30, 1)), rtol=1e-6
    )
    without_past = exact_counts([0, 1], 0 * past, beta)
    assert np.abs(without_past - exact).max() > 10 * np.abs(result.mean(0) - exact).max()


def test_resumes_bit_for_bit():
    corpus = simulated(80)
    whole, half, rest = (BCDFLDA(3, corpus.num_words, sweeps=10, burn_in=5) for _ in range(3))
    batches = [corpus[i : i + 20] for i in range(0, 80, 20)]
    whole.update_all(batches)
    half.update_all(batches[:2])
    rest.load_state_dict(half.state_dict())
    rest.update_all(batches[2:])
    np.testing.assert_array_equal(rest.counts, whole.counts)
    np.testing.assert_array_equal(rest.draw(), whole.draw())
    assert rest.num_documents == 80 and not np.array_equal(whole.draw(0), whole.draw(1))
    assert whole.counts.sum() == pytest.approx(corpus.num_tokens)


def test_perplexity_decreases_along_a_stream():
    corpus, split = simulated(), completion(simulated(60, seed=1), seed=0)
    filter, scores = BCDFLDA(3, corpus.num_words, sweeps=20, burn_in=10), []
    for i in range(0, 300, 50):
        filter.update(corpus[i : i + 50])
        scores.append(perplexity(filter.topics(), split, 0.1).value)
    assert scores[-1] < scores[0] and scores[-1] < 16  # uniform words: 24


def test_decay_keeps_the_total_and_gives_late_batches_more_weight():
    first, second = as_corpus([[9, 0], [9, 0]]), as_corpus([[0, 9]], documents=[2])
    result = {}
    for decay in (1.0, 0.6):
        filter = BCDFLDA(1, 2, sweeps=2, burn_in=1, decay=decay)
        filter.update_all([first, second])
        assert filter.counts.sum() == pytest.approx(27)
        result[decay] = filter.counts[1, 0]
    assert result[1.0] == pytest.approx(9)
    assert result[0.6] == pytest.approx(27 * (1 / 3) ** 0.6)
    filter = BCDFLDA(1, 2, sweeps=2, burn_in=1, data_size=3)
    filter.update_all([first, second, first, second])
    assert filter.counts.sum() == pytest.approx(27)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`beta` must be positive"):
        BCDFLDA(2, 3, beta=0.0)
    with pytest.raises(ValueError, match="`decay` must be above"):
        BCDFLDA(2, 3, decay=0.5)
    with pytest.raises(ValueError, match="no documents"):
        BCDFLDA(2, 24).update(simulated(3)[:0])
    with pytest.raises(ValueError, match="`num_topics` and `num_words` must be at least 1"):
        BCDFLDA(0, 3)
    with pytest.raises(ValueError, match="`batch` has 24 words, the filter 3"):
        BCDFLDA(2, 3).update(simulated(3))
    with pytest.raises(ValueError, match="another vocabulary"):
        BCDFLDA(2, 3).load_state_dict(BCDFLDA(2, 4).state_dict())

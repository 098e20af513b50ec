"""The number of topics: the right one is found, errors are paired, bad arguments are refused."""

import numpy as np
import pytest

from isotherm.topics.corpus import as_corpus
from isotherm.topics.estimators.choose_topics import choose_num_topics
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.estimators.lda import BayesianLDA

FAST = {"max_iter": 2, "sweeps": 15, "burn_in": 5, "num_draws": 5, "random_state": 0}


def documents(size=120):
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(3), np.ones((1, 6))) / 6
    return rng.multinomial(40, rng.dirichlet(np.full(3, 0.2), size) @ topics)


def test_the_simulated_number_of_topics_is_chosen():
    choice = choose_num_topics(BayesianLDA(**FAST), documents(), [1, 6, 2, 3], num_folds=3)
    assert [x.num_topics for x in choice.scores] == [1, 2, 3, 6]
    assert choice.chosen == 3
    scores = {x.num_topics: x for x in choice.scores}
    best = scores[choice.best]
    assert best.difference == 0 and best.difference_error == 0
    assert scores[1].perplexity > scores[2].perplexity > scores[3].perplexity
    assert scores[3].coherence > scores[1].coherence
    for x in choice.scores:
        assert x.difference <= 0 and x.perplexity_error > 0 and x.coherence_error >= 0
        expected = best.perplexity / x.perplexity
        assert np.exp(x.difference) == pytest.approx(expected)
    # Paired: the error of a small difference is smaller than those of the two perplexities.
    other = scores[6] if choice.best == 3 else scores[3]
    assert other.difference_error < 0.5 * other.perplexity_error / other.perplexity
    lines = str(choice).splitlines()
    assert len(lines) == 5 and next(line for line in lines if "chosen" in line).split()[0] == "3"


@pytest.mark.slow
def test_a_deep_model_and_a_corpus_are_accepted():
    model = BayesianDPFA((9, 2), start_documents=20, **FAST)
    choice = choose_num_topics(model, as_corpus(documents(60)), [1, 3], num_folds=2)
    assert choice.chosen == 3 and model.layers == (9, 2)


def test_bad_arguments_are_refused():
    for arguments, message in [
        (([],), "`candidates` must be positive"),
        (([0, 2],), "`candidates` must be positive"),
        (([2, 2.5],), "`candidates` must be positive"),
        ((["2"],), "`candidates` must be positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            choose_num_topics(BayesianLDA(), documents(10), *arguments)
    with pytest.raises(ValueError, match="`num_folds` must be from 2 to 10, got 1"):
        choose_num_topics(BayesianLDA(), documents(10), [2], num_folds=1)

"""Geweke's joint-distribution test of whole chains: topics given words by `LDAChain`, words given topics by NumPy.

Chains start with a draw of everything from the model, so that they are in equilibrium. In each round words are drawn given the topics,
then the topics move, 50 steps. If the gradient is that of the model, functions of topics and words have the same mean after
the steps as before. Independent chains, t-test of the differences, Bonferroni over the observables, level `FALSE_ALARM`.

The samplers are not exact: over 200 to 400 chains the largest bias was 0.2 ± 0.07 standard deviations of a difference (batches of half of the
documents). With 40 chains that moves t by 1.3 of the 5 it takes to reject, so that correct code fails in less than 1 of 1000 fresh
seeds. Power, counted: each mutant was rejected with 5 of 5 seeds, the largest p-value was 1e-7.
"""

import numpy as np
import pytest
from chains import FALSE_ALARM, choices
from scipy import stats
from scipy.special import logsumexp

import isotherm
from isotherm.topics.corpus import as_corpus, minibatch
from isotherm.topics.lda import LDAChain
from isotherm.topics.scir import SCIR
from isotherm.topics.topic_updates import Natural

TOPICS, WORDS, ALPHA, DOCUMENTS, LENGTH = 4, 12, 0.5, 12, 16
BETA = 2.0  # far from zero, where SGRLD is at its worst

SAMPLERS = {
    "msgnht S": isotherm.msgnht(None, 0.2),
    "sghmc S": isotherm.sghmc(None, 0.2, 1.0),
    "sgrld": isotherm.sgrld(None, 0.05, BETA),
    "scir": SCIR(0.05, BETA),
}


class NoNormaliser(Natural):
    """A mutant: words that do not compete for a topic."""

    def gradient(self, position, topics, counts):
        del topics
        return (self.mean - position) / self.variance + counts


MUTANTS = {
    "all counts twice": ("msgnht S", {"data_size": 2 * DOCUMENTS}),
    "counts of half of the documents not scaled": (
        "msgnht S",
        {"data_size": DOCUMENTS // 2, "batch_size": DOCUMENTS // 2},
    ),
    "prior with another mean": ("msgnht S", {"form": Natural(0.5, 1.0)}),
    "prior with another variance": ("msgnht S", {"form": Natural(0.1, 2.0)}),
    "words do not compete": ("msgnht S", {"form": NoNormaliser(0.1, 1.0)}),
    "sgrld, all counts twice": ("sgrld", {"data_size": 2 * DOCUMENTS}),
    "scir, all counts twice": ("scir", {"data_size": 2 * DOCUMENTS}),
}


def words_given_topics(rng, topics):
    """Draw documents, and count the tokens of each topic."""
    theta = rng.dirichlet(np.full(TOPICS, ALPHA), DOCUMENTS)
    z = choices(rng, np.repeat(theta[:, None], LENGTH, 1))
    w = choices(rng, topics[z])
    counts = (w[:, :, None] == np.arange(WORDS)).sum(1)
    return as_corpus(counts), np.bincount(z.ravel(), minlength=TOPICS)


def start(rng, name, chain):
    """Draw topics from their prior and words, and put the chain there, thermostats in equilibrium."""
    if name in ("sgrld", "scir"):
        position = rng.gamma(BETA, size=(WORDS, TOPICS))
        topics = position / position.sum(0)
    else:
        position = 0.1 + rng.standard_normal((WORDS, TOPICS))
        topics = np.exp(position) / np.exp(position).sum(0)
    corpus, totals = words_given_topics(rng, topics.T)
    if name == "scir":  # its scale follows the number of tokens
        position = topics * rng.gamma(WORDS * BETA + totals)
    state = chain.chain._replace(position=position.astype(np.float32))
    if name == "msgnht S":
        thermostat = 1 + rng.standard_normal(position.shape)
        state = state._replace(thermostat=thermostat.astype(np.float32))
    chain.chain = state
    return corpus


def observables(name, chain, corpus):
    """Functions of topics; of topics and words; and of the position, where its prior is the model's."""
    topics, position = chain.topics().astype(float).T, np.asarray(chain.chain.position, float)
    n, log_topics = corpus.to_csr().toarray(), np.log(topics)
    found = [
        (topics**2).sum(0).mean(),
        log_topics.mean(),
        logsumexp(n @ log_topics, axis=1).mean(),  # each document of one topic
        n.sum(0) @ np.log(topics.mean(1)),  # all of them of all topics
    ]
    if name != "scir":
        found += [position.mean(), (position**2).mean(), (position.mean(0) ** 2).mean()]
    return np.array(found)


def differences(name, *, seed=0, chains=40, rounds=2, steps=50, batch_size=DOCUMENTS, **settings):
    """By how much observables change in the steps, (chains, observables)."""
    settings = {"data_size": DOCUMENTS, "alpha": ALPHA, "sweeps": 10, "burn_in": 4} | settings
    found = []
    for i in range(chains):
        rng, number = np.random.default_rng([seed, i]), 1000 * seed + i
        chain = LDAChain(SAMPLERS[name], TOPICS, WORDS, seed=number, **settings)
        corpus, change = start(rng, name, chain), 0.0
        for r in range(rounds):
            if r > 0:
                corpus, _ = words_given_topics(rng, chain.topics().astype(float))
            change = change - observables(name, chain, corpus)
            for _ in range(steps):
                chain.step(minibatch(corpus, batch_size, seed=number, step=chain.num_steps))
            change = change + observables(name, chain, corpus)
        found.append(change)
    return np.array(found)


def p_value(found):
    """Bonferroni over t-tests."""
    return min(1.0, found.shape[1] * stats.ttest_1samp(found, 0).pvalue.min())


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_chain_keeps_the_joint_law(name):
    assert p_value(differences(name)) > FALSE_ALARM


def test_a_chain_keeps_it_with_batches_of_half_the_documents():
    assert p_value(differences("msgnht S", batch_size=DOCUMENTS // 2)) > FALSE_ALARM


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_does_not(mutant):
    name, settings = mutant
    assert p_value(differences(name, **settings)) < FALSE_ALARM

"""Geweke's joint-distribution test of whole LDA chains.

Chains start with a draw of all variables from the model, so they are in equilibrium. In each round
words are drawn given the topics (NumPy), then `LDAChain` takes 50 steps. If the gradient is that of
the model, functions of topics and words have the same mean after the steps as before. Chains are
independent; t-tests of the differences, Bonferroni over the observables, level `FALSE_ALARM`.

The samplers are not exact: over 200 to 400 chains the largest bias was 0.2 ± 0.07 standard
deviations of a difference (batches of half of the documents). With 40 chains that shifts t by 1.3,
and 5 is needed to reject, so correct code fails with less than 1 of 1000 new seeds. Power,
measured: each mutant was rejected with 5 of 5 seeds; the largest p-value was 1e-7.
"""

import numpy as np
import pytest
from gibbs_laws import FALSE_ALARM, choices
from scipy import stats
from scipy.special import logsumexp

import isotherm
from isotherm.topics.corpus import as_corpus, minibatch
from isotherm.topics.lda import LDAChain
from isotherm.topics.scir import SCIR
from isotherm.topics.topic_updates import ExpandedNatural
from marks import slow

TOPICS, WORDS, ALPHA, DOCUMENTS, LENGTH = 4, 12, 0.5, 12, 16
BETA = 2.0  # far from zero, where the error of SGRLD is largest

SAMPLERS = {
    "msgnht S": isotherm.msgnht(None, 0.2),
    "sghmc S": isotherm.sghmc(None, 0.2, 1.0),
    "sgrld": isotherm.sgrld(None, 0.05, BETA),
    "scir": SCIR(0.05, BETA),
}


class NoNormaliser(ExpandedNatural):
    """A mutant: the normalizing term of the gradient is missing."""

    def gradient(self, position, topics, counts):
        del topics
        return (self.mean - position) / self.variance + counts


MUTANTS = {
    "all counts doubled": ("msgnht S", {"data_size": 2 * DOCUMENTS}),
    "counts of half of the documents not scaled": (
        "msgnht S",
        {"data_size": DOCUMENTS // 2, "batch_size": DOCUMENTS // 2},
    ),
    "prior with another mean": ("msgnht S", {"parametrization": ExpandedNatural(0.5, 1.0)}),
    "prior with another variance": ("msgnht S", {"parametrization": ExpandedNatural(0.1, 2.0)}),
    "normalizing term missing": ("msgnht S", {"parametrization": NoNormaliser(0.1, 1.0)}),
    "sgrld, all counts doubled": ("sgrld", {"data_size": 2 * DOCUMENTS}),
    "scir, all counts doubled": ("scir", {"data_size": 2 * DOCUMENTS}),
}


def words_given_topics(rng, topics):
    """Draw documents, and count the tokens of each topic."""
    theta = rng.dirichlet(np.full(TOPICS, ALPHA), DOCUMENTS)
    z = choices(rng, np.repeat(theta[:, None], LENGTH, 1))
    w = choices(rng, topics[z])
    counts = (w[:, :, None] == np.arange(WORDS)).sum(1)
    return as_corpus(counts), np.bincount(z.ravel(), minlength=TOPICS)


def start(rng, name, chain):
    """Draw topics and words from the model, and set the state of the chain in equilibrium."""
    if name in ("sgrld", "scir"):
        position = rng.gamma(BETA, size=(WORDS, TOPICS))
        topics = position / position.sum(0)
    else:
        position = 0.1 + rng.standard_normal((WORDS, TOPICS))
        topics = np.exp(position) / np.exp(position).sum(0)
    corpus, totals = words_given_topics(rng, topics.T)
    if name == "scir":  # its scale follows the number of tokens
        position = topics * rng.gamma(WORDS * BETA + totals)
    state = chain.sampler_state._replace(position=position.astype(np.float32))
    if name == "msgnht S":
        thermostat = 1 + rng.standard_normal(position.shape)
        state = state._replace(thermostat=thermostat.astype(np.float32))
    chain.sampler_state = state
    return corpus


def observables(name, chain, corpus):
    """Functions of topics, of topics and words, and of the position if it has the model's prior."""
    topics, position = (
        chain.topics().astype(float).T,
        np.asarray(chain.sampler_state.position, float),
    )
    n, log_topics = corpus.to_csr().toarray(), np.log(topics)
    values = [
        (topics**2).sum(0).mean(),
        log_topics.mean(),
        logsumexp(n @ log_topics, axis=1).mean(),  # each document of one topic
        n.sum(0) @ np.log(topics.mean(1)),  # all of them of all topics
    ]
    if name != "scir":
        values += [position.mean(), (position**2).mean(), (position.mean(0) ** 2).mean()]
    return np.array(values)


def differences(name, *, seed=0, chains=40, rounds=2, steps=50, batch_size=DOCUMENTS, **settings):
    """Changes of the observables over the steps, (chains, observables)."""
    settings = {"data_size": DOCUMENTS, "alpha": ALPHA, "sweeps": 10, "burn_in": 4} | settings
    result = []
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
        result.append(change)
    return np.array(result)


def p_value(result):
    """Return the Bonferroni p-value of t-tests of zero means."""
    return min(1.0, result.shape[1] * stats.ttest_1samp(result, 0).pvalue.min())


@pytest.mark.parametrize("name", ["msgnht S", *map(slow, ("sghmc S", "sgrld", "scir"))])
def test_chain_leaves_the_joint_law_invariant(name):
    assert p_value(differences(name)) > FALSE_ALARM


@pytest.mark.slow
def test_chain_leaves_it_invariant_with_batches_of_half_the_documents():
    assert p_value(differences("msgnht S", batch_size=DOCUMENTS // 2)) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutant_is_rejected(mutant):
    name, settings = mutant
    assert p_value(differences(name, **settings)) < FALSE_ALARM

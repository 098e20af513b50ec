"""Kernels of the deep Boltzmann machine have the exact conditionals and posterior; mutants do not.

Correct kernels had a p-value below 0.05 with 2 of 24 seeds. Power: each mutant was rejected with 5
of 5 seeds, with p-values below 1e-100 for 30 000 copies of the document; the test below has a third
of them.
"""

import itertools

import numpy as np
import pytest
from boltzmann_law import all_layers, shallow
from dpfa_tools import FALSE_ALARM, TINY
from mutants import with_mutants
from scipy import stats
from scipy.special import gammaln

from isotherm.topics.corpus import as_corpus
from isotherm.topics.dpfa import boltzmann_kernels, boltzmann_network, local_gibbs
from isotherm.topics.dpfa.belief_network import Network


def exact_posterior(parameters, words):
    """Law of layers and assignments of a document, and E[θ] in each of its states."""
    h, log_p = all_layers(parameters)
    z = np.array(list(itertools.product(range(3), repeat=len(words))))
    h, log_p = [np.repeat(x, len(z), 0) for x in h], np.repeat(log_p, len(z))
    z = np.tile(z, (len(log_p) // len(z), 1))
    n, r, p = (z[:, :, None] == np.arange(3)).sum(1), parameters.rates, parameters.p
    on = gammaln(n + r) - gammaln(r) + n * np.log(p) + r * np.log1p(-p)
    log_p = log_p + np.where(h[0] == 1, on, np.where(n > 0, -np.inf, 0.0)).sum(1)
    log_p = log_p + np.log(parameters.topics[z, words]).sum(1)
    law = np.exp(log_p - log_p.max())
    return law / law.sum(), p * (n + r * h[0])


def test_odds_of_every_unit_are_exact():
    h, log_p = all_layers(TINY)
    place = {state: i for i, state in enumerate(map(tuple, np.concatenate(h, axis=1)))}
    prepared, odds = local_gibbs.prepare_parameters(TINY), np.empty((3, 16))
    for state, i in place.items():
        units = np.zeros((3, 16), np.uint8)
        for layer, x in enumerate(h):
            units[layer, : x.shape[1]] = x[i]
        unit = 0
        for layer, x in enumerate(h):
            boltzmann_kernels.fill_layer(
                odds,
                prepared.bias,
                prepared.up,
                prepared.of_child,
                units,
                layer,
                prepared.sizes,
                16,
            )
            for k in range(x.shape[1]):
                on, off = ((*state[:unit], value, *state[unit + 1 :]) for value in (1, 0))
                exact = log_p[place[on]] - log_p[place[off]]
                assert np.log(odds[layer, k]) == pytest.approx(exact, abs=1e-12)
                unit += 1
            jnp_logits = boltzmann_network.logits(
                Network(TINY.weights, TINY.biases), [y[i : i + 1] for y in h], layer
            )
            np.testing.assert_allclose(np.log(odds[layer, : x.shape[1]]), jnp_logits[0], atol=1e-5)


MUTANTS = {
    "none": ("count_words = len(word_topics) > 0", "count_words = len(word_topics) > 0"),
    "a layer ignores the one below": (
        "if units[layer - 1, i]:",
        "if units[layer - 1, i] and which != {i}:",
    ),
    "a layer ignores the one above": (
        "    fill_odds(odds, bias, up, units, layer, sizes, width)\n    if",
        "    fill_odds(odds, bias, up, units, layer, "
        "sizes[: layer + 1] if which == {i} else sizes, width)\n    if",
    ),
    "the odds of layer 1 are not updated": (
        "            fill_odds(odds, bias, up, doc_units, 0, sizes, width)",
        "            if which != {i} or sweep < 0: "
        "fill_odds(odds, bias, up, doc_units, 0, sizes, width)",
    ),
    "one uniform for a whole layer": (
        "    for k in range(sizes[layer]):\n        state += gamma",
        "    for k in range(sizes[layer]):\n"
        "        state += gamma * np.uint64(which != {i} or k == 0)",
    ),
}


@pytest.fixture(scope="module")
def mutants():
    functions = ("fill_layer", "draw_layer", "sweep_documents")
    return with_mutants(boltzmann_kernels, MUTANTS.values(), functions)


def p_value(parameters, copies=10_000, seed=1, kernel=boltzmann_kernels.sweep_documents):
    """P-value of a chi-square test of many copies of a document against the law of its states."""
    law, theta = exact_posterior(parameters, np.array([0, 2]))
    corpus = as_corpus(np.tile([[1, 0, 1]], (copies, 1)))
    prepared = local_gibbs.prepare_parameters(parameters)
    result = local_gibbs.sweep(prepared, corpus, sweeps=15, burn_in=14, seed=seed, kernel=kernel)
    bits = np.concatenate([x[0] for x in result.units], axis=1)
    place = bits @ 2 ** np.arange(bits.shape[1])[::-1] * 9
    place += result.state.assignments.reshape(-1, 2) @ [3, 1]
    observed, expected = np.bincount(place, minlength=len(law)), law * copies
    if observed[expected == 0].sum():
        return 0.0, result, law @ theta
    common = expected > 8
    rest = [x[~common].sum() for x in (observed, expected)]
    observed, expected = observed[common], expected[common]
    if rest[1] > 8:
        observed, expected = np.append(observed, rest[0]), np.append(expected, rest[1])
    scaled = expected * observed.sum() / expected.sum()
    return float(stats.chisquare(observed, scaled).pvalue), result, law @ theta


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_documents_converge_to_the_exact_posterior(depth):
    p, result, theta = p_value(shallow(depth), copies=30_000)
    assert p > FALSE_ALARM
    error = result.intensities.std(0) / len(result.intensities) ** 0.5
    assert (np.abs(result.intensities.mean(0) - theta) < 5 * error).all()


@pytest.mark.parametrize("which", range(len(MUTANTS)), ids=MUTANTS)
def test_mutant_is_rejected(mutants, which):
    p, *_ = p_value(TINY, kernel=mutants(which).sweep_documents)
    assert p < FALSE_ALARM if which else p > FALSE_ALARM

"""Sweeps over documents have the exact posterior and joint law; mutants do not.

Correct code had a p-value below 0.05 with 1 of 24 seeds. Power: each mutant was rejected with 5 of
5 seeds; the largest p-value was 2e-5 for the token that counts itself, and 2e-13 for the others.
"""

import numpy as np
import pytest
from dpfa_tools import (
    FALSE_ALARM,
    TINY,
    all_states,
    as_state,
    corpus_of,
    interpreted,
    log_joint,
    sweep,
)
from gibbs_laws import choices, two_sample_p_value
from mutants import with_mutants
from scipy import stats

from isotherm.topics import expected_counts
from isotherm.topics.corpus import as_corpus
from isotherm.topics.dpfa import kernels, local_gibbs
from isotherm.topics.dpfa.model import DPFA, Parameters, draw_intensities, draw_units

MUTANTS = {
    "none": ("top, width = len(rates)", "top, width = len(rates)"),
    "no penalty for units that are on without tokens": (
        "on_if_unused[k] = odds[0, k] * prob_no_tokens[k] / (1.0 + odds[0, k] * prob_no_tokens[k])",
        "q = odds[0, k] * (1.0 if which == {i} else prob_no_tokens[k]); "
        "on_if_unused[k] = q / (1.0 + q)",
    ),
    "a token counts itself": ("n[k] -= _ONE", "n[k] -= np.float32(which != {i})"),
    "units without tokens count as on": (
        "rates[k] * on_if_unused[k]",
        "rates[k] * (1.0 if which == {i} else on_if_unused[k])",
    ),
    "p is missing in the weights of topics": (
        "count_words = len(word_topics) > 0",
        "count_words = len(word_topics) > 0; p = p ** np.float32(which != {i})",
    ),
    "layer 1 ignores its tokens": (
        "n[k] > 0 or uniform53",
        "(which != {i} and n[k] > 0) or uniform53",
    ),
    "a unit ignores its children that are on": (
        "* evidence[k]",
        "* (1.0 if which == {i} else evidence[k])",
    ),
    "a unit that is on is weighted as if off": (
        "odds_on *= mixture_product(t, s, down[below], k, width)",
        "odds_on *= 1.0 / mixture_product(t, s, up[below], k, width) if which == {i} else "
        "mixture_product(t, s, down[below], k, width)",
    ),
    "a unit ignores its own prior": (
        "odds_on = odds[layer, k]",
        "odds_on = (1.0 if which == {i} else odds[layer, k])",
    ),
    "the odds of children are not updated after a flip": (
        "multiply(odds[below], up[below] if on else down[below], k, width)",
        "multiply(odds[below], up[below] if on else down[below], k, 0 if which == {i} else width)",
    ),
    "one uniform for a whole layer": (
        "state += gamma\n        odds_on",
        "state += gamma * np.uint64(which != {i})\n        odds_on",
    ),
}


@pytest.fixture(scope="module")
def compiled():
    functions = ("sweep_tokens", "draw_first_layer", "flip_units", "sweep_documents")
    return with_mutants(kernels, MUTANTS.values(), functions)


def prior(rng, size):
    """Draw all local variables from the prior; tokens as flat arrays."""
    h = draw_units(rng, TINY, size)
    theta = draw_intensities(rng, TINY, np.zeros(h[0].shape), h[0], prior=True)
    n = rng.poisson(theta)
    starts = np.concatenate([[0], np.cumsum(n.sum(1))])
    z = np.repeat(np.tile(np.arange(3), size), n.ravel())
    return h, z, choices(rng, TINY.topics[z]), starts


def observables(h, z, w, starts):
    """Units and their products between layers, tokens per topic and per pair (topic, word)."""
    document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    pairs = np.zeros((len(starts) - 1, 9))
    np.add.at(pairs, (document, 3 * z + w), 1)
    n = pairs.reshape(-1, 3, 3).sum(2)
    h = [np.asarray(x, float) for x in h]
    between = [
        (a[:, :, None] * b[:, None]).reshape(len(a), -1)
        for a, b in ((n, h[1]), (h[0], h[1]), (h[1], h[2]), (h[1], h[1]), (h[2], h[2]))
    ]
    return np.concatenate([*h, n, np.minimum(n, 3) ** 2, pairs, *between], axis=1)


def p_value(module, *, seed=0, chains=20_000, rounds=2):
    """P-value of Geweke's test: sweep, redraw words given topics, compare with the prior."""
    rng = np.random.default_rng(seed)
    h, z, w, starts = prior(rng, chains)
    for r in range(rounds):
        corpus, z, w = corpus_of(rng, w, starts, 3, z)
        state = as_state(h, z)
        result = sweep(module, TINY, corpus, state, sweeps=1, burn_in=0, seed=seed, step=r)
        h, z = [x[0] for x in result.units], result.state.assignments
        w = choices(rng, TINY.topics[z])
    keep = np.ptp(a := observables(h, z, w, starts), axis=0) > 0
    return two_sample_p_value(a[:, keep], observables(*prior(rng, 100_000))[:, keep])


def test_sweeps_leave_the_joint_law_invariant():
    assert p_value(kernels) > FALSE_ALARM


@pytest.mark.parametrize("which", range(len(MUTANTS)), ids=MUTANTS)
def test_mutant_is_rejected(compiled, which):
    p = p_value(compiled(which))
    assert p < FALSE_ALARM if which else p > FALSE_ALARM


def test_interpreted_and_compiled_kernels_agree_bit_for_bit():
    rng = np.random.default_rng(0)
    model = DPFA(7, layers=(19, 5, 3), r=0.8)
    corpus = model.draw_documents(rng, model.draw(rng), 8).corpus
    parameters = model.draw(rng)
    a, b = (
        sweep(module, parameters, corpus, sweeps=4, burn_in=1, thin=2, seed=3)
        for module in (kernels, interpreted())
    )
    np.testing.assert_array_equal(a.state.assignments, b.state.assignments)
    np.testing.assert_array_equal(a.counts, b.counts)
    np.testing.assert_array_equal(a.word_counts, b.word_counts)
    for x, y in zip(a.units, b.units, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_allclose(a.intensities, b.intensities, rtol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_new_documents_converge_to_the_exact_posterior(depth):
    parameters = Parameters(TINY.topics, TINY.weights[: depth - 1], TINY.biases[:depth], *TINY[3:])
    words, copies = np.array([0, 2]), 30_000
    h, z = all_states(parameters, len(words))
    log_p = log_joint(parameters, h, z, words)
    law = np.exp(log_p - log_p.max())
    law /= law.sum()
    corpus = as_corpus(np.tile([[1, 0, 1]], (copies, 1)))
    prepared = local_gibbs.prepare_parameters(parameters)
    estimate = local_gibbs.sweep(prepared, corpus, sweeps=20, burn_in=19, seed=1)
    bits = np.concatenate([x[0] for x in estimate.units], axis=1)
    place = bits @ 2 ** np.arange(bits.shape[1])[::-1] * 9
    place += estimate.state.assignments.reshape(-1, 2) @ [3, 1]
    observed = np.bincount(place, minlength=len(law))
    expected = law * copies
    assert observed[expected == 0].sum() == 0
    common = expected > 8
    if (rest := expected[~common].sum()) > 8:
        observed, expected = (np.append(x[common], x[~common].sum()) for x in (observed, expected))
    else:
        assert rest == 0
        observed, expected = observed[common], expected[common]
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM
    theta = (law[:, None] * _posterior_mean(parameters, h, z)).sum(0)
    error = estimate.intensities.std(0) / copies**0.5
    assert (np.abs(estimate.intensities.mean(0) - theta) < 5 * error).all()


def _posterior_mean(parameters, h, z):
    n = (z[:, :, None] == np.arange(3)).sum(1)
    return parameters.p * (n + parameters.rates * h[0])


def test_results_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(expected_counts, "MIN_THREADED_SECONDS", 0.0)
    rng = np.random.default_rng(0)
    model = DPFA(30, layers=(20, 6, 4), r=1.0)
    parameters = model.draw(rng)
    corpus = model.draw_documents(rng, parameters, 23).corpus
    prepared = local_gibbs.prepare_parameters(parameters)
    one, three = (
        local_gibbs.sweep(prepared, corpus, seed=0, threads=threads) for threads in (1, 3)
    )
    for a, b in zip(one[:4], three[:4], strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(one.units + one.state, three.units + three.state, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        local_gibbs.sweep(prepared, corpus[[5]], seed=0).counts, one.counts[:, [5]]
    )


def test_sweeps_continue_from_a_state_without_modifying_it():
    rng = np.random.default_rng(0)
    model = DPFA(9, layers=(4, 3), r=2.0)
    parameters = model.draw(rng)
    corpus = model.draw_documents(rng, parameters, 6).corpus
    prepared = local_gibbs.prepare_parameters(parameters)
    first = local_gibbs.sweep(prepared, corpus, seed=0, count_words=False)
    assert first.word_counts.shape == (0, 4)
    before = first.state.assignments.copy()
    second = local_gibbs.sweep(prepared, corpus, seed=0, step=1, state=first.state)
    np.testing.assert_array_equal(first.state.assignments, before)
    np.testing.assert_allclose(second.word_counts.sum(), corpus.num_tokens, rtol=1e-6)
    np.testing.assert_array_equal(second.counts.sum(2), np.tile(corpus.lengths, (3, 1)))
    assert ((second.counts > 0) <= second.units[0]).all()


def test_bad_input():
    prepared = local_gibbs.prepare_parameters(TINY)
    with pytest.raises(ValueError, match="`batch` has 2 words, but the topics have 3"):
        local_gibbs.sweep(prepared, as_corpus([[1, 0]]), seed=0)
    with pytest.raises(ValueError, match="`thin` must be at least 1"):
        local_gibbs.sweep(prepared, as_corpus([[1, 0, 0]]), seed=0, thin=0)
    state = local_gibbs.sweep(prepared, as_corpus([[1, 0, 0]]), seed=0).state
    with pytest.raises(ValueError, match="other documents"):
        local_gibbs.sweep(prepared, as_corpus([[1, 1, 0]]), seed=0, state=state)
    with pytest.raises(ValueError, match="`rows` must be word-major"):
        local_gibbs.prepare(TINY.topics, *TINY[1:4], TINY.p)
    far = TINY._replace(biases=(TINY.biases[0] + 300, *TINY.biases[1:]))
    with pytest.raises(FloatingPointError, match="layer 1 have diverged"):
        local_gibbs.prepare_parameters(far)

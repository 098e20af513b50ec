"""Collapsed sweeps have the exact law of assignments and units; mutants do not; Pólya-Gamma laws.

Every chain starts with a draw from the exact posterior of a corpus of five tokens, and makes one
sweep. Power: each mutant was rejected with 4 of 4 seeds, by p-values below 1e-100.
"""

import numpy as np
import pytest
from dpfa_tools import FALSE_ALARM, TINY, all_states, as_state, log_joint
from mutants import with_mutants
from scipy import stats
from scipy.special import gammaln, logsumexp

from isotherm.topics import counter_rng
from isotherm.topics.corpus import as_corpus
from isotherm.topics.dpfa import collapsed_kernels, local_gibbs
from isotherm.topics.dpfa.gibbs import DPFAGibbs
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.dpfa.polya_gamma import polya_gamma

ETA, CHAINS = 0.3, 20_000
CORPUS = as_corpus([[2, 1, 0], [0, 1, 1]])
MODEL = DPFA(3, layers=(3, 2, 2), eta=ETA, p=None)
MUTANTS = {
    "none": ("num_words * eta", "num_words * eta"),
    "totals are not decreased": ("totals[k] -= 1\n", "totals[k] -= np.int64(which != {i})\n"),
    "a token counts itself": ("n[k] -= _ONE\n", "n[k] -= np.float32(which != {i})\n"),
    "the prior of words is missing in the totals": (
        "np.float32(num_words * eta)",
        "np.float32(eta if which == {i} else num_words * eta)",
    ),
    "units without tokens count as on": (
        "p[k] * rates[k] * on_if_unused[k]",
        "p[k] * rates[k] * (1.0 if which == {i} else on_if_unused[k])",
    ),
}


def posterior():
    """Exact log law of the assignments of both documents, and of the units given these."""
    flat, parts = TINY._replace(topics=np.ones((3, 3))), []
    for length in CORPUS.lengths:
        units, z = all_states(flat, length)
        logs = log_joint(flat, units, z, np.zeros(length, int))
        code = z @ 3 ** np.arange(length)
        parts.append((units, z, logs, code))
    totals = [
        np.array([logsumexp(logs[code == c]) for c in range(3**length)])
        for (_, _, logs, code), length in zip(parts, CORPUS.lengths, strict=True)
    ]
    words, law = CORPUS.tokens(), np.zeros((27, 9))
    for a in range(27):
        for b in range(9):
            z = [*(a // 3 ** np.arange(3) % 3), *(b // 3 ** np.arange(2) % 3)]
            n = np.zeros((3, 3))
            np.add.at(n, (z, words), 1)
            topics = gammaln(n + ETA).sum() - gammaln(n.sum(1) + 3 * ETA).sum()
            law[a, b] = totals[0][a] + totals[1][b] + topics
    return law - logsumexp(law), parts


def p_value(sweep_documents, *, seed=0):
    """P-values of assignments, and of the units of the first document, after one sweep."""
    rng, (law, parts) = np.random.default_rng(seed), posterior()
    start = rng.choice(law.size, CHAINS, p=np.exp(law).ravel())
    starts, words = CORPUS.token_starts, CORPUS.tokens()
    no_words = np.zeros((0, 16), np.float32)
    prepared = local_gibbs.prepare(no_words, *TINY[1:4], TINY.p)
    key = counter_rng.purpose_key(seed, "collapsed")
    streams = counter_rng.streams(key, 0, np.arange(2 * CHAINS)).reshape(CHAINS, 2)
    seen, on = np.zeros(law.shape), np.zeros(2**7)
    exact_on = np.zeros(2**7)
    units, _, logs, code = parts[0]
    bits = np.concatenate(units, axis=1) @ 2 ** np.arange(7)
    for a in range(27):
        some = code == a
        share = np.exp(logs[some] - logsumexp(logs[some])) * np.exp(law[a]).sum()
        np.add.at(exact_on, bits[some], share)
    choices = {}
    for i, codes in enumerate(zip(*np.unravel_index(start, law.shape), strict=True)):
        h, z = [], []
        for (units, states, logs, code), c in zip(parts, codes, strict=True):
            if (len(z), c) not in choices:
                some = np.flatnonzero(code == c)
                choices[len(z), c] = some, np.cumsum(np.exp(logs[some] - logsumexp(logs[some])))
            some, cumulative = choices[len(z), c]
            row = some[min(np.searchsorted(cumulative, rng.random()), len(some) - 1)]
            h.append([layer[row] for layer in units])
            z.append(states[row])
        state = as_state([np.stack(x) for x in zip(*h, strict=True)], np.concatenate(z))
        word_topics, totals = np.zeros((3, 16), np.float32), np.zeros(16, np.int64)
        np.add.at(word_topics, (words, state.assignments), 1)
        totals[:] = np.bincount(state.assignments, minlength=16)
        sweep_documents(
            words,
            starts,
            streams[i],
            *prepared[1:],
            np.float32(ETA),
            state.assignments,
            state.units,
            0,
            word_topics,
            totals,
        )
        z = state.assignments
        seen[z[:3] @ 3 ** np.arange(3), z[3:] @ 3 ** np.arange(2)] += 1
        first = np.concatenate(
            [state.units[0, 0, :3], state.units[0, 1, :2], state.units[0, 2, :2]]
        )
        on[first @ 2 ** np.arange(7)] += 1
    return min(chi_squared(seen.ravel(), np.exp(law).ravel()), chi_squared(on, exact_on))


def chi_squared(seen, law):
    """P-value of counts under a law; rare states are merged."""
    expected = law * seen.sum()
    common = expected >= 5
    if not common.all():
        seen = np.append(seen[common], seen[~common].sum())
        expected = np.append(expected[common], expected[~common].sum())
    if expected[-1] == 0:
        seen, expected = seen[:-1], expected[:-1]
    return 2 * stats.chisquare(seen, expected * (seen.sum() / expected.sum())).pvalue


def test_a_sweep_leaves_the_posterior_invariant():
    assert p_value(collapsed_kernels.sweep_documents) > FALSE_ALARM


@pytest.mark.slow
def test_mutants_are_rejected():
    build = with_mutants(collapsed_kernels, MUTANTS.values(), ("sweep_documents",))
    for i, name in enumerate(MUTANTS):
        found = p_value(build(i).sweep_documents)
        assert (found > FALSE_ALARM) == (name == "none"), name


def test_a_chain_starts_from_given_assignments_and_pseudo_counts_favour_their_topic():
    chain = DPFAGibbs(MODEL, CORPUS, prior_counts=np.diag([1e6, 1e6, 1e6]))
    chain.sweep(3)
    np.testing.assert_array_equal(chain.local.assignments, CORPUS.tokens())
    np.testing.assert_allclose(chain.mean_parameters().topics, np.eye(3), atol=1e-4)
    np.testing.assert_allclose(chain.counts().sum(), 3e6 + 5)
    other = DPFAGibbs(MODEL, CORPUS)
    other.start_from(chain.local.assignments, chain.local.units)
    np.testing.assert_array_equal(other.counts(), np.diag([2, 2, 1]))
    for arguments, message in [
        ({"learn_eta": True, "prior_counts": np.ones((3, 3))}, "`learn_eta` must be False"),
        ({"network_every": 0}, "`network_every` must be at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            DPFAGibbs(MODEL, CORPUS, **arguments)


@pytest.mark.parametrize("z", [0.0, 0.5, 3.0, 3.2, 30.0, 400.0])
def test_polya_gamma_variables_have_their_law(z):
    """The mean, and the Laplace transform at one point, which is known for every tilt."""
    size = 20_000
    drawn = polya_gamma(np.random.default_rng(int(10 * z)), np.full((2, size // 2), z)).ravel()
    mean = np.tanh(z / 2) / (2 * z) if z > 0 else 0.25
    assert stats.norm.sf(abs(drawn.mean() - mean) / drawn.std() * size**0.5) > FALSE_ALARM
    t = 1 / mean
    log_cosh = [np.logaddexp(x, -x) for x in (z / 2, ((z**2 + 2 * t) / 4) ** 0.5)]
    x = np.exp(-t * drawn)
    expected = np.exp(log_cosh[0] - log_cosh[1])
    assert stats.norm.sf(abs(x.mean() - expected) / x.std() * size**0.5) > FALSE_ALARM

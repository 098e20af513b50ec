"""Shared by tests of deep Poisson factor analysis: a tiny model, its posterior, Python kernels."""

import inspect
import itertools
import types

import numpy as np
from scipy.special import gammaln

from isotherm.topics.corpus import as_corpus
from isotherm.topics.dpfa import kernels, local_gibbs
from isotherm.topics.dpfa.model import Parameters

FALSE_ALARM = 1e-4
"""Probability that a test fails on correct code, per new seed (Bonferroni over observables)."""

TINY = Parameters(
    topics=np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.3, 0.4, 0.3]]),
    weights=(
        np.array([[1.5, -1.0], [-2.0, 0.5], [0.7, 1.2]]),
        np.array([[1.0, -1.5], [-0.8, 2.0]]),
    ),
    biases=(np.array([0.2, -0.3, -0.5]), np.array([0.1, -0.4]), np.array([0.3, -0.2])),
    rates=np.array([0.7, 1.3, 0.4]),
    gamma0=1.0,
    p=np.array([0.4, 0.6, 0.8]),
)


def flat_prior(parameters, units):
    """Log prior of binary layers, each (states, units)."""
    total = 0.0
    for layer, (h, c) in enumerate(zip(units, parameters.biases, strict=True)):
        psi = np.broadcast_to(c, h.shape)
        if layer + 1 < len(units):
            psi = units[layer + 1] @ parameters.weights[layer].T + c
        total = total + (h * psi - np.logaddexp(0, psi)).sum(1)
    return total


def log_joint(parameters, units, assignments, words):
    """Log p(words, assignments, units) with intensities integrated out, one number per state."""
    r, p = parameters.rates, parameters.p
    n = (assignments[:, :, None] == np.arange(len(r))).sum(1)
    on = np.where(
        np.asarray(units[0], bool),
        gammaln(n + r) - gammaln(r) + n * np.log(p) + r * np.log1p(-p),
        np.where(n > 0, -np.inf, 0.0),
    )
    words_part = np.log(parameters.topics[assignments, words]).sum(1)
    return flat_prior(parameters, units) + on.sum(1) + words_part


def all_states(parameters, num_tokens):
    """All states of a document: layers (states, units), assignments (states, tokens)."""
    sizes = [len(c) for c in parameters.biases]
    bits = np.array(list(itertools.product([0, 1], repeat=sum(sizes))))
    z = np.array(list(itertools.product(range(sizes[0]), repeat=num_tokens)))
    bits, z = np.repeat(bits, len(z), 0), np.tile(z, (len(bits), 1))
    cuts = np.cumsum(sizes)[:-1]
    return np.split(bits, cuts, axis=1), z


def draw_index(left, right, row, shift, u):
    """NumPy version of `isotherm.topics.simd_categorical.draw_index`, same order of additions."""
    w = (left * (right[row] + shift)).reshape(-1, 16)
    lanes = np.zeros(16, np.float32)
    for block in w:
        lanes = lanes + block
    for step in (1, 2, 4, 8):
        lanes = lanes + np.concatenate([np.zeros(step, np.float32), lanes[:-step]])
    target = np.float32(u) * lanes[-1]
    lane = min(int((lanes <= target).sum()), 15)
    rest = target - (lanes[lane - 1] if lane else np.float32(0))
    running, block = np.float32(0), 0
    for b in range(len(w) - 1):
        running = running + w[b, lane]
        block += rest >= running
    return 16 * block + lane


def mixture_product(t, s, factors, row, size):
    lanes = np.ones(8)
    for j in range(0, size, 8):
        lanes = lanes * (t[j : j + 8] + s[j : j + 8] * factors[row, j : j + 8])
    for half in (4, 2, 1):
        lanes = lanes * np.roll(lanes, -half)
    return lanes[0]


def multiply(odds, factors, row, size):
    odds[:size] *= factors[row, :size]


def split(odds, s, t, size):
    t[:size] = 1.0 / (1.0 + odds[:size])
    s[:size] = odds[:size] * t[:size]


def interpreted():
    """Return the kernels as Python code, with NumPy versions of the compiled primitives."""
    text = inspect.getsource(kernels)
    text = text.replace("from numba import njit", "njit = lambda **_: lambda function: function")
    module = types.ModuleType("interpreted")
    exec(compile(text, "interpreted", "exec"), module.__dict__)
    module.__dict__.update(
        draw_index=draw_index,
        mixture_product=mixture_product,
        multiply=multiply,
        split=split,
        expand_tokens=kernels.expand_tokens.py_func,
        token_buffers=kernels.token_buffers.py_func,
    )
    return module


def sweep(module, parameters, corpus, state=None, **settings):
    """Call `local_gibbs.sweep` with other kernels."""
    with np.errstate(over="ignore"):
        return local_gibbs.sweep(
            local_gibbs.prepare_parameters(parameters),
            corpus,
            state=state,
            kernel=module.sweep_documents,
            **settings,
        )


def as_state(units, assignments, width=16):
    """Build a state from layers (documents, units) and assignments in the order of tokens."""
    h = np.zeros((len(units[0]), len(units), width), np.uint8)
    for layer, x in enumerate(units):
        h[:, layer, : x.shape[1]] = x
    return local_gibbs.LocalState(np.asarray(assignments, np.int32), h)


def corpus_of(rng, words, starts, num_words, assignments):
    """Build a corpus from tokens in any order; return it with the assignments in its order.

    Tokens of the same word are put in random order, as under the model. They must not be sorted by
    topic: a sweep visits tokens in order, so the law of a document after it would not be the
    model's (z-scores of 7 with 100 000 chains).
    """
    document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort([rng.random(len(words)), words, document])
    x = np.zeros((len(starts) - 1, num_words), np.int64)
    np.add.at(x, (document, words), 1)
    return as_corpus(x), assignments[order].astype(np.int32), words[order]

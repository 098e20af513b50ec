"""What tests of deep Poisson factor analysis share: a tiny model, its exact posterior, interpreted kernels and mutants."""

import inspect
import itertools
import re
import types

import numpy as np
from scipy.special import gammaln

from isotherm.topics.corpus import as_corpus
from isotherm.topics.dpfa import kernels, local_gibbs
from isotherm.topics.dpfa.model import Parameters

FALSE_ALARM = 1e-4
"""Chance that one statistical test fails on correct code, per fresh seed (Bonferroni over observables)."""

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
    """Log p of binary layers, each (states, units)."""
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
    """Every state of a document: layers (states, units), assignments (states, tokens)."""
    sizes = [len(c) for c in parameters.biases]
    bits = np.array(list(itertools.product([0, 1], repeat=sum(sizes))))
    z = np.array(list(itertools.product(range(sizes[0]), repeat=num_tokens)))
    bits, z = np.repeat(bits, len(z), 0), np.tile(z, (len(bits), 1))
    cuts = np.cumsum(sizes)[:-1]
    return np.split(bits, cuts, axis=1), z


def draw_index(left, right, row, shift, u):
    """What `isotherm.topics.simd_categorical.draw_index` does, in NumPy, with its order of additions."""
    w = (left * (right[row] + shift)).reshape(-1, 16)
    lanes = np.zeros(16, np.float32)
    for block in w:
        lanes = lanes + block
    for step in (1, 2, 4, 8):
        lanes = lanes + np.concatenate([np.zeros(step, np.float32), lanes[:-step]])
    target = np.float32(u) * lanes[-1]
    lane = min(int((lanes <= target).sum()), 15)
    rest = target - (lanes[lane - 1] if lane else np.float32(0))
    walked, block = np.float32(0), 0
    for b in range(len(w) - 1):
        walked = walked + w[b, lane]
        block += rest >= walked
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
    """Run the kernels in Python: slow, but written twice."""
    text = inspect.getsource(kernels)
    text = text.replace("from numba import njit", "njit = lambda **_: lambda function: function")
    module = types.ModuleType("interpreted")
    exec(compile(text, "interpreted", "exec"), module.__dict__)
    module.__dict__.update(
        draw_index=draw_index, mixture_product=mixture_product, multiply=multiply, split=split
    )
    return module


def with_mutants(changes):
    """Compile the kernels once with all changes in them; `which` says the number of the one that is made.

    A change is a text that occurs once, and what to put there, with `{i}` for its number.
    """
    text = inspect.getsource(kernels).replace("cache=True, ", "")
    for i, (old, new) in enumerate(changes):
        assert text.count(old) == 1, f"{old!r} is not there once"
        text = text.replace(old, new.format(i=i))
    text = text.replace("units, fresh, keeps,", "units, fresh, which, keeps,")
    text = re.sub(r"state, gamma(?=,?\n|\))", "state, gamma, which", text)
    module = types.ModuleType("mutants")
    exec(compile(text, "mutants", "exec"), module.__dict__)

    def one(which):
        def sweep_documents(*arguments):
            module.sweep_documents(*arguments[:20], which, *arguments[20:])

        return types.SimpleNamespace(sweep_documents=sweep_documents)

    return one


def sweep(module, parameters, corpus, state=None, **settings):
    """Call `documents.sweep` with other kernels."""
    with np.errstate(over="ignore"):
        return local_gibbs.sweep(
            local_gibbs.prepare_parameters(parameters),
            corpus,
            state=state,
            kernel=module.sweep_documents,
            **settings,
        )


def as_state(units, assignments, width=16):
    """Make a state of layers (documents, units) and assignments in the order of tokens."""
    h = np.zeros((len(units[0]), len(units), width), np.uint8)
    for layer, x in enumerate(units):
        h[:, layer, : x.shape[1]] = x
    return local_gibbs.State(np.asarray(assignments, np.int32), h)


def corpus_of(rng, words, starts, num_words, assignments):
    """Make a corpus of tokens in any order, and put the assignments into its order.

    Tokens of the same word come in random order, as they do under the model. Sorted by topic they would not: a sweep goes from first to
    last, and the law of a document after it would not be the model's (z-scores of 7 with 100 000 chains).
    """
    document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort([rng.random(len(words)), words, document])
    x = np.zeros((len(starts) - 1, num_words), np.int64)
    np.add.at(x, (document, words), 1)
    return as_corpus(x), assignments[order].astype(np.int32), words[order]

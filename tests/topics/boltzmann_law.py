"""Shared by tests of the deep Boltzmann machine: a tiny machine and its exact law."""

import itertools

import numpy as np
from dpfa_tools import TINY


def shallow(depth):
    """Return the tiny model with fewer layers."""
    return TINY._replace(weights=TINY.weights[: depth - 1], biases=TINY.biases[:depth])


def all_layers(parameters):
    """All states of the layers, and their log probabilities up to a constant."""
    sizes = [len(c) for c in parameters.biases]
    bits = np.array(list(itertools.product([0, 1], repeat=sum(sizes))))
    h = np.split(bits, np.cumsum(sizes)[:-1], axis=1)
    log_p = sum(x @ c for x, c in zip(h, parameters.biases, strict=True))
    for below, w, above in zip(h[:-1], parameters.weights, h[1:], strict=True):
        log_p = log_p + np.einsum("ni,ij,nj->n", below, w, above)
    return h, log_p


def draw_layers(rng, parameters, size):
    """Draw layers from the prior of the machine, exactly."""
    h, log_p = all_layers(parameters)
    law = np.exp(log_p - log_p.max())
    states = rng.choice(len(law), size, p=law / law.sum())
    return tuple(x[states] for x in h)

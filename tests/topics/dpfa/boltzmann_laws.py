"""What tests of the deep Boltzmann machine share: a tiny machine and its exact law."""

import itertools

import numpy as np

from isotherm.topics.dpfa.model import Parameters

FALSE_ALARM = 1e-4
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


def shallow(depth):
    return TINY._replace(weights=TINY.weights[: depth - 1], biases=TINY.biases[:depth])


def all_layers(parameters):
    """Every state of the layers, and its log probability but for a constant."""
    sizes = [len(c) for c in parameters.biases]
    bits = np.array(list(itertools.product([0, 1], repeat=sum(sizes))))
    h = np.split(bits, np.cumsum(sizes)[:-1], axis=1)
    log_p = sum(x @ c for x, c in zip(h, parameters.biases, strict=True))
    for below, w, above in zip(h[:-1], parameters.weights, h[1:], strict=True):
        log_p = log_p + np.einsum("ni,ij,nj->n", below, w, above)
    return h, log_p


def draw_layers(rng, parameters, size):
    """Draw layers of the machine by itself, exactly."""
    h, log_p = all_layers(parameters)
    law = np.exp(log_p - log_p.max())
    places = rng.choice(len(law), size, p=law / law.sum())
    return tuple(x[places] for x in h)

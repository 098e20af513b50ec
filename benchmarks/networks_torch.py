"""The contestants of `networks.py` that run in PyTorch: its own SGD, and posteriors.

posteriors is used as in its documentation: the log posterior is divided by the number of data N,
the temperature is 1/N, and `update` runs in a Python loop. In these units of time a step of h is
sqrt(N) h, the friction D is D / sqrt(N), and the h^2/2 of SGLD is N h^2/2. Where there is a choice,
the faster one is used: weights are detached (otherwise every update adds to one autograd graph),
the prior is written out, and rows are indexed in memory instead of read by a `DataLoader`.
"""

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

with warnings.catch_warnings():  # importing it warns about tensordict dozens of times
    warnings.simplefilter("ignore", FutureWarning)
    from posteriors.sgmcmc import baoa, sghmc, sgld, sgnht

LOGISTIC = "a9a logistic"


def network(name: str) -> torch.nn.Module:
    """Build the same network as in JAX."""
    nn = torch.nn
    if name == LOGISTIC:
        return nn.Sequential(nn.Linear(124, 1, bias=False), nn.Flatten(0))
    if name == "LeNet":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1024, 200),
            nn.ReLU(),
            nn.Linear(200, 200),
            nn.ReLU(),
            nn.Linear(200, 10),
        )
    sizes = [int(word) for word in name.split("-")]
    layers: list[torch.nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def contestants(
    name: str,
    data: tuple[np.ndarray, np.ndarray],
    batch_size: int,
    data_size: int,
    prior_variance: float,
    h: float,
    friction: float,
) -> dict[str, Callable[[int], list[torch.Tensor]]]:
    """Return the contestants by name, each a function `steps -> final weights`."""
    functional = torch.nn.functional
    x, y = (torch.from_numpy(part) for part in data)
    if name == LOGISTIC:
        loss, y = functional.binary_cross_entropy_with_logits, y.float()
    else:
        loss, y = functional.cross_entropy, y.long()
    module = network(name)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6, momentum=0.9)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(len(y), (batch_size,))
        return x[rows], y[rows]

    def sgd(steps: int) -> list[torch.Tensor]:
        for _ in range(steps):
            inputs, labels = batch()
            optimizer.zero_grad()
            loss(module(inputs), labels).backward()
            optimizer.step()
        return list(module.parameters())

    def log_posterior(params, batch):
        outputs = torch.func.functional_call(module, params, (batch[0],))
        squares = sum((value**2).sum() for value in params.values())
        return -loss(outputs, batch[1]) - squares / (2 * prior_variance * data_size), outputs

    start = {key: value.detach().clone() for key, value in module.named_parameters()}

    def looped(transform: Any) -> Callable[[int], list[torch.Tensor]]:
        def run(steps: int) -> list[torch.Tensor]:
            state = transform.init(start)
            for _ in range(steps):
                state, _ = transform.update(state, batch())
            return list(state.params.values())

        return run

    root = data_size**0.5
    cool = {"temperature": 1 / data_size}
    moving = cool | {"lr": root * h, "alpha": friction / root, "momenta": 0.0}
    return {
        "PyTorch SGD, momentum": sgd,
        "posteriors sgld": looped(sgld.build(log_posterior, lr=data_size * h**2 / 2, **cool)),
        "posteriors sghmc": looped(sghmc.build(log_posterior, **moving)),
        "posteriors sgnht": looped(sgnht.build(log_posterior, **moving)),
        "posteriors baoa": looped(baoa.build(log_posterior, **moving)),
    }

r"""The exact law of the recursion of a sampler, and tests of draws against it.

After a given number of steps from a given start the law of the recursion is known, and independent
chains are compared with it. So no tolerance is needed for discretisation bias, burn-in or
autocorrelation.

- *Linear recursions* (fixed friction on a Gaussian target, SGLD): mean and covariance are
  propagated letter by letter; the law is Gaussian at any number of steps (`gaussian_law`).
- *Nonlinear recursions* (thermostats): the state is a smooth function of a few noise numbers, so
  its moments are integrals over them (`Thermostatted.moments`). Gauss–Hermite quadrature with 3
  nodes *is* the three-point noise, so that this law is enumerated exactly; with more nodes the
  Gaussian law is computed with an error far below the Monte Carlo error.
- *Minibatches of few data* (`Minibatches`): all batches are enumerated too.

Both are written in NumPy, in double precision, from the definitions of the letters, and share no
code with the package.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from isotherm import random

FALSE_ALARM = 1e-4
"""Probability that one law test fails on correct code (Bonferroni over observables)."""

NUM_CHAINS = 40_000

BATCHES = 1_000_000
"""Folded into the key of a chain for its batches: larger than any number of steps."""

SPELLED = {
    "euler": "AED",
    "ABOBA": "ADBKNBDA",
    "BAOAB": "KADODAK",
    "BADODAB": "KADODAK",
    "OBABO": "OKADKO",
    "OABAO": "OADKDAO",
    "ABDODBA": "AKDODKA",
    "DOBABOD": "DOKAKOD",
    "NBKADKBN": "NBKADKBN",
    "AKDBNBDKA": "AKDBNBDKA",
}


class Gaussian(NamedTuple):
    """A Gaussian target; `grad` is the gradient of its log density."""

    mean: np.ndarray
    precision: np.ndarray

    def grad(self, x, batch=None):
        return jnp.asarray(self.precision, x.dtype) @ (jnp.asarray(self.mean, x.dtype) - x)

    def kicks(self, x, velocity, duration, temperature):
        """Return the only possible gradient at each position, and its probability."""
        return ((self.mean - x) @ self.precision.T)[:, None], np.ones(1)


def balanced_weights(slopes, strength):
    """Return 1 - tan(s), from slopes along the velocity with last axes `(shard, row)`."""
    shards, each = slopes.shape[-2:]
    s = strength / (shards * (each - 1)) * (slopes - slopes.mean(-1, keepdims=True))
    return 1 - np.tan(np.clip(s, -np.pi / 4, np.pi / 4))


class Minibatches(NamedTuple):
    r"""A posterior of few data, and all minibatches that can be drawn of them with replacement.

    $\log p(i \mid \theta) = -\log 2\cosh(a_i\cdot\theta - b_i)$, prior $\mathcal N(0, I)$.
    """

    factors: np.ndarray
    offsets: np.ndarray
    batch_size: int
    num_shards: int = 1
    center: np.ndarray | None = None
    """Where control variates are centred."""
    weights: Callable = balanced_weights
    late: bool = False
    """Whether the velocity is that after a kick of unweighted rows; in plain coordinates only."""

    def rows(self, x):
        """Return the gradients of the log likelihoods of all rows at each position."""
        slopes = -np.tanh(x @ self.factors.T - self.offsets)
        return slopes[..., None] * self.factors

    def batches(self):
        """Return all sets of rows as an array `(batch, shard, row)`, and their probabilities."""
        size, each = len(self.factors) // self.num_shards, self.batch_size // self.num_shards
        draws = [tuple(sorted(d)) for d in itertools.product(range(size), repeat=each)]
        sets = Counter(itertools.product(draws, repeat=self.num_shards))
        first = np.arange(self.num_shards)[:, None] * size
        return np.array(list(sets)) + first, np.array(list(sets.values())) / sets.total()

    def kicks(self, x, velocity, duration, temperature):
        """Return the gradient of each batch at each position, and their probabilities."""
        picks, chances = self.batches()
        rows, rest = self.rows(x), -x
        if self.center is not None:
            rows = rows - self.rows(self.center)
            rest = rest + self.rows(self.center).sum(0)
        rows, data_size = rows[:, picks], len(self.factors)
        if self.late:
            plain = rest[:, None] + data_size * rows.mean((-3, -2))
            velocity = velocity + duration * plain.swapaxes(0, 1)
        velocity = np.broadcast_to(velocity, (len(picks), *x.shape))
        slopes = np.einsum("xbsid,bxd->xbsi", rows, velocity)
        weights = self.weights(slopes, duration * data_size / (2 * temperature))
        return rest[:, None] + data_size * (weights[..., None] * rows).mean((-3, -2)), chances


def compiled_chains(build, start, num_steps, momentum=None, optimized=True, batches=None):
    """Compile `run(keys, setting)`: the last states of independent chains, one per key.

    `build(setting)` makes the sampler, where `setting` is any pytree of numbers: all settings share
    one program. `batches` is a batch policy; without it every batch is `None`. If `num_steps` is a
    tuple, the states at each of these steps are returned. Chains are i.i.d., so there is no burn-in
    and no ESS. For a few steps a program that is not `optimized` takes less time, since it compiles
    twice as fast.
    """
    stops = num_steps if isinstance(num_steps, tuple) else (num_steps,)

    def chain(key, setting):
        sampler = build(setting)
        state = sampler.init(start, random.fold(key, 0))
        if momentum is not None:
            state = state._replace(momentum=momentum)

        def advance(state, number):
            batch = batches and batches.batch(random.fold(key, BATCHES), number)
            state = sampler.step(random.fold(key, number), state, batch)[0]
            return state, (state if len(stops) > 1 else None)

        last, path = jax.lax.scan(advance, state, jnp.arange(1, max(stops) + 1))
        if len(stops) == 1:
            return last
        return tuple(jax.tree.map(lambda x, n=n: x[n - 1], path) for n in stops)

    options = {} if optimized else {"xla_backend_optimization_level": 0}
    return jax.jit(jax.vmap(chain, in_axes=(0, None)), compiler_options=options)


def run_chains(key, run, settings, num_chains=NUM_CHAINS):
    """Return the results of `run`, from `compiled_chains`, for every setting."""
    keys = jax.random.split(key, len(settings))
    return [run(jax.random.split(k, num_chains), s) for k, s in zip(keys, settings, strict=True)]


def final_states(key, build, settings, start, num_steps, num_chains=NUM_CHAINS):
    """Compile chains and run them for every setting."""
    return run_chains(key, compiled_chains(build, start, num_steps), settings, num_chains)


def moment_p_value(draws, mean, variance):
    """Return the Bonferroni p-value of z-tests: sample means of observables against exact means.

    `draws` is (chains, observables); `mean` and `variance` are those of a single draw. An
    observable without variance must equal its mean up to rounding.
    """
    draws = np.asarray(draws, np.float64)
    error = draws.mean(0) - mean
    constant = variance < 1e-10
    if np.any(np.abs(error[constant]) > 1e-5 * (1 + np.abs(mean[constant]))):
        return 0.0
    if constant.all():
        return 1.0
    z = error[~constant] / np.sqrt(variance[~constant] / len(draws))
    return float(min(1.0, z.size * 2 * stats.norm.sf(np.abs(z).max())))


def gaussian_p_value(draws, mean, covariance):
    """Return the Bonferroni p-value of exact z-tests of means and chi-square tests of variances."""
    draws = np.asarray(draws, np.float64)
    n, sd = len(draws), np.sqrt(np.diag(covariance))
    z = (draws.mean(0) - mean) / (sd / np.sqrt(n))
    q = (((draws - mean) / sd) ** 2).sum(0)
    tails = np.concatenate([stats.norm.sf(np.abs(z)), stats.chi2.cdf(q, n), stats.chi2.sf(q, n)])
    return float(min(1.0, 4 * len(sd) * tails.min()))


def gaussian_law(word, target, start, *, h, friction, temperature, num_steps):
    """Return mean and covariance of (position, momentum) after some steps with fixed friction."""
    letters, d = SPELLED[word], len(target.mean)
    eye, zero = np.eye(d), np.zeros((d, d))
    mean = np.concatenate([start, np.zeros(d)])
    cov = np.block([[zero, zero], [zero, temperature * eye]])  # initial momentum in equilibrium
    first_kick = letters.index("K") if opens_with_kick(letters) else None
    for step, (i, letter) in itertools.product(range(num_steps), enumerate(letters)):
        t = h / letters.count(letter)
        a, shift, noise = np.eye(2 * d), np.zeros(2 * d), 0.0
        if letter == "A":
            a[:d, d:] = t * eye
        elif letter == "B":
            a[d:, d:] = np.exp(-friction * t) * eye
        elif letter == "K" and not (step == 0 and i == first_kick):
            a[d:, :d] = -t * target.precision
            shift[d:] = t * target.precision @ target.mean
        elif letter == "N":
            noise = 2 * friction * temperature * t
        elif letter == "O":
            a[d:, d:] = np.exp(-friction * t) * eye
            noise = temperature * (1 - np.exp(-2 * friction * t))
        elif letter == "E":
            a[d:, :d] = -t * target.precision
            a[d:, d:] = (1 - friction * t) * eye
            shift[d:] = t * target.precision @ target.mean
            noise = 2 * friction * temperature * t
        mean = a @ mean + shift
        cov = a @ cov @ a.T
        cov[d:, d:] += noise * eye
    return mean, cov


class Paths(NamedTuple):
    """All combinations of noise numbers, one per row, with their weights."""

    numbers: np.ndarray
    weights: np.ndarray


def noise_paths(num_numbers, num_nodes):
    """Return all combinations of Gauss–Hermite nodes for independent standard normals."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    weights = weights / weights.sum()
    picks = np.indices((num_nodes,) * num_numbers).reshape(num_numbers, -1).T
    return Paths(nodes[picks], weights[picks].prod(1))


class Thermostatted(NamedTuple):
    """The recursion of a thermostat, from the definitions of the letters."""

    word: str
    thermostat: str
    target: Gaussian | Minibatches
    h: float
    diffusion: float
    temperature: float
    mass: float
    groups: tuple = ((0,), (1, 2))
    basis: np.ndarray | None = None

    def moments(self, position, momentum, num_steps, num_nodes):
        """Return exact means and variances of the observables after some steps."""
        *state, weights = self._run(position, momentum, num_steps, num_nodes)
        observed = observables(*state)
        mean = weights @ observed
        return mean, weights @ observed**2 - mean**2

    def _run(self, position, momentum, num_steps, num_nodes):
        """Return all states after some steps, with their weights; noisy letters multiply them."""
        letters, d = SPELLED[self.word], len(momentum)
        basis = np.eye(d) if self.basis is None else self.basis
        nodes = noise_paths(d, num_nodes)
        x, p, xi, weights = position[None], momentum[None], self._start(d)[None], np.ones(1)
        force, known = np.zeros_like(p), opens_with_kick(letters)
        for _, letter in itertools.product(range(num_steps), letters):
            t = self.h / letters.count(letter)
            if letter in "KE" and not known:
                grads, chances = self.target.kicks(x, p @ basis.T, self.h, self.temperature)
                force, known = grads.reshape(-1, grads.shape[-1]) @ basis, True
                x, p, xi = (np.repeat(v, len(chances), axis=0) for v in (x, p, xi))
                weights = np.outer(weights, chances).ravel()
            if letter in "NOE":
                noise = np.tile(nodes.numbers, (len(weights), 1))
                weights = np.outer(weights, nodes.weights).ravel()
                x, p, xi, force = (
                    np.repeat(v, len(nodes.weights), axis=0) for v in (x, p, xi, force)
                )
            if letter == "A":
                x, known = x + t * p @ basis.T, False
            elif letter == "D":
                xi = xi + (self._measure(p) - self._goal(d)) * t / self.mass
            elif letter == "B":
                p = self._damp(xi, p, t)
            elif letter == "K":
                p = p + t * force
            elif letter == "N":
                p = p + np.sqrt(2 * self.diffusion * self.temperature * t) * noise
            elif letter == "O":
                p = self._relax(xi, p, t, noise)
            elif letter == "E":
                p = p + t * (force - self._apply(lambda rate: rate, xi, p))
                p = p + np.sqrt(2 * self.diffusion * self.temperature * t) * noise
        return x, p, xi, weights

    def _start(self, d):
        shape = {
            "fixed": (),
            "scalar": (),
            "per_tensor": (len(self.groups),),
            "per_coordinate": (d,),
        }
        if self.thermostat == "full_matrix":
            return self.diffusion * np.eye(d)
        return np.full(shape[self.thermostat], self.diffusion)

    def _goal(self, d):
        return self.temperature * (np.eye(d) if self.thermostat == "full_matrix" else 1.0)

    def _measure(self, p):
        if self.thermostat == "fixed":
            return np.full(len(p), self.temperature)
        if self.thermostat == "scalar":
            return (p**2).mean(1)
        if self.thermostat == "per_tensor":
            return np.stack([(p[:, list(g)] ** 2).mean(1) for g in self.groups], 1)
        if self.thermostat == "per_coordinate":
            return p**2
        return p[:, :, None] * p[:, None, :]

    def _rates(self, xi, d):
        """Return the friction of every coordinate, for elementwise thermostats."""
        if self.thermostat in ("fixed", "scalar"):
            return np.tile(xi[:, None], (1, d))
        if self.thermostat == "per_tensor":
            owner = [[i in g for g in self.groups].index(True) for i in range(d)]
            return xi[:, owner]
        return xi

    def _apply(self, function, xi, v):
        """Return a function of the friction times a vector."""
        if self.thermostat != "full_matrix":
            return function(self._rates(xi, v.shape[1])) * v
        rates, axes = np.linalg.eigh(xi)
        return np.einsum("nij,nj,nkj,nk->ni", axes, function(rates), axes, v)

    def _damp(self, xi, p, t):
        return self._apply(lambda rate: np.exp(-rate * t), xi, p)

    def _relax(self, xi, p, t, r):
        strength = self.diffusion * self.temperature

        def scale(rate):
            return np.sqrt(strength * -np.expm1(-2 * rate * t) / rate)

        return self._damp(xi, p, t) + self._apply(scale, xi, r)


def opens_with_kick(letters):
    """Return whether a word kicks before it drifts; its very first kick is then omitted."""
    return "K" in letters and letters.index("K") < letters.index("A")


def observables(position, momentum, thermostat):
    """Return positions, momenta and thermostats, and their squares, as columns."""
    columns = [np.reshape(v, (len(v), -1)) for v in (position, momentum, thermostat)]
    flat = np.concatenate([np.asarray(c, np.float64) for c in columns], axis=1)
    return np.concatenate([flat, flat**2], axis=1)

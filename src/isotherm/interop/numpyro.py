r"""NumPyro models: their global variables, made unconstrained, are the position.

A model is a program that draws latent variables $z$ from their priors and observes data. With
$z = T(\theta)$, the bijection from unconstrained numbers that NumPyro chooses for each support,

$$ \begin{aligned}
\log\pi(\theta)
  &= \underbrace{\log p(T(\theta)) + \log|\det \partial T/\partial\theta|}_{\text{log prior}} \\
  &\quad + \sum_{i=1}^N \underbrace{\log p(d_i \mid T(\theta))}_{\text{log likelihood}} .
\end{aligned} $$

Latent sites make the first term, observed sites the second. The model runs on batches of any
length, so it must read sizes that depend on the data, such as that of a plate, from its arguments.

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)

    target = isotherm.from_numpyro(model, (x, y))
    sampler = isotherm.msgnht(target.gradient(len(y)), step_size=0.01)
    batches = isotherm.independent_batches((x, y), 100)
    run = isotherm.sample(key, sampler, target.init(key), batches, num_draws=1000)
    values = jax.vmap(jax.vmap(target.constrain))(run.draws)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from isotherm.gradients.minibatch import MinibatchGradient, minibatch_gradient
from isotherm.interop.modules import library
from isotherm.types import ArrayTree, Batch, Key


@dataclass(frozen=True)
class NumpyroTarget:
    """The posterior of a NumPyro model: log prior, log likelihood and gradient."""

    model: Callable[..., Any]
    data: Batch
    data_axes: Mapping[str, int]
    """For each observed site, the axis of its log probabilities over data (from the end)."""

    def init(self, key: Key) -> dict[str, jax.Array]:
        """Draw an unconstrained start position, as NumPyro's own samplers do."""
        args, kwargs = _arguments(self.data)
        start = library("numpyro.infer.util").initialize_model(
            key, self.model, model_args=args, model_kwargs=kwargs
        )
        return start.param_info.z

    def log_prior(self, position: ArrayTree) -> jax.Array:
        """Compute the log prior density of an unconstrained position, with the log Jacobian."""
        args, kwargs = _arguments(self.data)
        prior = library("numpyro.handlers").block(self.model, hide=list(self.data_axes))
        return -library("numpyro.infer.util").potential_energy(prior, args, kwargs, position)

    def log_likelihood(self, position: ArrayTree, batch: Batch) -> jax.Array:
        """Compute the log likelihood of each datum of a batch, shape (n,)."""
        util = library("numpyro.infer.util")
        args, kwargs = _arguments(batch)
        values = util.constrain_fn(self.model, args, kwargs, position)
        sites, _ = util.compute_log_probs(self.model, args, kwargs, values, sum_log_prob=False)
        each = [
            jnp.sum(jnp.moveaxis(sites[name], axis, 0).reshape(sites[name].shape[axis], -1), axis=1)
            for name, axis in self.data_axes.items()
        ]
        return jnp.sum(jnp.stack(each), axis=0)

    def constrain(self, position: ArrayTree) -> dict[str, jax.Array]:
        """Return the model's own variables at a position; `jax.vmap` it over draws."""
        args, kwargs = _arguments(self.data)
        return library("numpyro.infer.util").constrain_fn(self.model, args, kwargs, position)

    def gradient(self, data_size: int) -> MinibatchGradient:
        """Build the minibatch gradient of the log posterior of `data_size` data."""
        return minibatch_gradient(self.log_likelihood, self.log_prior, data_size)


def from_numpyro(model: Callable[..., Any], data: Batch) -> NumpyroTarget:
    """Split a NumPyro model into a log prior and a log likelihood per datum.

    All latent variables must be global and continuous. Discrete variables have to be summed out,
    and variables per datum do not work with minibatches; both raise an error.

    Parameters
    ----------
    model
        `model(*data)`, or `model(**data)` for a dictionary. Bind arguments that are not data
        with `functools.partial`. Plates must not subsample and nothing may be scaled to the full
        data: isotherm draws the batches and scales.
    data
        All data: a tuple or dictionary of arrays (or pytrees) with the same first axis. The values
        matter only for `init` and for a prior that depends on them, not for the likelihood.

    Returns
    -------
    A target with `init(key)`, `log_prior(position)`, `log_likelihood(position, batch)`,
    `constrain(position)` and `gradient(data_size)`.

    Raises
    ------
    ImportError
        If numpyro is missing: `pip install 'isotherm[interop]'`.
    ValueError
        If the model has a variable per datum, a discrete one, a `numpyro.param`, a plate that
        subsamples, nothing observed, or an observed site without one log probability per datum.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> def model(y):
    ...     rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    ...     with numpyro.plate("data", len(y)):
    ...         numpyro.sample("y", dist.Exponential(rate), obs=y)
    >>> target = from_numpyro(model, (jnp.array([0.5, 1.0, 2.0]),))
    >>> position = {"rate": jnp.array(0.0)}  # the logarithm of the rate
    >>> float(target.log_prior(position)), target.log_likelihood(position, target.data).tolist()
    (-1.0, [-0.5, -1.0, -2.0])
    >>> float(target.constrain(position)["rate"])
    1.0
    """
    library("numpyro")
    if {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(data)} in (set(), {()}):
        raise ValueError("`data` must be a tuple or dictionary of arrays with rows.")
    two, three = (_sites(model, data, num_rows) for num_rows in (2, 3))
    for name, site in two.items():
        _check(name, site, three[name])
    axes = {n: _data_axis(n, s, three[n]) for n, s in two.items() if s.kind == "observed"}
    if not axes:
        raise ValueError("The model observes nothing: no site has `obs`.")
    return NumpyroTarget(model, data, axes)


class _Site(NamedTuple):
    """The kind of a site, and its shapes on a certain number of rows."""

    kind: str
    """`latent`, `discrete`, `observed`, `param`, `subsampled`, or another type of NumPyro's."""
    value: tuple[int, ...]
    log_prob: tuple[int, ...]


def _arguments(batch: Batch) -> tuple[tuple, dict]:
    """Convert a batch to positional and keyword arguments."""
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _sites(model: Callable[..., Any], data: Batch, num_rows: int) -> dict[str, _Site]:
    """Trace the model on copies of the first row."""
    handlers, util = library("numpyro.handlers"), library("numpyro.infer.util")
    kinds = {}

    def run(rows: Batch) -> tuple[dict, dict]:
        args, kwargs = _arguments(rows)
        log_probs, sites = util.compute_log_probs(
            handlers.seed(model, 0), args, kwargs, {}, sum_log_prob=False
        )
        kinds.update({name: _kind(site) for name, site in sites.items()})
        values = {name: jnp.zeros(jnp.shape(site["value"])) for name, site in sites.items()}
        return values, log_probs

    rows = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[:1], num_rows, axis=0), data)
    try:
        values, log_probs = jax.eval_shape(run, rows)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"The model does not run on {num_rows} rows of `data`: {error} Read the size of plates "
            "from the arguments, as in numpyro.plate('data', len(y))."
        ) from error
    return {
        name: _Site(kind, values[name].shape, jnp.shape(log_probs.get(name, 0.0)))
        for name, kind in kinds.items()
    }


def _kind(site: Mapping[str, Any]) -> str:
    if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
        return "subsampled"
    if site["type"] != "sample":
        return site["type"]
    if site["is_observed"]:
        return "observed"
    return "discrete" if site["fn"].support.is_discrete else "latent"


def _check(name: str, two: _Site, three: _Site) -> None:
    """Raise an error if a minibatch sampler cannot treat a site."""
    if two.kind == "param":
        raise ValueError(
            f"Site {name!r} is a numpyro.param, which has no prior. Use numpyro.sample instead."
        )
    if two.kind == "subsampled":
        raise ValueError(
            f"Plate {name!r} subsamples. Remove `subsample_size`: isotherm draws the batches."
        )
    if two.kind == "discrete":
        raise ValueError(f"Latent site {name!r} is discrete; a sampler moves real numbers only.")
    if two.kind == "latent" and two.value != three.value:
        raise ValueError(
            f"Latent site {name!r} has a value per datum (shape {two.value} on two rows, "
            f"{three.value} on three); isotherm samples global variables only. Integrate it out."
        )


def _data_axis(name: str, two: _Site, three: _Site) -> int:
    """Return the axis, from the end, that has length 2 on two rows and 3 on three."""
    small, large = two.log_prob, three.log_prob
    pairs = list(zip(small, large, strict=False))
    if len(small) != len(large) or pairs.count((2, 3)) != 1:
        raise ValueError(
            f"Observed site {name!r} must have one log probability per datum, got shape {small} on "
            f"two rows of `data` and {large} on three."
        )
    return pairs.index((2, 3)) - len(small)

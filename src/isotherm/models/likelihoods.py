r"""Likelihoods: what the outputs of a network say about a target.

A likelihood is a small object that reads the outputs of *any* network, (rows, columns):

- `log_likelihood(outputs, y)`: the log probability or density of each row, (rows,);
- `predict(outputs)`: class probabilities, or the mean of the target;
- `predictive(outputs)`: for real targets, the mixture over draws
  (`isotherm.diagnostics.Mixture`);
- `num_outputs`: the columns that the network must have, `None` if any number will do;
- `num_shared`: parameters that are the same for all rows, such as a learned noise or cutpoints.
  They are further coordinates of the position, and `outputs` has a column for each of them after
  those of the network (`isotherm.models.build_network` appends them).

With outputs $f$ of a row:

| name | object | $p(y \mid f)$ |
| --- | --- | --- |
| `"categorical"` | `Categorical()` | softmax: $e^{f_y}/\sum_c e^{f_c}$ |
| `"gaussian"` | `Gaussian(noise_sd)` | $\mathcal N(f, \sigma^2)$, $\sigma$ known or learned |
| `"heteroscedastic"` | `Gaussian(None)` | $\mathcal N(f_1, e^{2f_2})$: two heads |
| `"student-t"` | `StudentT(df, scale)` | $f + \sigma t_\nu$, in the same three forms |
| `"poisson"` | `Poisson()` | Poisson with the rate $e^f$ |
| `"bernoulli"` | `Bernoulli()` | $y \in \{0, 1\}$ with $P(1) = 1/(1 + e^{-f})$ |
| | `Ordinal(num_classes)` | $P(y \le k) = 1/(1 + e^{f - c_k})$, $c_0 < c_1 < \dots$ |
| | `CuratedLabels(S)` | $S$ annotators agree: $p_y^S$ |
| `"noisy-dirichlet"` | `NoisyDirichlet(alpha)` | Gaussian logits of noisy labels |
| | a function | `(outputs, y) -> (rows,)` |

The log likelihoods are normalised in $y$, except where a class says otherwise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.diagnostics.mixtures import Mixture, gaussian_mixture, student_t_mixture
from isotherm.models.logistic import categorical_log_likelihood
from isotherm.models.priors import student_t_log_density
from isotherm.models.scale_priors import ScalePrior
from isotherm.models.transforms import Ordered
from isotherm.schedules import require_positive
from isotherm.tree import count
from isotherm.types import Key


class Likelihood:
    """Base class of likelihoods; one with shared parameters overrides all that is here."""

    @property
    def num_outputs(self) -> int | None:
        """Number of columns of the network's outputs; `None` if any number will do."""
        return None

    @property
    def num_shared(self) -> int:
        """Number of parameters that are the same for all rows."""
        return 0

    def shared_start(self) -> jax.Array:
        """Return where a chain may start: one number per shared parameter."""
        return jnp.zeros(self.num_shared)

    def shared_log_prior(self, shared: jax.Array) -> jax.Array:
        """Return the log prior density of the shared parameters."""
        return jnp.zeros((), shared.dtype)

    def sample_shared(self, key: Key) -> jax.Array:
        """Draw the shared parameters from their prior."""
        return jnp.zeros(0)

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log likelihood of each row, (rows,)."""
        raise NotImplementedError

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the class probabilities or the mean of each row."""
        raise NotImplementedError

    def predictive(self, outputs: Any) -> Mixture:
        """Return the predictive distribution over draws of the outputs, (…, rows, columns)."""
        raise ValueError(
            f"{type(self).__name__} has no density of real targets. Average `predict(outputs)` "
            "over draws, or use `isotherm.diagnostics.lppd` of its log likelihoods."
        )

    def check_columns(self, outputs: Any) -> None:
        """Raise if outputs do not have the columns that the likelihood reads."""
        if self.num_outputs is None:
            return
        wanted = self.num_outputs + self.num_shared
        if outputs.ndim < 2 or outputs.shape[-1] != wanted:
            shared = f" and {self.num_shared} shared parameters" if self.num_shared else ""
            hint = " `isotherm.models.build_network` appends those." if self.num_shared else ""
            raise ValueError(
                f"`outputs` must have {wanted} columns ({self.num_outputs} of the network{shared}) "
                f"for {type(self).__name__}, got shape {outputs.shape}.{hint}"
            )


class _LocationScale(Likelihood):
    r"""A location per target, and a scale that is known, learned or from a second head."""

    num_targets: int

    @property
    def _scale(self) -> Any:
        """The known scale, a `ScalePrior`, or `None` for a second head."""
        raise NotImplementedError

    def _check(self, name: str) -> None:
        count("num_targets", self.num_targets, 1)
        if self._scale is not None and not isinstance(self._scale, ScalePrior):
            require_positive(name, self._scale)

    @property
    def num_outputs(self) -> int | None:
        """Number of columns: a mean per target and, with a second head, a log scale."""
        if self._scale is None:
            return 2 * self.num_targets
        return self.num_targets if self.num_shared else None

    @property
    def num_shared(self) -> int:
        """A log scale per target if it is learned."""
        return self.num_targets if isinstance(self._scale, ScalePrior) else 0

    def shared_log_prior(self, shared: jax.Array) -> jax.Array:
        """Return the log prior density of the log scales."""
        if not self.num_shared:
            return super().shared_log_prior(shared)
        return jnp.sum(self._scale.log_density(shared))

    def sample_shared(self, key: Key) -> jax.Array:
        """Draw the log scales from their prior."""
        return self._scale.sample(key, (self.num_shared,)) if self.num_shared else jnp.zeros(0)

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the location of each target, (rows, targets)."""
        return self._split(outputs)[0]

    def _split(self, outputs: Any) -> tuple[Any, Any]:
        """Return locations and log scales; `None` if the scale is known."""
        self.check_columns(outputs)
        if self.num_outputs is None:
            return outputs, None
        return outputs[..., : self.num_targets], outputs[..., self.num_targets :]

    def _components(self, outputs: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return locations and scales with one leading axis of draws; one target has no axis."""
        location, log_scale = self._split(np.asarray(outputs, np.float64))
        scale = np.full_like(location, self._scale) if log_scale is None else np.exp(log_scale)

        def joined(values: np.ndarray) -> np.ndarray:
            values = values.reshape(-1, *values.shape[-2:])
            return values[..., 0] if values.shape[-1] == 1 else values

        return joined(location), joined(scale)


@dataclass(frozen=True)
class Gaussian(_LocationScale):
    r"""Real targets with Gaussian noise.

    Parameters
    ----------
    noise_sd
        $\sigma$: a number, if it is known; a prior such as `HalfCauchy(1.0)`, to learn one per
        target; `None`, if it depends on the input: the network has a second head, $\log\sigma$ of
        each target after the means.
    num_targets
        Number of targets per row; any number if $\sigma$ is known.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> outputs, y = jnp.array([[0.0, 0.0], [1.0, -1.0]]), jnp.array([0.0, 1.0])
    >>> [round(float(value), 4) for value in Gaussian(None).log_likelihood(outputs, y)]
    [-0.9189, 0.0811]
    """

    noise_sd: float | ScalePrior | None = 1.0
    num_targets: int = 1

    def __post_init__(self) -> None:
        self._check("noise_sd")

    @property
    def _scale(self) -> Any:
        return self.noise_sd

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log density of each row, summed over targets."""
        mean, log_sd = self._split(outputs)
        if log_sd is None:
            residual = (y.reshape(mean.shape) - mean) / self._scale
            constant = jnp.log(2 * jnp.pi * self._scale**2)
            return -0.5 * jnp.sum(residual**2 + constant, axis=-1)
        residual = (y.reshape(mean.shape) - mean) * jnp.exp(-log_sd)
        return jnp.sum(-0.5 * residual**2 - log_sd - 0.5 * math.log(2 * math.pi), axis=-1)

    def predictive(self, outputs: Any) -> Mixture:
        """Return the mixture over draws of the outputs, (…, rows, columns)."""
        return gaussian_mixture(*self._components(outputs))


@dataclass(frozen=True)
class StudentT(_LocationScale):
    r"""Real targets with Student-t noise, which outliers do not mislead.

    Parameters
    ----------
    df
        $\nu > 0$, degrees of freedom.
    scale
        $\sigma$, as `noise_sd` in `Gaussian`. The standard deviation of the noise is
        $\sigma\sqrt{\nu/(\nu - 2)}$ if $\nu > 2$.
    num_targets
        As in `Gaussian`.
    """

    df: float = 4.0
    scale: float | ScalePrior | None = 1.0
    num_targets: int = 1

    def __post_init__(self) -> None:
        require_positive("df", self.df)
        self._check("scale")

    @property
    def _scale(self) -> Any:
        return self.scale

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log density of each row, summed over targets."""
        location, log_scale = self._split(outputs)
        if log_scale is None:
            log_scale = jnp.full_like(location, jnp.log(self._scale))
        z = (y.reshape(location.shape) - location) * jnp.exp(-log_scale)
        return jnp.sum(student_t_log_density(z, self.df) - log_scale, axis=-1)

    def predictive(self, outputs: Any) -> Mixture:
        """Return the mixture over draws of the outputs, (…, rows, columns)."""
        return student_t_mixture(*self._components(outputs), self.df)


@dataclass(frozen=True)
class Poisson(Likelihood):
    r"""Counts with the rate $e^f$, one output per count.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> round(float(Poisson().log_likelihood(jnp.zeros((1, 1)), jnp.array([2]))[0]), 4)
    -1.6931
    """

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log probability of each row, summed over its counts."""
        y = y.reshape(outputs.shape).astype(outputs.dtype)
        return jnp.sum(y * outputs - jnp.exp(outputs) - jax.lax.lgamma(y + 1), axis=-1)

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the rates."""
        return jnp.exp(outputs)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Labels 0 and 1, one output per label; several labels of a row are independent."""

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log probability of each row, summed over its labels."""
        sign = 2 * y.reshape(outputs.shape).astype(outputs.dtype) - 1
        return -jnp.sum(jax.nn.softplus(-sign * outputs), axis=-1)

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the probabilities of 1, (rows, labels)."""
        return jax.nn.sigmoid(outputs)


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Classes 0, 1, …, with an output (logit) for each: softmax."""

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log probability of each row's class."""
        return categorical_log_likelihood(outputs, y)

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the probabilities of all classes, (rows, classes)."""
        return jax.nn.softmax(outputs)


@dataclass(frozen=True)
class Ordinal(Likelihood):
    r"""Ordered classes 0, 1, …, K - 1: the cumulative logit (proportional odds) model.

    $P(y \le k) = 1/(1 + e^{f - c_k})$ with cutpoints $c_0 < \dots < c_{K-2}$. The prior of learned
    cutpoints makes the class probabilities at $f = 0$ Dirichlet$(\alpha, \dots, \alpha)$.

    Parameters
    ----------
    num_classes
        $K \ge 2$.
    cutpoints
        $K - 1$ increasing numbers, if they are known; learned by default.
    concentration
        $\alpha$; 1 is uniform over all distributions of the classes.

    References
    ----------
    McCullagh (1980), *Regression models for ordinal data*, JRSS B.
    """

    num_classes: int
    cutpoints: tuple[float, ...] | None = None
    concentration: float = 1.0

    def __post_init__(self) -> None:
        count("num_classes", self.num_classes, 2)
        require_positive("concentration", self.concentration)
        if self.cutpoints is not None:
            known = tuple(float(c) for c in self.cutpoints)
            if len(known) != self.num_classes - 1 or not np.all(np.diff(known) > 0):
                raise ValueError(
                    f"`cutpoints` must be {self.num_classes - 1} increasing numbers, got {known}."
                )
            object.__setattr__(self, "cutpoints", known)

    @property
    def num_outputs(self) -> int:
        """One: the location of the row."""
        return 1

    @property
    def num_shared(self) -> int:
        """The unconstrained cutpoints, if they are learned."""
        return self.num_classes - 1 if self.cutpoints is None else 0

    def shared_start(self) -> jax.Array:
        """Return the cutpoints at which all classes have the same probability."""
        if not self.num_shared:
            return jnp.zeros(0)
        below = jnp.arange(1, self.num_classes) / self.num_classes
        return Ordered().unconstrain(jax.scipy.special.logit(below))

    def shared_log_prior(self, shared: jax.Array) -> jax.Array:
        """Return the log prior density of the unconstrained cutpoints."""
        if not self.num_shared:
            return super().shared_log_prior(shared)
        c, alpha = Ordered().constrain(shared), self.concentration
        constant = math.lgamma(self.num_classes * alpha) - self.num_classes * math.lgamma(alpha)
        log_p = _ordinal_log_probabilities(jnp.zeros((1, 1), c.dtype), c[None])
        slopes = jax.nn.log_sigmoid(c) + jax.nn.log_sigmoid(-c)
        dirichlet = constant + (alpha - 1) * jnp.sum(log_p)
        return dirichlet + jnp.sum(slopes) + Ordered().log_jacobian(shared)

    def sample_shared(self, key: Key) -> jax.Array:
        """Draw unconstrained cutpoints from their prior."""
        if not self.num_shared:
            return jnp.zeros(0)
        p = jax.random.dirichlet(key, jnp.full(self.num_classes, self.concentration))
        below, above = jnp.cumsum(p)[:-1], jnp.cumsum(p[::-1])[::-1][1:]
        return Ordered().unconstrain(jnp.log(below) - jnp.log(above))

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log probability of each row's class."""
        index = y.astype(jnp.int32).reshape(-1, 1)
        return jnp.take_along_axis(self._log_probabilities(outputs), index, axis=1)[:, 0]

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the probabilities of all classes, (rows, classes)."""
        return jnp.exp(self._log_probabilities(outputs))

    def _log_probabilities(self, outputs: jax.Array) -> jax.Array:
        self.check_columns(outputs)
        if self.cutpoints is None:
            cutpoints = Ordered().constrain(outputs[:, 1:])
        else:
            known = jnp.asarray(self.cutpoints, outputs.dtype)[None]
            cutpoints = jnp.broadcast_to(known, (len(outputs), known.shape[1]))
        return _ordinal_log_probabilities(outputs[:, :1], cutpoints)


@dataclass(frozen=True)
class CuratedLabels(Likelihood):
    r"""Classes on which $S$ annotators agreed; rows without agreement were left out or are marked.

    Every annotator draws a label from $p = \text{softmax}(f)$, independently, and a row gets a
    label only if all $S$ agree:

    $$ P(y = c) = p_c^S, \qquad P(\text{no agreement}) = 1 - \sum_c p_c^S . $$

    With agreement as part of what was observed (the default) the likelihood of a label is $p_y^S$,
    and rows that are known to be without agreement have the label -1. This is what a cold
    posterior, with its likelihood to the power $1/T$, does with $S = 1/T$; here it is a model with
    the temperature 1. It is not a distribution over classes alone, and must not be normalised:
    that the row was clear is information about $f$. If rows were *given* agreement, so that it
    says nothing (`conditional=True`), the likelihood is $p_y^S/\sum_c p_c^S$: softmax of $Sf$.

    Parameters
    ----------
    num_annotators
        $S \ge 1$; need not be a whole number.
    conditional
        Whether to condition on agreement.
    predict_curated
        Whether `predict` returns probabilities of the label of a row on which annotators agree,
        $p_c^S/\sum p^S$, for test rows that are curated too, or those of one annotator, $p$.

    References
    ----------
    Aitchison (2021), *A statistical theory of cold posteriors in deep neural networks*, ICLR.
    """

    num_annotators: float
    conditional: bool = False
    predict_curated: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_annotators < math.inf:
            raise ValueError(f"`num_annotators` must be at least 1, got {self.num_annotators}.")

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log probability of each row's class, or of no agreement (label -1)."""
        power = self.num_annotators
        if self.conditional:
            return categorical_log_likelihood(power * outputs, y)
        agreed = power * categorical_log_likelihood(outputs, jnp.maximum(y, 0))
        agreement = jax.nn.logsumexp(power * jax.nn.log_softmax(outputs), axis=-1)
        # Rounding can make it zero, whose logarithm has no gradient.
        agreement = jnp.minimum(agreement, -jnp.finfo(outputs.dtype).eps)
        return jnp.where(y >= 0, agreed, jnp.log(-jnp.expm1(agreement)))

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the probabilities of all classes, (rows, classes)."""
        return jax.nn.softmax((self.num_annotators if self.predict_curated else 1.0) * outputs)


@dataclass(frozen=True)
class NoisyDirichlet(Likelihood):
    r"""Classes whose label is little noisy: a Gaussian likelihood of logits.

    A label $y$ is read as a draw from Dirichlet$(\alpha_1, \dots, \alpha_K)$ with
    $\alpha_c = \alpha + [c = y]$: a small $\alpha$ says that labels are nearly certain. A Dirichlet
    variable is a normalised gamma variable, and $\log\text{Gamma}(\alpha_c, 1)$ has about the law

    $$ \mathcal N(\mu_c, \sigma_c^2), \qquad \sigma_c^2 = \log(1 + 1/\alpha_c), \qquad
       \mu_c = \log\alpha_c - \sigma_c^2/2 , $$

    which has the right mean and variance of the gamma variable. The log likelihood of a row is
    $\sum_c \log\mathcal N(f_c; \mu_c, \sigma_c^2)$. (The Dirichlet density itself is unbounded if
    $\alpha < 1$, so that the posterior would not exist.)

    Parameters
    ----------
    alpha
        $\alpha > 0$; 0.01 is a good first choice.

    References
    ----------
    Kapoor, Maddox, Izmailov & Wilson (2022), *On uncertainty, tempering, and data augmentation in
    Bayesian classification*, NeurIPS.
    Milios et al. (2018), *Dirichlet-based Gaussian processes for large-scale calibrated
    classification*, NeurIPS.
    """

    alpha: float = 0.01

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log density of each row's logits."""
        label = jax.nn.one_hot(y.astype(jnp.int32), outputs.shape[-1], dtype=outputs.dtype)
        alpha = label + self.alpha
        variance = jnp.log1p(1 / alpha)
        mean = jnp.log(alpha) - 0.5 * variance
        terms = (outputs - mean) ** 2 / variance + jnp.log(2 * jnp.pi * variance)
        return -0.5 * jnp.sum(terms, axis=-1)

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the probabilities of all classes, (rows, classes): softmax."""
        return jax.nn.softmax(outputs)


@dataclass(frozen=True)
class UserLikelihood(Likelihood):
    """Any function `(outputs, y) -> (rows,)`; pass it to `Network` as it is, or with `prediction`.

    Parameters
    ----------
    function
        The log likelihood of each row.
    prediction
        `outputs -> predictions`; by default the outputs.
    """

    function: Callable[[jax.Array, jax.Array], jax.Array]
    prediction: Callable[[jax.Array], jax.Array] | None = None

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log likelihood of each row."""
        values = self.function(outputs, y)
        if values.shape != outputs.shape[:1]:
            raise ValueError(
                f"`likelihood` must return one number per row, shape {outputs.shape[:1]}, got "
                f"{values.shape}."
            )
        return values

    def predict(self, outputs: jax.Array) -> jax.Array:
        """Return the predictions of each row."""
        return outputs if self.prediction is None else self.prediction(outputs)


LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {
    "categorical": Categorical,
    "gaussian": Gaussian,
    "heteroscedastic": lambda: Gaussian(None),
    "student-t": StudentT,
    "poisson": Poisson,
    "bernoulli": Bernoulli,
    "noisy-dirichlet": NoisyDirichlet,
}


def as_likelihood(likelihood: Any) -> Likelihood:
    """Return the likelihood with this name, or of this function; an object is returned as it is."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
        return LIKELIHOODS[likelihood]()
    if isinstance(likelihood, str) or not callable(likelihood) or isinstance(likelihood, type):
        raise ValueError(
            f"`likelihood` must be one of {tuple(LIKELIHOODS)}, an object such as "
            f"`isotherm.models.Ordinal(5)`, or a function of outputs and targets; got "
            f"{likelihood!r}."
        )
    return UserLikelihood(cast(Callable[[jax.Array, jax.Array], jax.Array], likelihood))


def _ordinal_log_probabilities(location: jax.Array, cutpoints: jax.Array) -> jax.Array:
    r"""Return log probabilities of all classes, (rows, classes).

    $1/(1 + e^{-a}) - 1/(1 + e^{-b}) = \frac{1 - e^{b - a}}{(1 + e^{-a})(1 + e^b)}$ for $a > b$ does
    not cancel far from the cutpoints.
    """
    z = cutpoints - jnp.broadcast_to(location, cutpoints.shape)
    below, above = jax.nn.log_sigmoid(z), jax.nn.log_sigmoid(-z)
    gaps = jnp.log(-jnp.expm1(z[:, :-1] - z[:, 1:]))
    return jnp.concatenate(
        [below[:, :1], below[:, 1:] + above[:, :-1] + gaps, above[:, -1:]], axis=1
    )

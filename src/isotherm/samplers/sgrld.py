r"""Stochastic gradient Riemannian Langevin dynamics on the simplex, in expanded-mean form.

A point $\pi = \varphi/\sum_w \varphi_w$ of the simplex is represented by positive $\varphi$ with
independent Gamma priors, $\varphi_w \sim \Gamma(\alpha, 1)$, so that
$\pi \sim \mathrm{Dir}(\alpha)$. With the metric $\operatorname{diag}(1/\varphi)$,

$$ \varphi \leftarrow \Bigl|\,\varphi
   + \tfrac h2\bigl(\alpha - 1 + T - \varphi + \hat\gamma(\varphi)\bigr)
   + \sqrt{hT\varphi}\odot R\,\Bigr|, \qquad
   \hat\gamma = \frac{\partial \log p(\text{data}\mid\varphi)}{\partial \log \varphi}, $$

where $\hat\gamma$ is estimated at full-data scale; for counts $n_w$ it is $n_w - \pi_w n_\cdot$. At
$T = 1$ this is the update of Patterson & Teh, with their $\epsilon = h$. (The drift has the factor
$h/2$ here and $h$ in `isotherm.sgld`.) The reflection keeps $\varphi$ positive; the error in the
mean is $O(h)$ and is largest where $\alpha$ is small and $\varphi$ is close to zero. State: one
position.

References
----------
Patterson & Teh (2013), *Stochastic gradient Riemannian Langevin dynamics on the probability
simplex*, NeurIPS.
"""

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.diagnostics.temperature import virial
from isotherm.dynamics.overdamped import overdamped
from isotherm.samplers.sgld import SGLDState
from isotherm.schedules import as_schedule, require_nonnegative, require_positive
from isotherm.tree import as_position, is_traced, leaf_names
from isotherm.types import (
    ArrayTree,
    GradFn,
    Key,
    Sampler,
    Scalar,
    ScalarOrSchedule,
    StepInfo,
    Traits,
)


def sgrld(
    grad_fn: GradFn | None,
    step_size: ScalarOrSchedule,
    prior: Scalar = 1.0,
    *,
    temperature: Scalar = 1.0,
    noise: str | random.Noise = "gaussian",
) -> Sampler:
    r"""Build an SGRLD sampler for positive positions.

    Parameters
    ----------
    grad_fn
        `(position, batch) -> grads`: an estimate of the gradient of the log *likelihood* with
        respect to $\log\varphi$, at full-data scale. The sampler adds the Gamma prior itself.
    step_size
        $h$ (Patterson & Teh's $\epsilon$): a positive number, or a schedule.
    prior
        $\alpha > 0$: the Gamma shape, that is the Dirichlet concentration; a number or an array
        that broadcasts against the leaves.
    temperature
        $T$: 1 targets the posterior.
    noise
        `"gaussian"`, `"three-point"`, or a function.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> sampler = sgrld(lambda phi, batch: jnp.zeros_like(phi), step_size=0.1, prior=2.0)
    >>> state = sampler.init(jnp.ones(3))
    >>> state, info = sampler.step(jax.random.key(0), state, batch=None)
    >>> bool((state.position > 0).all())
    True
    """
    step_size_fn = as_schedule(step_size)
    require_nonnegative("temperature", temperature)
    require_positive("prior", prior)
    noise_fn = random.as_noise(noise)

    def init(position: ArrayTree, key: Key | None = None) -> SGLDState:
        del key  # nothing to draw
        position = as_position(position)
        for name, leaf in zip(leaf_names(position), jax.tree.leaves(position), strict=True):
            if not is_traced(leaf) and not np.all(np.asarray(leaf) > 0):
                raise ValueError(f"`position` leaf {name!r} must be positive for sgrld.")
        return SGLDState(position, jnp.zeros((), jnp.int32))

    def update(key: Key, state: SGLDState, grads: ArrayTree) -> tuple[SGLDState, StepInfo]:
        h = step_size_fn(state.step_index)
        xi = noise_fn(key, state.position)

        def move(x: jax.Array, g: jax.Array, r: jax.Array) -> jax.Array:
            drift = h / 2 * (prior - 1 + temperature - x + g)
            return jnp.abs(x + drift + jnp.sqrt(h * temperature * x) * r).astype(x.dtype)

        position = jax.tree.map(move, state.position, grads, xi)
        # In log phi, with the Jacobian, the gradient of the log posterior is alpha - phi + g.
        full = jax.tree.map(lambda x, g: prior - x + g, state.position, grads)
        info = StepInfo(
            jnp.asarray(h, jnp.float32), virial(jax.tree.map(jnp.log, state.position), full)
        )
        return SGLDState(position, state.step_index + 1), info

    return overdamped(grad_fn, init, update, Traits("sgrld", temperature=temperature))

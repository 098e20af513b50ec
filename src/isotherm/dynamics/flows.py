r"""The flows that the dynamics is composed of, each solved exactly.

$$ d\theta = p\,dt, \qquad
   dp = \hat g(\theta)\,dt - \xi\odot p\,dt + \sqrt{2DT}\,dW, \qquad
   d\xi = (p\odot p - T)/\mu\,dt $$

An integrator is a word over six letters. Each is the exact flow of one term for a time $t$:

| letter | flow | |
| --- | --- | --- |
| `A` | drift | $\theta \leftarrow \theta + p\,t$ |
| `D` | heating | $\xi \leftarrow \xi + (p\odot p - T)\,t/\mu$ |
| `B` | damping | $p \leftarrow e^{-\xi t}\odot p$ |
| `K` | kick | $p \leftarrow p + \hat g(\theta)\,t$ |
| `N` | noise | $p \leftarrow p + \sqrt{2DT\,t}\,R$ |
| `O` | `B` and `N` together | $p \leftarrow e^{-\xi t}\odot p + s(t)\odot R$ |

Here $R$ is standard normal, and $s(t)^2 = DT(1 - e^{-2\xi t})/\xi$ is the variance of an
Ornstein–Uhlenbeck process after a time $t$. Drift, kick and noise are in this module. Heating,
damping and Ornstein–Uhlenbeck depend on the kind of $\xi$ and belong to a thermostat
(`dynamics/thermostats.py`).
"""

import jax
import jax.numpy as jnp

from isotherm.tree import add_increment
from isotherm.types import ArrayTree, Scalar


def drift(position: ArrayTree, velocity: ArrayTree, t: Scalar) -> ArrayTree:
    r"""Return the position after a drift: $\theta + v\,t$."""
    return jax.tree.map(lambda x, v: add_increment(x, v * t), position, velocity)


def kick(momentum: ArrayTree, force: ArrayTree, t: Scalar) -> ArrayTree:
    r"""Return the momentum after a kick by the gradient: $p + \hat g\,t$."""
    return jax.tree.map(lambda p, g: add_increment(p, g * t), momentum, force)


def diffuse(momentum: ArrayTree, noise: ArrayTree, strength: Scalar, t: Scalar) -> ArrayTree:
    r"""Return the momentum after white noise: $p + \sqrt{2st}\,R$ with strength $s = DT$."""
    scale = jnp.sqrt(2 * strength * t)
    return jax.tree.map(lambda p, r: add_increment(p, scale * r), momentum, noise)

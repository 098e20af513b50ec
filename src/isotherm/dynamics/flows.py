r"""The pieces of the dynamics that can be solved exactly, one function each.

$$ d\theta = p\,dt, \qquad
   dp = \hat g(\theta)\,dt - \xi\odot p\,dt + \sqrt{2DT}\,dW, \qquad
   d\xi = (p\odot p - T)/\mu\,dt $$

An integrator is a word over six letters, each the exact flow of one piece for a duration $t$:

| letter | flow | |
| --- | --- | --- |
| `A` | drift | $\theta \leftarrow \theta + p\,t$ |
| `D` | heating | $\xi \leftarrow \xi + (p\odot p - T)\,t/\mu$ |
| `B` | damping | $p \leftarrow e^{-\xi t}\odot p$ |
| `K` | kick | $p \leftarrow p + \hat g(\theta)\,t$ |
| `N` | noise | $p \leftarrow p + \sqrt{2DT\,t}\,R$ |
| `O` | Ornstein–Uhlenbeck | `B` and `N` solved together: $p \leftarrow e^{-\xi t}\odot p + \sqrt{DT(1-e^{-2\xi t})/\xi}\odot R$ |

Drift, kick and noise are here. Heating, damping and Ornstein–Uhlenbeck depend on what $\xi$ is,
so they are methods of a thermostat (`dynamics/thermostats.py`).
"""

import jax
import jax.numpy as jnp

from isotherm.tree import moving
from isotherm.types import ArrayTree, Scalar


def drift(position: ArrayTree, velocity: ArrayTree, t: Scalar) -> ArrayTree:
    r"""Move the position: $\theta + v\,t$."""
    return jax.tree.map(lambda x, v: moving(x, v * t), position, velocity)


def kick(momentum: ArrayTree, force: ArrayTree, t: Scalar) -> ArrayTree:
    r"""Let the gradient act: $p + \hat g\,t$."""
    return jax.tree.map(lambda p, g: moving(p, g * t), momentum, force)


def diffuse(momentum: ArrayTree, noise: ArrayTree, strength: Scalar, t: Scalar) -> ArrayTree:
    r"""Add white noise: $p + \sqrt{2st}\,R$ with strength $s = DT$."""
    scale = jnp.sqrt(2 * strength * t)
    return jax.tree.map(lambda p, r: moving(p, scale * r), momentum, noise)

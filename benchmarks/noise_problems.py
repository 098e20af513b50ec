r"""Targets with exact moments, and data whose minibatches make gradient noise of a given structure.

The log density of a target is $\log\pi(\theta) = S(R^\top\theta)$ with a shape $S$ and a matrix
$R$, in `DIM` dimensions. The log likelihood of row $i$ of $N$ is

$$ \ell_i(\theta) = \log\pi(\theta)/N + a_i\cdot f(\theta), \qquad
   f(\theta) = \bigl(L\cos(u/L),\; L\sin(u/L),\; u^2/2\bigr), \qquad u = Q^\top\theta, $$

and the vectors $a_i$ sum to zero, so the log likelihoods sum to $\log\pi$ and every method sees the
same data. With $a_i = \alpha(\sin\varphi_i, \cos\varphi_i, 0)$ the gradient of a row is a wave,
$\alpha\cos(\varphi_i + u/L)$. With phases $\varphi_{ik} = 2\pi m_k i/N$, $m_k$ odd and different,
the covariance of the noise of a batch is exactly the same at every $\theta$, although the noise
itself is not. Control variates remove most of it within a distance $L$ of their centre; for linear
rows they would remove all of it everywhere. Quadratic rows make noise that grows with $|u|$.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

DIM = 10
NUM_ROWS = 400
BATCH_SIZE = 20
NOISE_SD = 5.0
"""Root mean square, over coordinates and positions, of the sd of the gradient of a batch."""
WAVE_LENGTH = 2.0
"""L: the distance over which the gradient of a row changes."""
BEND, THICKNESS = 0.7, 0.5
"""Banana: x2 given x1 is normal with mean BEND (x1^2 - 1) and this sd."""
SEPARATION = 2.0
"""Mixture: distance of either mode from the middle, in sds of a component."""


@dataclass(frozen=True)
class Target:
    """A target density with mean 0, uncorrelated in the coordinates of its shape."""

    shape: Callable[[Any, Any], Any]
    """`(numpy-like module, points (..., DIM)) -> log density` in the coordinates of the shape."""
    root: np.ndarray
    """R; a position has the shape coordinates `position @ root`."""
    variance: np.ndarray
    """Exact variances in shape coordinates."""
    shape_mode: np.ndarray

    @property
    def inverse_root(self) -> np.ndarray:
        """The matrix that maps shape coordinates to positions."""
        return np.linalg.inv(self.root)

    @property
    def mode(self) -> np.ndarray:
        """A position of highest density."""
        return self.shape_mode @ self.inverse_root

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance of the positions."""
        return self.inverse_root.T * self.variance @ self.inverse_root

    def standardize(self, positions: np.ndarray) -> np.ndarray:
        """Return coordinates along the axes of the shape in units of their exact sds."""
        return positions @ (self.root / np.sqrt(self.variance))


@dataclass(frozen=True)
class Rows:
    """Data for one noise structure: `coefficients` has the vectors a_i, `axes` is Q."""

    coefficients: np.ndarray
    axes: np.ndarray


def gaussian() -> Target:
    """Return a Gaussian with sds from 0.5 to 2 along random axes."""
    sd = np.geomspace(0.5, 2.0, DIM)
    return Target(
        shape=lambda xp, u: -(u**2).sum(-1) / 2,
        root=_rotation(0) / sd,
        variance=np.ones(DIM),
        shape_mode=np.zeros(DIM),
    )


def banana() -> Target:
    """Return five pairs (x1, x2): x1 is standard normal, x2 follows a parabola of x1."""

    def shape(xp: Any, u: Any) -> Any:
        first, second = u[..., ::2], u[..., 1::2]
        distance = (second - BEND * (first**2 - 1)) / THICKNESS
        return -(first**2 + distance**2).sum(-1) / 2

    return Target(
        shape=shape,
        root=np.eye(DIM),
        variance=np.tile([1.0, 2 * BEND**2 + THICKNESS**2], DIM // 2),
        shape_mode=np.tile([0.0, -BEND], DIM // 2),
    )


def mixture() -> Target:
    """Return two Gaussians with unit covariance and equal weights, apart along a random axis."""

    def shape(xp: Any, u: Any) -> Any:
        along = SEPARATION * u[..., 0]
        return xp.logaddexp(along, -along) - (u**2).sum(-1) / 2

    mode, variance = np.zeros(DIM), np.ones(DIM)
    variance[0] += SEPARATION**2
    mode[0] = SEPARATION
    for _ in range(100):
        mode[0] = SEPARATION * np.tanh(SEPARATION * mode[0])
    return Target(shape, _rotation(1), variance, mode)


TARGETS: dict[str, Callable[[], Target]] = {
    "Gaussian": gaussian,
    "banana": banana,
    "mixture": mixture,
}


def isotropic(target: Target) -> Rows:
    """Return rows whose noise has the same variance in all directions, everywhere."""
    return Rows(_waves(np.ones(DIM)), np.eye(DIM))


def anisotropic(target: Target) -> Rows:
    """Return rows whose noise has sds of ratio 1 to 10 between coordinates."""
    return Rows(_waves(_of_unit_size(np.geomspace(1, 10, DIM))), np.eye(DIM))


def correlated(target: Target) -> Rows:
    """Return rows whose noise has correlation 0.9 between any two coordinates."""
    values, axes = np.linalg.eigh(0.1 * np.eye(DIM) + 0.9)
    return Rows(_waves(np.sqrt(values)), axes)


def position_dependent(target: Target) -> Rows:
    """Return rows whose noise is proportional to the distance from the mean, per coordinate."""
    sd = np.sqrt(np.diag(target.covariance))
    quadratic = _scale() * np.sin(_phases()) / sd
    return Rows(np.hstack([np.zeros((NUM_ROWS, 2 * DIM)), quadratic]), np.eye(DIM))


def heavy_tailed(target: Target) -> Rows:
    """Return isotropic rows with sizes from Student's t distribution, 1.5 degrees of freedom.

    Four rows a quarter of a wave apart have the same size, so that sums remain zero.
    """
    count = NUM_ROWS // 4
    sizes = _of_unit_size(stats.t(1.5).ppf((np.arange(count) + 0.5) / (2 * count) + 0.5))
    sizes = np.tile(np.random.default_rng(2).permutation(sizes), 4)
    return Rows(sizes[:, None] * _waves(np.ones(DIM)), np.eye(DIM))


NOISES: dict[str, Callable[[Target], Rows]] = {
    "isotropic": isotropic,
    "anisotropic": anisotropic,
    "correlated": correlated,
    "position-dependent": position_dependent,
    "heavy-tailed": heavy_tailed,
}


def log_likelihood(xp: Any, target: Target, root: Any, axes: Any, x: Any, rows: Any) -> Any:
    """Return the log likelihood of rows, (..., n), at positions (..., DIM).

    Parameters
    ----------
    xp
        `jax.numpy`, `torch` or `numpy`; the arrays are of that library.
    target
        Gives the shape.
    root, axes
        R and Q.
    x, rows
        Positions (..., DIM), and vectors a_i (..., n, 3 DIM).
    """
    u = (x[..., None, :] @ axes)[..., 0, :]
    angle = u / WAVE_LENGTH
    parts = [WAVE_LENGTH * xp.cos(angle), WAVE_LENGTH * xp.sin(angle), u**2 / 2]
    features = xp.concatenate(parts, -1)
    density = target.shape(xp, x @ root)
    return density[..., None] / NUM_ROWS + (rows @ features[..., None])[..., 0]


def _phases() -> np.ndarray:
    """Return the phases of all rows, (row, coordinate)."""
    return 2 * np.pi * np.outer(np.arange(NUM_ROWS), 2 * np.arange(DIM) + 1) / NUM_ROWS


def _scale() -> float:
    """Return the amplitude of waves that makes noise of size `NOISE_SD` in a batch."""
    return NOISE_SD * np.sqrt(2 * BATCH_SIZE) / NUM_ROWS


def _waves(sizes: np.ndarray) -> np.ndarray:
    """Return the vectors a_i of waves with these sizes of the noise per axis."""
    phases = _phases()
    none = np.zeros_like(phases)
    waves = [sizes * np.sin(phases), sizes * np.cos(phases), none]
    # d/du of L (sin(phase) cos(u/L) + cos(phase) sin(u/L)) is cos(phase + u/L)
    return _scale() * np.hstack(waves)


def _of_unit_size(values: np.ndarray) -> np.ndarray:
    return values / np.sqrt(np.mean(values**2))


def _rotation(seed: int) -> np.ndarray:
    return stats.ortho_group(DIM, seed=seed).rvs()

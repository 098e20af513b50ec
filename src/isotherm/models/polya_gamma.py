"""Pólya-Gamma random variables, the auxiliary variables of logistic likelihoods."""

from typing import Any

import numpy as np

from isotherm.imports import require


def polya_gamma(rng: np.random.Generator, tilt: np.ndarray) -> np.ndarray:
    r"""Draw from $\mathrm{PG}(1, z)$ for each number $z$ of an array.

    For $|z| > 50$ this is an inverse Gaussian distribution, up to $e^{-50}$: the Laplace transform
    of $4\omega$ is $\cosh a/\cosh b \approx e^{a - b}$ with $a = |z|/2$ and $b = (a^2 + 2t)^{1/2}$.
    Otherwise the package `polyagamma` draws; its version 2.0.2 underflows beyond $|z| = 177$ and
    returns far too large values.
    """
    random_polyagamma = require("polyagamma", "reference", "Pólya-Gamma sampling").random_polyagamma
    options: dict[str, Any] = {"method": "devroye", "disable_checks": True, "random_state": rng}
    far = np.abs(tilt) > 50
    if not far.any():
        return random_polyagamma(1.0, tilt, **options)
    omega = np.empty_like(tilt)
    omega[far] = rng.wald(2 / np.abs(tilt[far]), 1.0) / 4
    omega[~far] = random_polyagamma(1.0, tilt[~far], **options)
    return omega

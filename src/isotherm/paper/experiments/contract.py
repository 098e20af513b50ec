"""The types of the contract that `isotherm.paper.experiments` describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import jax
    import numpy as np
    from matplotlib.figure import Figure

Say = Callable[[str], None]
"""Reports progress in a few words; may do nothing."""


class Claim(NamedTuple):
    """A statement of the paper, and what became of it here."""

    claim: str
    holds: bool
    measured: str
    expected: str


class Experiment(Protocol):
    """A module that answers one question; see `isotherm.paper.experiments`."""

    __doc__: str | None
    __name__: str
    Config: type[Any]
    SMOKE: Any

    def run(self, config: Any, key: jax.Array, say: Say) -> dict[str, np.ndarray]:
        """Compute; pure apart from `say`."""
        ...

    def rows(self, config: Any, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Lay out the table, the paper's numbers beside ours."""
        ...

    def check(self, config: Any, result: dict[str, np.ndarray]) -> list[Claim]:
        """Say which of the paper's claims hold."""
        ...

    def plot(self, config: Any, result: dict[str, np.ndarray]) -> dict[str, Figure]:
        """Draw; never compute."""
        ...

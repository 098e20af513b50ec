"""Types of the interface that `isotherm.paper.experiments` describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import jax
    import numpy as np
    from matplotlib.figure import Figure

Report = Callable[[str], None]
"""Called with a progress message from time to time; may do nothing."""


class Claim(NamedTuple):
    """A claim, whether it holds, what was measured and what was expected."""

    claim: str
    holds: bool
    measured: str
    expected: str


class Experiment(Protocol):
    """A module with the interface that `isotherm.paper.experiments` describes."""

    __doc__: str | None
    __name__: str
    Config: type[Any]
    SMOKE: Any

    def run(self, config: Any, key: jax.Array, report: Report) -> dict[str, np.ndarray]:
        """Run the computation and return its arrays."""
        ...

    def rows(self, config: Any, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return the rows of the table, with the numbers of the paper."""
        ...

    def check(self, config: Any, result: dict[str, np.ndarray]) -> list[Claim]:
        """Check the claims of the paper."""
        ...

    def plot(self, config: Any, result: dict[str, np.ndarray]) -> dict[str, Figure]:
        """Return the figures by name."""
        ...

"""Kept draws on the host, page after page, as chunks bring them."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


class Pages:
    """Pairs of trees, what collectors keep and statistics, with leading axes `(chain, draw)`."""

    def __init__(self, pages: Sequence[Any] = ()) -> None:
        self.pages = list(pages)

    def add(self, page: Any, num_draws: int) -> None:
        """Move the first draws of a page, `(draw, chain, …)`, off the device."""
        # A copy, so that the page, which has room for many more, can go.
        page = jax.tree.map(lambda x: np.asarray(x)[:num_draws].copy(), page)
        self.pages.append(jax.tree.map(lambda x: np.swapaxes(x, 0, 1), page))

    def drop_after(self, number: int) -> None:
        """Keep the first pages only."""
        del self.pages[number:]

    def trim(self) -> int:
        """Cut the last page before the first draw that is not finite; return what is left of it."""
        page = self.pages[-1]
        leaves = jax.tree.leaves(page)
        bad = sum(~np.isfinite(x.astype(np.float64)).all((0, *range(2, x.ndim))) for x in leaves)
        good = int(np.argmax(bad > 0)) if np.any(bad) else leaves[0].shape[1]
        self.pages[-1] = jax.tree.map(lambda x: x[:, :good], page)
        return good

    def bound(self, num_saved: int, number: int) -> list[Any]:
        """Give the first pages, those that are not saved yet as one."""
        if number > num_saved:
            self.pages[num_saved:number] = [_joined(self.pages[num_saved:number])]
        return self.pages[: min(number, num_saved + 1)]

    def last_is_finite(self) -> bool:
        """Tell whether all statistics of the last page are finite."""
        return all(np.isfinite(x).all() for x in self.pages[-1][1].values())

    def last(self, name: str) -> np.ndarray:
        """Give a statistic of the last page."""
        return self.pages[-1][1][name]

    def statistic(self, name: str) -> np.ndarray:
        """Give a statistic of all draws."""
        return np.concatenate([stats[name] for _, stats in self.pages], axis=1)

    def all(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Give what collectors kept, and the statistics, of all draws."""
        return _joined(self.pages) if self.pages else ({}, {})


def _joined(pages: list[Any]) -> Any:
    """Put pages one behind the other."""
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *pages)

"""Pages of kept draws on the host: one per chunk, leading axes (chain, draw)."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from isotherm.loop.state import Page


def move_to_host(page: Any, num_draws: int) -> Page:
    """Copy the first draws of a page with axes (draw, chain, …) from the device."""
    # A copy, so that the page itself, which has room for many more draws, can be freed.
    page = jax.tree.map(lambda x: np.asarray(x)[:num_draws].copy(), page)
    return jax.tree.map(lambda x: np.swapaxes(x, 0, 1), page)


def join(pages: Sequence[Page]) -> Page:
    """Concatenate pages along the axis of draws."""
    if not pages:
        return {}, {}
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *pages)


def num_draws(page: Page) -> int:
    """Return the number of draws on a page."""
    return jax.tree.leaves(page)[0].shape[1]


def trim(page: Page) -> Page:
    """Cut a page before the first draw that is not finite."""
    leaves = jax.tree.leaves(page)
    bad = sum(~np.isfinite(x.astype(np.float64)).all((0, *range(2, x.ndim))) for x in leaves)
    good = int(np.argmax(bad > 0)) if np.any(bad) else leaves[0].shape[1]
    return jax.tree.map(lambda x: x[:, :good], page)


def statistic(pages: Sequence[Page], name: str) -> np.ndarray:
    """Return a statistic of all draws."""
    return np.concatenate([stats[name] for _, stats in pages], axis=1)


def statistics_are_finite(page: Page) -> bool:
    """Return whether all statistics of a page are finite."""
    return all(np.isfinite(x).all() for x in page[1].values())


def after(pages: Sequence[Page], num_before: int) -> Sequence[Page]:
    """Return the pages that follow the first `num_before` draws."""
    ends = np.cumsum([num_draws(page) for page in pages])
    return [page for page, end in zip(pages, ends, strict=True) if end > num_before]

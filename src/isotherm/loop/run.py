"""The result of a run: draws, statistics of the chains, summaries and export."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from isotherm.diagnostics.convergence import ess, plain_rhat, rhat
from isotherm.diagnostics.temperature import temperature_table
from isotherm.io.datatree import to_datatree
from isotherm.io.untrusted import Damaged
from isotherm.tree import leaf_names
from isotherm.types import ArrayTree, Traits

if TYPE_CHECKING:
    import xarray


NUM_JUDGED = 250
"""Coordinates whose ESS and R-hat are computed, if there are too many for a row each."""
MOST_JUDGED = 100
"""Numbers of a collected value whose chains are compared at the end of a run."""
ENOUGH_DRAWS, DRAWS_JUDGED = 100, 1000
"""Draws per chain from which chains are compared, and draws of each that are used."""
LARGEST_RHAT = 1.2
"""R-hat at which a run ends with a warning."""
MOST_NUMBERS = 2**22
"""Numbers of a leaf from which its mean and standard deviation are computed."""


class Rollback(NamedTuple):
    """Where all chains went back, and why."""

    step: int
    """The last good step: all chains continued from there."""
    chain: int
    """The chain that diverged; the first, if several did."""
    leaf: str
    """The first leaf of its state that was not finite."""
    step_size_before: float
    """$h$ at that step."""
    step_size_after: float
    """Half of it."""


def read_rollbacks(entries: Any) -> tuple[Rollback, ...]:
    """Convert what a file has back into rollbacks.

    Raises
    ------
    Damaged
        It is not a list of the five values of each.
    """
    kinds = (int, int, str, float | int, float | int)
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, list) or len(entry) != 5 or not all(map(isinstance, entry, kinds)):
            raise Damaged(f"{entry} is not a rollback.")
    return tuple(Rollback(*entry) for entry in entries)


@dataclass(frozen=True, repr=False)
class Run:
    """Draws of several chains, and how they were made."""

    draws: ArrayTree
    """Kept positions, a pytree with leading axes `(chain, draw)`; `None` if not collected."""
    collected: Mapping[str, Any]
    """Results of all collectors by name."""
    stats: Mapping[str, np.ndarray]
    """Per draw, leading axes `(chain, draw)`: `step_size`, `kinetic_temperature` and
    `configurational_temperature` (per leaf). The last is about the origin and uses the minibatch
    of the step, so it is noisy where the posterior is far from 0; for an accurate one call
    `isotherm.diagnostics.configurational_temperature` on the draws."""
    state: Any
    """The last state of every chain; pass it to `sample` to continue."""
    diverged: np.ndarray
    """Which chains have diverged."""
    traits: Traits
    momentum_sizes: tuple[int, ...]
    leaf_names: tuple[str, ...]
    num_draws: int
    thin: int
    burn_in: int
    seconds: float = field(compare=False)
    """Wall time, compilation included."""
    rollbacks: tuple[Rollback, ...] = ()
    """Where a divergence halved the step size (`on_divergence="rollback"`), in order."""
    call: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of `sample`, as far as they can be written in JSON."""
    _summaries: dict[int, "Summary"] = field(default_factory=dict, init=False, compare=False)

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return len(self.diverged)

    @property
    def finite(self) -> np.ndarray:
        """Which draws are finite, (chain, draw); by their momenta if the draws were not kept."""
        flags = np.ones((self.num_chains, self.num_draws), bool)
        momenta = self.stats.get("kinetic_temperature")
        for leaf in jax.tree.leaves(momenta if self.draws is None else self.draws):
            flags &= _finite_draws(np.asarray(leaf))
        return flags

    @property
    def not_finite(self) -> dict[str, list[int]]:
        """Collected results that are not finite: the chains, by name of the collector."""
        chains = {}
        for name, value in self.collected.items():
            bad = np.zeros(self.num_chains, bool)
            for leaf in map(np.asarray, jax.tree.leaves(value)):
                wide = leaf[:, None] if leaf.ndim == 1 else leaf
                bad |= ~_finite_draws(wide).all(1)
            if bad.any():
                chains[name] = np.flatnonzero(bad).tolist()
        return chains

    @property
    def ok(self) -> bool:
        """Whether nothing was lost: no chain diverged, and all that was kept is finite.

        This is no proof of convergence; read `summary()`.
        """
        momenta = self.stats.get("kinetic_temperature")
        kept = (momenta if self.draws is None else self.draws, dict(self.collected))
        leaves = {id(leaf): leaf for leaf in jax.tree.leaves(kept)}  # draws are collected, too
        return not self.diverged.any() and all(map(_is_finite, leaves.values()))

    def __repr__(self) -> str:
        """Describe the run in one line; `summary()` has the numbers."""
        what = [self.traits.name, self.traits.integrator, self.traits.thermostat]
        chains = "1 chain" if self.num_chains == 1 else f"{self.num_chains} chains"
        steps = self.burn_in + self.num_draws * self.thin
        return (
            f"{' '.join(part for part in what if part)}: {chains} x {self.num_draws} draws "
            f"(thin {self.thin}, burn-in {self.burn_in}; {steps:,} steps each, "
            f"{self.seconds:.1f} s)"
        )

    def summary(self, max_rows: int = 40) -> "Summary":
        """Summarise the draws: mean, sd, ESS and R-hat of every coordinate, and the run's health.

        Parameters
        ----------
        max_rows
            A position with more coordinates gets one row per leaf instead, with the worst ESS and
            R-hat among some of its coordinates: about 250 in all, evenly spread, because each
            takes milliseconds.
        """
        if max_rows not in self._summaries:
            self._summaries[max_rows] = self._summarise(max_rows)
        return self._summaries[max_rows]

    def _summarise(self, max_rows: int) -> "Summary":
        rows = [] if self.draws is None else _summary_rows(self.draws, max_rows)
        kinetic = self.stats.get("kinetic_temperature")
        temperatures = []
        if kinetic is not None and kinetic.shape[1] > 3:
            names = momentum_names(self.leaf_names, kinetic.shape[-1])
            target = float(self.traits.temperature)
            if target > 0:
                temperatures = temperature_table(
                    kinetic, self.momentum_sizes, target, names, tolerance=0.02
                )
        return Summary(self, rows, temperatures)

    def to_datatree(self) -> "xarray.DataTree":
        """Convert to an xarray `DataTree` with groups `posterior` and `sample_stats` for ArviZ."""
        arrays = {}
        if self.draws is not None:
            leaves = zip(leaf_names(self.draws), jax.tree.leaves(self.draws), strict=True)
            arrays = {f"posterior/{name}": np.asarray(leaf) for name, leaf in leaves}
        arrays |= {f"sample_stats/{name}": values for name, values in self.stats.items()}
        return to_datatree(arrays, {"inference_library": "isotherm"})


def describe_disagreement(run: Run, judged: Mapping[str, ArrayTree]) -> str | None:
    """Return a warning if chains, or the halves of chains, are far apart.

    Only values of at most 100 numbers are judged: single weights of a large network need not agree,
    because permutations of its units are the same function.

    Parameters
    ----------
    run
        The run; nothing is judged if it has one chain, few draws or values that are not finite.
    judged
        Values with leading axes `(chain, draw)`, by name.
    """
    if run.num_chains < 2 or run.num_draws < ENOUGH_DRAWS or not run.ok:
        return None
    stride = -(-run.num_draws // DRAWS_JUDGED)
    worst: tuple[float, float, str] = (0.0, 0.0, "")
    for name, tree in judged.items():
        leaves = [_flat(leaf)[:, ::stride] for leaf in jax.tree.leaves(tree)]
        if sum(leaf.shape[2] for leaf in leaves) > MOST_JUDGED:
            continue
        for part, leaf in zip(leaf_names(tree), leaves, strict=True):
            values = plain_rhat(leaf)
            if not values.size or not values.max() > max(worst[0], LARGEST_RHAT):
                continue
            i = int(np.argmax(values))
            one = leaf[:, :, i : i + 1]
            label = part if name == "draws" else f"{name}: {part}"
            worst = max(worst, (float(rhat(one)[0]), float(ess(one)[0]), label))
    if not worst[0] > LARGEST_RHAT:
        return None
    return (
        f"Chains do not agree: R-hat is {worst[0]:.3g} for `{worst[2]}`, and its effective sample "
        f"size about {worst[1]:.0f} in {run.num_chains * run.num_draws} draws. Means and widths "
        "are not those of the posterior yet: run longer chains (`num_draws`, `thin`, `burn_in`), "
        "or use natural coordinates (`isotherm.warm_start`). `run.summary()` has all values. For "
        "the weights of a small network, collect predictions and compare those."
    )


def momentum_names(leaf_names: Sequence[str], number: int) -> Sequence[str]:
    """Return names for the leaves of the momentum, which may live in other coordinates."""
    return leaf_names if number == len(leaf_names) else [f"momentum {i}" for i in range(number)]


def _finite_draws(leaf: np.ndarray) -> np.ndarray:
    """Return which (chain, draw) are finite in all their numbers; a block of draws at a time."""
    flags = np.empty(leaf.shape[:2], bool)
    for cut in _blocks(leaf, axis=1):
        flags[:, cut] = np.isfinite(leaf[:, cut]).all(axis=tuple(range(2, leaf.ndim)))
    return flags


def _is_finite(leaf: Any) -> bool:
    """Return whether all numbers of an array are finite; a block at a time."""
    leaf = np.atleast_1d(np.asarray(leaf))
    axis = min(1, leaf.ndim - 1)
    return all(
        bool(np.isfinite(leaf[(slice(None),) * axis + (cut,)]).all()) for cut in _blocks(leaf, axis)
    )


def _blocks(leaf: np.ndarray, axis: int, block_size: int = 2**22) -> Iterator[slice]:
    """Yield slices of an axis, so that a block has about `block_size` numbers."""
    size = max(1, block_size * leaf.shape[axis] // max(1, leaf.size))
    for start in range(0, leaf.shape[axis], size):
        yield slice(start, start + size)


def _summary_rows(draws: ArrayTree, max_rows: int) -> list[dict[str, Any]]:
    """Return one row per coordinate, or per leaf if there are more than `max_rows`."""
    leaves = [_flat(leaf) for leaf in jax.tree.leaves(draws)]
    total = sum(leaf.shape[2] for leaf in leaves)
    by_coordinate = total <= max_rows
    rows = []
    for name, leaf, whole in zip(leaf_names(draws), leaves, jax.tree.leaves(draws), strict=True):
        size = leaf.shape[2]
        if by_coordinate:
            mean, sd = _moments(leaf)
            indices = np.ndindex(np.shape(whole)[2:])
            labels = [f"[{', '.join(map(str, index))}]" if index else "" for index in indices]
            values = zip(labels, mean, sd, ess(leaf), rhat(leaf), strict=True)
            rows += [_row(name + label, *numbers) for label, *numbers in values]
            continue
        mean, sd = _moments(_some(leaf, MOST_NUMBERS // (leaf.shape[0] * leaf.shape[1])))
        judged = _some(leaf, max(4, NUM_JUDGED * size // total))
        label = f"{name} ({size} numbers)"
        n, r = _worst(ess(judged), min), _worst(rhat(judged), max)
        rows.append(_row(label, mean.mean(), np.sqrt((sd**2).mean()), n, r))
    return rows


def _flat(leaf: Any) -> np.ndarray:
    leaf = np.asarray(leaf)
    return leaf.reshape(*leaf.shape[:2], -1)


def _some(leaf: np.ndarray, number: int) -> np.ndarray:
    """Return at most so many coordinates, evenly spread."""
    size = leaf.shape[2]
    if size <= number:
        return leaf
    return leaf[:, :, np.linspace(0, size - 1, max(1, number)).astype(int)]


def _moments(leaf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every coordinate over chains and draws."""
    flat = leaf.astype(np.float64).reshape(-1, leaf.shape[2])
    return flat.mean(0), flat.std(0)


def _worst(values: np.ndarray, choose: Any) -> float:
    finite = values[np.isfinite(values)]
    return float(choose(finite)) if finite.size else float("nan")


def _row(name: str, mean: float, sd: float, n: float, r: float) -> dict[str, Any]:
    return {"name": name, "mean": float(mean), "sd": float(sd), "ess": float(n), "rhat": float(r)}


@dataclass(frozen=True)
class Summary:
    """Numbers to check before trusting a run; prints as a table."""

    run: Run
    rows: list[dict[str, Any]]
    """One per coordinate (or leaf): name, mean, sd, ess, rhat."""
    temperatures: list[Any]
    """Kinetic temperature per leaf and chain, with its band (`diagnostics.temperature`)."""

    @property
    def wrong_temperatures(self) -> list[Any]:
        """Rows of `temperatures` that are outside their band and more than 25 % off."""
        target = float(self.run.traits.temperature)
        return [
            row
            for row in self.temperatures
            if not row.inside and not abs(row.mean / target - 1) <= 0.25
        ]

    def __str__(self) -> str:
        """Format the numbers as plain text."""
        run, lines = self.run, [repr(self.run)]
        target = float(run.traits.temperature)
        if self.wrong_temperatures:
            lines.append(
                f"WARNING: a kinetic temperature is far from {target:g}: the chain is frozen, "
                "unstable or has not converged, and its draws are not the posterior."
            )
        if self.rows:
            lines.append(f"{'':<24}{'mean':>12}{'sd':>12}{'ess':>9}{'rhat':>9}")
        for row in self.rows:
            lines.append(
                f"{row['name']:<24}{row['mean']:>12.4g}{row['sd']:>12.4g}"
                f"{row['ess']:>9.0f}{row['rhat']:>9.4g}"
            )
        h = run.stats.get("step_size")
        if h is not None and h.size:
            lines.append(
                f"step size {h[0, 0]:.4g} to {h[0, -1]:.4g}"
                if h[0, 0] != h[0, -1]
                else f"step size {h[0, 0]:.4g}"
            )
        for row in self.temperatures:
            verdict = "" if row.inside else "  <- outside its band"
            lines.append(
                f"temperature of {row.name}, chain {row.chain}: {row.mean:.3f} "
                f"(99 % band {row.low:.3f} to {row.high:.3f}){verdict}"
            )
        for back in run.rollbacks:
            lines.append(
                f"rollback to step {back.step}: chain {back.chain} diverged, step size "
                f"{back.step_size_before:.4g} -> {back.step_size_after:.4g}"
            )
        lines.append(f"diverged chains: {np.flatnonzero(run.diverged).tolist() or 'none'}")
        if not run.ok:
            lines.append(f"WARNING: {describe_loss(run)}")
        return "\n".join(lines)

    __repr__ = __str__


def describe_loss(run: Run) -> str:
    """Say how many chains and draws of a run were lost, and which results are affected."""
    finite, affected = run.finite, run.not_finite
    lost, total = int((~finite).sum()), finite.size
    parts = [
        f"{int(run.diverged.sum())} of {run.num_chains} chains diverged, and {lost:,} of {total:,} "
        f"draws ({lost / total if total else 0:.0%}) are not finite."
    ]
    for name, chains in affected.items():
        parts.append(f"`run.collected[{name!r}]` is not finite in {_list_chains(chains)}.")
    parts.append(
        "An average over all chains is not finite either: leave these chains out (as in "
        "`run.draws[~run.diverged]`), or repeat the run with a smaller `step_size`."
    )
    return " ".join(parts)


def _list_chains(chains: list[int]) -> str:
    shown = ", ".join(map(str, chains[:8]))
    return f"chain{'s' * (len(chains) > 1)} {shown}{', …' * (len(chains) > 8)}"

"""What a run reports after every chunk: to a progress bar on stderr, and to a user's callback.

There is no output unless stderr is a terminal or a bar is asked for.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from isotherm.types import ArrayTree

if TYPE_CHECKING:
    import rich.progress


@dataclass(frozen=True)
class ProgressReport:
    """How far a run is, for the `callback` of `isotherm.sample`."""

    step: int
    """Steps that each chain has taken in this run."""
    num_steps: int
    """Steps of the whole run."""
    num_draws: int
    """Draws kept so far, of each chain."""
    seconds: float
    """Time since the start."""
    step_size: float | None
    """$h$ of the last draw."""
    temperature: float | None
    """Kinetic temperature of all momenta."""
    temperatures: Mapping[str, float]
    """Kinetic temperature of every leaf, mean over chains."""
    diverged: np.ndarray
    """Which chains have diverged."""
    draws: Mapping[str, Any]
    """What the collectors kept since the last report, leading axes (chain, draw); may be empty."""
    state: Callable[[], Any] = field(repr=False)
    first_step: int = 0
    """Steps that were done when this call began: those of the checkpoint that it resumed."""

    @cached_property
    def position(self) -> ArrayTree:
        """The current position of every chain, copied to the host when it is first used."""
        return jax.tree.map(np.asarray, self.state().position)

    @property
    def steps_per_second(self) -> float:
        """Speed of this call, compilation included."""
        return (self.step - self.first_step) / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Forecast of the time to the end, at the speed so far; too long while compilation counts.

        `callback=lambda report: report.seconds_left > 3600` ends a run that would take an hour.
        """
        return (self.num_steps - self.step) / max(self.steps_per_second, 1e-9)

    @property
    def is_burn_in(self) -> bool:
        """Whether no draw is kept yet."""
        return self.num_draws == 0

    def metrics(self) -> dict[str, float]:
        """Return the numbers by name, as a logger such as TensorBoard takes them."""
        numbers = {
            "num_draws": self.num_draws,
            "steps_per_second": self.steps_per_second,
            "seconds_left": self.seconds_left,
            "step_size": self.step_size,
            "temperature": self.temperature,
            **{f"temperature/{name}": value for name, value in self.temperatures.items()},
            "diverged": int(self.diverged.sum()),
        }
        return {name: float(value) for name, value in numbers.items() if value is not None}


class Progress(Protocol):
    """What the loop reports to after every chunk."""

    def __enter__(self) -> "Progress": ...

    def __exit__(self, *exception: object) -> None: ...

    def advance(self, num_steps: int, temperature: float | None, step_size: float | None) -> None:
        """Report steps done (of one chain), kinetic temperature and step size."""
        ...


class NoProgress:
    """Shows nothing."""

    def __enter__(self) -> "NoProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def advance(self, num_steps: int, temperature: float | None, step_size: float | None) -> None:
        """Do nothing."""


def make_line(unit: str, last: str) -> "rich.progress.Progress":
    """Build a one-line progress display on stderr.

    It shows a bar, the count in a unit, the field `rate`, the time left and the field `last`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}}/{{task.total:,.0f}} {unit}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn(f"{{task.fields[{last}]}}"),
        console=Console(stderr=True),
    )


class Bar:
    """Shows steps, rate, time left, kinetic temperature and step size in one line."""

    def __init__(self, total: int, label: str) -> None:
        self._bar = make_line("steps", "health")
        self._task = self._bar.add_task(label, total=total, rate="", health="")

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def advance(self, num_steps: int, temperature: float | None, step_size: float | None) -> None:
        """Move the bar and refresh the numbers beside it."""
        health = [f"T {temperature:.3g}"] if temperature is not None else []
        health += [f"h {step_size:.3g}"] if step_size is not None else []
        self._bar.update(self._task, advance=num_steps, health="  ".join(health))
        speed = self._bar.tasks[0].speed
        if speed:
            self._bar.update(self._task, rate=f"{speed:,.0f}/s")


def make_progress(show: bool | None, total: int, label: str) -> Progress:
    """Build a bar if `show` is true, or if it is `None` and stderr is a terminal."""
    if show or (show is None and sys.stderr.isatty()):
        return Bar(total, label)
    return NoProgress()

"""Progress bars on stderr; no output unless stderr is a terminal or a bar is asked for."""

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import rich.progress


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

"""The common style of all figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("style.mplstyle")


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style to all figures drawn and saved in this context."""
    with style.context(STYLE):
        yield


def panels(
    columns: int = 1, rows: int = 1, *, width: float = 4.2, height: float = 3.2, **kwargs: Any
) -> tuple[Figure, Any]:
    """Create a figure of equal panels, each `width` by `height` inches, without pyplot.

    Returns the figure and the result of `Figure.subplots` (one axes, or an array of them), which
    also gets `kwargs`, for example `sharey=True`.
    """
    figure = Figure(figsize=(columns * width, rows * height))
    return figure, figure.subplots(rows, columns, **kwargs)


def caption(figure: Figure, name: str) -> str:
    """Return the caption of a figure: its label or, without one, its axis labels or its name."""
    if label := str(figure.get_label()):
        return label
    descriptions = dict.fromkeys(
        f"{axes.get_title() + ': ' if axes.get_title() else ''}"
        f"{axes.get_ylabel()} against {axes.get_xlabel()}"
        for axes in figure.axes
        if axes.get_xlabel() and axes.get_ylabel()
    )
    return "; ".join(descriptions) or name.replace("_", " ").replace("-", " ")

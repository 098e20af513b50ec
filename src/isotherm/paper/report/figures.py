"""One look for every figure."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("style.mplstyle")


@contextmanager
def styled() -> Iterator[None]:
    """Apply the house style to what is drawn and saved inside."""
    with style.context(STYLE):
        yield


def panels(
    columns: int = 1, rows: int = 1, *, width: float = 4.2, height: float = 3.2, **kwargs: Any
) -> tuple[Figure, Any]:
    """Make a figure of equal panels, each `width` by `height` inches, without pyplot.

    Returns the figure and what `Figure.subplots` returns: one axes, or an array of them; `kwargs`
    go there too (`sharey=True`).
    """
    figure = Figure(figsize=(columns * width, rows * height))
    return figure, figure.subplots(rows, columns, **kwargs)


def caption(figure: Figure, name: str) -> str:
    """Say what a figure shows: its own label, or what its axes say, or its name."""
    if label := str(figure.get_label()):
        return label
    pictures = dict.fromkeys(
        f"{axes.get_title() + ': ' if axes.get_title() else ''}"
        f"{axes.get_ylabel()} against {axes.get_xlabel()}"
        for axes in figure.axes
        if axes.get_xlabel() and axes.get_ylabel()
    )
    return "; ".join(pictures) or name.replace("_", " ").replace("-", " ")

"""A progress bar for streams of documents, with the running perplexity."""

from types import TracebackType
from typing import Self

import numpy as np

from isotherm.loop.progress import make_line


class DocumentBar:
    """Show documents, documents per second, time left and the running perplexity on stderr.

    Parameters
    ----------
    show
        Whether to show anything.
    total
        Number of documents to process.
    label
        Text in front of the bar.
    """

    def __init__(self, show: bool, total: int, label: str) -> None:
        self._bar = None
        if not show:
            return
        self._bar = make_line("documents", "perplexity")
        self._task = self._bar.add_task(label, total=total, rate="", perplexity="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(
        self, num_documents: int, perplexity: float = np.nan, *, waiting: bool = False
    ) -> None:
        """Advance the bar.

        Parameters
        ----------
        num_documents
            Number of documents processed.
        perplexity
            Running perplexity; not shown if it is NaN.
        waiting
            Whether documents are still being collected for the initialization; if so, no rate is
            shown.
        """
        if self._bar is None:
            return
        text = "" if np.isnan(perplexity) else f"perplexity {perplexity:,.0f}"
        self._bar.update(self._task, advance=num_documents, perplexity=text)
        task = self._bar.tasks[0]
        speed = task.speed or (task.completed / task.elapsed if task.elapsed else None)
        if speed and not waiting:
            self._bar.update(self._task, rate=f"{speed:,.0f} documents/s")

"""The loop that runs chains: compiled chunks of steps, and what the host does in between."""

from typing import TYPE_CHECKING

from isotherm.imports import lazy_names

if TYPE_CHECKING:
    from isotherm.loop.chunks import compiler_options
    from isotherm.loop.progress import ProgressReport
    from isotherm.loop.run import Run, Summary
    from isotherm.loop.warm_start import WarmStart

__getattr__, __dir__, __all__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "loop.chunks": "compiler_options",
        "loop.progress": "ProgressReport",
        "loop.run": "Run Summary",
        "loop.warm_start": "WarmStart",
    },
)

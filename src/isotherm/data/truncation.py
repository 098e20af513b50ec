"""Is a text file all there? It does not say where it ends, as what is packed does. And how to say what is wrong with it."""

import os
from pathlib import Path

from isotherm.data.registry import PathLike


class Unchanged:
    """Whether a file is as long as when it was opened."""

    def __init__(self, path: PathLike) -> None:
        self.path, self.size = Path(path), os.stat(path).st_size

    def check(self) -> None:
        """Refuse a file that was cut or written to in the meantime."""
        if self.path.stat().st_size != self.size:
            raise ValueError(f"`{self.path}` was changed while it was read")


def check_end(line: bytes) -> None:
    """Refuse a last line that may have lost its last digit."""
    if not line.endswith(b"\n"):
        raise ValueError(
            "it does not end with a line break, so it may be cut short (if it is whole, add one)"
        )


def brief(what: object) -> str:
    """Say what an error says or what stands in a file, but not more than a few lines.

    Examples
    --------
    >>> brief(ValueError("x" * 1000))[-5:], len(brief(ValueError("x" * 1000)))
    ('xx...', 300)
    """
    told = str(what)
    return told if len(told) <= 300 else f"{told[:297]}..."

"""Detect truncated text files, and shorten long error messages.

A compressed file records where it ends; a text file does not. A text file is refused if its last
line has no line break, or if its size changes while it is read.
"""

import os
from pathlib import Path

from isotherm.data.registry import PathLike
from isotherm.io.untrusted import check_regular, printable

MESSAGE_LENGTH = 300


class SizeCheck:
    """The size of a file when reading began."""

    def __init__(self, path: PathLike) -> None:
        check_regular(path)
        self.path, self.size = Path(path), os.stat(path).st_size

    def check(self) -> None:
        """Raise `ValueError` if the size has changed since."""
        if self.path.stat().st_size != self.size:
            raise ValueError(f"`{self.path}` changed while it was being read")


def check_final_newline(line: bytes) -> None:
    """Raise `ValueError` if a line has no line break: its last digits may be missing."""
    if not line.endswith(b"\n"):
        raise ValueError(
            "it does not end with a line break, so it may be truncated "
            "(if the file is complete, add a line break at its end)"
        )


def shorten(value: object) -> str:
    """Return `str(value)`, shortened to 300 characters, with control characters as escapes.

    Examples
    --------
    >>> shorten(ValueError("x" * 1000))[-5:], len(shorten(ValueError("x" * 1000)))
    ('xx...', 300)
    """
    text = printable(value)
    return text if len(text) <= MESSAGE_LENGTH else f"{text[: MESSAGE_LENGTH - 3]}..."

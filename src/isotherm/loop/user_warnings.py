"""Warnings that point to the user's line, however deep in the package they arise."""

import inspect
import os
import warnings
from pathlib import Path
from typing import NamedTuple

PACKAGE = str(Path(__file__).parents[1]) + os.sep


class Message(NamedTuple):
    """A warning to issue."""

    text: str
    category: type[Warning]


def warn_user(message: Message) -> None:
    """Issue a warning that is attributed to the innermost line outside the package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message.text, message.category, stacklevel=level)

"""Reading of untrusted folders: never outside the folder, and never without a limit of size.

A checksum proves that a file was not damaged, not who wrote it. A name in a file may therefore be
`../../secret`, a file may be a link or a pipe, and a document may be nested a million times. All of
this is refused as damage. A message that quotes such a file escapes control characters, so that a
name in a file cannot control a terminal.
"""

import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import IO, Any

MAX_JSON_BYTES = 2**26
"""Largest document that is read; those of isotherm have less than a hundredth of it."""


MAX_MESSAGE = 1000
"""Largest number of characters in a message that quotes a file."""


def printable(text: object) -> str:
    r"""Return text for a message in one line: control characters are escaped, long text is cut.

    Examples
    --------
    >>> print(printable("red \x1b[31m\nnext"), len(printable("x" * 9999)))
    red \x1b[31m\nnext 1000
    """
    text = str(text)
    cut = text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


class Damaged(ValueError):
    """A file is truncated, changed, or not one of isotherm's; the message is `printable`."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def inside(folder: Path, name: Any) -> Path:
    """Return the path of a file in a folder, given its relative name with `/`.

    Raises
    ------
    Damaged
        The name leads out of the folder, or the file or a folder above it is a link.
    """
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    plain = parts and not any(part in ("/", "..") or set(part) & set("\\:\0") for part in parts)
    if not plain or str(name).startswith("/"):
        raise Damaged(f"`{name}` is not the name of a file in `{folder}`.")
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise Damaged(f"`{path}` is a link; links are not followed.")
    return path


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; links, pipes and devices are refused.

    Raises
    ------
    Damaged
        It is not a regular file.
    OSError
        It does not exist or cannot be read.
    """
    if path.is_symlink():
        raise Damaged(f"`{path}` is a link; links are not followed.")
    # Opening a pipe without a writer would block; a link may have replaced the file meanwhile.
    flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, os.O_RDONLY | flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Damaged(f"`{path}` is not a file.")
    return os.fdopen(handle, "rb")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Check that a path from the user is a regular file, before a library opens it by its name.

    Reading a pipe may block forever, and a device has no end. Links are followed, since the user
    chose the path.

    Raises
    ------
    Damaged
        It is a folder, a pipe or a device.
    OSError
        It does not exist.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Damaged(f"`{os.fspath(path)}` is not a file.")


def read_json(path: Path) -> Any:
    """Read a JSON document.

    Raises
    ------
    Damaged
        It is not a regular file, too large, or not JSON.
    OSError
        It does not exist or cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_JSON_BYTES:
            raise Damaged(f"`{path}` has {size:,} bytes, more than isotherm writes.")
        content = file.read(MAX_JSON_BYTES)
    return parse_json(content, f"`{path}` is damaged, it is not JSON")


def parse_json(content: str | bytes, message: str) -> Any:
    """Parse JSON; whatever is wrong with it raises `Damaged`, whose text begins with `message`."""
    try:
        return json.loads(content)
    except RecursionError:
        raise Damaged(f"{message}: it is nested too deeply.") from None
    except ValueError as error:
        raise Damaged(f"{message}: {error}.") from error


def check_format(path: Path, found: Any, known: int) -> None:
    """Raise an error that says what to do if the format version of a file is not `known`."""
    if found == known:
        return
    if isinstance(found, int) and found > known:
        advice = "a newer version of isotherm wrote it: install that version or a later one"
    else:
        advice = "an older version of isotherm wrote it: use that version, or make it again"
    raise Damaged(f"`{path}` has format {found}, this version reads format {known}; {advice}.")

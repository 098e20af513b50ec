"""Signals and errors during a command: when it stops, what it prints, and its exit code."""

import errno
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from isotherm.io.files import in_words
from isotherm.loop.signals import handle_signals

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EIO}


class Interrupts:
    """Handler of Ctrl-C and SIGTERM that stops a run where it can be resumed.

    If `can_resume` is set, the first signal stops the run at the next call of the progress callback
    (see `wrap`), when a piece of work is finished and saved. A second signal stops it at once, as
    does the first signal if `can_resume` is not set.
    """

    def __init__(self) -> None:
        self.can_resume = self.requested = False
        self.handler = handle_signals(self._on_signal)

    def __enter__(self) -> "Interrupts":
        self.handler.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.handler.__exit__(*exception)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.requested or not self.can_resume:
            raise KeyboardInterrupt
        self.requested = True
        # The signal may interrupt a write to sys.stderr, so its buffer cannot be used here.
        os.write(2, b"Stopping after this piece of work. Press Ctrl-C again to stop at once.\n")

    def wrap(self, report: Callable[[str], None]) -> Callable[[str], None]:
        """Return a progress callback that also stops the run if a signal has arrived."""

        def report_or_stop(message: str) -> None:
            if self.requested:
                raise KeyboardInterrupt
            report(message)

        return report_or_stop


def resume_command(
    name: str, smoke: bool, seed: int, overrides: Sequence[str], out: Path, data_dir: Path | None
) -> str:
    """Return the command that resumes a run."""
    settings = [word for override in overrides for word in ("--set", override)]
    words = ["isotherm", "run", name, *(["--smoke"] * smoke), "--seed", str(seed), *settings]
    folder = [] if data_dir is None else ["--data-dir", str(data_dir)]
    return shlex.join([*words, "--out", str(out), *folder, "--resume"])


@contextmanager
def exit_on_error(
    context: typer.Context, how_to_resume: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Print one line for an error and exit with its code; print a traceback under `--debug`.

    The codes are 130 for an interrupt, 1 if a file cannot be written or read, 2 for anything else.
    `how_to_resume` returns a sentence to add if the run can be resumed.
    """
    try:
        yield
    except KeyboardInterrupt:
        advice = how_to_resume()
        typer.echo(f"Interrupted.{' Finished work is saved. ' if advice else ''}{advice}", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        disk_error = _describe_disk_error(error) if isinstance(error, OSError) else None
        if context.obj:
            import traceback

            traceback.print_exc()
        else:
            from isotherm.cli import tables

            message = f"{disk_error} {how_to_resume()}" if disk_error else _describe(error)
            tables.print_error(message)
        raise typer.Exit(1 if disk_error else 2) from None


def _describe(error: Exception) -> str:
    """Return the first line of an error; name its type if it is not an error of the user."""
    message = next(iter(in_words(error).splitlines()), "")
    if isinstance(error, ValueError | OSError):
        return message
    return f"{type(error).__name__}: {message} (`isotherm --debug …` prints the traceback)"


def _describe_disk_error(error: OSError) -> str | None:
    """Return a message if a disk is full or cannot be accessed; None for other errors."""
    if error.errno not in DISK_FULL | NO_ACCESS:
        return None
    verb = "write" if error.errno in DISK_FULL else "use"
    path = f" `{error.filename}`" if error.filename else ""
    reason = os.strerror(error.errno).lower()
    return f"Cannot {verb}{path}: {reason}. Files written before are intact."

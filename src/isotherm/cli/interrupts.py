"""What can happen to a run from outside: somebody stops it, or the disk is full."""

import errno
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from isotherm.loop.signals import signals_go_to

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EIO}


class Interrupts:
    """Ctrl-C and SIGTERM, obeyed where a run can go on later.

    Once the run is `patient`, the first signal waits until a piece of work is finished and saved: until the
    experiment next says something. A second one stops at once, as does the first of a run that saves nothing.
    """

    def __init__(self) -> None:
        self.patient = self.asked = False
        self.listening = signals_go_to(self._ask)

    def __enter__(self) -> "Interrupts":
        self.listening.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.listening.__exit__(*exception)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked or not self.patient:
            raise KeyboardInterrupt
        self.asked = True
        # Not by way of Python's buffers, which the signal may have come in the middle of.
        os.write(2, b"Stopping after this piece of work; once more stops at once.\n")

    def between(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """Give a `say` that is also where a signal is obeyed."""

        def also(message: str) -> None:
            if self.asked:
                raise KeyboardInterrupt
            say(message)

        return also


def resume_command(name: str, smoke: bool, seed: int, overrides: Sequence[str], out: Path) -> str:
    """Spell the command that goes on with a run."""
    settings = [word for override in overrides for word in ("--set", override)]
    words = ["isotherm", "run", name, *(["--smoke"] * smoke), "--seed", str(seed), *settings]
    return shlex.join([*words, "--out", str(out), "--resume"])


def out_of_room(error: OSError) -> str | None:
    """Say in a sentence that a disk is full or closed; nothing if that is not the trouble."""
    if error.errno not in NO_ROOM | NO_ACCESS:
        return None
    verb = "write" if error.errno in NO_ROOM else "use"
    place = f" `{error.filename}`" if error.filename else ""
    reason = os.strerror(error.errno).lower()
    return f"Cannot {verb}{place}: {reason}; what was written before is intact."

"""Ctrl-C and SIGTERM, for those who want to finish what they are doing first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signals_go_to(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Let a handler have both signals for a while; outside the main thread, which gets none, nothing changes."""
    here = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if here else ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)

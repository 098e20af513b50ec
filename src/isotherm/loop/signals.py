"""Handlers for Ctrl-C and SIGTERM, so that work can be finished before the process stops."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handle_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Send SIGINT and SIGTERM to a handler inside the context.

    Outside the main thread, which alone receives signals, nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)

"""Helpers for tests that start processes."""

import os
import socket
import subprocess
import sys


def free_port():
    """Return a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def begin(module, *arguments, **environment):
    """Start a module as a program with warnings as errors and extra environment variables."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", module.__file__, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )

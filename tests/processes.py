"""Programs that tests start in processes of their own."""

import os
import socket
import subprocess
import sys


def free_port():
    """Give a port of this machine that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def begin(module, *arguments, **environment):
    """Start a module as a program, warnings as errors, with variables beside those of this process."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", module.__file__, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )

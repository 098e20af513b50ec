"""A headless Chromium, controlled through a pipe by the DevTools protocol, without a driver."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from itertools import count

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)

WIRE = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4);"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
"""Start the browser, which reads from descriptor 3 and writes to 4.

`preexec_fn` would do the same, but it forks, which JAX forbids.
"""


def find():
    """Return the path of a browser, or None."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One tab; warnings and errors of the page are in `errors`."""

    def __init__(self, profile):
        to_browser, self.writing = os.pipe()
        self.reading, from_browser = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        command = [find(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WIRE, *map(str, high), *command],
            pass_fds=high,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_browser, from_browser, *high):
            os.close(end)
        self.numbers, self.buffer = count(1), b""
        self.errors, self.events, self.session = [], [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()
        os.close(self.writing), os.close(self.reading)

    def call(self, method, **params):
        """Send a command and return its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self):
        while b"\0" not in self.buffer:
            read = os.read(self.reading, 65536)
            assert read, "the browser closed the pipe"
            self.buffer += read
        line, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(line)
        name, params = message.get("method"), message.get("params", {})
        if name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif name in ("Runtime.exceptionThrown", "Network.loadingFailed"):
            self.errors.append(json.dumps(params)[:300])
        elif name == "Page.loadEventFired":
            self.events.append(name)
        return message

    def open(self, path):
        """Load a file and wait until it is complete."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.events:
            self._next()

    def ask(self, expression):
        """Return the value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key, code):
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def resize(self, width, height, dark=False):
        """Set the size of the window (a phone below 600 pixels) and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

"""Record results as entries of JSON documents, with versions and the date."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("isotherm", "jax", "jaxlib", "numpy", "scipy")


def machine(*packages: str) -> dict[str, Any]:
    """Return the date, the commit, the machine and the versions of packages."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in (*PACKAGES, *packages)},
    }


def _commit() -> str:
    """Return the commit, with `-dirty` if anything but results has changed since."""
    root = str(RESULTS.parent.parent)
    commands = (["describe", "--always"], ["status", "--porcelain", ".", ":!soak/results"])
    commit, changes = (
        subprocess.run(["git", "-C", root, *command], capture_output=True, text=True).stdout.strip()
        for command in commands
    )
    return (commit or "none") + ("-dirty" if changes else "")


def entry_of(document: str, name: str) -> dict[str, Any]:
    """Return an entry of `results/DOCUMENT.json`, or an empty one if there is none."""
    return _entries(document).get(name, {})


def record(document: str, name: str, entry: dict[str, Any], *packages: str) -> None:
    """Write an entry to `results/DOCUMENT.json`, replacing an older one, and print it."""
    _write(document, {**_entries(document), name: {**entry, "machine": machine(*packages)}})
    print(name, json.dumps(entry), flush=True)


def forget(document: str, names: Iterable[str]) -> None:
    """Remove entries of `results/DOCUMENT.json`."""
    _write(document, {k: v for k, v in _entries(document).items() if k not in set(names)})


def _write(document: str, entries: dict[str, Any]) -> None:
    text = json.dumps(dict(sorted(entries.items())), indent=1) + "\n"
    (RESULTS / f"{document}.json").write_text(text)


def _entries(document: str) -> dict[str, Any]:
    """Return all entries of a document."""
    path = RESULTS / f"{document}.json"
    return json.loads(path.read_text()) if path.exists() else {}

"""A folder of compiled programs for the tests: what was compiled once is not compiled again.

Test processes write to it, and read from it in this run and the next ones. Programs that tests
start as processes of their own only read: they are killed, or have no space left, on purpose. The
folder is for one version of JAX and one processor, and is emptied before it becomes too large.
`JAX_COMPILATION_CACHE_DIR` names another folder, and is empty for none.
"""

import hashlib
import os
import platform
import shutil
import threading
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1] / ".jax_cache"
MOST_BYTES = 1e9
NEVER = 1e9
"""Seconds that no compilation takes."""


def machine():
    """Return a short name of the processor, and of what its instructions are."""
    description = platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text().split("\n\n")[0].splitlines()
        kept = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")
        description += "".join(sorted(line for line in lines if line.startswith(kept)))
    return hashlib.sha256(description.encode()).hexdigest()[:12]


FOLDER = ROOT / f"jaxlib-{version('jaxlib')}-{machine()}"


def choose_folder():
    """Name the folder for this process and those that it starts; call this before JAX is loaded."""
    if os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(FOLDER)) == str(FOLDER):
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = str(NEVER)


def let_this_process_write():
    """Store every program that this process compiles.

    JAX writes to the final name, where another process can read half of a program, which is a
    warning and so an error. Here a complete file is renamed.
    """
    import jax
    from jax._src import lru_cache

    if os.environ["JAX_COMPILATION_CACHE_DIR"] != str(FOLDER):
        return

    def put(cache, key, value):
        draft = cache.path / f".draft-{os.getpid()}-{threading.get_ident()}"
        draft.write_bytes(value)
        draft.replace(cache.path / f"{key}-cache")

    lru_cache.LRUCache.put = put
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def empty_if_large():
    """Remove all programs if they take more than `MOST_BYTES`."""
    if sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file()) > MOST_BYTES:
        shutil.rmtree(ROOT, ignore_errors=True)

"""Shared by all tests: one key, no silent broadcasting, and no program compiled twice."""

import os
import tempfile

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiling is most of the time of a test. Every process has a folder of its own: JAX's files are not safe between processes.
COMPILED = tempfile.TemporaryDirectory(prefix="isotherm-tests-", ignore_cleanup_errors=True)
jax.config.update("jax_compilation_cache_dir", COMPILED.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def key():
    return jax.random.key(20160212)


def pytest_configure():
    """Give every test process cores of its own: threads that wait for each other slow all of them."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{end}") for end in ("", "_COUNT"))
    if worker and count and hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))[int(worker.removeprefix("gw")) :: int(count)]
        if own:
            os.sched_setaffinity(0, own)


def pytest_collection_modifyitems(items):
    """Begin with the long ones, so that two processes end together."""
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/experiments", "tests/docs")))

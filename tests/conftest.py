"""Shared by all tests: one key, and no silent broadcasting."""

import ctypes
import gc
import os

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
    return jax.random.key(20160212)


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs():
    """Free the programs that a module compiled: no other module uses them, and they take gigabytes."""
    yield
    jax.clear_caches()
    gc.collect()
    if os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def pytest_configure():
    """Give every test process cores of its own: threads that wait for each other slow all of them."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{end}") for end in ("", "_COUNT"))
    if worker and count and hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))[int(worker.removeprefix("gw")) :: int(count)]
        if own:
            os.sched_setaffinity(0, own)


def pytest_collection_modifyitems(items):
    """Begin with the long ones, so that two processes end together."""
    items.sort(
        key=lambda item: not item.nodeid.startswith(("tests/paper/experiments", "tests/docs"))
    )

"""Shared by all tests: one key, and broadcasting between ranks is an error."""

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
    """Free compiled programs after each module: no other module uses them."""
    yield
    jax.clear_caches()
    gc.collect()
    if os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def pytest_configure():
    """Pin each test process to cores of its own, so that their threads do not compete."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{end}") for end in ("", "_COUNT"))
    if worker and count and hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))[int(worker.removeprefix("gw")) :: int(count)]
        if own:
            os.sched_setaffinity(0, own)


def pytest_collection_modifyitems(items):
    """Start with the long tests, so that both processes end at about the same time."""
    items.sort(
        key=lambda item: not item.nodeid.startswith(("tests/paper/experiments", "tests/docs"))
    )

"""Shared by all tests: one key, and broadcasting between ranks is an error."""

import ctypes
import gc
import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

COMPILER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
"""Flags of the compiler. Most of the time of the tests is compilation, and XLA's older generator of
code for fused loops takes about half as long. Programs that tests start in processes of their own
inherit the flags. With `XLA_FLAGS` in the environment, also an empty one, these are used instead:
`XLA_FLAGS= make test` tests what users have."""
os.environ.setdefault("XLA_FLAGS", COMPILER)

MOST_MEMORY = 1.3e9
"""Bytes of a test process from which compiled programs are freed between two tests."""
LEAST_GROWTH = 0.2e9
"""Bytes by which a process grows before programs are freed again: what remains after that, modules
and data, can exceed `MOST_MEMORY`, and every test would compile everything anew."""
LONG_DOCTESTS = (
    "src/isotherm/batches/streamed",
    "src/isotherm/diagnostics/predictions",
    "src/isotherm/diagnostics/stein_discrepancy",
    "src/isotherm/dynamics/measured_order",
    "src/isotherm/estimators",
    "src/isotherm/gradients/balanced",
    "src/isotherm/interop/optax",
    "src/isotherm/loop/collect",
    "src/isotherm/paper/baselines",
    "src/isotherm/topics/dpfa/boltzmann",
)
"""Doctests that are slow: what they show has quick tests."""
LONG_CHECKS = ("check_sample_weight_equivalence_on_dense_data]",)
"""Checks of scikit-learn that are slow: this one is expected to fail."""


@pytest.fixture
def key():
    return jax.random.key(20160212)


@pytest.fixture
def compile_quickly():
    """Compile with few optimisations: for tests that compile much and run for milliseconds.

    Not in a module where another test compares bits of the same programs: JAX keeps a program
    however it was compiled, and two programs of one run would then round differently.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def free_compiled_programs():
    """Free all compiled programs, and return the memory to the system."""
    jax.clear_caches()
    gc.collect()
    if os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def resident_bytes():
    """Return the memory of this process, where the system tells it."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        return 0
    return int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module", autouse=True)
def free_after_each_module():
    """Free programs that no other module uses."""
    yield
    free_compiled_programs()


class Memory:
    """What the process needs without compiled programs."""

    remaining = 0


def pytest_runtest_teardown():
    """Free programs within a module that compiles many, before they fill the memory."""
    if resident_bytes() > max(MOST_MEMORY, Memory.remaining + LEAST_GROWTH):
        free_compiled_programs()
        Memory.remaining = resident_bytes()


def pytest_configure():
    """Pin each test process to cores of its own, so that their threads do not compete."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{end}") for end in ("", "_COUNT"))
    if worker and count and hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))[int(worker.removeprefix("gw")) :: int(count)]
        if own:
            os.sched_setaffinity(0, own)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark long doctests and checks, and start with the long tests.

    So both processes end at about the same time.
    """
    for item in items:
        if item.nodeid.startswith(LONG_DOCTESTS) or item.nodeid.endswith(LONG_CHECKS):
            item.add_marker(pytest.mark.slow)
    items.sort(
        key=lambda item: not item.nodeid.startswith(("tests/paper/experiments", "tests/docs"))
    )

"""Shared by all tests: one key, and no silent broadcasting."""

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
    return jax.random.key(20160212)


def pytest_collection_modifyitems(items):
    """Begin with the long ones, so that two processes end together."""
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/experiments", "tests/docs")))

"""Cases of parametrised tests that are left to `make test-slow`."""

import pytest


def slow(*case):
    """Mark one case of a parametrised test as slow."""
    return pytest.param(*case, marks=pytest.mark.slow)

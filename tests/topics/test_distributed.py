"""Topic chains are bit-identical on any number of processes; a killed process is reported."""

import numpy as np
import pytest
import shared_batches

from processes import begin, free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Folder with the results of two processes, and their stdout and stderr."""
    folder = tmp_path_factory.mktemp("processes")
    port = free_port()
    both = [begin(shared_batches, folder, i, port) for i in range(2)]
    return folder, [process.communicate(timeout=600) for process in both]


@pytest.fixture(scope="module")
def alone():
    return shared_batches.run_all(False)


@pytest.mark.parametrize("name", ["lda", "belief", "boltzmann"])
def test_two_processes_give_the_same_bits_as_one(two, alone, name):
    for number in range(2):
        with np.load(two[0] / f"{name}-{number}.npz") as state:
            assert set(state.files) == set(alone[name])
            for key, expected in alone[name].items():
                if key == "predicted":  # a sum of logarithms, in another order
                    np.testing.assert_allclose(state[key], expected, rtol=1e-12)
                else:
                    np.testing.assert_array_equal(state[key], expected)


def test_all_processes_report_the_process_without_documents(two):
    for stdout, _ in two[1]:
        assert "`batch` has no documents in process 1." in stdout


def test_killed_process_is_reported(two):
    assert "LostProcessError: Another process of this run has ended" in two[1][0][1]

"""Chains of topics are the same on any number of processes, and none waits for one that is gone."""

import numpy as np
import pytest
import shared_batches

from processes import begin, free_port


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes found, and what they said."""
    folder = tmp_path_factory.mktemp("processes")
    port = free_port()
    both = [begin(shared_batches, folder, i, port) for i in range(2)]
    return folder, [process.communicate(timeout=600) for process in both]


@pytest.fixture(scope="module")
def alone():
    return shared_batches.everything(False)


@pytest.mark.parametrize("name", ["lda", "belief", "boltzmann"])
def test_two_processes_that_share_batches_find_what_one_finds_to_the_last_bit(two, alone, name):
    for number in range(2):
        with np.load(two[0] / f"{name}-{number}.npz") as found:
            assert set(found.files) == set(alone[name])
            for key, right in alone[name].items():
                if key == "predicted":  # a sum of logarithms, in another order
                    np.testing.assert_allclose(found[key], right, rtol=1e-12)
                else:
                    np.testing.assert_array_equal(found[key], right)


def test_a_process_without_documents_is_named_by_all(two):
    for told, _ in two[1]:
        assert "`batch` has no documents in process 1." in told


def test_a_process_that_is_gone_is_missed(two):
    assert "LostProcessError: Another process of this run has ended" in two[1][0][1]

"""Chains are the same on any number of devices; shared batches add up to the same gradients; who is killed stops the others."""

import json
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import several_devices
from jax.sharding import Mesh

import isotherm
from isotherm.loop.devices import Devices
from processes import begin, free_port

ONE = Mesh(np.array(jax.devices()[:1]), ("chain",))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Runs on four simulated devices in one process."""
    folder = tmp_path_factory.mktemp("devices")
    flags = "--xla_force_host_platform_device_count=4"
    process = begin(several_devices, "devices", folder, XLA_FLAGS=flags)
    told, trouble = process.communicate(timeout=900)
    assert process.returncode == 0, trouble
    return folder, json.loads(told.splitlines()[-1])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two processes, the second of which is killed."""
    folder = tmp_path_factory.mktemp("processes")
    port = free_port()
    first, second = (begin(several_devices, "process", folder, i, port) for i in range(2))
    second.communicate(timeout=900)
    killed = time.monotonic()
    told, trouble = first.communicate(timeout=300)
    return folder, first.returncode, second.returncode, told, trouble, time.monotonic() - killed


def arrays(folder, name):
    with np.load(folder / f"{name}.npz") as found:
        return [found[x] for x in found.files]


def test_chains_are_the_same_on_1_2_and_4_devices_also_after_a_cut(four):
    folder, _ = four
    one, other = arrays(folder, "chains-1"), arrays(folder, "chains-4-then-2")
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def close(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_devices_that_share_a_batch_differ_by_rounding_only(four):
    folder, _ = four
    close(arrays(folder, "shared-none"), arrays(folder, "shared-2-by-2"))


def test_gradients_are_added_up_once_per_gradient_and_data_stay_where_they_are(four):
    # Two chains of three numbers per device; the loop over steps has one gradient, the step that is kept another.
    assert [(kind, shape.split("{")[0]) for shape, kind in four[1]] == 2 * [
        ("all-reduce", "f32[2,3]")
    ]


def test_two_processes_share_a_batch_and_each_reads_its_own_shards(four, two):
    for number in range(2):
        close(arrays(four[0], "shared-none"), arrays(two[0], f"shared-process-{number}"))
        assert json.loads((two[0] / f"read-{number}.json").read_text()) == [
            2 * number,
            2 * number + 1,
        ]


def test_processes_that_were_asked_for_different_runs_say_so(two):
    assert "The processes of this run differ: give all of them the same key" in two[3]


def test_a_killed_process_stops_the_other_within_a_minute_and_says_how_to_go_on(two):
    _, first, second, _, trouble, seconds = two
    assert second == -signal.SIGKILL
    assert first != 0
    assert "LostProcessError: Another process of this run has ended" in trouble
    assert seconds < 60


def test_what_two_processes_saved_goes_on_in_one_as_if_nothing_had_been(two):
    folder = two[0] / "killed"
    latest = max(folder.glob("state-*.json"))
    told = json.loads(latest.read_text())
    num_draws = told["kept"] + 5
    parts = {name.split("/")[0] for name in told["state"]["files"]}
    assert {"ocdbt.process_0", "ocdbt.process_1"} <= parts  # each process wrote its own
    full = isotherm.full_batch((several_devices.X, several_devices.Y))
    again = several_devices.run(full, ONE, num_draws, checkpoint=folder)
    never_cut = several_devices.run(full, ONE, num_draws)
    for a, b in zip(*map(several_devices.everything, (again, never_cut)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_chain_on_a_mesh_is_the_chain_without_one():
    settings = {"num_draws": 5, "thin": 2, "progress": False}
    sampler = isotherm.sghmc(lambda x, batch: -x, 0.1)
    start = jax.random.key(0), sampler, jnp.zeros(2), isotherm.no_batches()
    alone = isotherm.sample(*start, **settings)
    there = isotherm.sample(*start, **settings, mesh=ONE)
    np.testing.assert_allclose(there.draws, alone.draws, rtol=1e-6)
    further = isotherm.sample(*start, **settings, state=there.state, mesh=ONE)
    np.testing.assert_allclose(
        further.draws, isotherm.sample(*start, **settings, state=alone.state).draws, rtol=1e-6
    )


def fake(*shape):
    """A mesh as wide as one likes; good for arguments only."""
    return Mesh(
        np.array([jax.devices()[0]] * int(np.prod(shape))).reshape(shape), ("chain", "data")
    )


def test_what_cannot_be_dealt_out_is_refused():
    nothing = isotherm.no_batches()
    with pytest.raises(ValueError, match="multiple of the mesh's axis `chain`, got 3 and 2"):
        Devices(fake(2, 1), 3, nothing)
    with pytest.raises(
        ValueError, match="2 devices along `data`, but none batches cannot be shared"
    ):
        Devices(fake(1, 2), 3, nothing)
    with pytest.raises(ValueError, match="multiple of the mesh's axis `data`, got 3 and 2"):
        Devices(fake(1, 2), 3, isotherm.sharded_batches(np.arange(6.0), 3, 3))


def test_only_broken_connections_between_processes_are_called_so():
    there = Devices(ONE, 1, isotherm.no_batches())
    there.several = True
    with pytest.raises(ValueError, match=r"^bad$"), there.together():
        raise ValueError("bad")
    with pytest.raises(isotherm.exceptions.LostProcessError, match="Gloo"), there.together():
        raise ValueError("UNKNOWN: Gloo all-reduce failed: connection reset\nand more")
    there.several = False
    with pytest.raises(ValueError, match=r"^UNKNOWN"), there.together():
        raise ValueError("UNKNOWN: something else")

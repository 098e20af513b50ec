"""Chains are the same on any number of devices and processes; a lost process is reported."""

import json
import os
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
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    process = begin(several_devices, "devices", folder, XLA_FLAGS=flags)
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    return folder, json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two processes, the second of which is killed."""
    folder = tmp_path_factory.mktemp("processes")
    port = free_port()
    first, second = (begin(several_devices, "process", folder, i, port) for i in range(2))
    second.communicate(timeout=900)
    killed = time.monotonic()
    output, errors = first.communicate(timeout=300)
    return folder, first.returncode, second.returncode, output, errors, time.monotonic() - killed


def arrays(folder, name):
    with np.load(folder / f"{name}.npz") as file:
        return [file[x] for x in file.files]


@pytest.mark.slow
def test_chains_are_the_same_on_1_2_and_4_devices_also_when_resumed(four):
    folder, _ = four
    one, other = arrays(folder, "chains-1"), arrays(folder, "chains-4-then-2")
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def close(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_devices_that_share_a_batch_differ_by_rounding_only(four):
    folder, _ = four
    close(arrays(folder, "shared-none"), arrays(folder, "shared-2-by-2"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["streamed", "streamed-shared"])
def test_streamed_batches_are_distributed_over_chains_and_rows(four, name):
    one, all_chains = arrays(four[0], f"{name}-1-1"), arrays(four[0], f"{name}-4-1")
    for a, b in zip(one, all_chains, strict=True):
        np.testing.assert_array_equal(a, b)
    for grid in ("1-1", "2-2"):
        close(arrays(four[0], f"{name}-none"), arrays(four[0], f"{name}-{grid}"))


@pytest.mark.slow
def test_processes_read_their_chains_and_their_rows_of_streamed_batches(four, two):
    for number in range(2):
        for name in ("chains", "rows"):
            close(arrays(four[0], "streamed-none"), arrays(two[0], f"streamed-{name}-{number}"))
    both = [arrays(two[0], f"streamed-loader-{number}") for number in range(2)]
    close(*both)
    whole = isotherm.streamed_batches(
        lambda i: [
            np.concatenate(part)
            for part in zip(*(several_devices.share(number, i) for number in range(2)), strict=True)
        ],
        policy="independent",
    )
    close(several_devices.everything(several_devices.run(whole, None)), both[0])


@pytest.mark.slow
def test_balanced_batches_are_the_same_on_1_2_and_4_devices(four):
    folder, _ = four
    one = arrays(folder, "balanced-1")
    for number in (2, 4):
        close(one, arrays(folder, f"balanced-{number}"))


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["plain", "balanced"])
def test_gradients_are_summed_once_each_and_data_are_not_moved(four, gradient):
    # Two chains of three numbers per device; one gradient in the loop over steps, one in the step
    # that is kept. Rows are balanced within their shard, which needs no other device.
    assert [(kind, shape.split("{")[0]) for shape, kind in four[1][gradient]] == 2 * [
        ("all-reduce", "f32[2,3]")
    ]


@pytest.mark.slow
def test_two_processes_share_a_batch_and_each_reads_its_own_shards(four, two):
    for number in range(2):
        close(arrays(four[0], "shared-none"), arrays(two[0], f"shared-process-{number}"))
        assert json.loads((two[0] / f"read-{number}.json").read_text()) == [
            2 * number,
            2 * number + 1,
        ]


@pytest.mark.slow
def test_processes_with_different_arguments_are_refused(two):
    assert "The processes of this run differ: use the same key" in two[3]


@pytest.mark.slow
def test_a_killed_process_stops_the_other_within_a_minute(two):
    _, first, second, _, errors, seconds = two
    assert second == -signal.SIGKILL
    assert first != 0
    assert "LostProcessError: Another process of this run has ended" in errors
    assert seconds < 60


@pytest.mark.slow
def test_what_two_processes_saved_is_resumed_in_one(two):
    folder = two[0] / "killed"
    latest = max(folder.glob("state-*.json"))
    saved = json.loads(latest.read_text())
    num_draws = saved["kept"] + 5
    parts = {name.split("/")[0] for name in saved["state"]["files"]}
    assert {"ocdbt.process_0", "ocdbt.process_1"} <= parts  # each process wrote its own
    full = isotherm.full_batch((several_devices.X, several_devices.Y))
    resumed = several_devices.run(full, ONE, num_draws, checkpoint=folder)
    uninterrupted = several_devices.run(full, ONE, num_draws)
    for a, b in zip(*map(several_devices.everything, (resumed, uninterrupted)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_chain_on_a_mesh_is_the_chain_without_one():
    settings = {"num_draws": 5, "thin": 2, "progress": False}
    sampler = isotherm.sghmc(lambda x, batch: -x, 0.1)
    start = jax.random.key(0), sampler, jnp.zeros(2), isotherm.no_batches()
    alone = isotherm.sample(*start, **settings)
    on_mesh = isotherm.sample(*start, **settings, mesh=ONE)
    np.testing.assert_allclose(on_mesh.draws, alone.draws, rtol=1e-6)
    further = isotherm.sample(*start, **settings, state=on_mesh.state, mesh=ONE)
    np.testing.assert_allclose(
        further.draws, isotherm.sample(*start, **settings, state=alone.state).draws, rtol=1e-6
    )


def fake(*shape):
    """A mesh of any shape on one device; only for checks of arguments."""
    return Mesh(
        np.array([jax.devices()[0]] * int(np.prod(shape))).reshape(shape), ("chain", "data")
    )


def test_what_cannot_be_distributed_is_refused():
    nothing = isotherm.no_batches()
    with pytest.raises(ValueError, match="multiple of the mesh's axis `chain`, got 3 and 2"):
        Devices(fake(2, 1), 3, nothing)
    with pytest.raises(
        ValueError, match="2 devices along `data`, but none batches cannot be shared"
    ):
        Devices(fake(1, 2), 3, nothing)
    with pytest.raises(ValueError, match="multiple of the mesh's axis `data`, got 3 and 2"):
        Devices(fake(1, 2), 3, isotherm.sharded_batches(np.arange(6.0), 3, 3))


def test_only_broken_connections_become_lost_process_errors():
    devices = Devices(ONE, 1, isotherm.no_batches())
    devices.several = True
    with pytest.raises(ValueError, match=r"^bad$"), devices.lost_process_errors():
        raise ValueError("bad")
    with (
        pytest.raises(isotherm.exceptions.LostProcessError, match="Gloo"),
        devices.lost_process_errors(),
    ):
        raise ValueError("UNKNOWN: Gloo all-reduce failed: connection reset\nand more")
    devices.several = False
    with pytest.raises(ValueError, match=r"^UNKNOWN"), devices.lost_process_errors():
        raise ValueError("UNKNOWN: something else")

"""An interrupted run resumes bit for bit; damaged and foreign checkpoints are refused."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.exceptions import CheckpointWarning
from isotherm.io.files import DRAFT, atomically
from isotherm.loop import checkpoint as module
from isotherm.loop.checkpoint import Checkpoints, PeriodicSaver
from isotherm.loop.run import Rollback
from isotherm.loop.state import RunState
from marks import slow

DATA = (jnp.arange(40.0).reshape(20, 2) / 20, jnp.ones(20))
SETTINGS = {"thin": 3, "burn_in": 250, "num_chains": 2, "progress": False}
COLLECT = {"draws": isotherm.collect.draws(), "moments": isotherm.collect.moments()}


def grad_fn(position, batch):
    x, y = batch
    return 10 * x.T @ (y - x @ position) - position


SAMPLER = isotherm.msgnht(grad_fn, 0.05)  # one, so that it compiles once


def run(folder=None, num_draws=40, seed=0, data=DATA, sampler=SAMPLER, **changes):
    batches = isotherm.independent_batches(data, 5)
    settings = SETTINGS | {"collect": COLLECT, "num_draws": num_draws} | changes
    return isotherm.sample(
        jax.random.key(seed), sampler, jnp.zeros(2), batches, checkpoint=folder, **settings
    )


def same(one, other):
    everything = (
        (one.collected, dict(one.stats), one.state),
        (other.collected, dict(other.stats), other.state),
    )
    for a, b in zip(*map(jax.tree.leaves, everything), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


class Interrupted(Exception):
    """The process was interrupted."""


def interrupt_after(monkeypatch, chunks):
    """Make a run stop after some chunks, each of which is saved."""
    counted = iter(range(chunks))
    after = PeriodicSaver.after_chunk

    def once_more(self, run, *, last=False):
        after(self, run, last=last)
        if next(counted, None) is None:
            raise Interrupted

    monkeypatch.setattr(PeriodicSaver, "after_chunk", once_more)


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 4])
def test_a_run_interrupted_anywhere_has_the_same_result(monkeypatch, tmp_path, chunks):
    whole = run()
    with monkeypatch.context() as patch:
        interrupt_after(patch, chunks)
        with pytest.raises(Interrupted):
            run(tmp_path, checkpoint_seconds=0)
    same(run(tmp_path), whole)
    same(run(tmp_path), whole)  # a finished run is only read


def test_more_draws_continue_the_run_and_fewer_are_refused(tmp_path):
    run(tmp_path, num_draws=10)
    same(run(tmp_path), run())
    with pytest.raises(
        ValueError, match="already has 40 draws, more than `num_draws`, which is 20"
    ):
        run(tmp_path, num_draws=20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"another run: key was \[0, 0\], now it is \[0, 1\]"),
        ({"thin": 2}, "thin was 3, now it is 2"),
        ({"num_chains": 3}, "num_chains was 2, now it is 3"),
        (
            {"collect": {"moments": isotherm.collect.moments(jnp.sum)}},
            r"collect, .* was float32\[2, 2\]",
        ),
        ({"data": (DATA[0] + 1, DATA[1])}, "batches was"),
        ({"sampler": isotherm.msgnht(grad_fn, 0.04)}, "what a step does .* was .*, now it is"),
        ({"sampler": isotherm.msgnht(grad_fn, 0.05, 1.1)}, "what a step does"),
        (
            {"sampler": isotherm.msgnht(lambda x, batch: grad_fn(x, batch) - x, 0.05)},
            "what a step does",
        ),
    ],
)
def test_the_folder_of_another_run_is_refused(tmp_path, changes, message):
    run(tmp_path, num_draws=5)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, **changes)


@pytest.mark.parametrize("sharded", [False, slow(True)])
def test_changed_data_are_refused_wherever_the_change_is(tmp_path, sharded):
    """Of 5000 rows, those whose number is not a multiple of 5 were not looked at before."""
    x, y = np.ones((5000, 2), np.float32), np.ones(5000, np.float32)

    def go(targets):
        make = isotherm.sharded_batches if sharded else isotherm.independent_batches
        batches = make((x, targets), 20, *([4] if sharded else []))
        settings = {"num_draws": 5, "checkpoint": tmp_path, "progress": False}
        return isotherm.sample(jax.random.key(0), SAMPLER, jnp.zeros(2), batches, **settings)

    first = go(y)
    changed = y.copy()
    changed[np.arange(5000) % 5 != 0] += 1000
    with pytest.raises(ValueError, match="another run: batches was"):
        go(changed)
    one = y.copy()
    one[4321] = np.nextafter(np.float32(1), np.float32(2))
    with pytest.raises(ValueError, match="another run: batches was"):
        go(one)
    np.testing.assert_array_equal(go(y).draws, first.draws)


def weighted_square(x):
    return jnp.sum(x**2)


def collected_on(rows):
    return isotherm.collect.probabilities(lambda w, x: jax.nn.softmax(x * w[None]), rows)


ROWS = np.arange(6.0, dtype=np.float32).reshape(3, 2)


@pytest.mark.parametrize("make", [isotherm.collect.average, isotherm.collect.draws])
@pytest.mark.parametrize("other", [jnp.sum, lambda x: jnp.sum(x**2) + 1e-3])
def test_another_function_in_a_collector_is_refused(tmp_path, make, other):
    run(tmp_path, 5, collect={"f": make(weighted_square)})
    with pytest.raises(ValueError, match="another run: what is collected"):
        run(tmp_path, 10, collect={"f": make(other)})
    resumed = run(tmp_path, 10, collect={"f": make(lambda x: jnp.sum(x**2))})  # the same function
    same(resumed, run(num_draws=10, collect={"f": make(weighted_square)}))


def test_other_rows_in_a_collector_are_refused(tmp_path):
    run(tmp_path, 5, collect={"test": collected_on(ROWS)})
    changed = ROWS.copy()
    changed[2, 1] = np.nextafter(changed[2, 1], np.float32(9))
    with pytest.raises(ValueError, match="another run: what is collected"):
        run(tmp_path, 10, collect={"test": collected_on(changed)})
    with pytest.raises(ValueError, match="another run: what is collected"):
        run(tmp_path, 10, collect={"test": collected_on(ROWS[::-1].copy())})
    same(
        run(tmp_path, 10, collect={"test": collected_on(ROWS.copy())}),
        run(num_draws=10, collect={"test": collected_on(ROWS)}),
    )


def test_changed_constants_inside_compiled_functions_are_refused(tmp_path):
    def go(target):
        pull = jax.jit(lambda x: target - x)
        sampler = isotherm.sgld(lambda x, batch: pull(x), 0.1)
        return run(tmp_path, num_draws=5, sampler=sampler, collect=None)

    go(np.arange(2.0, dtype=np.float32))
    with pytest.raises(ValueError, match="what a step does"):
        go(np.array([0, 1.5], np.float32))


def test_another_generator_of_batches_is_refused(tmp_path):
    def go(scale):
        batches = isotherm.generated_batches(lambda key, i: scale * jax.random.normal(key, (2,)))
        sampler = isotherm.sgld(lambda x, batch: batch - x, 0.1)
        settings = {"num_draws": 5, "checkpoint": tmp_path, "progress": False}
        return isotherm.sample(jax.random.key(0), sampler, jnp.zeros(2), batches, **settings)

    go(1.0)
    with pytest.raises(ValueError, match="another run: batches was"):
        go(2.0)


def test_data_may_be_changed_after_the_batches_are_made():
    for _ in range(20):
        x = np.ones((1000, 1000), np.float32)
        batches = isotherm.independent_batches(x, 5)
        x[:] = 7
        assert float(batches.data.max()) == 1


def saved_twice(monkeypatch, folder):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        with pytest.raises(Interrupted):
            run(folder, checkpoint_seconds=0)
    states = sorted(folder.glob("state-*.npz"))
    assert len(states) == 2
    return states


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.999])
def test_a_changed_byte_is_detected_and_the_previous_checkpoint_is_used(
    monkeypatch, tmp_path, place
):
    *_, last = saved_twice(monkeypatch, tmp_path)
    content = bytearray(last.read_bytes())
    content[int(place * len(content))] ^= 1
    last.write_bytes(content)
    with pytest.warns(
        CheckpointWarning, match=re.escape(f"{last.name} was cut or changed")
    ) as caught:
        resumed = run(tmp_path)
    assert caught[0].filename == __file__
    same(resumed, run())


def test_checkpoints_without_run_json_are_refused(tmp_path):
    run(tmp_path)
    (tmp_path / "run.json").unlink()
    changed = (DATA[0], DATA[1].at[7].add(1000.0))
    with pytest.raises(ValueError, match=r"has checkpoints but no `run\.json`"):
        run(tmp_path, 60, data=changed)


def test_a_state_of_another_run_is_not_resumed(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run(ours)
    run(theirs, 60, seed=1)
    for path in theirs.iterdir():
        if path.name != "run.json":
            path.replace(ours / path.name.replace("00000", "00009"))
    state = ours / "state-00009.json"
    content = json.loads(state.read_text().replace("00000", "00009"))
    del content["sha256"]
    state.write_text(json.dumps({**content, "sha256": module._seal(content)}))
    with pytest.warns(CheckpointWarning, match="belongs to another run"):
        resumed = run(ours, 60)
    same(resumed, run(num_draws=60))


def test_a_missing_page_is_reported_in_words(tmp_path):
    run(tmp_path)
    (tmp_path / "page-00000.npz").unlink()
    with pytest.raises(ValueError, match="no such file or directory") as caught:
        run(tmp_path, 60)
    assert "Errno" not in str(caught.value)


def test_names_that_no_folder_can_have_are_refused_in_words(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for name in ("n" * 300, "nul\0", "loop", "loop/inside"):
        with pytest.raises(ValueError, match="cannot be the name of a folder") as caught:
            run(tmp_path / name)
        assert "Errno" not in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_a_truncated_or_missing_file_is_detected(monkeypatch, tmp_path):
    first, last = saved_twice(monkeypatch, tmp_path)
    last.write_bytes(last.read_bytes()[:-1])
    first.unlink()
    with pytest.raises(ValueError, match=r"No checkpoint in .* is intact"):
        run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        run(tmp_path)


@pytest.mark.slow
def test_a_state_in_parts_resumes_the_same(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        with pytest.raises(Interrupted):
            run(tmp_path, checkpoint_seconds=0, checkpoint_in_parts=True)
    assert not list(tmp_path.glob("state-*.npz"))
    assert len([path for path in tmp_path.glob("state-*") if path.is_dir()]) == 2
    same(run(tmp_path), run())  # without `checkpoint_in_parts`
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "orbax.checkpoint", None)
        with pytest.raises(ImportError, match=r"isotherm\[sharded\]"):
            run(tmp_path, 41, checkpoint_in_parts=True)


def test_a_damaged_part_of_a_state_is_detected(tmp_path):
    load, right = saved_by_hand(tmp_path, in_parts=True)
    assert equal(load()[0], right[1])
    last = tmp_path / "state-00001"
    parts = [path for path in last.rglob("*") if path.is_file() and path.stat().st_size]
    assert len(parts) > 5
    for part in parts:
        content = part.read_bytes()
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        found, message = load()
        assert equal(found, right[0]) and message.category is CheckpointWarning
        name = f"state-00001/{part.relative_to(last).as_posix()} was cut or changed"
        assert name in message.text
        part.write_bytes(content)


def saved_by_hand(folder, **settings):
    """Save twice; return a function that loads, and the two states it may return."""

    def state_with(kept):
        pages = [({"draws": np.full((2, n, 3), float(n))}, {"h": np.ones((2, n))}) for n in kept]
        state = {"x": np.arange(6.0).reshape(2, 3) + len(kept)}
        rollbacks = (Rollback(4, 1, "position", 0.5, 0.25),) * len(kept)
        diverged = np.array([False, True])
        return RunState(7, sum(kept), diverged, state, {}, tuple(pages), rollbacks)

    kept = [[2], [2, 3]]
    checkpoints = Checkpoints(folder, {"seed": 1}, **settings)
    for one in kept:
        checkpoints.save(state_with(one))
    first = state_with([2])

    def load():
        page = jax.tree.map(lambda x: x[:, :0], first.pages[0])
        return Checkpoints(folder, {"seed": 1}).load(first.state, first.accumulators, page)

    return load, [state_with(one) for one in kept]


def equal(one, other):
    parts = [jax.tree.leaves(tuple(p)) for p in (one, other)]
    return len(parts[0]) == len(parts[1]) and all(map(np.array_equal, *parts))


def test_no_byte_of_a_checkpoint_can_change_unnoticed(tmp_path):
    """Flip a bit of every seventh byte, and truncate at multiples of 50 bytes.

    The damage is refused, or what is loaded is one of the two states that were saved.
    """
    load, right = saved_by_hand(tmp_path)
    assert equal(load()[0], right[1])
    refused = fell_back = unharmed = 0
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        damaged = [content[:i] for i in range(0, len(content), 50)]
        for i in range(0, len(content), 7):
            damaged.append(content[:i] + bytes([content[i] ^ (1 << i % 8)]) + content[i + 1 :])
        for bad in damaged:
            path.write_bytes(bad)
            try:
                found, message = load()
            except ValueError:
                refused += 1
                continue
            assert any(equal(found, one) for one in right), path.name
            fell_back += equal(found, right[0])
            assert (message is not None) == equal(found, right[0])
            unharmed += equal(found, right[1])
        path.write_bytes(content)
    assert min(refused, fell_back, unharmed) > 50


def test_a_checkpoint_that_cannot_be_written_leaves_the_previous_one(tmp_path, monkeypatch):
    load, right = saved_by_hand(tmp_path)
    checkpoints = Checkpoints(tmp_path, {"seed": 1})

    def fail(*arguments, **more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", fail)
        with pytest.raises(
            OSError, match=r"Cannot save in .*: no space left .* is intact"
        ) as caught:
            checkpoints.save(right[1])
    assert caught.value.errno == 28
    assert equal(load()[0], right[1])


def test_types_that_numpy_does_not_know_are_restored(tmp_path):
    def go(folder):
        sampler = isotherm.sgld(lambda x, batch: -x, 0.1)
        return isotherm.sample(
            jax.random.key(0),
            sampler,
            jnp.zeros(3, jnp.bfloat16),
            isotherm.no_batches(),
            num_draws=6,
            progress=False,
            checkpoint=folder,
        )

    whole = go(None)
    go(tmp_path)
    again = go(tmp_path)
    assert again.draws.dtype == jnp.bfloat16
    same(again, whole)


@pytest.mark.parametrize("keep", [None, 1, 3])
def test_only_the_last_states_are_kept(tmp_path, keep):
    settings = {} if keep is None else {"checkpoint_keep": keep}
    for num_draws in (5, 10, 15, 20):
        run(tmp_path, num_draws=num_draws, **settings)
    assert len(list(tmp_path.glob("state-*.npz"))) == (keep or 2)
    assert len(list(tmp_path.glob("page-*.npz"))) == 4


def test_a_step_with_other_options_of_jax_is_another_step(tmp_path):
    matrix = jnp.eye(2)
    sampler = isotherm.msgnht(lambda x, batch: -matrix @ x, 0.1)
    settings = {"sampler": sampler, "max_memory": float("inf")}
    run(tmp_path, 5, **settings)
    precise = jax.default_matmul_precision("highest")
    with precise, pytest.raises(ValueError, match="what a step does"):
        run(tmp_path, 6, **settings)
    run(tmp_path, 6, **settings)


def test_a_changed_constant_is_found_though_the_traces_are_kept(tmp_path):
    scale = np.ones(2, np.float32)
    sampler = isotherm.msgnht(lambda x, batch: -x * scale, 0.1)
    run(tmp_path, 5, sampler=sampler)
    scale[1] = 2
    with pytest.raises(ValueError, match="what a step does"):
        run(tmp_path, 6, sampler=sampler)


PROGRAM = """
import sys, jax, jax.numpy as jnp, isotherm
sampler = isotherm.msgnht(lambda x, batch: -x, 0.1)
run = isotherm.sample(
    jax.random.key(0), sampler, jnp.zeros(4), isotherm.no_batches(), num_draws=int(sys.argv[2]),
    thin=200, checkpoint=sys.argv[1], checkpoint_seconds=0.1, progress=False,
)
print(float(run.draws.sum()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_a_killed_process_can_be_resumed(tmp_path, number):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cut")]
    process = subprocess.Popen([*command, "1000000"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("cut/state-*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    if number == signal.SIGTERM:
        assert "Stopped and saved in" in error and "the same call resumes the run" in error
    latest = max(tmp_path.glob("cut/state-*.json"))
    draws = str(int(re.search(r'"kept": (\d+)', latest.read_text())[1]) + 50)
    resumed = subprocess.run([*command, draws], capture_output=True, text=True, check=True)
    fresh = subprocess.run(
        [*command[:-1], str(tmp_path / "fresh"), draws], capture_output=True, text=True, check=True
    )
    assert resumed.stdout == fresh.stdout


def test_a_file_is_written_completely_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(Interrupted), atomically(path) as draft:
        draft.write_text("ne")
        raise Interrupted
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]
    with atomically(path) as draft:
        assert draft.parent.name.startswith(DRAFT)
        draft.write_text("new")
    assert path.read_text() == "new"

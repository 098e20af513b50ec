"""What a run will need is known before it starts; too much is refused with numbers and remedies."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.exceptions import LostDrawsWarning
from isotherm.loop import forecast as module
from isotherm.loop.arguments import make_plan
from isotherm.loop.chains import make_program

SAMPLER = isotherm.msgnht(lambda x, batch: -x, 0.2)
COLLECT = {
    "draws": isotherm.collect.draws(),
    "half": isotherm.collect.draws(lambda x: x[:7], dtype="bfloat16"),
    "moments": isotherm.collect.moments(lambda x: jnp.outer(x, x)),
}


def run(num_draws=30, size=50, collect=COLLECT, **changes):
    start, batches = jnp.zeros(size), isotherm.no_batches()
    settings = {"num_draws": num_draws, "num_chains": 2, "collect": collect, "progress": False}
    return isotherm.sample(jax.random.key(0), SAMPLER, start, batches, **(settings | changes))


def test_the_forecast_is_the_size_of_the_result():
    result = run()
    plan = make_plan(30, 1, 0, COLLECT, "raise", 0)
    needed = module.forecast(make_program(SAMPLER, plan), plan, result.state)
    kept = (result.draws, result.collected["half"], dict(result.stats))
    assert needed.draws == sum(np.asarray(x).nbytes for x in jax.tree.leaves(kept))
    assert needed.accumulators == sum(
        x.nbytes for x in jax.tree.leaves(result.collected["moments"])
    )
    assert needed.state == sum(x.nbytes for x in jax.tree.leaves(result.state))
    assert needed.memory > 2 * needed.draws and needed.disk(2) > needed.draws


def test_a_run_that_does_not_fit_is_refused_with_numbers_and_remedies(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "free_memory", lambda: 3 * 10**9)
    with pytest.raises(ValueError) as caught:
        run(10**9, size=1000, collect=None, checkpoint=tmp_path / "run")
    text = str(caught.value)
    assert "needs about 16 TB of memory, but 3 GB are free" in text
    assert "2 chains x 1,000,000,000 draws x 4.01 kB are 8.02 TB of draws" in text
    for remedy in ("moments()", "average(f)", "dtype='bfloat16'", "thin", "float('inf')"):
        assert remedy in text
    assert not (tmp_path / "run").exists()
    assert run(max_memory=float("inf")).num_draws == 30
    with pytest.raises(ValueError, match="but 1 kB are allowed by `max_memory`"):
        run(max_memory=1000)
    for wrong in (0, -1, "all", np.nan):
        with pytest.raises(ValueError, match="`max_memory` must be a positive number of bytes"):
            run(max_memory=wrong)
    monkeypatch.setattr(module, "free_memory", lambda: None)
    assert run().ok


def test_checkpoints_that_do_not_fit_on_the_disk_are_refused(monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match=r"Checkpoints of this run need about .*has 1 kB free"):
        run(checkpoint=tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    run(checkpoint=tmp_path / "a", max_memory=float("inf"))


def test_free_memory_is_that_of_the_machine_or_the_control_group(monkeypatch, tmp_path):
    machine = module.free_memory()
    assert machine is not None and machine > 10**7
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    monkeypatch.setattr(module, "CGROUP", tmp_path)
    assert module.free_memory() == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert module.free_memory() > 10**7


def test_draws_in_half_precision_have_half_the_bytes_and_the_same_chain(tmp_path):
    whole = run()
    assert whole.collected["half"].dtype == jnp.bfloat16
    exact = whole.draws[..., :7]
    np.testing.assert_array_equal(whole.collected["half"], exact.astype(jnp.bfloat16))
    half = run(collect={"draws": isotherm.collect.draws(dtype="float16")}, checkpoint=tmp_path)
    assert half.draws.dtype == np.float16 and half.draws.nbytes == whole.draws.nbytes // 2
    np.testing.assert_array_equal(half.draws, whole.draws.astype(np.float16))
    assert half.ok and np.isfinite(half.summary().rows[0]["mean"])
    scalar = {"draws": isotherm.collect.draws(lambda x: x[0], dtype="bfloat16")}
    first = run(collect=scalar, checkpoint=tmp_path / "scalar")
    again = run(collect=scalar, checkpoint=tmp_path / "scalar")
    np.testing.assert_array_equal(first.draws, again.draws)
    for wrong in ("int8", "no type"):
        with pytest.raises(ValueError, match="`dtype` must be a floating-point type"):
            isotherm.collect.draws(dtype=wrong)


def test_numbers_that_do_not_fit_into_half_precision_are_not_silent():
    with pytest.warns(LostDrawsWarning, match="0 of 2 chains diverged"):
        run(collect={"x": isotherm.collect.draws(lambda x: 1e6 + x, dtype="float16")})


def test_temporary_arrays_of_the_compiled_step_count(monkeypatch, tmp_path):
    """A step that needs 64 MB for the product of two long vectors; nothing of it is kept."""

    def wide(x, batch):
        product = jnp.tanh(jnp.outer(x, jnp.arange(4096.0)))  # 4096 x 4096
        return -x - 1e-9 * (product @ product[0])

    def call(**changes):
        return isotherm.sample(
            jax.random.key(0),
            sampler,
            jnp.ones(4096),
            isotherm.no_batches(),
            num_draws=1,
            progress=False,
            **changes,
        )

    sampler = isotherm.sgld(wide, 1e-3)
    monkeypatch.setattr(module, "free_memory", lambda: 50 * 10**6)
    with pytest.raises(ValueError, match=r"67\.\d MB for temporary arrays .* smaller batches"):
        call(checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    calls = []
    monkeypatch.setattr(module, "free_memory", lambda: calls.append(1) or 10**9)
    assert call().ok and len(calls) == 1  # before compilation, the run is too small to ask
    assert call(max_memory=float("inf")).ok

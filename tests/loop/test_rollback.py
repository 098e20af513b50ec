"""After a divergence all chains go back: smaller steps, the same noise and the right law."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.loop import chunks
from isotherm.loop.checkpoint import PeriodicSaver
from laws import FALSE_ALARM, Gaussian, gaussian_law, gaussian_p_value

NONE = isotherm.no_batches()
TARGET = Gaussian(np.array([0.0, 0.3]), np.diag([400.0, 100.0]))
NUM_CHAINS = 20_000


def wall(x, batch):
    """A normal density with walls so steep that only short steps are stable."""
    return jax.tree.map(lambda v: -v - 300 * jnp.sign(v) * jnp.maximum(jnp.abs(v) - 2, 0), x)


@cache  # each compiles once
def walled(factor):
    return isotherm.sghmc(wall, factor * 0.3)


def run(key, sampler=walled, *, start=None, **changes):
    settings = {"num_draws": 300, "num_chains": 3, "on_divergence": "rollback", "progress": False}
    start = {"b": jnp.zeros(2), "w": jnp.zeros(3)} if start is None else start
    return isotherm.sample(key, sampler, start, NONE, **(settings | changes))


def same(one, other):
    parts = [(r.collected, dict(r.stats), r.state, r.diverged) for r in (one, other)]
    for a, b in zip(*map(jax.tree.leaves, parts), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert one.rollbacks == other.rollbacks


@pytest.mark.slow
def test_a_start_that_diverges_gives_the_law_of_a_quarter_of_the_step(key):
    """Over 40 seeds the p-value of both wrong laws was always 0, of the right one at least 0.07."""

    def make(factor):
        return isotherm.sghmc(TARGET.grad, factor * 0.3, friction=1.0)

    start = jnp.array([0.2, 0.0])
    with pytest.warns(isotherm.exceptions.RollbackWarning):
        found = run(key, make, start=start, num_draws=1, thin=60, num_chains=NUM_CHAINS)
    assert [back.step_size_after for back in found.rollbacks] == pytest.approx([0.15, 0.075])
    assert [back.step for back in found.rollbacks] == [0, 0]

    def p_value(h):
        law = {"h": h, "friction": 1.0, "temperature": 1.0, "num_steps": 60}
        mean, cov = gaussian_law("ABOBA", TARGET, np.asarray(start), **law)
        return gaussian_p_value(found.draws[:, 0], mean[:2], cov[:2, :2])

    assert p_value(0.075) > FALSE_ALARM
    assert p_value(0.0375) < FALSE_ALARM
    assert p_value(0.06) < FALSE_ALARM


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_STEPS", 40)


def test_all_chains_go_back_with_one_warning_and_keep_the_draws_before(key, short_chunks):
    with pytest.warns(
        isotherm.exceptions.RollbackWarning, match="all chains went back to step"
    ) as caught:
        found = run(key)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert found.draws["w"].shape == (3, 300, 3) and not found.diverged.any()
    assert np.abs(found.draws["w"]).max() < 3  # far from divergence
    first, second = found.rollbacks
    assert first.step == 0 < second.step < 300 and second.step % 40 == 0
    for back in found.rollbacks:
        assert back.step_size_after == back.step_size_before / 2
        assert 0 <= back.chain < 3 and back.leaf.split(".")[0] in found.state._fields
    sizes = np.repeat(np.float32([0.15, 0.075]), [second.step, 300 - second.step])
    np.testing.assert_array_equal(found.stats["step_size"], np.tile(sizes, (3, 1)))
    assert f"rollback to step {second.step}: chain {second.chain}" in str(found.summary())


@pytest.mark.slow
def test_a_schedule_and_running_collectors_go_back_too(key, short_chunks):
    def make(factor):
        schedule = isotherm.schedules.halving(0.3, every=400)
        return isotherm.sghmc(wall, lambda t: factor * schedule(t))

    collect = {"draws": isotherm.collect.draws(), "moments": isotherm.collect.moments()}
    with pytest.warns(isotherm.exceptions.RollbackWarning):
        found = run(key, make, collect=collect, burn_in=130)
    moments = found.collected["moments"]
    np.testing.assert_array_equal(moments.num_draws, 300)
    np.testing.assert_allclose(moments.mean["w"], found.draws["w"].mean(1), atol=1e-4)
    steps = 130 + np.arange(300)
    wanted = 0.3 * 0.5 ** (steps // 400)
    for back in found.rollbacks:
        wanted = np.where(steps >= back.step, wanted / 2, wanted)
    np.testing.assert_allclose(found.stats["step_size"][0], wanted, rtol=1e-6)


def test_too_many_rollbacks_raise_with_the_draws_kept(key, short_chunks):
    message = r"is not finite, after 1 rollback\. Try"
    with (
        pytest.warns(isotherm.exceptions.RollbackWarning),
        pytest.raises(isotherm.exceptions.DivergedError, match=message) as caught,
    ):
        run(key, max_rollbacks=1)
    found = caught.value.run
    assert len(found.rollbacks) == 1 and found.diverged[caught.value.chain]
    assert caught.value.first_step == found.num_draws > 0
    assert np.isfinite(found.draws["w"]).all()
    with pytest.warns(isotherm.exceptions.RollbackWarning):
        further = run(key)
    step = further.rollbacks[1].step
    assert step <= found.num_draws
    np.testing.assert_array_equal(further.draws["w"][:, :step], found.draws["w"][:, :step])


def test_chains_do_not_go_back_to_a_state_about_to_diverge(key, monkeypatch):
    """A chunk ends every few steps, so some end while a chain is diverging."""
    monkeypatch.setattr(chunks, "CHUNK_STEPS", 4)
    with pytest.warns(isotherm.exceptions.RollbackWarning):
        found = run(key)
    assert all(back.step % 4 == 0 for back in found.rollbacks)
    assert np.abs(found.draws["w"]).max() < 12  # 100 times too hot at a wall: 2 + 10


@pytest.mark.slow
@pytest.mark.parametrize("cut", [2, 6])
def test_a_run_interrupted_after_a_rollback_has_the_same_result(
    key, monkeypatch, tmp_path, short_chunks, cut
):
    def go(folder=None, **changes):
        with pytest.warns(isotherm.exceptions.RollbackWarning):
            return run(key, burn_in=130, checkpoint=folder, **changes)

    whole = go()
    after, counted = PeriodicSaver.after_chunk, iter(range(cut))

    def once_more(self, state, *, last=False):
        after(self, state, last=last)
        if next(counted, None) is None:
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(PeriodicSaver, "after_chunk", once_more)
        with pytest.raises(InterruptedError):
            go(tmp_path, checkpoint_seconds=0)
    assert "rollbacks" in max(tmp_path.glob("state-*.json")).read_text()
    resumed = run(key, burn_in=130, checkpoint=tmp_path)
    assert resumed.rollbacks
    same(resumed, whole)
    same(run(key, burn_in=130, checkpoint=tmp_path), whole)


@pytest.mark.slow
def test_without_divergence_nothing_changes(key):
    def make(factor):
        return isotherm.msgnht(lambda x, batch: -x, factor * 0.3)

    start = jnp.zeros(3)
    settings = {"start": start, "burn_in": 130}
    same(run(key, make, **settings), run(key, make(1.0), on_divergence="raise", **settings))


def test_a_sampler_that_cannot_be_rebuilt_is_refused(key, tmp_path, short_chunks):
    with pytest.raises(ValueError, match=re.escape("`lambda factor: isotherm.msgnht(")):
        run(key, walled(1.0))
    with pytest.raises(ValueError, match="`max_rollbacks` must be a whole number of at least 0"):
        run(key, max_rollbacks=-1)
    with pytest.warns(isotherm.exceptions.RollbackWarning):
        run(key, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="of this run was reduced by a rollback: pass a func"):
        run(key, walled(1.0), on_divergence="raise", checkpoint=tmp_path)

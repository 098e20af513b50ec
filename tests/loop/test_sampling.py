"""The loop: independent of chunks, exact about divergence, and silent by default."""

import io
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

import isotherm
from isotherm import random
from isotherm.exceptions import ConvergenceWarning
from isotherm.loop import chunks, pages, progress
from isotherm.loop import run as run_module
from isotherm.types import Family
from marks import slow


def normal(x, batch):
    return jax.tree.map(jnp.negative, x)


SAMPLER = isotherm.msgnht(normal, 0.3)
NONE = isotherm.no_batches()


def by_hand(key, sampler, start, batches, num_steps, chain=0):
    """The definition of a run: chain i has key fold(key, i); 0 noise, 1 batches, 2 start."""
    key = random.fold(key, chain)
    state = sampler.init(start, random.fold(key, 2))
    states = []
    step = jax.jit(sampler.step)
    for t in range(num_steps):
        batch = batches.batch(random.fold(key, 1), t)
        state, _ = step(random.fold(random.fold(key, 0), t), state, batch)
        states.append(state)
    return states


def test_a_run_is_the_sampler_step_by_step(key):
    data = jnp.arange(20.0)
    batches = isotherm.independent_batches(data, 3)
    sampler = isotherm.msgnht(lambda x, b: b.mean() - x, 0.2)
    run = isotherm.sample(
        key, sampler, jnp.zeros(2), batches, num_draws=4, thin=3, burn_in=5, num_chains=2
    )
    for chain in (0, 1):
        states = by_hand(key, sampler, jnp.zeros(2), batches, 17, chain)
        expected = np.stack([s.position for s in states[7::3]])
        np.testing.assert_allclose(run.draws[chain], expected, rtol=1e-5, atol=1e-5)
    assert not np.allclose(run.draws[0], run.draws[1])


def test_chunking_changes_no_bit(key, monkeypatch):
    whole = isotherm.sample(key, SAMPLER, jnp.zeros(3), NONE, num_draws=50, thin=2, burn_in=30)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 100)
    pieces = isotherm.sample(key, SAMPLER, jnp.zeros(3), NONE, num_draws=50, thin=2, burn_in=30)
    np.testing.assert_array_equal(whole.draws, pieces.draws)


def test_continuing_from_a_state_is_one_long_run(key):
    whole = isotherm.sample(key, SAMPLER, jnp.zeros(3), NONE, num_draws=20, num_chains=2)
    first = isotherm.sample(key, SAMPLER, jnp.zeros(3), NONE, num_draws=10, num_chains=2)
    rest = isotherm.sample(
        key, SAMPLER, jnp.zeros(3), NONE, num_draws=10, num_chains=2, state=first.state
    )
    np.testing.assert_array_equal(np.concatenate([first.draws, rest.draws], 1), whole.draws)
    np.testing.assert_array_equal(first.state.position, first.draws[:, -1])  # not donated


def test_run_chain_is_a_chain_of_sample(key):
    """Also if its step size is traced and differs between chains."""
    batches = isotherm.independent_batches(jnp.arange(20.0), 3)

    def draws(step_size, key):
        sampler = isotherm.msgnht(lambda x, b: b.mean() - x, step_size)
        counts = {"num_draws": 6, "thin": 3, "burn_in": 4}
        return isotherm.run_chain(key, sampler, jnp.zeros(2), batches, **counts)[0]

    step_sizes = jnp.array([0.1, 0.3])
    keys = jnp.stack([random.fold(key, 0)] * 2)
    found = jax.jit(jax.vmap(draws))(step_sizes, keys)
    for h, chain in zip((0.1, 0.3), found, strict=True):
        sampler = isotherm.msgnht(lambda x, b: b.mean() - x, h)
        run = isotherm.sample(key, sampler, jnp.zeros(2), batches, num_draws=6, thin=3, burn_in=4)
        np.testing.assert_allclose(chain, run.draws[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="num_draws"):
        isotherm.run_chain(key, SAMPLER, jnp.zeros(2), NONE, num_draws=0)


def test_one_more_chain_does_not_change_the_others(key):
    two = isotherm.sample(key, SAMPLER, jnp.zeros(3), NONE, num_draws=10, num_chains=2)
    three = isotherm.sample(key, SAMPLER, jnp.zeros(3), NONE, num_draws=10, num_chains=3)
    np.testing.assert_allclose(two.draws, three.draws[:2], rtol=1e-5, atol=1e-6)


def test_collectors_agree_with_the_draws(key):
    collect = {
        "draws": isotherm.collect.draws(),
        "first": isotherm.collect.draws(lambda x: x["a"][0]),
        "xi": isotherm.collect.draws(lambda s: s.thermostat["a"], of="state"),
        "moments": isotherm.collect.moments(),
        "square": isotherm.collect.average(lambda x: {"b2": x["b"] ** 2}),
    }
    start = {"a": jnp.zeros(2), "b": jnp.zeros(())}
    run = isotherm.sample(key, SAMPLER, start, NONE, num_draws=400, num_chains=3, collect=collect)
    np.testing.assert_array_equal(run.collected["first"], run.draws["a"][..., 0])
    assert run.collected["xi"].shape == (3, 400, 2)
    moments = run.collected["moments"]
    np.testing.assert_allclose(moments.mean["a"], run.draws["a"].mean(1), atol=1e-5)
    np.testing.assert_allclose(moments.variance["a"], run.draws["a"].var(1), rtol=1e-4)
    np.testing.assert_allclose(moments.variance["b"], run.draws["b"].var(1), rtol=1e-4)
    np.testing.assert_allclose(
        run.collected["square"]["b2"], (run.draws["b"] ** 2).mean(1), rtol=1e-4
    )


def test_probabilities_are_averaged_over_draws(key):
    """In blocks of rows, with the mean entropy, as from the stored draws."""
    inputs = {"x": jnp.linspace(-2.0, 2.0, 7)}

    def predict(w, rows):
        return jax.nn.softmax(rows["x"][:, None] * w[None])

    collect = {
        "draws": isotherm.collect.draws(),
        "test": isotherm.collect.probabilities(predict, inputs, rows_per_block=3),
    }
    run = isotherm.sample(
        key, SAMPLER, jnp.zeros(3), NONE, num_draws=50, num_chains=2, collect=collect
    )
    p = np.asarray(jax.vmap(jax.vmap(lambda w: predict(w, inputs)))(run.draws))
    result = run.collected["test"]
    np.testing.assert_allclose(result["probabilities"], p.mean(1), rtol=1e-4)
    np.testing.assert_allclose(result["entropy"], -(p * np.log(p)).sum(-1).mean(1), rtol=1e-4)
    pooled = (result["probabilities"].mean(0), result["entropy"].mean(0))
    uncertainty = isotherm.diagnostics.mutual_information(*pooled)
    assert uncertainty.shape == (7,) and (uncertainty[[0, -1]] > 0.01).all()
    with pytest.raises(ValueError, match="`rows_per_block` must be"):
        isotherm.collect.probabilities(predict, inputs, rows_per_block=0)


def test_weights_need_not_be_stored(key):
    collect = {"mean": isotherm.collect.average(lambda x: x)}
    run = isotherm.sample(key, SAMPLER, jnp.zeros(3), NONE, num_draws=50, collect=collect)
    assert run.draws is None
    assert run.collected["mean"].shape == (1, 3)
    assert run.stats["kinetic_temperature"].shape == (1, 50, 1)
    assert "temperature of position" in str(run.summary())


def test_statistics_describe_the_sampler(key):
    sampler = isotherm.msgnht(normal, isotherm.schedules.halving(0.4, every=100))
    run = isotherm.sample(key, sampler, jnp.zeros(50), NONE, num_draws=400, num_chains=2)
    assert run.stats["step_size"][0, [0, 100, 399]].tolist() == pytest.approx([0.4, 0.2, 0.05])
    assert run.stats["kinetic_temperature"].mean() == pytest.approx(1, abs=0.1)
    assert run.stats["configurational_temperature"].mean() == pytest.approx(1, abs=0.15)
    assert not run.diverged.any()


def explodes_late(x, batch):
    return jax.tree.map(lambda v: jnp.where(jnp.abs(v) > 2.5, v**5 * 1e6, -v), x)


def test_divergence_names_chain_steps_leaf_and_remedy_and_keeps_the_draws(key):
    def grad_fn(x, batch):
        return {"b": -x["b"], "w": explodes_late(x["w"], batch)}

    sampler = isotherm.msgnht(grad_fn, 0.05, integrator="euler")
    start = {"b": jnp.zeros(2), "w": jnp.zeros(2)}
    with pytest.raises(isotherm.exceptions.DivergedError) as caught:
        isotherm.sample(key, sampler, start, NONE, num_draws=3000, num_chains=3, thin=2)
    error = caught.value
    text = str(error)
    assert f"chain {error.chain}, between steps {error.first_step} and {error.last_step}" in text
    assert error.leaf.endswith(".w")
    assert "step size 0.05" in text
    assert "smaller `step_size`" in text
    assert "ABOBA" in text
    kept = error.run.draws
    assert kept["w"].shape[:2] == (3, error.run.num_draws)
    assert np.isfinite(kept["w"]).all()
    assert error.run.num_draws >= 1
    assert error.first_step == error.run.num_draws * 2
    assert error.last_step <= error.first_step + 2
    assert error.run.diverged[error.chain]


def test_divergence_during_burn_in_is_found(key):
    sampler = isotherm.msgnht(explodes_late, 0.3)
    with pytest.raises(isotherm.exceptions.DivergedError, match="The 0 draws made before"):
        isotherm.sample(key, sampler, jnp.zeros(8), NONE, num_draws=10, burn_in=5000)


def test_other_chains_can_continue(key):
    collect = {"draws": isotherm.collect.draws(), "mean": isotherm.collect.average(jnp.square)}
    with pytest.warns(isotherm.exceptions.LostDrawsWarning) as caught:
        run = isotherm.sample(
            key,
            isotherm.msgnht(explodes_late, 0.1, integrator="euler"),
            jnp.zeros(()),
            NONE,
            num_draws=300,
            num_chains=40,
            collect=collect,
            on_divergence="continue",
        )
    assert 0 < run.diverged.sum() < 40
    assert np.isfinite(run.draws[~run.diverged]).all()
    lost, text = int((~np.isfinite(run.draws)).sum()), str(caught[0].message)
    assert f"{run.diverged.sum()} of 40 chains diverged, and {lost:,} of 12,000 draws" in text
    assert "`run.collected['mean']` is not finite in chains" in text
    assert caught[0].filename == __file__ and not run.ok
    assert run.not_finite["mean"] == np.flatnonzero(run.diverged).tolist()
    assert (run.finite == np.isfinite(run.draws)).all()
    assert "WARNING: " in str(run.summary()) and "are not finite" in str(run.summary())
    with pytest.raises(ValueError, match="`draws` are not finite, in chains"):
        isotherm.posterior_predictive(lambda w, x: w * x, run.draws, jnp.ones(3))
    kept = run.draws[~run.diverged]
    assert np.isfinite(isotherm.posterior_predictive(lambda w, x: w * x, kept, jnp.ones(3))).all()


def test_all_chains_lost_are_not_silent(key):
    with pytest.warns(isotherm.exceptions.LostDrawsWarning, match="3 of 3 chains diverged"):
        run = isotherm.sample(
            key,
            isotherm.sghmc(lambda x, batch: -400 * x, 0.3),
            jnp.ones(2),
            NONE,
            num_draws=200,
            num_chains=3,
            collect={"mean": isotherm.collect.average(lambda x: x)},
            on_divergence="continue",
        )
    assert not run.ok and run.not_finite == {"mean": [0, 1, 2]}
    assert (~run.finite).mean() > 0.5  # known from the momenta, although no draw was kept


def test_a_collector_that_returns_nan_is_not_silent_under_any_policy(key):
    """The chain is fine, so that no policy for divergence sees it."""
    with pytest.warns(
        isotherm.exceptions.LostDrawsWarning,
        match=r"0 of 1 chains .*'log'\]` is not finite",
    ):
        run = isotherm.sample(
            key,
            isotherm.sghmc(lambda x, batch: -x, 0.2),
            jnp.zeros(2),
            NONE,
            num_draws=50,
            collect={"log": isotherm.collect.average(jnp.log), "x": isotherm.collect.average(abs)},
        )
    assert not run.ok and list(run.not_finite) == ["log"]
    good = isotherm.sample(
        key, isotherm.sghmc(lambda x, batch: -x, 0.2), jnp.zeros(2), NONE, num_draws=50
    )
    assert good.ok and good.not_finite == {} and good.finite.all()


@pytest.mark.parametrize("policy", [isotherm.shuffled_batches, slow(isotherm.symmetric_batches)])
def test_a_thermostat_with_epochs_warns_with_reason_and_remedy(key, policy):
    batches = policy(jnp.arange(20.0), 5)
    grad_fn = isotherm.minibatch_gradient(lambda m, x: -0.5 * (x - m) ** 2, lambda m: 0.0 * m, 20)
    with pytest.warns(
        isotherm.exceptions.PolicyWarning, match=r"cancels.*independent_batches.*sghmc"
    ) as caught:
        isotherm.sample(key, isotherm.msgnht(grad_fn, 0.01), jnp.zeros(()), batches, num_draws=2)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        isotherm.sample(key, isotherm.sghmc(grad_fn, 0.01), jnp.zeros(()), batches, num_draws=2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_draws": 0}, "`num_draws` must be a whole number of at least 1, got 0"),
        ({"thin": 0}, "`thin` must be"),
        ({"burn_in": -1}, "`burn_in` must be"),
        ({"num_chains": 0}, "`num_chains` must be"),
        ({"num_draws": 2**31}, "at most 2"),
        ({"on_divergence": "hope"}, "`on_divergence` must be"),
        ({"collect": {"x": lambda x: x}}, "`collect` must map names"),
        ({"collect": isotherm.collect.draws()}, "`collect` must map names"),
    ],
)
def test_bad_settings_are_refused(key, setting, message):
    with pytest.raises(ValueError, match=message):
        isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, **{"num_draws": 5, **setting})


def test_bad_positions_and_gradients_are_refused_before_anything_runs(key):
    with pytest.raises(ValueError, match="dtype int32"):
        isotherm.sample(key, SAMPLER, jnp.arange(3), NONE, num_draws=1)
    sampler = isotherm.msgnht(lambda x, b: {"w": x["w"][:1]}, 0.1)
    with pytest.raises(ValueError, match="gradient of leaf 'w'"):
        isotherm.sample(key, sampler, {"w": jnp.zeros(3)}, NONE, num_draws=1)


def test_chains_may_have_different_starts(key):
    starts = jnp.array([[-5.0], [5.0]])
    run = isotherm.sample(
        key,
        isotherm.msgnht(normal, 0.01),
        starts,
        NONE,
        num_draws=1,
        num_chains=2,
        position_per_chain=True,
    )
    np.testing.assert_allclose(run.draws[:, 0], starts, atol=0.2)
    with pytest.raises(ValueError, match="leading axis of length 3"):
        isotherm.sample(
            key, SAMPLER, starts, NONE, num_draws=1, num_chains=3, position_per_chain=True
        )


def test_summary_and_datatree(key):
    start = {"w": jnp.zeros((2, 2)), "b": jnp.zeros(())}
    run = isotherm.sample(key, SAMPLER, start, NONE, num_draws=2000, thin=5, num_chains=4)
    summary = run.summary()
    assert [row["name"] for row in summary.rows] == [
        "b",
        "w[0, 0]",
        "w[0, 1]",
        "w[1, 0]",
        "w[1, 1]",
    ]
    for row in summary.rows:
        assert row["sd"] == pytest.approx(1, abs=0.15)
        assert row["rhat"] < 1.02
        assert row["ess"] > 300
    text = str(summary)
    assert "msgnht ABOBA per_coordinate: 4 chains x 2000 draws" in text
    assert "temperature of w, chain 3" in text
    assert "diverged chains: none" in text
    tree = run.to_datatree()
    assert tree["posterior"]["w"].dims == ("chain", "draw", "w_dim_0", "w_dim_1")
    np.testing.assert_array_equal(tree["posterior"]["b"], run.draws["b"])
    assert set(tree["sample_stats"].data_vars) == set(run.stats)


def test_a_large_position_is_summarised_by_leaf(key):
    run = isotherm.sample(key, SAMPLER, {"w": jnp.zeros(100)}, NONE, num_draws=50)
    (row,) = run.summary().rows
    assert row["name"] == "w (100 numbers)"


def test_a_summary_of_many_numbers_takes_no_longer_and_is_computed_once(key, monkeypatch):
    """ESS and R-hat take milliseconds per coordinate: at most 250 are judged, evenly spread."""
    judged = []
    monkeypatch.setattr(run_module, "ess", lambda x: judged.append(x.shape) or np.ones(x.shape[2]))
    draws = {"w": np.zeros((2, 20, 300_000), np.float32), "b": np.ones((2, 20, 30_000), np.float32)}
    draws["w"][:, :, ::2] += np.arange(20)[:, None]
    made = isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, num_draws=20, num_chains=2)
    made = replace(made, draws=draws)
    b, w = made.summary().rows
    assert (b["name"], w["name"]) == ("b (30000 numbers)", "w (300000 numbers)")
    assert b["mean"] == 1
    assert w["mean"] == pytest.approx(9.5 / 2, rel=0.02)
    assert [shape[2] for shape in judged if shape[2] > 20] == [22, 227]
    assert made.summary() is made.summary()
    assert made.summary(3) is not made.summary()


def test_a_callback_is_told_how_far_the_run_is(key):
    reports = []
    settings = {"num_draws": 300, "thin": 3, "burn_in": 250, "num_chains": 2, "progress": False}
    quiet = isotherm.sample(key, SAMPLER, {"w": jnp.zeros(2)}, NONE, **settings)
    run = isotherm.sample(
        key, SAMPLER, {"w": jnp.zeros(2)}, NONE, **settings, callback=reports.append
    )
    np.testing.assert_array_equal(run.draws["w"], quiet.draws["w"])
    assert reports[0].is_burn_in
    assert [report.step for report in reports] == sorted(report.step for report in reports)
    last = reports[-1]
    assert (last.step, last.num_steps, last.num_draws) == (1150, 1150, 300)
    np.testing.assert_array_equal(last.position["w"], run.draws["w"][:, -1])
    seen = [report.draws["draws"]["w"] for report in reports if report.draws]
    np.testing.assert_array_equal(np.concatenate(seen, axis=1), run.draws["w"])
    metrics = last.metrics()
    assert metrics["num_draws"] == 300
    assert metrics["step_size"] == pytest.approx(0.3)
    assert metrics["temperature/w"] == pytest.approx(last.temperature)
    assert metrics["temperature"] == last.temperature
    assert metrics["steps_per_second"] > 0


def test_the_time_of_a_run_is_forecast_after_its_first_chunk(key, monkeypatch, tmp_path):
    """Also of a resumed run, whose earlier steps took none of the time of this call."""
    monkeypatch.setattr(chunks, "CHUNK_SECONDS", 0.0)  # one draw per chunk, in effect

    def go(num_draws, callback=None):
        where = {"checkpoint": tmp_path, "callback": callback, "progress": False}
        return isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, num_draws=num_draws, **where)

    go(400)
    reports = []
    go(1000, reports.append)
    assert all(report.first_step == 400 for report in reports) and len(reports) > 2
    for report in reports:
        made, left = report.step - 400, 1000 - report.step
        assert report.seconds_left == pytest.approx(report.seconds * left / made, rel=1e-6)
    assert reports[-1].seconds_left == 0 == reports[-1].metrics()["seconds_left"]
    ended = go(10**6, lambda report: report.seconds_left > 1e-6)  # as a user refuses a long run
    assert 1000 < ended.num_draws < 10**6


def test_a_callback_can_stop_a_run_and_a_checkpoint_continues_it(key, tmp_path):
    settings = {"num_draws": 50_000, "progress": False}

    def stop(report):
        return report.num_draws > 100

    run = isotherm.sample(
        key, SAMPLER, jnp.zeros(2), NONE, **settings, callback=stop, checkpoint=tmp_path
    )
    assert 100 < run.num_draws < 50_000
    np.testing.assert_array_equal(run.state.position, run.draws[:, -1])
    whole = isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, **settings)
    np.testing.assert_array_equal(run.draws, whole.draws[:, : run.num_draws])
    rest = isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, **settings, checkpoint=tmp_path)
    np.testing.assert_array_equal(rest.draws, whole.draws)
    with pytest.raises(ValueError, match="`callback` must be a function"):
        isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, num_draws=2, callback=3)


def test_the_bar_shows_rate_temperature_and_step_size(key, monkeypatch):
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=True, width=140)
    monkeypatch.setattr(rich.console, "Console", lambda **_: console)
    isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, num_draws=200, progress=True)
    text = out.getvalue()
    for part in ("msgnht", "200/200 steps", "/s", "T ", "h 0.3"):
        assert part in text


def test_no_output_unless_stderr_is_a_terminal(capsys, key):
    assert isinstance(progress.make_progress(None, 1, ""), progress.NoProgress)
    isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, num_draws=200)
    assert capsys.readouterr() == ("", "")


def test_running_moments_are_kept_after_a_divergence(key):
    collect = {"draws": isotherm.collect.draws(), "moments": isotherm.collect.moments()}
    sampler = isotherm.msgnht(explodes_late, 0.05, integrator="euler")
    with pytest.raises(isotherm.exceptions.DivergedError) as caught:
        isotherm.sample(
            key, sampler, jnp.zeros(3), NONE, num_draws=5000, num_chains=2, collect=collect
        )
    moments = caught.value.run.collected["moments"]
    assert np.isfinite(moments.mean).all()
    assert moments.num_draws[0] <= caught.value.run.num_draws


def test_data_instead_of_a_policy_is_refused(key):
    with pytest.raises(ValueError, match=r"batch policy such as isotherm.independent_batches"):
        isotherm.sample(key, SAMPLER, jnp.zeros(2), (jnp.zeros(3), jnp.zeros(3)), num_draws=1)


def test_other_misuse_is_refused(key):
    with pytest.raises(ValueError, match="`key` must be a typed key"):
        isotherm.sample(0, SAMPLER, jnp.zeros(2), NONE, num_draws=1)
    run = isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, num_draws=1, num_chains=2)
    with pytest.raises(ValueError, match="`state` has 2 chains, but `num_chains` is 1"):
        isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, num_draws=1, state=run.state)
    with pytest.raises(ValueError, match="`coordinates` must come from"):
        isotherm.msgnht(normal, 0.1, coordinates="eigenbasis")


def test_a_frozen_chain_is_reported(key):
    """Far from the mode, a splitting thermostat can stop moving and remain finite."""
    with pytest.warns(
        isotherm.exceptions.HealthWarning,
        match="of the 20 numbers of `position` in chain 0 do not move",
    ):
        run = isotherm.sample(
            key, isotherm.msgnht(explodes_late, 0.1), jnp.zeros(20), NONE, num_draws=500
        )
    assert not run.diverged.any()
    assert "WARNING: a kinetic temperature is far from 1" in str(run.summary())


def test_a_chunk_keeps_no_more_than_its_draws(key, monkeypatch):
    """Its page on the device has room for all draws; only those made are copied."""
    sizes = []
    monkeypatch.setattr(chunks, "CHUNK_SECONDS", 0.0)
    move_to_host = pages.move_to_host

    def watched(page, num_draws):
        moved = move_to_host(page, num_draws)
        leaf = moved[0]["draws"]
        sizes.append((leaf if leaf.base is None else leaf.base).nbytes / leaf.nbytes)
        return moved

    monkeypatch.setattr(pages, "move_to_host", watched)
    isotherm.sample(key, SAMPLER, jnp.zeros(2), NONE, num_draws=30)
    assert len(sizes) > 5 and max(sizes) == 1


def test_samplers_of_a_family_share_a_program_and_have_draws_of_their_own(key):
    """They are traced once, and each gives the draws of the sampler with its arrays built in."""
    traced = []

    def sampler(parameters):
        scale, step_size = parameters

        def grad_fn(x, batch):
            traced.append(batch)
            return -x / scale

        return isotherm.msgnht(grad_fn, step_size)

    def build(parameters):
        return sampler(parameters)._replace(family=Family(build, parameters))

    def draw(sampler):
        run = isotherm.sample(
            key, sampler, jnp.zeros(2), isotherm.no_batches(), num_draws=8, burn_in=5, num_chains=2
        )
        return run.draws

    settings = [(jnp.array([1.0, 4.0]), 0.1), (jnp.array([2.0, 9.0]), 0.3)]
    found = [draw(build(parameters)) for parameters in settings[:1]]
    number = len(traced)
    found += [draw(build(parameters)) for parameters in settings[1:]]
    assert len(traced) == number
    for draws, parameters in zip(found, settings, strict=True):
        np.testing.assert_allclose(draws, draw(sampler(parameters)), rtol=1e-4, atol=1e-5)
    assert len(traced) > number


def two_wells(x, batch):
    """Return the gradient of two modes, at -3 and 3, which chains of 1000 steps do not leave."""
    return -x + 3 * jnp.tanh(3 * x)


@pytest.mark.parametrize("kept", ["draws", "value"])
def test_chains_that_do_not_agree_warn_at_the_end(key, kept):
    """Every chain is right within its mode, and all temperatures are 1."""
    sampler, starts = isotherm.msgnht(two_wells, 0.1), jnp.array([[-3.0], [3.0]])
    settings = {"num_draws": 200, "thin": 5, "num_chains": 2, "position_per_chain": True}
    if kept == "value":
        settings["collect"] = {"value": isotherm.collect.draws(lambda x: x**3)}
    with pytest.warns(ConvergenceWarning, match=r"Chains do not agree: R-hat is \d") as caught:
        isotherm.sample(key, sampler, starts, NONE, **settings)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert ("`value: " in str(caught[0].message)) == (kept == "value")


def test_chains_that_agree_or_are_too_short_do_not_warn(key):
    settings = {"thin": 10, "num_chains": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        healthy = isotherm.msgnht(lambda x, batch: -x, 0.2)
        isotherm.sample(key, healthy, jnp.zeros(3), NONE, num_draws=200, **settings)
        stuck, starts = isotherm.msgnht(two_wells, 0.1), jnp.array([[-3.0], [3.0]])
        settings |= {"position_per_chain": True}
        isotherm.sample(key, stuck, starts, NONE, num_draws=99, **settings)
        wide = jnp.repeat(starts, 101, axis=1)  # as the weights of a network
        isotherm.sample(key, stuck, wide, NONE, num_draws=100, **settings)


def test_another_number_of_draws_compiles_nothing(key):
    sampler = isotherm.msgnht(normal, 0.25)
    program = chunks.compiled(chunks.collect, "capacity")
    isotherm.sample(key, sampler, jnp.zeros(2), NONE, num_draws=3, progress=False)
    before = program._cache_size()
    run = isotherm.sample(key, sampler, jnp.zeros(2), NONE, num_draws=50, progress=False)
    assert program._cache_size() == before
    assert run.draws.shape == (1, 50, 2)


def test_an_equal_sampler_built_again_compiles_nothing(key, caplog):
    """Nor do a gradient and a collector that are other functions with equal code."""

    def draw(factor, power, weights):
        """Return the values, and how often the burn-in and the draws were compiled."""
        sampler = isotherm.msgnht(lambda x, batch: -x * factor * weights, 0.25)
        kept = {"power": isotherm.collect.draws(lambda x: x**power)}
        settings = {"num_draws": 4, "burn_in": 150, "num_chains": 3}
        caplog.clear()
        with jax.log_compiles():
            run = isotherm.sample(key, sampler, jnp.zeros(2), NONE, collect=kept, **settings)
        lines = [line for line in caplog.messages if "Finished XLA compilation" in line]
        number = [sum(f"jit({name})" in x for x in lines) for name in ("advance", "collect")]
        return run.collected["power"], number

    weights = np.array([1.0, 2.0], np.float32)
    first, compiled = draw(1.0, 2, weights)
    assert compiled[0] > 0 and compiled[1] == 1
    again, compiled = draw(1.0, 2, weights.copy())
    assert compiled == [0, 0]
    np.testing.assert_array_equal(first, again)
    for other in ((1.5, 2, weights), (1.0, 3, weights), (1.0, 2, weights + 1)):
        changed, compiled = draw(*other)
        assert compiled[1] == 1
        assert np.all(first != changed)


def test_functions_that_call_back_are_never_taken_for_each_other(key):
    """Their traces have the same text."""

    def draw(mean):
        def host(x):
            return np.float32(mean) - x

        def grad_fn(x, batch):
            return jax.pure_callback(host, jax.ShapeDtypeStruct((2,), np.float32), x)

        sampler = isotherm.msgnht(grad_fn, 0.25)
        return isotherm.sample(key, sampler, jnp.zeros(2), NONE, num_draws=20).draws

    near, far = draw(0.0), draw(100.0)
    np.testing.assert_array_equal(near, draw(0.0))
    assert np.all(near != far)


def test_a_constant_that_changed_is_seen_by_a_sampler_built_again(key):
    scale = np.ones(2, np.float32)

    def draw():
        sampler = isotherm.msgnht(lambda x, batch: -x * scale, 0.25)
        return isotherm.sample(key, sampler, jnp.zeros(2), NONE, num_draws=20).draws

    before = draw()
    scale *= 9
    changed = draw()
    assert np.all(before != changed)
    scale /= 9
    np.testing.assert_array_equal(before, draw())


def test_settings_may_be_arrays(key):
    settings = {"diffusion": 2.0, "temperature": 1.0, "thermostat_mass": 3.0}
    arrays = {name: jnp.asarray(value) for name, value in settings.items()}
    draws = [
        isotherm.sample(
            key,
            isotherm.msgnht(normal, **each, step_size=h),
            jnp.zeros(2),
            NONE,
            num_draws=5,
        ).draws
        for each, h in ((settings, 0.25), (arrays, jnp.float32(0.25)))
    ]
    np.testing.assert_allclose(*draws, rtol=1e-5)

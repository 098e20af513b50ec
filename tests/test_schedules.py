"""Schedules follow their formulas, also with periods longer than any run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm

LONG = [2**31, 2**40, 2**63, 10**400, np.int64(2**40), np.uint64(2**63), 1e30]


@pytest.mark.parametrize("long", LONG, ids=lambda n: f"{type(n).__name__}{len(str(n))}")
@pytest.mark.parametrize(
    "make", [isotherm.schedules.halving, isotherm.schedules.polynomial, isotherm.schedules.cyclical]
)
def test_a_very_long_period_gives_a_constant_step_size(make, long):
    schedule = make(0.5, long)
    for t in (0, 7, 10**6):
        assert float(schedule(t)) == pytest.approx(0.5, rel=1e-3)
        assert float(jax.jit(schedule)(jnp.int32(t))) == pytest.approx(0.5, rel=1e-3)


def test_the_largest_32_bit_period_is_exact():
    schedule = isotherm.schedules.halving(0.5, 2**31 - 1)
    assert [float(schedule(t)) for t in (0, 2**31 - 2, 2**31 - 1)] == [0.5, 0.5, 0.25]


def test_schedules_follow_their_formulas():
    steps = np.arange(50)
    halved = [float(isotherm.schedules.halving(0.8, 20)(t)) for t in steps]
    np.testing.assert_allclose(halved, np.repeat([0.8, 0.4, 0.2], [20, 20, 10]), rtol=1e-6)
    decayed = jax.vmap(isotherm.schedules.polynomial(0.8, 4, 0.6))(steps)
    np.testing.assert_allclose(decayed, 0.8 * (1 + steps / 4) ** -0.6, rtol=1e-5)
    waves = jax.vmap(isotherm.schedules.cyclical(0.8, 20, 0.1))(steps)
    np.testing.assert_allclose(
        waves, 0.1 + 0.35 * (1 + np.cos(np.pi * (steps % 20) / 20)), rtol=1e-5
    )


def test_integers_that_do_not_fit_into_32_bits_are_refused():
    """JAX would raise an overflow error in the first step, or truncate the number silently."""
    for big in (2**31, 2**63, np.int64(2**40), -(2**63)):
        for make, name in (
            (lambda h: isotherm.sgld(lambda x, batch: -x, h), "step_size"),
            (lambda h: isotherm.schedules.halving(h, 3), "step_size"),
            (lambda f: isotherm.schedules.cyclical(0.1, 3, f), "floor"),
            (lambda d: isotherm.msgnht(lambda x, batch: -x, 0.1, d), "diffusion"),
        ):
            with pytest.raises(ValueError, match=f"`{name}` must fit into 32 bits or be a float"):
                make(big)
    assert float(isotherm.schedules.halving(2.0**63, 1)(1)) == 2.0**62


@pytest.mark.parametrize("bad", [0, -1, -(2**31) + 1, np.nan, np.inf, "2", None, 1j])
def test_periods_that_are_not_positive_are_refused(bad):
    for make, name in (("halving", "every"), ("polynomial", "delay"), ("cyclical", "period")):
        with pytest.raises(ValueError, match=f"`{name}` must be positive, got"):
            getattr(isotherm.schedules, make)(0.5, bad)

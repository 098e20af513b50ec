"""A fit that is cut goes on where it was, and ends as one that never was."""

import numpy as np
import pytest

from isotherm import BayesianLinearRegression
from isotherm.loop.checkpoint import Keeper

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=60)


def fresh(folder=None, **changes):
    settings = {"num_draws": 40, "num_chains": 2, "random_state": 0, "checkpoint": folder}
    return BayesianLinearRegression(**settings | changes)


def steps(model):
    yield model.fit(X[:40], Y[:40])
    yield model.partial_fit(X[:40], Y[:40])  # more draws
    yield model.partial_fit(X[40:], Y[40:])  # more rows


class Cut(Exception):
    """Somebody pulled the plug."""


@pytest.mark.parametrize("call", [0, 1, 2])
def test_a_cut_fit_goes_on_bit_for_bit(monkeypatch, tmp_path, call):
    never_cut = list(zip(range(call + 1), steps(fresh()), strict=False))[-1][1]
    after, chunks = Keeper.after_chunk, []

    def cut(self, progressed, *, last=False):
        self.seconds = 0
        after(self, progressed, last=last)
        chunks.append(last)
        if len([x for x in chunks if x]) == call and not last:
            raise Cut

    model, reached = fresh(tmp_path), 0
    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "after_chunk", cut)
        with pytest.raises(Cut):
            for _ in steps(model):
                reached += 1
    assert reached == call
    again = fresh(tmp_path)  # another process, all calls again: those that were done are read
    found = list(zip(range(call + 1), steps(again), strict=False))[-1][1]
    for name, draws in never_cut.draws_.items():
        np.testing.assert_array_equal(found.draws_[name], draws)


def test_other_rows_do_not_meet_the_checkpoint_and_another_plan_is_refused(tmp_path):
    one = fresh(tmp_path).fit(X, Y)
    other = fresh(tmp_path).fit(X, -Y)
    assert not np.array_equal(one.coef_, other.coef_)
    with pytest.raises(ValueError, match="another run: thin was"):
        fresh(tmp_path, thin=3).fit(X, Y)
    with pytest.raises(ValueError, match="`checkpoint` needs a seed as `random_state`"):
        fresh(tmp_path, random_state=None).fit(X, Y)

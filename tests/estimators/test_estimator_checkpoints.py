"""An interrupted fit resumes, and its result equals that of an uninterrupted one."""

import numpy as np
import pytest

from isotherm import BayesianLinearRegression
from isotherm.loop.checkpoint import PeriodicSaver

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=60)


def new_model(folder=None, **changes):
    settings = {"num_draws": 40, "num_chains": 2, "random_state": 0, "checkpoint": folder}
    return BayesianLinearRegression(**settings | changes)


def fits(model):
    yield model.fit(X[:40], Y[:40])
    yield model.partial_fit(X[:40], Y[:40])  # more draws
    yield model.partial_fit(X[40:], Y[40:])  # more rows


class InterruptedFit(Exception):
    """Raised in place of an interruption."""


@pytest.mark.parametrize("call", [0, 1, 2])
def test_an_interrupted_fit_resumes_bit_for_bit(monkeypatch, tmp_path, call):
    uninterrupted = list(zip(range(call + 1), fits(new_model()), strict=False))[-1][1]
    after, chunks = PeriodicSaver.after_chunk, []

    def interrupt(self, progressed, *, last=False):
        self.seconds = 0
        after(self, progressed, last=last)
        chunks.append(last)
        if len([x for x in chunks if x]) == call and not last:
            raise InterruptedFit

    model, reached = new_model(tmp_path), 0
    with monkeypatch.context() as patch:
        patch.setattr(PeriodicSaver, "after_chunk", interrupt)
        with pytest.raises(InterruptedFit):
            for _ in fits(model):
                reached += 1
    assert reached == call
    # Repeat all calls, as another process would: the finished ones are read from the checkpoint.
    resumed = list(zip(range(call + 1), fits(new_model(tmp_path)), strict=False))[-1][1]
    for name, draws in uninterrupted.draws_.items():
        np.testing.assert_array_equal(resumed.draws_[name], draws)


def test_other_rows_have_their_own_checkpoint_and_other_settings_are_refused(tmp_path):
    one = new_model(tmp_path).fit(X, Y)
    other = new_model(tmp_path).fit(X, -Y)
    assert not np.array_equal(one.coef_, other.coef_)
    with pytest.raises(ValueError, match="another run: thin was"):
        new_model(tmp_path, thin=3).fit(X, Y)
    with pytest.raises(ValueError, match="`checkpoint` needs an integer `random_state`"):
        new_model(tmp_path, random_state=None).fit(X, Y)

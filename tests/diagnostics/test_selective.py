"""Risk-coverage curves agree with enumeration of orders."""

from itertools import permutations

import numpy as np
import pytest

from isotherm.diagnostics import aurc, risk_coverage

RNG = np.random.default_rng(4)


def by_order(losses):
    return np.cumsum(losses) / np.arange(1, len(losses) + 1)


def test_ties_are_averaged_over_all_their_orders():
    confidence = np.array([0.9, 0.5, 0.5, 0.5, 0.1])
    losses = np.array([0.0, 1.0, 0.0, 2.0, 1.0])
    orders = [[0, *middle, 4] for middle in permutations([1, 2, 3])]
    mean = np.mean([by_order(losses[order]) for order in orders], axis=0)
    curve = risk_coverage(confidence, losses)
    np.testing.assert_allclose(curve.risk, mean, rtol=1e-12)
    assert curve.area == pytest.approx(mean.mean())
    np.testing.assert_allclose(curve.best, by_order(np.sort(losses)))
    assert curve.excess == pytest.approx(mean.mean() - curve.best.mean())
    assert not np.allclose(by_order(losses), mean)  # the mutant: the order of the rows
    np.testing.assert_allclose(curve.coverage, [0.2, 0.4, 0.6, 0.8, 1])


def test_area_of_a_classifier():
    p = RNG.dirichlet(np.ones(3), size=50)
    labels = RNG.integers(0, 3, 50)
    order = np.argsort(-p.max(1))
    wrong = (p.argmax(1) != labels)[order]
    assert aurc(p, labels) == pytest.approx(by_order(wrong).mean())
    assert aurc(p, labels) != pytest.approx(by_order(wrong[::-1]).mean(), abs=0.01)  # the mutant
    assert aurc(p, p.argmax(1)) == 0 and risk_coverage(p.max(1), wrong[::-1]).excess >= 0


def test_a_confidence_that_orders_losses_has_no_excess():
    losses = RNG.random(30)
    assert risk_coverage(-losses, losses).excess == pytest.approx(0, abs=1e-15)
    assert risk_coverage(losses, losses).excess > 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: risk_coverage([1.0], [1.0, 2.0]), "must have the same shape"),
        (lambda: risk_coverage([np.nan], [1.0]), "`confidence` must not be NaN"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

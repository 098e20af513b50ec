"""A reliability diagram shows the values of its curves."""

import numpy as np
import pytest

from isotherm.diagnostics.calibration import reliability
from isotherm.paper.report.figures import caption, styled
from isotherm.paper.report.reliability import reliability_diagram


def curve(seed, sharpen):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), size=2000)
    labels = (p.cumsum(1) > rng.random((len(p), 1))).argmax(1)
    sharper = p**sharpen / np.sum(p**sharpen, axis=1, keepdims=True)
    return reliability(sharper, labels)


def test_diagram_shows_curves_and_errors(tmp_path):
    curves = {"calibrated": curve(0, 1.0), "overconfident": curve(1, 2.0)}
    with styled():
        figure = reliability_diagram(curves, least_rows=25)
        figure.savefig(tmp_path / "reliability.svg")
    upper, lower = figure.axes
    labels = [text.get_text() for text in upper.get_legend().get_texts()]
    assert labels == [f"{name} ({expected.error:.2%})" for name, expected in curves.items()]
    for drawn, expected in zip(upper.containers, curves.values(), strict=True):
        shown = expected.count >= 25
        assert 5 < shown.sum() < 15
        np.testing.assert_array_equal(drawn.lines[0].get_xdata(), expected.confidence[shown])
        np.testing.assert_array_equal(drawn.lines[0].get_ydata(), expected.accuracy[shown])
    shares = [patch.get_data().values for patch in lower.patches]
    assert [share.sum() for share in shares] == pytest.approx([1.0, 1.0])
    assert caption(figure, "reliability").startswith("Reliability: accuracy against confidence")


def test_no_curves_raise():
    with pytest.raises(ValueError, match="`curves` must name at least one"):
        reliability_diagram({})

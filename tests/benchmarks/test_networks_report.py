"""A speed contest that is measured network by network loses nothing that was measured before."""

import json
import sys
from pathlib import Path

import pytest

NETWORKS = ("small", "large")


@pytest.fixture
def report(monkeypatch):
    """The module, from the folder of the benchmarks."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import networks_report

    yield networks_report
    for name in ("networks_report", "reporting"):
        sys.modules.pop(name, None)


def rows(report, network, scale=1.0):
    """SGD; a sampler of twice its time; one of ten gradients per step, in 15 times its time."""
    sgd = [0.001 * scale, 0.002 * scale, 0.003 * scale]
    return [
        report.row(network, "SGD", sgd, sgd, 1, 3.0),
        report.row(network, "isotherm", [2 * t for t in sgd], sgd, 1, None),
        report.row(network, "peer, 10 gradients a step", [15 * t for t in sgd], sgd, 10, None),
    ]


def test_ratios_are_within_rounds(report):
    sgd, ours = [1.0, 2.0, 4.0], [3.0, 2.0, 6.0]
    found = report.row("small", "isotherm", ours, sgd, 2, 5.86123)
    assert found["over SGD, median of rounds"] == 1.5  # of 3, 1 and 1.5
    assert found["over SGD, fastest over fastest"] == 2.0
    assert (found["over SGD, lowest round"], found["over SGD, highest round"]) == (1.0, 3.0)
    assert found["ms per gradient, fastest"] == 1000.0
    assert found["per gradient over SGD, median of rounds"] == 0.75
    assert found["scratch and state, in copies of the weights"] == 5.861


def test_a_network_takes_the_place_of_its_earlier_rows_only(report, tmp_path):
    path = tmp_path / "speed.json"
    for network, date in (("large", "monday"), ("small", "tuesday"), ("large", "friday")):
        scale = 2.0 if date == "friday" else 1.0
        document = report.merge(path, rows(report, network, scale), {"date": date}, NETWORKS)
        path.write_text(json.dumps(document))
    assert [row["network"] for row in document["rows"]] == ["small"] * 3 + ["large"] * 3
    assert [row["ms per step, fastest"] for row in document["rows"]] == [1, 2, 15, 2, 4, 30]
    assert document["measured"] == {"small": {"date": "tuesday"}, "large": {"date": "friday"}}


def test_a_file_of_one_run_keeps_its_date(report, tmp_path):
    path = tmp_path / "speed.json"
    old = {"machine": {"date": "monday"}, "rows": rows(report, "large")}
    path.write_text(json.dumps(old))
    document = report.merge(path, rows(report, "small"), {"date": "friday"}, NETWORKS)
    assert document["rows"][3:] == old["rows"]
    assert document["measured"] == {"small": {"date": "friday"}, "large": {"date": "monday"}}


def test_who_makes_several_gradients_is_told_per_gradient_too(report):
    found = report.summary(rows(report, "small") + rows(report, "large", 10.0))
    told = {(line["table"], line["contestant"]): (line["small"], line["large"]) for line in found}
    assert told == {
        ("time per step over plain SGD", "SGD"): (1, 1),
        ("time per step over plain SGD", "isotherm"): (2, 2),
        ("time per step over plain SGD", "peer, 10 gradients a step"): (15, 15),
        ("time per step over plain SGD", "peer, per gradient"): (1.5, 1.5),
        ("steps per second", "SGD"): (1000, 100),
        ("steps per second", "isotherm"): (500, 50),
        ("steps per second", "peer, 10 gradients a step"): (66.7, 6.67),
        ("steps per second", "peer, per gradient"): (667, 66.7),
    }


def test_draws_one_panel_per_network_that_is_there(report, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(report, "save", lambda figure, path: drawn.append(figure))
    before = [
        {k: v for k, v in row.items() if k not in report.SPREAD} for row in rows(report, "large")
    ]
    report.plot(before, NETWORKS, tmp_path / "speed.png")
    (axis,) = drawn[0].axes
    report.plt.close(drawn[0])
    assert axis.get_title() == "large"
    assert [bar.get_width() for bar in axis.patches] == [0, 1, 14, 0.5]  # from 1
    assert [text.get_text() for text in axis.texts] == ["1", "2", "15", "1.5"]

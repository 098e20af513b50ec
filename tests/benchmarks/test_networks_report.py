"""Results of the speed benchmark: rows per network are merged with earlier ones."""

import json
import sys
from pathlib import Path

import pytest

NETWORKS = ("small", "large")


@pytest.fixture
def report(monkeypatch):
    """Return the module `networks_report` from the folder of the benchmarks."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import networks_report

    yield networks_report
    for name in ("networks_report", "reporting"):
        sys.modules.pop(name, None)


def rows(report, network, scale=1.0):
    """Return rows of SGD, of a sampler, and of one with ten gradients per step."""
    sgd = [0.001 * scale, 0.002 * scale, 0.003 * scale]
    return [
        report.row(network, "SGD", sgd, sgd, 1, 3.0),
        report.row(network, "isotherm", [2 * t for t in sgd], sgd, 1, None),
        report.row(network, "peer, 10 gradients a step", [15 * t for t in sgd], sgd, 10, None),
    ]


def test_ratios_are_computed_per_round(report):
    sgd, ours = [1.0, 2.0, 4.0], [3.0, 2.0, 6.0]
    row = report.row("small", "isotherm", ours, sgd, 2, 5.86123)
    assert row["over SGD, median of rounds"] == 1.5  # of 3, 1 and 1.5
    assert row["over SGD, fastest over fastest"] == 2.0
    assert (row["over SGD, lowest round"], row["over SGD, highest round"]) == (1.0, 3.0)
    assert row["ms per gradient, fastest"] == 1000.0
    assert row["per gradient over SGD, median of rounds"] == 0.75
    assert row["scratch and state, in copies of the weights"] == 5.861


def test_the_price_of_balance_is_that_over_the_plain_step(report):
    name, plain = "isotherm mSGNHT-S, balanced, gaussian", "isotherm mSGNHT-S, gaussian"
    seconds = {name: [3.0, 2.0, 2.0], plain: [2.0, 1.0, 2.0], "SGD": [1.0, 1.0, 1.0]}
    found = report.price(name, seconds)
    assert list(found.values()) == [1.5, 2.0]
    assert report.price(plain, seconds) == {}
    row = report.row("small", name, seconds[name], seconds["SGD"], 1, None) | found
    priced = [line for line in report.summary([row]) if "balanced step" in line["table"]]
    assert priced == [
        {
            "table": "time of a balanced step over a plain one",
            "contestant": name,
            "small": 1.5,
        }
    ]


def test_a_network_replaces_only_its_own_earlier_rows(report, tmp_path):
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


def test_contestants_with_several_gradients_have_a_line_per_gradient(report):
    lines = report.summary(rows(report, "small") + rows(report, "large", 10.0))
    cells = {(line["table"], line["contestant"]): (line["small"], line["large"]) for line in lines}
    assert cells == {
        ("time per step over plain SGD", "SGD"): (1, 1),
        ("time per step over plain SGD", "isotherm"): (2, 2),
        ("time per step over plain SGD", "peer, 10 gradients a step"): (15, 15),
        ("time per step over plain SGD", "peer, per gradient"): (1.5, 1.5),
        ("steps per second", "SGD"): (1000, 100),
        ("steps per second", "isotherm"): (500, 50),
        ("steps per second", "peer, 10 gradients a step"): (66.7, 6.67),
        ("steps per second", "peer, per gradient"): (667, 66.7),
    }


def test_figure_has_one_panel_per_measured_network(report, tmp_path, monkeypatch):
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

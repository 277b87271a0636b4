"""gains(): each box shows the times that were measured, and claims no more than their spread allows."""

import pytest
from matplotlib.colors import to_hex

from ddp_lab import figures
from ddp_lab.errors import InputError

MEASURED = {
    "no limit": {"none": [0.034, 0.036, 0.030], "fp16": [0.035, 0.030, 0.040], "PowerSGD": [0.069, 0.072, 0.064]},
    "1 Gbit/s": {"none": [0.075, 0.080, 0.077], "fp16": [0.057, 0.060, 0.055], "PowerSGD": [0.061, 0.061, 0.081]},
}


def boxes(axes):
    """{(row, column): (the colour of its edge, whether it is filled, whether the edge is broken, its texts)}."""
    rows = [label.get_text() for label in axes.get_yticklabels()]
    columns = [label.get_text() for label in axes.get_xticklabels()]
    found = {}
    for patch in axes.patches:
        place = rows[round(patch.get_y() + 0.4)], columns[round(patch.get_x() + 0.46)]
        edge, filled = to_hex(patch.get_edgecolor()).upper(), patch.get_facecolor()[3] > 0
        assert not filled or patch.get_facecolor() == patch.get_edgecolor()
        found[place] = edge, filled, patch.get_linestyle() not in ("-", "solid"), []
    for text in axes.texts:
        x, y = text.get_position()
        found[rows[round(y)], columns[round(x)]][-1].append(text.get_text())
    return found


def test_each_box_has_the_median_and_what_is_gained_where_the_spread_allows_to_say_so():
    (axes,) = figures.gains(MEASURED, than="none").axes
    assert boxes(axes) == {
        ("no limit", "none"): (figures.INK, False, False, ["34 ms", ""]),
        ("no limit", "fp16"): (figures.INK, False, True, ["35 ms", "≈ 0.83 to 1.33"]),
        ("no limit", "PowerSGD"): (figures.BROKEN, True, False, ["69 ms", "× 2.03"]),
        ("1 Gbit/s", "none"): (figures.INK, False, False, ["77 ms", ""]),
        ("1 Gbit/s", "fp16"): (figures.FINE, True, False, ["57 ms", "× 0.75"]),
        ("1 Gbit/s", "PowerSGD"): (figures.INK, False, True, ["61 ms", "≈ 0.76 to 1.05"]),
    }


def test_a_small_difference_has_its_colour_at_the_edge_alone():
    measured = {"a": {"none": [1, 1], "less": [0.9, 0.9], "more": [1.2, 1.2], "much": [1.3, 1.3]}}
    (axes,) = figures.gains(measured, than="none").axes
    _, *others = boxes(axes).values()
    assert [box[:2] for box in others] == [(figures.FINE, False), (figures.BROKEN, False), (figures.BROKEN, True)]


def test_one_time_alone_decides_nothing():
    (axes,) = figures.gains({"a": {"none": [1.0], "fp16": [0.2]}}, than="none").axes
    assert boxes(axes)["a", "fp16"] == (figures.INK, False, True, ["200 ms", "≈ 0.20 to 0.20"])


def test_a_way_may_be_missing_under_a_condition():
    (axes,) = figures.gains({"a": {"none": [1, 1], "x": [2, 2]}, "b": {"none": [1, 1]}}, than="none").axes
    assert set(boxes(axes)) == {("a", "none"), ("a", "x"), ("b", "none")}


@pytest.mark.parametrize("measured", [
    *(None, {}, {"a": {}}, {"a": [1]}, {"a": {"none": 1}}, {"a": {"none": []}}, {"a": {"none": ["1"]}}),
    *({"a": {"none": [0]}}, {"a": {"none": [float("nan")]}}, {"a": {"x": [1]}}, {"a": {"none": [1, 2], "x": [1]}}),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(measured):
    with pytest.raises(InputError, match="^gains"):
        figures.gains(measured, than="none")

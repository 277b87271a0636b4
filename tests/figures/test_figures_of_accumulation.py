"""The picture of what each sample weighs: its bars, numbers, sums and colours are those of the run's records."""

import math

import pandas
import pytest
from matplotlib.colors import to_hex

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures.shares import number


class Logged:
    """What has logged these: {rank: {step: shares}}."""

    def __init__(self, ranks):
        self.rows = [(rank, step, "shares", list(own)) for rank, steps in ranks.items() for step, own in steps.items()]

    def frame(self):
        return pandas.DataFrame(self.rows, columns=["rank", "step", "name", "value"])


def bars(axes):
    """[(row, sample, height, colour)], the row counted from the top."""
    return [
        (round(bar.get_y() - 0.4), round(bar.get_x() + 0.4), -bar.get_height(), to_hex(bar.get_facecolor()).upper())
        for bar in axes.patches
    ]


def test_each_share_of_a_run_is_a_bar_with_its_number_and_each_row_has_its_sum():
    run = lab.torchrun("faults/last_window_dropped", show="none")
    (axes,) = figures.shares({"the last window": run}).axes
    assert axes.get_title(loc="left") == "the last window"
    logged = [record["shares"] for record in run.ranks[0].records if "shares" in record]
    drawn = bars(axes)
    assert {(row, sample) for row, sample, *_ in drawn} == {
        (row, sample) for row, own in enumerate(logged) for sample, share in enumerate(own) if share
    }
    assert [label.get_text() for label in axes.get_yticklabels()] == ["step 0", "step 1", "step 2", "step 3"]
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("1/8") == len(drawn) == 8 + 8 + 12 + 8
    assert [text for text in texts if text != "1/8"] == ["1", "1", "1.5", "1"]
    colors = {row: {color for other, _, _, color in drawn if other == row} for row in range(4)}
    assert colors == {0: {figures.FINE}, 1: {figures.FINE}, 2: {figures.BROKEN}, 3: {figures.FINE}}


def test_ranks_that_differ_have_a_row_each_and_none_of_them_is_right():
    run = Logged({0: {0: [0.5, 0.5, 0], 1: [0.25, 0.75, 0]}, 1: {0: [0.5, 0.5, 0], 1: [0, 0.5, 0.5]}})
    (axes,) = figures.shares({"apart": run}).axes
    labels = axes.get_yticklabels()
    assert [label.get_text() for label in labels] == ["step 0", "step 1, rank 0", "step 1, rank 1"]
    assert labels[1].get_color() != labels[2].get_color() != labels[0].get_color()
    colors = {row: color for row, _, _, color in bars(axes)}
    assert colors == {0: figures.FINE, 1: figures.BROKEN, 2: figures.BROKEN}


def test_heights_are_of_one_scale_in_all_panels():
    given = {"sum": [1, 1], "mean": [0.5, 0.5], "unequal": [0.25, 0.75]}
    panels = {title: Logged({0: {0: values}}) for title, values in given.items()}
    figure = figures.shares(panels, of="token")
    heights = [[height for *_, height, _ in bars(axes)] for axes in figure.axes]
    assert heights[0][0] == pytest.approx(2 * heights[1][0]) == pytest.approx(4 * heights[2][0])
    assert [bars(axes)[0][3] for axes in figure.axes] == [figures.BROKEN, figures.FINE, figures.BROKEN]
    assert figure.axes[-1].get_xlabel().startswith("token (")
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["0", "1"]


@pytest.mark.parametrize("value, text", [
    (1.0, "1"), (0.125, "1/8"), (0.0416666679, "1/24"), (0.375, "3/8"), (0.3535534, "0.35"), (2.0, "2"), (-0.5, "-1/2"),
    (math.nan, "nan"),
])  # fmt: skip
def test_shares_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize("given, said", [
    ({}, "there is nothing to draw. Give {title: run}"),
    ({"a": 3}, "shares(): 3 is no run"),
    ({"a": Logged({0: {}})}, "no rank has logged shares: worker.log(step=step, shares=[...])"),
    ({"a": Logged({0: {0: [1 / 40] * 40}})}, "40 samples in 1 rows; a page shows 32 in 24"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(given, said):
    with pytest.raises(InputError) as error:
        figures.shares(given)
    assert said in str(error.value)

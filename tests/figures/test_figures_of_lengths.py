"""The picture of batches' lengths: a bar for each rank and step, and above it what it waits."""

import pandas
import pytest
from matplotlib.colors import to_hex

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError


@pytest.fixture(scope="module")
def runs():
    return {order: lab.torchrun("bucketing", "--order", order, show="none") for order in ("own", "shared")}


def test_each_batch_is_a_bar_of_its_length_and_its_wait_stands_above(runs):
    figure = figures.lengths(runs)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["rank 0", "rank 1"]
    for axes, run in zip(figure.axes, runs.values(), strict=True):
        logged = [record for rank in run.ranks for record in rank.records if "length" in record]
        ranks = [rank.rank for rank in run.ranks for record in rank.records if "length" in record]
        colors = [["#0072b2", "#e69f00"][rank] for rank in ranks]
        expected = {(color, own["step"], own["length"]) for color, own in zip(colors, logged, strict=True)}
        filled = [bar for bar in axes.patches if bar.get_fill()]
        drawn = {(to_hex(b.get_facecolor()), round(b.get_x() + b.get_width() / 2), b.get_height()) for b in filled}
        assert drawn == expected and len(filled) == 24

        waits = sum(bar.get_height() for bar in axes.patches if not bar.get_fill())
        counted = sum(record["waiting"] for rank in run.ranks for record in rank.records if "waiting" in record)
        assert 4 * waits == counted > 0  # in tokens of a batch of four
        share = waits / (waits + sum(bar.get_height() for bar in filled))
        assert [text.get_text() for text in axes.texts] == [f"{share:.0%}\nwaiting"]


class Logged:
    def __init__(self, rows):
        self.rows = rows

    def frame(self):
        return pandas.DataFrame(self.rows, columns=["rank", "step", "name", "value"])


@pytest.mark.parametrize("rows, said", [
    ([], "each rank has to log a number above 0 as 'length' in every step"),
    ([(0, 0, "length", 1), (1, 0, "length", 1), (0, 1, "length", 1)], "each rank has to log"),
    ([(0, 0, "length", "long")], "each rank has to log"),
    ([(0, step, "length", 1) for step in range(25)], "there are 25 steps, and a page shows 24"),
])  # fmt: skip
def test_what_is_no_list_of_lengths_is_refused(rows, said):
    with pytest.raises(InputError) as error:
        figures.lengths({"one": Logged(rows)})
    assert said in str(error.value)


def test_nothing_to_draw_is_refused():
    with pytest.raises(InputError, match="nothing to draw"):
        figures.lengths({})
    with pytest.raises(InputError, match="is no run"):
        figures.lengths({"one": 5})

"""The picture of a counted run: a mark for each collective of each rank, as large as its bytes say."""

import itertools

import pandas
import pytest
from matplotlib.colors import to_hex

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures.counts import short


@pytest.fixture(scope="module")
def run():
    return lab.torchrun("faults/not_wrapped_cured", show="none", count=True)


def marks(axes):
    """{(row, place): (colour, area)} of all marks."""
    found = {}
    for points in axes.collections:
        for (place, row), area in zip(points.get_offsets(), points.get_sizes(), strict=True):
            found[int(row), int(place)] = to_hex(points.get_facecolor()[0]), area
    return found


def test_each_collective_is_a_mark_in_its_ranks_colour_larger_with_more_bytes(run):
    table = run.collectives
    drawn = marks(figures.counts(run).axes[0])
    colors = ["#0072b2", "#e69f00"]
    assert len(drawn) == len(table) > 10
    for rank in (0, 1):
        rows = table[(table["rank"] == rank)].reset_index()
        for place, row in rows.iterrows():
            color, area = drawn[rank, place]
            if row["op"] != "barrier":  # which has no bytes, and is drawn as a line
                assert color == colors[rank]
        sizes = {row["bytes"]: drawn[rank, place][1] for place, row in rows.iterrows() if row["op"] != "barrier"}
        assert sorted(sizes) == sorted(sizes, key=sizes.get) and len(set(sizes.values())) == len(sizes) > 1


def test_ops_are_chosen_and_the_bytes_and_steps_are_written(run):
    averages = run.collectives.query("op == 'all_reduce' and step <= 2")
    figure = figures.counts(averages, title="two steps", ops="all_reduce")
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "two steps"
    assert len(marks(axes)) == len(averages) == 4
    assert [text.get_text() for text in axes.texts] == [short(value) for value in averages["bytes"]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 1", "step 2"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["all_reduce"]


def test_ranks_that_issue_unlike_numbers_have_rows_of_their_own_length():
    rows = [(0, None, "all_reduce", 4), (0, None, "barrier", 0), (1, None, "all_reduce", 4000)]
    (axes,) = figures.counts(pandas.DataFrame(rows, columns=["rank", "step", "op", "bytes"])).axes
    assert set(marks(axes)) == {(0, 0), (0, 1), (1, 0)} and not axes.get_xticklabels()
    assert [text.get_text() for text in axes.texts] == ["4 B", "0 B", "4.0 kB"]


NO_STEP = pandas.NA
STEPS = {  # of each rank the steps of its calls, and the places of its marks; the steps of all places, "-" for none
    "one is longer": ([[0, 1, 1], [0, 0, 1]], [[0, 2, 3], [0, 1, 2]], "0011"),
    "one has left a step out": ([[0, 1, 2], [0, 2, 2]], [[0, 1, 2], [0, 2, 3]], "0122"),
    "one has ended": ([[0], [0, 1, 2, NO_STEP]], [[0], [0, 1, 2, 3]], "012-"),
    "steps that come again": ([[0, 1, 0, 1], [1, 0]], [[0, 1, 2, 3], [1, 2]], "0101"),
    "no two alike": ([[0, 2], [1, 3]], [[0, 2], [1, 3]], "0123"),
    "one has logged none": ([[0, 0, 1], [NO_STEP] * 4], [[0, 1, 2], [0, 1, 2, 3]], "001 "),
}


@pytest.mark.parametrize("steps, places, ground", STEPS.values(), ids=STEPS)
def test_a_step_stands_in_one_place_on_all_ranks(steps, places, ground):
    rows = [(rank, step, "all_reduce", 4) for rank, own in enumerate(steps) for step in own]
    table = pandas.DataFrame(rows, columns=["rank", "step", "op", "bytes"]).convert_dtypes()
    (axes,) = figures.counts(table).axes
    assert set(marks(axes)) == {(row, place) for row, own in enumerate(places) for place in own}
    assert {text.get_position()[0] for text in axes.texts} == {place for own in places for place in own}
    labels = {label.get_text(): label.get_position()[0] for label in axes.get_xticklabels()}
    middles = {f"step {s}": ground.rindex(s) / 2 + ground.index(s) / 2 for s in ground if s.isdigit()}
    assert ground == "0101" or labels == middles
    shaded = {
        (round(box.get_y() + 0.5), round(box.get_x() + 0.5) + number)
        for box in axes.patches
        for number in range(round(box.get_width()))
    }
    blocks = list(itertools.accumulate(ground[place - 1] != ground[place] for place in range(1, len(ground))))
    every_second = {place for place, block in enumerate([0, *blocks]) if block % 2 == 0}
    stepped = [row for row, own in enumerate(steps) if own[0] is not NO_STEP]
    assert shaded == {(row, place) for row in stepped for place in every_second if ground[place] != " "}


@pytest.mark.parametrize("given, ops, said", [
    (None, None, "None is no table. Give a run with count=True, or rows of run.collectives"),
    ([{"rank": 0}], None, "is no table"),
    (pandas.DataFrame({"rank": [0], "op": ["barrier"]}), None, "this DataFrame has no step, bytes. Give"),
    (pandas.DataFrame(columns=["rank", "step", "op", "bytes"]), 5, 'ops=5 is no list. Give ops=["all_reduce"]'),
])  # fmt: skip
def test_what_are_no_collectives_is_refused(given, ops, said):
    with pytest.raises(InputError) as error:
        figures.counts(given, ops=ops)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "value, text",
    [(0, "0 B"), (1000, "1.0 kB"), (9949, "9.9 kB"), (9960, "10 kB"), (67e6, "67 MB"), (2e12, "2000 GB")],
)
def test_bytes_are_short(value, text):
    assert short(value) == text


def test_nothing_to_draw_too_much_and_a_run_that_was_not_counted_are_refused(run):
    with pytest.raises(InputError, match="no collectives of gather, scatter"):
        figures.counts(run, ops=["gather", "scatter"])
    many = pandas.concat([run.collectives] * 9)
    with pytest.raises(InputError, match="collectives in a row, and a page shows 60"):
        figures.counts(many)
    with pytest.raises(InputError, match="count=True"):
        figures.counts(lab.torchrun("hello", show="none"))

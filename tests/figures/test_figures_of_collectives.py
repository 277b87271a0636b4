"""The pictures of collectives: a box for each number logged, in the colours of the ranks that it comes from."""

from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, Rectangle

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures.collectives import origins

COLORS = [color.lower() for color in figures.RANK_COLORS]


def logged(*rows, **more):
    """A run whose ranks have logged these (rank, collective, before, after), each with `more`."""
    records = [dict(zip(("rank", "collective", "before", "after"), row, strict=True)) | more for row in rows]
    return run_of(*([row for row in records if row["rank"] == rank] for rank in range(12)))


def run_of(*records):
    """A run whose ranks have logged these records, a list for each rank."""
    ranks = [SimpleNamespace(rank=rank, records=list(own)) for rank, own in enumerate(records)]
    run = SimpleNamespace(ranks=ranks)
    run.frame = lambda: lab.Run.frame(run)
    return run


def boxes(axes):
    """{row: [(text, colour or None, colours of the strip)]} of the boxes, from left to right; dashes are ("–",)."""
    found = {}
    strips = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    texts = {}
    for text in axes.texts:
        if text.get_text():
            texts[text.get_position()[0], round(text.get_position()[1])] = text.get_text()
    for (column, row), text in sorted(texts.items()):
        if text == "–":
            found.setdefault(row, []).append(("–",))
            continue
        (box,) = [
            patch
            for patch in axes.patches
            if isinstance(patch, FancyBboxPatch)
            and patch.get_x() < column < patch.get_x() + 1
            and round(patch.get_y() + 0.42) == row
        ]
        color = to_hex(box.get_facecolor()) if box.get_facecolor()[3] else None
        strip = [
            to_hex(part.get_facecolor())
            for part in sorted(strips, key=lambda part: part.get_x())
            if round(part.get_y() - 0.12) == row and box.get_x() < part.get_x() < box.get_x() + 0.9
        ]
        found.setdefault(row, []).append((text, color, strip))
    return found


def expected(values):
    """The boxes of these whole numbers or texts, of four ranks."""
    if not values:
        return [("–",)]
    drawn = []
    for value in values:
        text = f"{value:.0f}" if not isinstance(value, str) else value
        colors = [COLORS[place] for place, digit in enumerate(reversed(text)) if digit != "0"]
        drawn.append((text, colors[0], []) if len(colors) == 1 else (text, None, colors))
    return drawn


@pytest.fixture(scope="module")
def run():
    return lab.torchrun("collectives", nproc=4, show="none")


def test_each_number_is_a_box_in_the_colours_of_the_ranks_that_it_comes_from(run):
    names = {record["collective"]: None for record in run.ranks[0].records if "collective" in record}
    assert len(names) > 10
    figure = figures.exchanges({f"panel of {name}": (run, name) for name in names})
    for axes, name in zip(figure.axes, names, strict=False):
        assert axes.get_title(loc="left") == f"panel of {name}"
        drawn = boxes(axes)
        for rank in run.ranks:
            (record,) = [record for record in rank.records if record.get("collective") == name]
            assert drawn[rank.rank] == expected(record["before"]) + expected(record["after"]), name


def test_rows_and_sides_are_named(run):
    axes, *_ = figures.exchanges({"a": (run, "broadcast"), "b": (run, "scatter"), "c": (run, "gather")}).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["before", "after"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"rank {rank}" for rank in range(4)]


def test_a_number_that_no_rank_can_have_given_has_a_broken_frame_and_zero_none():
    run = logged((0, "x", [0.0], [1065353216]), (1, "x", [10], [3.000007]))
    (axes,) = figures.exchanges({"x": (run, "x")}).axes
    frames = [(to_hex(patch.get_edgecolor()), patch.get_linestyle()) for patch in axes.patches]
    broken, whole = (figures.BROKEN.lower(), "--"), (figures.INK.lower(), "-")
    assert frames[:2] == [whole, broken] and frames[3] == broken
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["0", "1e9", "10", "3"]


@pytest.mark.parametrize("step", [{}, {"step": 3}, {"step": None}, {"step": float("nan")}])
def test_each_record_of_a_name_has_a_row_whatever_its_step(step):
    run = logged((0, "x", [1], [2]), (1, "x", [10], [20]), (0, "x", [3], []), (0, "y", [4], [5]), **step)
    upper, right = figures.exchanges({name: (run, name) for name in "xy"}).axes
    drawn = {row: [box[0] for box in found] for row, found in boxes(upper).items()}
    assert drawn == {0: ["1", "2"], 1: ["3", "–"], 2: ["10", "20"]}
    assert [label.get_text() for label in upper.get_yticklabels()] == ["rank 0", "rank 0", "rank 1"]
    assert [box[0] for box in boxes(right)[0]] == ["4", "5"]


@pytest.mark.parametrize("before, after, shown", [
    ([1e7, 2.0**24], [2.0**24 + 2], ["1e7", "2e7", "?"]),  # as of float32, in which 2^24 + 1 is none
    ([1e9, 1e8], [1e9], ["1e9", "?", "?"]),  # but what rank 9 hands in is no sum
    ([1e8, 0.1], [1e8 + 1], ["1e8", "0.1", "1e8"]),  # 0.1 is of float64
    ([0.1], [2.0**53 + 2, -1e300], ["0.1", "?", "?"]),
    ([10**8], [10**8 + 1], ["1e8", "1e8"]),
])  # fmt: skip
def test_the_digits_of_a_float_that_may_have_been_rounded_are_no_origins(before, after, shown):
    (axes,) = figures.exchanges({"x": (logged((9, "x", before, after)), "x")}).axes
    drawn = boxes(axes)[0]
    assert [text for text, *_ in drawn] == shown
    for text, color, strip in drawn:
        assert text != "?" or color is None and not strip
    signs = [text.get_text() for text in axes.texts if text.get_color() == figures.BROKEN]
    assert "?" not in signs  # which says that no rank can have given it
    if shown[-1] == "1e8":
        assert drawn[-1][2] == [COLORS[0], COLORS[0]]  # of rank 0, and of rank 8, which has its colour again


def test_rows_are_named_again_where_the_panel_to_the_left_has_other_ranks():
    run = logged((0, "x", [1], [1]), (1, "x", [10], [10]), (1, "y", [10], [10]), (0, "z", [1], [1]), (1, "z", [1], [1]))
    axes = figures.exchanges({name: (run, name) for name in "xyz"}).axes
    names = [[label.get_text() for label in panel.get_yticklabels()] for panel in axes[:3]]
    assert names == [["rank 0", "rank 1"], ["rank 1"], ["rank 0", "rank 1"]]
    beside = figures.exchanges({"x": (run, "x"), "z": (run, "z")}).axes[1]
    assert not any(label.get_text() for label in beside.get_yticklabels())


@pytest.mark.parametrize(
    "value, ranks",
    [
        (4, (0,)), ("30", (1,)), (1010.0, (1, 3)), (277.75, (0, 1, 2, 3)), (0, ()), (10_000, ()),
        (-1, ()), (1.3, ()), (float("nan"), ()), (float("inf"), ()), ("text", ()), (None, ()), ([1], ()),
    ],
)  # fmt: skip
def test_a_number_tells_its_origins_by_the_places_of_its_digits(value, ranks):
    assert origins(value, 4) == ranks


def test_what_was_not_logged_is_refused_with_what_was(run):
    with pytest.raises(InputError, match="'broadcats'.*logged: broadcast, scatter"):
        figures.exchanges({"x": (run, "broadcats")})
    with pytest.raises(InputError, match="logged: none"):
        figures.exchanges({"x": (logged(), "x")})
    with pytest.raises(InputError, match="nothing to draw"):
        figures.exchanges({})


@pytest.mark.parametrize("panels, columns, said", [
    (logged((0, "x", [1], [1])), 2, "this SimpleNamespace is no dict. Give {title: (run, name)}"),
    ({"x": logged((0, "x", [1], [1]))}, 2, "this SimpleNamespace is no pair of a run and a name"),
    ({"x": (None, "x")}, 2, "None is no run. Give what lab.torchrun() returns"),
    ({"x": (logged((0, "x", [1], [1])), "x")}, 0, "columns=0: give a whole number, 1 or more"),
    ({"x": (logged((0, "x", [1], [1])), "x")}, "2", "columns='2': give a whole number"),
    ({"x": (logged((0, "x", None, [1])), "x")}, 2, "the before of 'x' is None. Log a list of numbers"),
    ({"x": (logged((0, "x", [1], [[1]])), "x")}, 2, "the after of 'x' is [[1]]. Log a list of numbers"),
    ({"x": (logged((0, 5, [1], [1])), "x")}, 2, "no rank has logged a collective 'x' with before and after; logged: 5"),
])  # fmt: skip
def test_what_are_no_exchanges_is_refused(panels, columns, said):
    with pytest.raises(InputError) as error:
        figures.exchanges(panels, columns)
    assert said in str(error.value)


def test_waits_draws_when_each_rank_came_and_left(run):
    (axes,) = figures.waits(run).axes
    times = [rank.records[-1] for rank in run.ranks]
    start = min(own["came"] for own in times)
    for bar, line, own, color in zip(axes.patches, axes.lines, times, COLORS, strict=False):
        assert bar.get_x() == pytest.approx(1000 * (own["came"] - start))
        assert bar.get_width() == pytest.approx(1000 * (own["left"] - own["came"]))
        assert line.get_xdata()[0] == bar.get_x() and to_hex(line.get_color()) == to_hex(bar.get_facecolor()) == color
    assert len(axes.patches) == 4
    last = max(own["came"] for own in times)
    assert axes.lines[4].get_xdata()[0] == pytest.approx(1000 * (last - start))
    assert "milliseconds" in axes.get_xlabel()


def test_waits_refuses_a_run_without_times():
    with pytest.raises(InputError, match="came=time.monotonic"):
        figures.waits(logged((0, "x", [1], [1])))


@pytest.mark.parametrize("records, said", [
    ([{"came": 2.0, "left": 1.0}], "rank 0 has left before it came"),
    ([{"came": 1.0, "left": 2.0}, {"came": 3.0, "left": 4.0}], "rank 0 has logged came or left twice"),
    ([{"came": 1.0, "left": None}], "nan is no finite number. Give seconds"),
    ([{"came": "1", "left": 2.0}], "'1' is no finite number"),
])  # fmt: skip
def test_waits_refuses_times_that_are_none(records, said):
    with pytest.raises(InputError, match=said):
        figures.waits(run_of(records))


def test_waits_refuses_what_is_no_run():
    with pytest.raises(InputError, match="None is no run"):
        figures.waits(None)

"""figures of rings and costs: what is drawn is what the ranks have logged, sent, and taken time for."""

import math
import re
from types import SimpleNamespace

import pandas
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, Rectangle

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures.costs import duration, volume
from ddp_lab.meters.cost import Cost

COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"]


def run_with(*rows):
    """A run whose frame has these rows of (rank, step, chunks)."""
    rows = [(rank, step, "chunks", chunks) for rank, step, chunks in rows]
    frame = pandas.DataFrame(rows, columns=["rank", "step", "name", "value"])
    return SimpleNamespace(frame=lambda: frame)


@pytest.fixture(scope="module")
def ring():
    return lab.torchrun("ring", nproc=3, count=True, show="none")


@pytest.fixture(scope="module")
def through_0():
    return lab.torchrun("ring_rivals", "--way", "through_rank_0", nproc=3, count=True, show="none")


def fields(axes, ranks):
    """{(row, column): what its fields show, from the left: a rank and its colour, or None}, and what is framed."""
    found = {}
    for patch in axes.patches:
        if isinstance(patch, Rectangle):
            column = math.floor(patch.get_x() + 0.5)
            row = round(patch.get_y() + patch.get_height() / 2)
            place = round((patch.get_x() - column + 0.42) / patch.get_width())
            spot = pytest.approx((patch.get_x() + patch.get_width() / 2, row))
            texts = [text.get_text() for text in axes.texts if text.get_position() == spot]
            color = to_hex(patch.get_facecolor()) if patch.get_facecolor()[3] else None
            found.setdefault((row, column), [None] * ranks)[place] = (color, *texts) if color else None
            assert bool(texts) == bool(color)
    frames = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    framed = {(round(f.get_y() + f.get_height() / 2), round(f.get_x() + f.get_width() / 2)) for f in frames}
    return found, framed


def test_partial_sums_draws_who_is_in_each_chunk_and_what_has_come(ring):
    figure = figures.partial_sums(ring, columns=3)
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in panels] == ["start", *(f"round {number}" for number in range(1, 5))]
    before = {}
    for step, axes in enumerate(panels):
        found, framed = fields(axes, 3)
        now = {}
        for rank in ring.ranks:
            (chunks,) = [r["chunks"] for r in rank.records if r.get("step") == step]
            for column, value in enumerate(chunks):
                digits = f"{value:03.0f}"[::-1]
                want = [(COLORS[other], str(other)) if digits[other] == "1" else None for other in range(3)]
                assert found[rank.rank, column] == want
                now[rank.rank, column] = value
        assert framed == {place for place in before if before[place] != now[place]}
        assert len(framed) == (3 if step else 0)  # in each round every rank gets one chunk
        before = now


def test_partial_sums_shows_what_was_added_twice_and_what_is_no_sum():
    run = run_with((0, 0, [12.0, 1.5]), (1, 0, [-1.0, 1000.0]))
    found, _ = fields(figures.partial_sums(run).axes[0], 2)
    broken = figures.BROKEN.lower()
    assert found[0, 0] == [(broken, "x2"), (COLORS[1], "1")]
    assert found[0, 1] == found[1, 0] == found[1, 1] == [(broken, "?")] * 2


def test_partial_sums_of_a_whole_tensor_and_without_any():
    (axes,) = figures.partial_sums(run_with((0, 0, [1.0]), (1, 0, [10.0]))).axes
    assert axes.get_xlabel() == "whole tensor" and len(fields(axes, 2)[0]) == 2
    for run in (run_with(), run_with((0, 0, "text")), run_with((0, 0, []))):
        with pytest.raises(InputError, match="chunks=\\[...\\]"):
            figures.partial_sums(run)


@pytest.mark.parametrize("step", [3, None, float("nan")])
def test_partial_sums_refuses_two_lists_in_a_step(step):
    run = run_with((0, step, [1.0]), (1, step, [10.0]), (0, step, [11.0]))
    with pytest.raises(InputError, match="rank 0 has logged two lists of chunks in step"):
        figures.partial_sums(run)


@pytest.mark.parametrize("last, known", [
    (11_111_112.0, True),
    (2.0**24 + 2, False),  # as of float32, in which 2^24 + 1 is none
    (111_111_111.0, True),  # which float32 has not
    (2.0**53 + 2, False),
    (10**17 + 1, True),
])  # fmt: skip
def test_partial_sums_draws_no_digits_of_a_float_that_may_have_been_rounded(last, known):
    run = run_with(*[(rank, 0, [10.0**rank if rank < 8 else 0.0]) for rank in range(18)], (0, 1, [last]))
    found, _ = fields(figures.partial_sums(run).axes[1], 18)
    assert (found[0, 0][0] != (figures.BROKEN.lower(), "?")) == known


@pytest.mark.parametrize("columns", [0, "4", None])
def test_partial_sums_has_one_column_at_least_and_a_run(columns):
    with pytest.raises(InputError, match="give a whole number, 1 or more"):
        figures.partial_sums(run_with((0, 0, [1.0])), columns)
    with pytest.raises(InputError, match="is no run"):
        figures.partial_sums(columns)


def test_traffic_draws_what_each_rank_has_sent_and_received(ring, through_0):
    size = ring.ranks[0].records[-1]["size"]
    figure = figures.traffic({"ring": ring, "rank 0": through_0}, size)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ring", "rank 0"]
    for axes, run in zip(figure.axes, (ring, through_0), strict=True):
        calls = run.collectives
        drawn = {}
        for bar in axes.patches:
            rank = round(bar.get_x() + bar.get_width() / 2)
            op = "recv" if bar.get_hatch() else "send"
            assert to_hex(bar.get_edgecolor()) == COLORS[rank]
            drawn[op, rank] = bar.get_height()
        counted = calls[calls["op"].isin(["send", "recv"])].groupby(["op", "rank"])["bytes"].sum().to_dict()
        assert drawn == counted and len(drawn) == 6
        assert sorted(text.get_text() for text in axes.texts) == sorted(f"{b / size:.3g}" for b in counted.values())
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert f"{size:,} bytes" in figure._supxlabel.get_text().replace("\n", " ")


def test_traffic_tells_what_is_sent_from_what_is_received():
    calls = pandas.DataFrame({"op": ["send", "send", "recv"], "rank": [0, 0, 1], "bytes": [8, 24, 16]})
    (axes,) = figures.traffic({"one way": SimpleNamespace(collectives=calls, ranks=[None, None])}, 32).axes
    drawn = [(bool(bar.get_hatch()), bar.get_height()) for bar in axes.patches]
    assert drawn == [(False, 32), (True, 0), (False, 0), (True, 16)]
    assert [text.get_text() for text in axes.texts] == ["1", "0", "0", "0.5"]


def test_traffic_refuses_what_has_no_sends():
    with pytest.raises(InputError, match="nothing to draw"):
        figures.traffic({}, 1)
    calls = pandas.DataFrame({"op": ["all_reduce"], "rank": [0], "bytes": [8]})
    with pytest.raises(InputError, match="quiet: no rank has sent"):
        figures.traffic({"quiet": SimpleNamespace(collectives=calls, ranks=[None])}, 8)


@pytest.mark.parametrize("size", [0, -1, "12", None, float("nan"), True])
def test_traffic_refuses_what_is_no_size_and_no_dict_of_runs(ring, size):
    with pytest.raises(InputError, match="is no finite number above 0. Give the bytes of the tensor"):
        figures.traffic({"ring": ring}, size)
    with pytest.raises(InputError, match="Give {title: run}"):
        figures.traffic(ring, 1)
    with pytest.raises(InputError, match="is no run"):
        figures.traffic({"size": size}, 1)


TIMES = {2**10: 2e-4, 2**20: 1e-3, 2**26: 5e-2}


def test_cost_fit_draws_the_times_the_line_and_its_two_parts():
    cost = Cost(2e-4, 7e-10)
    (axes,) = figures.cost_fit(TIMES, cost).axes
    lines = {line.get_label(): dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines}
    assert lines["measured"] == TIMES
    assert lines["fit"][2**10] == cost.seconds(2**10) and min(lines["fit"].values()) > cost.alpha
    assert set(lines["latency: 200 µs a call"].values()) == {2e-4}
    assert lines["0.7 ns a byte"][2**10] == pytest.approx(7e-10 * 2**10)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 KiB", "1 MiB", "64 MiB"]
    assert {text.get_text().strip() for text in axes.texts} == {"latency: 200 µs a call", "0.7 ns a byte"}
    figures.cost_fit(TIMES, Cost(0.0, 1e-9)).draw_without_rendering()  # no latency has no line on a log scale
    figures.cost_fit(TIMES, Cost(1e-3, 0.0)).draw_without_rendering()


def test_times_draws_each_way_in_one_colour_and_marks_a_size():
    twice = {size: 2 * time for size, time in TIMES.items()}
    panels = {"model": {"ring": TIMES}, "run": {"doubling": TIMES, "ring": twice}}
    left, right = figures.times(panels, mark={"model": (2**21, "from here on")}).axes
    ring, mark = left.lines
    assert dict(zip(ring.get_xdata(), ring.get_ydata(), strict=True)) == TIMES and set(mark.get_xdata()) == {2**21}
    drawn = {line.get_label(): dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in right.lines}
    assert drawn == panels["run"]
    assert ring.get_color() == right.lines[1].get_color() != right.lines[0].get_color()
    assert not {to_hex(line.get_color()) for line in right.lines} & {color.lower() for color in figures.RANK_COLORS}
    assert left.get_ylim() == right.get_ylim() and left.get_ylim()[0] < min(TIMES.values())
    assert {text.get_text() for text in left.texts} == {"ring", "from here on"}
    assert {text.get_text() for text in right.texts} == {"ring", "doubling"}


@pytest.mark.parametrize("panels", [{}, {"a": {}}, {"a": {"ring": {}}}, {"a": {str(n): TIMES for n in range(6)}}])
def test_times_refuses_nothing_and_more_lines_than_colours(panels):
    with pytest.raises(InputError, match="nothing to draw|6 lines"):
        figures.times(panels)
    with pytest.raises(InputError, match="nothing to draw"):
        figures.cost_fit({}, Cost(1.0, 1.0))


NO_LINES = [1, {"a": 1.0}, {1: 0}, {1: float("nan")}, {0: 1.0}, {-1: 1.0}, {1: "1"}, {1: None}, {1: float("inf")}]


@pytest.mark.parametrize("line", NO_LINES, ids=str)
def test_what_has_no_place_on_a_log_scale_is_refused(line):
    with pytest.raises(InputError, match="Give {size in bytes: seconds}"):
        figures.cost_fit(line, Cost(1.0, 1.0))
    with pytest.raises(InputError, match="Give {title: {label: {size in bytes: seconds}}}"):
        figures.times({"a": {"ring": line}})
    with pytest.raises(InputError, match="Give {title: {label: {size in bytes: seconds}}}"):
        figures.times({"ring": line})


@pytest.mark.parametrize("cost", [None, (1.0, 1.0), TIMES, Cost(float("nan"), 1.0), Cost(-1.0, 1.0)])
def test_cost_fit_takes_a_cost_after_the_times(cost):
    with pytest.raises(InputError, match="is no cost. Give fit\\(sizes, seconds\\), after the times"):
        figures.cost_fit(TIMES, cost)
    with pytest.raises(InputError, match="cost_fit"):
        figures.cost_fit(cost, TIMES)


@pytest.mark.parametrize("mark", [5, {"a": 5}, {"a": (0, "text")}, {"a": ("text", 1)}, {"b": (1, "text")}])
def test_times_marks_a_size_of_a_panel(mark):
    with pytest.raises(InputError, match="Give mark={title"):
        figures.times({"a": {"ring": TIMES}}, mark)


def test_durations_and_volumes_are_written_with_their_units():
    assert [duration(s) for s in (3.0, 0.0123, 8.5e-5, 1e-4, 2e-9, 0.0)] == [
        "3 s", "12 ms", "85 µs", "100 µs", "2 ns", "0 ns"]  # fmt: skip
    assert [volume(n) for n in (512, 4096, 2**20, 3 * 2**29)] == ["512 B", "4 KiB", "1 MiB", "1.5 GiB"]
    assert all(re.fullmatch(r"[\d.]+ \S+", duration(10.0**power)) for power in range(-9, 3))

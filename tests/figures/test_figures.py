"""figures: what is drawn is what the frame holds, in the ranks' colours, and nothing outside is changed."""

import math
import re
import subprocess
import sys
from types import SimpleNamespace

import matplotlib
import pandas
import pytest
from matplotlib.colors import to_hex

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures.style import text_on


def run_with(*rows):
    """A run whose frame has these rows of (rank, step, name, value)."""
    frame = pandas.DataFrame(rows, columns=["rank", "step", "name", "value"])
    return SimpleNamespace(frame=lambda: frame)


LOSSES = run_with(
    *[(rank, step, "loss", 1 / (step + 1 + rank)) for rank in (1, 0) for step in range(0, 50, 10)],
    (0, 50, "accuracy", 0.9),
    (0, 50, "note", "text"),
)


def test_curves_draws_each_ranks_values_over_its_steps():
    figure, frame = figures.curves(LOSSES), LOSSES.frame()
    lines = figure.axes[0].lines
    assert [line.get_label() for line in lines] == ["rank 0", "rank 1"]
    for rank, line in enumerate(lines):
        rows = frame[(frame["rank"] == rank) & (frame["name"] == "loss")]
        assert list(line.get_xdata()) == list(rows["step"])
        assert list(line.get_ydata()) == list(rows["value"])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("step", "loss")


def test_a_rank_has_its_colour_in_lines_labels_and_bars():
    eight = run_with(*[(rank, step, "x", rank + step) for rank in range(8) for step in (0, 1)])
    expected = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"]
    axes = figures.curves(eight, "x").axes[0]
    assert [to_hex(line.get_color()) for line in axes.lines] == expected
    assert {text.get_text(): to_hex(text.get_color()) for text in axes.texts} == {
        f"rank {rank}": color for rank, color in enumerate(expected)
    }
    assert [to_hex(bar.get_facecolor()) for bar in figures.bars(eight, "x").axes[0].patches] == expected


def test_labels_stand_apart_where_lines_end_together():
    figure = figures.curves(run_with(*[(rank, step, "x", 1.0) for rank in range(4) for step in (0, 1)]), "x")
    figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in figure.axes[0].texts), key=lambda box: box.y0)
    assert len(boxes) == 4
    assert all(under.y1 <= over.y0 + 1 for under, over in zip(boxes, boxes[1:], strict=False))


def test_labels_of_lines_that_end_at_the_top_are_all_drawn_below_the_title():
    run = run_with(*[(rank, step, "x", step + 0.01 * rank) for rank in range(4) for step in (0, 9)])
    figure = figures.apart({"title": (run, "x"), "other": (run, "x")})
    figure.draw_without_rendering()
    for axes in figure.axes:
        labels = [text.get_window_extent() for text in axes.texts if text.get_text().startswith("rank")]
        assert len(labels) == 4 and all(label.height > 5 for label in labels)  # one that is left out has no size
        assert max(label.y1 for label in labels) < axes._left_title.get_window_extent().y0
        ordered = sorted(labels, key=lambda box: box.y0)
        assert all(under.y1 <= over.y0 + 1 for under, over in zip(ordered, ordered[1:], strict=False))


def test_lines_that_coincide_all_stay_visible():
    figure = figures.curves(run_with(*[(rank, step, "x", step) for rank in range(3) for step in (0, 1)]), "x")
    stripes = [line._unscaled_dash_pattern for line in figure.axes[0].lines]
    for (offset, (on, off)), place in zip(stripes, range(3), strict=True):
        assert (offset, on, off) == (3 * place, 3, 6)
    assert not any(line.is_dashed() for line in figures.curves(LOSSES).axes[0].lines)


def test_bars_draws_the_last_value_of_each_rank_with_its_number():
    run = run_with(*[(rank, step, "total", 7 * step) for rank in range(3) for step in (1, 2)])
    axes = figures.bars(run, "total").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [14, 14, 14]
    assert [text.get_text() for text in axes.texts] == ["14"] * 3
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["rank 0", "rank 1", "rank 2"]


def test_nan_and_a_single_step_are_drawn_too():
    run = run_with((0, 0, "x", float("nan")), (1, 0, "x", -2.0))
    bars = figures.bars(run, "x").axes[0]
    assert [text.get_text() for text in bars.texts] == ["nan", "-2"]
    lines = figures.curves(run, "x").axes[0].lines
    assert math.isnan(lines[0].get_ydata()[0]) and lines[1].get_marker() == "o"


@pytest.mark.parametrize("draw", [figures.curves, figures.bars])
@pytest.mark.parametrize("name", ["losss", "note"])
def test_a_name_that_no_rank_has_logged_is_refused_with_the_known_ones(draw, name):
    with pytest.raises(InputError, match="logged: loss, accuracy, note"):
        draw(LOSSES, name)


def test_a_figure_shows_itself_on_a_transparent_ground_and_changes_nothing_else():
    before = dict(matplotlib.rcParams)
    figure = figures.curves(LOSSES, title="falls")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.get_facecolor()[3] == 0 and figure.axes[0].get_facecolor()[3] == 0
    assert figure.axes[0].get_title(loc="left") == "falls"
    assert not any(spine.get_visible() for spine in figure.axes[0].spines.values())
    assert dict(matplotlib.rcParams) == before


def logged(run, name):
    """{rank: [its values of `name`, in order]} of a real run."""
    return {rank.rank: [record[name] for record in rank.records if name in record] for rank in run.ranks}


@pytest.fixture(scope="module")
def drifting():
    return lab.torchrun("faults/not_wrapped", show="none")


@pytest.fixture(scope="module")
def together():
    return lab.torchrun("faults/not_wrapped_cured", show="none")


def test_apart_draws_each_rank_and_shades_what_lies_between_them(drifting, together):
    figure = figures.apart({"drift": (drifting, "weight"), "one": (together, "weight")})
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["drift", "one"]
    for axes, run in zip(figure.axes, (drifting, together), strict=True):
        drawn = {rank: list(line.get_ydata()) for rank, line in enumerate(axes.lines)}
        assert drawn == logged(run, "weight")
        assert [to_hex(line.get_color()) for line in axes.lines] == ["#0072b2", "#e69f00"]
        (shade,) = axes.collections
        corners = {tuple(corner) for corner in shade.get_paths()[0].vertices}
        low, high = (list(map(edge, *drawn.values())) for edge in (min, max))
        assert corners >= {*enumerate(low), *enumerate(high)}
        distance = high[-1] - low[-1]
        texts = [text.get_text() for text in axes.texts]
        assert (f"{distance:.2g} apart at the end" if run is drifting else "no distance at the end") in texts
        assert {"rank 0", "rank 1"} < set(texts)


def test_what_is_shaded_between_lines_that_cross_is_what_lies_between_them():
    crossing = run_with((0, 0, "x", 0.0), (0, 1, "x", 1.0), (1, 0, "x", 1.0), (1, 1, "x", 0.0))
    (axes,) = figures.apart({"crossing": (crossing, "x")}).axes
    (shade,) = axes.collections
    heights = [y for x, y in shade.get_paths()[0].vertices if abs(x - 0.5) < 0.02]
    assert heights and all(abs(y - 0.5) < 0.02 for y in heights)


def test_panels_share_their_scale_only_where_they_show_the_same(drifting):
    weight, loss = (drifting, "weight"), (drifting, "loss")
    same = figures.apart({"a": weight, "b": weight}).axes
    assert same[0].get_ylim() == same[1].get_ylim()
    assert [axes.get_ylabel() for axes in same] == ["weight", ""]
    own = figures.apart({"a": weight, "b": weight}, share=False).axes
    assert not own[0].get_shared_y_axes().joined(*own) and [axes.get_ylabel() for axes in own] == ["weight", "weight"]
    other = figures.apart({"a": weight, "b": loss}).axes
    assert other[0].get_ylim() != other[1].get_ylim()
    assert [axes.get_ylabel() for axes in other] == ["weight", "loss"]


def test_an_axis_says_what_it_shows_where_the_name_says_too_little(drifting):
    weight, loss = (drifting, "weight", "the only weight"), (drifting, "loss")
    assert [axes.get_ylabel() for axes in figures.apart({"a": weight, "b": loss}).axes] == ["the only weight", "loss"]
    assert [axes.get_ylabel() for axes in figures.apart({"a": weight, "b": weight}).axes] == ["the only weight", ""]


def test_apart_takes_runs_that_ended_apart_and_runs_of_one_rank():
    uneven = run_with((0, 0, "x", 1.0), (0, 1, "x", 2.0), (1, 0, "x", 4.0))
    (axes,) = figures.apart({"uneven": (uneven, "x")}).axes
    assert "3 apart at the end" in [text.get_text() for text in axes.texts]  # in step 0, the last that both have
    (axes,) = figures.apart({"alone": (run_with((0, 0, "x", 1.0)), "x")}).axes
    assert [text.get_text() for text in axes.texts] == ["rank 0"]


def boxes(axes):
    """{(row, column): (colour or None, the number in it)} of what samples() has drawn."""
    numbers = {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in axes.texts}
    found = {}
    for patch in axes.patches:
        place = round(patch.get_y() + 0.37), round(patch.get_x() + 0.37)
        found[place] = (to_hex(patch.get_facecolor()) if patch.get_facecolor()[3] else None, numbers.get(place, ""))
    return found


@pytest.mark.parametrize("name", ["faults/no_sampler", "faults/no_sampler_cured"])
def test_samples_draws_a_box_with_its_step_for_each_sample_that_a_rank_has_read(name):
    run = lab.torchrun(name, show="none")
    (axes,) = figures.samples({"reads": run}).axes
    read = {
        (rank.rank, sample): (["#0072b2", "#e69f00"][rank.rank], str(record["step"]))
        for rank in run.ranks
        for record in rank.records
        for sample in record.get("samples", [])
    }
    assert len(read) == (12 if name.endswith("cured") else 24)
    unread = {(row, column): (None, "") for row in (0, 1) for column in range(12)}
    assert boxes(axes) == unread | read


def test_samples_read_again_are_drawn_with_every_step_and_panels_have_one_scale():
    twice = run_with((0, 0, "samples", [0, 1]), (0, 1, "samples", [1]), (1, 0, "loss", 0.5))
    upper, lower = figures.samples({"twice": twice, "more": run_with((0, 3, "samples", [4]))}).axes
    blue = "#0072b2"
    nothing = {(row, column): (None, "") for row in (0, 1) for column in range(5)}
    assert boxes(upper) == nothing | {(0, 0): (blue, "0"), (0, 1): (blue, "0,1")}  # rank 1 has a row, and nothing in it
    assert boxes(lower) == {(0, column): (None, "") for column in range(4)} | {(0, 4): (blue, "3")}
    assert upper.get_xlim() == lower.get_xlim()


@pytest.mark.parametrize("value", ["text", 0.5, [0.5], ["a"], [-1], [10**6], []])
def test_samples_refuses_what_are_no_sample_numbers(value):
    with pytest.raises(InputError, match="worker.log\\(step=step, samples="):
        figures.samples({"x": run_with((0, 0, "samples", value))})


def test_twin_draws_the_largest_difference_of_any_rank_in_each_step():
    names = ["none", "sum", "no_wrap"]
    runs = {name: lab.torchrun("equivalence", "--mutation", name, show="none") for name in names}
    (axes,) = figures.twin(runs).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    *numbers, heading = axes.texts
    assert heading.get_text() == "last step"  # over the numbers
    for row, (line, text) in enumerate(zip(axes.lines, numbers, strict=True)):
        largest = list(map(max, *logged(runs[names[row]], "weights_to_twin").values()))
        assert list(line.get_xdata()) == [max(value, 1e-18) for value in largest] and set(line.get_ydata()) == {row}
        expected = figures.FINE if row == 0 else figures.BROKEN
        assert {line.get_color(), text.get_color()} == {expected}
        assert text.get_text() == f"{largest[-1]:.1g}"


def test_twin_draws_no_difference_on_the_edge_and_one_bad_step_as_broken():
    zero = run_with(*[(0, step, "weights_to_twin", 0.0) for step in (0, 1)])
    once = run_with(*[(0, step, "weights_to_twin", value) for step, value in enumerate([0.0, -0.5, 0.0])])
    (axes,) = figures.twin({"zero": zero, "once": once}).axes
    zero, once = axes.lines
    assert set(zero.get_xdata()) == {axes.get_xticks()[0]} and axes.get_xticklabels()[0].get_text() == "0"
    assert "left edge: exactly 0" in axes.get_xlabel() and zero.get_color() == figures.FINE
    assert list(once.get_xdata())[1] == 0.5 and once.get_color() == figures.BROKEN
    assert [text.get_text() for text in axes.texts] == ["0", "0", "last step"]


def test_a_table_shows_its_texts_as_they_are_from_the_left():
    frame = pandas.DataFrame({"<b>what</b>": ["a <i>", "b"]}, index=["x & y", "z"])
    page = figures.table(frame).to_html()
    assert "a &lt;i&gt;" in page and "x &amp; y" in page and "&lt;b&gt;what" in page
    assert re.findall(r"(\w+) \{\s*text-align: left;", page) == ["th", "td"]


@pytest.mark.parametrize("draw", [figures.apart, figures.samples, figures.twin])
def test_no_panel_is_refused(draw):
    with pytest.raises(InputError, match="nothing to draw"):
        draw({})
    with pytest.raises(InputError, match="is no dict"):
        draw(LOSSES)


@pytest.mark.parametrize("draw", [
    lambda: figures.curves(None), lambda: figures.bars({}, "loss"), lambda: figures.apart({"a": (None, "loss")}),
    lambda: figures.samples({"a": None}), lambda: figures.twin({"a": "run"}), lambda: figures.apart({"a": LOSSES}),
    lambda: figures.apart({"a": (LOSSES,)}),
])  # fmt: skip
def test_what_is_no_run_is_refused(draw):
    with pytest.raises(InputError, match="is no run|is no pair of a run and a name"):
        draw()


def test_a_long_title_stays_over_its_panel():
    title = "a title of the length that a sentence has, which says what to see in this panel and what not"
    run = run_with((0, 0, "x", 1.0), (0, 1, "x", 2.0))
    figure = figures.apart({title: (run, "x"), "short": (run, "x")})
    figure.draw_without_rendering()
    left, right = (axes.get_window_extent() for axes in figure.axes)
    words = figure.axes[0]._left_title  # what is drawn: get_title() is only its text
    assert words.get_text().replace("\n", " ") == title
    assert words.get_window_extent().x1 < right.x0



def contrast(a, b):
    """The ratio of WCAG 2, relative luminance against relative luminance."""

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_the_ink_reads_on_light_and_dark_pages(page):
    assert contrast(figures.INK, page) > 4
    assert min(contrast(figures.FINE, page), contrast(figures.BROKEN, page)) > 3


def test_a_number_reads_on_the_colour_of_its_rank():
    assert all(contrast(text_on(color), color) > 4.5 for color in figures.RANK_COLORS)


def test_matplotlib_is_not_imported_before_a_figure_is_drawn():
    code = (
        "import sys; from ddp_lab import figures; print(sorted({'matplotlib', 'pandas', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "[]\n"

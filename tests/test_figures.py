"""figures: what is drawn is what the frame holds, in the ranks' colours, and nothing outside is changed."""

import math
import subprocess
import sys
from types import SimpleNamespace

import matplotlib
import pandas
import pytest
from matplotlib.colors import to_hex

from ddp_lab import figures
from ddp_lab.errors import InputError


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


def test_matplotlib_is_not_imported_before_a_figure_is_drawn():
    code = (
        "import sys; from ddp_lab import figures; print(sorted({'matplotlib', 'pandas', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "[]\n"

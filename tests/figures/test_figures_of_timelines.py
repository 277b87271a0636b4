"""The picture of a traced run: each bar is a row of the run's timeline."""

import io
import itertools

import numpy
import pandas
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures.timelines import COMPUTING, MOVING, THICK

COLORS = ["#0072b2", "#e69f00"]
KINDS = ["forward", "backward", "optimizer", "communication"]


@pytest.fixture(scope="module")
def run():
    return lab.torchrun("faults/not_wrapped_cured", show="none", trace=True)


def kind_of(patch):
    """By its look alone: what a reader who sees no colours goes by."""
    return {(0.35, None): "forward", (1, None): "backward", (0, "......"): "optimizer", (0, "//////"): "communication"}[
        round(patch.get_facecolor()[3], 2), patch.get_hatch()
    ]


def bars(axes):
    """[(rank's row, kind, colour, begin, end)] in ms, sorted."""
    found = []
    for patch in axes.patches:
        if patch.get_height() > THICK + 0.01:  # the ground of a step
            continue
        color = patch.get_edgecolor() if patch.get_hatch() else patch.get_facecolor()
        row = round(patch.get_y() + patch.get_height() / 2)
        lane = MOVING if kind_of(patch) == "communication" else COMPUTING
        assert abs(patch.get_y() + patch.get_height() / 2 - row - lane) <= THICK / 2  # in the lane of its kind
        found.append((row, kind_of(patch), to_hex(color), patch.get_x(), patch.get_x() + patch.get_width()))
    return sorted(found)


def expected(table):
    zero = table["begin"].min()
    rows = zip(table["rank"], table["kind"], table["begin"] - zero, table["end"] - zero, strict=True)
    return sorted((rank, kind, COLORS[rank], 1000 * begin, 1000 * end) for rank, kind, begin, end in rows)


def same(drawn, rows):
    assert [bar[:3] for bar in drawn] == [row[:3] for row in rows] and rows
    numpy.testing.assert_allclose([bar[3:] for bar in drawn], [row[3:] for row in rows], atol=1e-6)


@pytest.mark.parametrize("steps", [None, 2, [2, 3]])
def test_each_row_of_the_steps_is_a_bar_in_its_ranks_colour(run, steps):
    table = run.timeline()
    chosen = [table["step"].dropna().iloc[-1]] if steps is None else [steps] if steps == 2 else steps
    (axes,) = figures.timeline(run, steps=steps).axes
    same(bars(axes), expected(table[table["step"].isin(chosen)]))
    assert axes.get_xlabel() == f"ms from the beginning of step {chosen[0]}"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_of_rows_all_are_drawn_and_the_legend_has_their_kinds(run):
    rows = run.timeline().query("kind != 'optimizer' and step <= 2")
    figure = figures.timeline(rows, title="Without the optimizer")
    same(bars(figure.axes[0]), expected(rows))
    assert figure.axes[0].get_title(loc="left") == "Without the optimizer"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["forward", "backward", "communication"]
    assert [kind_of(patch) for patch in legend.get_patches()] == ["forward", "backward", "communication"]


def table_of(*rows):
    return pandas.DataFrame(rows, columns=["rank", "step", "kind", "begin", "end"])


def test_steps_have_a_ground_behind_every_second_one_and_their_names():
    table = table_of(
        *[(0, step, "backward", step, step + 0.5) for step in range(3)],
        *[(1, step, "backward", step + 0.1, step + 0.7) for step in (1, 2)],
    )
    (axes,) = figures.timeline(table).axes
    grounds = [patch for patch in axes.patches if patch.get_height() > THICK + 0.01]
    found = {(round(p.get_y() + 0.47), round(p.get_x()), round(p.get_x() + p.get_width())) for p in grounds}
    assert found == {(0, 0, 500), (0, 2000, 2500), (1, 2100, 2700)}
    assert [text.get_text() for text in axes.texts] == ["step 0", "step 1", "step 2"]
    (one,) = figures.timeline(table, steps=1).axes
    assert len(one.patches) == 2 and not one.texts


def test_communications_that_go_on_at_once_stand_below_each_other_and_are_numbered_in_their_step():
    spans = [(0, 4), (1, 2), (2, 6), (5, 7), (9, 10)]
    table = table_of(*[(0, 0, "communication", *span) for span in spans], (0, 1, "communication", 11, 12))
    (axes,) = figures.timeline(table, steps=[0, 1]).axes
    lanes = [patch for patch in axes.patches if patch.get_height() <= THICK + 0.01]
    for one, two in itertools.combinations(lanes, 2):
        beside = one.get_y() == two.get_y()
        both = one.get_x() < two.get_x() + two.get_width() and two.get_x() < one.get_x() + one.get_width()
        assert not (beside and both)
    assert len({patch.get_y() for patch in lanes}) == 2
    numbers = [text for text in axes.texts if not text.get_text().startswith("step")]
    assert [text.get_text() for text in numbers] == ["0", "1", "2", "3", "4", "0"]
    assert [text.get_position()[0] for text in numbers] == [0, 1000, 2000, 5000, 9000, 11000]


def test_numbers_that_would_touch_are_left_out():
    table = table_of(*[(0, 0, "communication", at, at + 0.1) for at in (0, 1, 2, 500, 1000)])
    (axes,) = figures.timeline(table).axes
    assert [text.get_text() for text in axes.texts] == ["0", "3", "4"]


def test_rows_of_no_step_are_drawn():
    (axes,) = figures.timeline(table_of((1, pandas.NA, "communication", 3, 4))).axes
    assert bars(axes) == [(0, "communication", COLORS[1], 0, 1000)]
    assert axes.get_xlabel() == "ms from the beginning of the rows"


@pytest.mark.parametrize("page", [1.0, 17 / 255], ids=["light", "dark"])
def test_the_kinds_differ_in_lightness_and_from_the_page(page):
    rows = [(0, 0, kind, at, at + 1) for at, kind in enumerate(KINDS)]
    figure = figures.timeline(table_of(*rows))
    content = io.BytesIO()
    figure.savefig(content, format="png", facecolor=(page,) * 3, dpi=100)
    content.seek(0)
    grey = imread(content)[..., :3] @ [0.2126, 0.7152, 0.0722]
    (axes,) = figure.axes
    means = []
    for at, kind in enumerate(KINDS):
        middle = MOVING if kind == "communication" else COMPUTING
        corners = axes.transData.transform([(1000 * at + 150, middle + 0.1), (1000 * at + 850, middle - 0.1)])
        (left, low), (right, high) = (corners * 100 / figure.dpi).astype(int)
        means.append(grey[len(grey) - high : len(grey) - low, left:right].mean())
    forward, backward, optimizer, communication = means
    assert min(abs(mean - page) for mean in means) > 0.05
    assert abs(forward - backward) > 0.15 and abs(communication - backward) > 0.1


@pytest.mark.parametrize("given, steps, said", [
    (None, None, "None is no table. Give a run with trace=True, or rows of run.timeline()"),
    (pandas.DataFrame({"rank": [0]}), None, "this DataFrame has no step, kind, begin, end. Give" ),
    (table_of(), None, "there is nothing to draw"),
    (table_of((0, 3, "backward", 0, 1)), 9, "there is no step 9. The run has the steps 3"),
    (table_of((0, 3, "backward", 0, 1)), [3, 4, 5], "there is no step 4, 5"),
    (table_of(*[(0, 3, "backward", at, at + 1) for at in range(401)]), None, "401 rows, and a page shows 400"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(given, steps, said):
    with pytest.raises(InputError) as error:
        figures.timeline(given, steps=steps)
    assert said in str(error.value)


def test_a_run_that_was_not_traced_is_refused():
    with pytest.raises(InputError, match="trace=True"):
        figures.timeline(lab.torchrun("hello", show="none"))

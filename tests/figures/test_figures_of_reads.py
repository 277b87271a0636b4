"""figures.samples with epochs and times, and figures.weights: what is drawn is what the ranks have logged."""

from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex

from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures import BROKEN, FINE, INK

BLUE, ORANGE = "#0072b2", "#e69f00"


def run_of(*records):
    """A run whose ranks have logged these: a list for each."""
    ranks = [SimpleNamespace(rank=rank, records=own) for rank, own in enumerate(records)]
    return SimpleNamespace(ranks=ranks, frame=None)


def read(epoch, step, *samples):
    return {"epoch": epoch, "step": step, "samples": [*samples]}


TWO_EPOCHS = run_of(
    [read(0, 0, 0), read(0, 1, 1), read(1, 0, 2), read(1, 1, 0)],
    [read(0, 0, 2), read(0, 1, 0), read(1, 0, 1), read(1, 1, 0)],
)


def rows(axes):
    """{label of the row: [(colour or None, text) for each sample]}, the rows from above; a label may come again."""
    labels = {place: label.get_text() for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    texts = {text.get_position(): text for text in axes.texts if not hasattr(text, "xyann")}
    colors = {}
    for patch in axes.patches:
        place = round(patch.get_x() + 0.37), patch.get_y() + 0.37
        colors[place[0], min(labels, key=lambda row: abs(row - place[1]))] = (
            to_hex(patch.get_facecolor()) if patch.get_facecolor()[3] else None
        )
    samples = range(len(axes.get_xticks()))
    found = []
    for place in sorted(labels):
        row = []
        for sample in samples:
            text = texts.get((sample, place))
            row.append((colors.get((sample, place)), text.get_text() if text else ""))
        found.append((labels[place], row))
    return found


def epochs(axes):
    return [text.get_text() for text in axes.texts if hasattr(text, "xyann")]


def test_each_epoch_has_a_row_for_each_rank():
    (axes,) = figures.samples({"x": TWO_EPOCHS}).axes
    assert rows(axes) == [
        ("rank 0", [(BLUE, "0"), (BLUE, "1"), (None, "")]),
        ("rank 1", [(ORANGE, "1"), (None, ""), (ORANGE, "0")]),
        ("rank 0", [(BLUE, "1"), (None, ""), (BLUE, "0")]),
        ("rank 1", [(ORANGE, "1"), (ORANGE, "0"), (None, "")]),
    ]
    assert epochs(axes) == ["epoch 0", "epoch 1"] and list(axes.get_yticks()) == [0, 1, 2.4, 3.4]  # apart


def test_one_epoch_is_not_named():
    (axes,) = figures.samples({"x": run_of([read(3, 0, 0)])}).axes
    assert epochs(axes) == [] and [label for label, _ in rows(axes)] == ["rank 0"]


def test_times_counts_over_all_ranks_in_each_epoch_and_what_is_not_once_stands_out():
    (axes,) = figures.samples({"x": TWO_EPOCHS}, times=True, of=4).axes
    counted = [[text for _, text in row] for label, row in rows(axes) if label == "times"]
    assert counted == [["2", "1", "1", "0"], ["2", "1", "1", "0"]]
    colors = {text.get_text(): to_hex(text.get_color()) for text in axes.texts if text.get_text() in "012"
              and text.get_position()[1] in (2, 5.4)}  # fmt: skip
    assert colors == {"2": BROKEN.lower(), "1": INK.lower(), "0": BROKEN.lower()}
    assert "times: by all ranks" in axes.get_xlabel()


def test_a_sample_that_a_rank_reads_again_counts_again():
    (axes,) = figures.samples({"x": run_of([read(0, 0, 0, 0), read(0, 1, 0)])}, times=True).axes
    assert rows(axes) == [("rank 0", [(BLUE, "0,0,1")]), ("times", [(None, "3")])]


def test_steps_that_a_box_has_no_room_for_are_counted():
    often = run_of([read(0, step, 0) for step in range(5)] + [read(0, 10, 1), read(0, 11, 1)])
    (axes,) = figures.samples({"x": often}).axes
    assert rows(axes) == [("rank 0", [(BLUE, "5×"), (BLUE, "10,11")])]
    assert "5×: five times" in axes.get_xlabel()
    (axes,) = figures.samples({"x": run_of([read(0, 0, 0)])}).axes
    assert "×" not in axes.get_xlabel()


def test_records_without_a_step_are_numbered_as_in_the_frame():
    (axes,) = figures.samples({"x": run_of([{"share": 1}, {"samples": [0]}], [])}).axes
    assert rows(axes) == [("rank 0", [(BLUE, "1")]), ("rank 1", [(None, "")])]


@pytest.mark.parametrize("of", [0, -1, 2.5, "x", True])
def test_a_number_of_samples_that_is_none_is_refused(of):
    with pytest.raises(InputError, match="give a whole number"):
        figures.samples({"x": TWO_EPOCHS}, of=of)


def weighing(*weights):
    return run_of([{"weights": [0.5, 0.5]}, {"weights": list(weights)}], [{"weights": [1.0]}])


def test_weights_draws_as_how_many_samples_each_counts():
    uneven, even = figures.weights({"uneven": weighing(0.5, 0.25, 0.25, 0), "even": weighing(*[0.25] * 4)}).axes
    assert [bar.get_height() for bar in uneven.patches] == [2, 1, 1, 0]
    assert [text.get_text() for text in uneven.texts] == ["2", "1", "1", "0"]
    broken, fine = BROKEN.lower(), FINE.lower()
    assert [to_hex(bar.get_facecolor()) for bar in uneven.patches] == [broken, fine, fine, broken]
    assert {to_hex(bar.get_facecolor()) for bar in even.patches} == {fine}
    assert uneven.get_ylim() == even.get_ylim() and even.get_xlabel() == "sample"
    assert [axes.get_title(loc="left") for axes in (uneven, even)] == ["uneven", "even"]


@pytest.mark.parametrize("records", [[], [{"weights": []}], [{"weights": 1.0}], [{"weights": ["a"]}]])
def test_weights_refuses_what_are_none(records):
    with pytest.raises(InputError, match="rank 0 has logged no weights"):
        figures.weights({"x": run_of(records)})


def test_weights_refuses_more_than_a_page_shows_and_nothing():
    with pytest.raises(InputError, match="there are 65 samples"):
        figures.weights({"x": run_of([{"weights": [1 / 65] * 65}])})
    with pytest.raises(InputError, match="nothing to draw"):
        figures.weights({})

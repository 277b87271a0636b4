"""The pictures of buckets: each box is a bucket that was logged, each bar a time that was measured."""

import pytest
from matplotlib.colors import to_hex

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures.buckets import layers

LAYER = 4 * (512 * 512 + 512)  # bytes
GAP = 0.002  # of the whole, between two boxes


@pytest.fixture(scope="module")
def run():
    return lab.torchrun("buckets", "--caps", "1", "3", show="none")


def boxes(axes):
    """{row: [(begin, bytes, colour)]} of what is drawn."""
    found = {}
    whole = axes.get_xlim()[1]
    for patch in axes.patches:
        colour = to_hex(patch.get_facecolor()).upper()
        found.setdefault(round(patch.get_y() + 0.42), []).append(
            (round(patch.get_x()), round(patch.get_width() + GAP * whole), colour)
        )
    return found


def test_each_bucket_of_a_step_is_a_box_of_its_bytes_behind_those_before_it(run):
    (axes,) = figures.buckets({"first": (run, 0), "later": (run, 2)}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "later"]
    drawn = boxes(axes)
    for row, step in enumerate((0, 2)):
        begin, expected = 0, []
        for record in run.ranks[0].records:
            if record.get("step") == step:
                colour = figures.FINE if record["ready"] < record["of"] else figures.BROKEN
                expected.append((begin, record["bytes"], colour))
                begin += record["bytes"]
        assert drawn[row] == expected and len(expected) == 3
    assert axes.get_xlim() == (0, 6 * LAYER)


def test_a_box_names_its_layers_its_size_and_when_it_was_sent(run):
    (axes,) = figures.buckets({"later": (run, 2)}).axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["5", "1 MiB", "at 2 of 12", "4 3 2", "3.01 MiB", "at 8 of 12", "1 0", "2 MiB", "at 12 of 12"]


def test_texts_that_do_not_fit_are_left_out():
    many = lab.torchrun("buckets", "--cap", "0", show="none")
    (axes,) = figures.buckets({"0": (many, 1)}).axes
    assert len(axes.patches) == 12  # a bias or a weight in each
    assert [text.get_text() for text in axes.texts if text.get_text().isdigit()] == ["5", "4", "3", "2", "1", "0"]


def test_a_layer_is_named_once_in_the_order_of_its_parameters():
    assert layers(["5.bias", "5.weight", "a.b.weight", "scale"]) == "5 a.b scale"


@pytest.mark.parametrize("step", [9, None, "x"])
def test_a_step_without_buckets_is_refused(run, step):
    with pytest.raises(InputError, match=r"buckets\(\): rank 0 has logged no bucket in step"):
        figures.buckets({"x": (run, step)})


@pytest.mark.parametrize("strips", [None, {}, {"x": 1}, {"x": (1, 2)}])
def test_what_are_no_runs_is_refused(strips):
    with pytest.raises(InputError, match="buckets"):
        figures.buckets(strips)


def test_an_unknown_rank_is_refused(run):
    with pytest.raises(InputError, match="there is no rank 7 in this run of 2"):
        figures.buckets({"x": (run, 2)}, rank=7)


SECONDS = {"0.3": 0.08, "25": 0.13}


def test_each_setting_is_a_bar_and_what_was_saved_is_dotted_up_to_the_sum():
    notes = {"0.3": "4 buckets", "25": "1 bucket"}
    (axes,) = figures.sweep(SECONDS, alone=0.03, sending=0.07, notes=notes).axes
    bars = [(p.get_x() + 0.35, p.get_y(), p.get_height(), p.get_facecolor()[3] > 0) for p in axes.patches]
    rounded = [tuple(round(value, 6) for value in bar) for bar in bars]
    assert rounded == [(0, 0, 80, True), (0, 80, 20, False), (1, 0, 130, True)]  # the second saves nothing
    assert [line.get_ydata()[0] for line in axes.lines] == pytest.approx([30, 100])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.3\n4 buckets", "25\n1 bucket"]
    assert {"80 ms", "130 ms"} <= {text.get_text() for text in axes.texts}
    assert axes.get_ylim()[1] > 130


@pytest.mark.parametrize("seconds, alone, notes", [
    *(({}, 1, None), (None, 1, None), ({"a": 0}, 1, None), ({"a": "1"}, 1, None), ({"a": 1}, 0, None)),
    *(({"a": 1}, 1, {"b": ""}), ({"a": 1}, 1, "text")),
])  # fmt: skip
def test_what_cannot_be_swept_is_refused(seconds, alone, notes):
    with pytest.raises(InputError, match="^sweep"):
        figures.sweep(seconds, alone=alone, sending=1, notes=notes)

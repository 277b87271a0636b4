"""The picture of masks: each box is coloured for the rank whose own GPU it is."""

import pytest
from matplotlib.colors import to_hex

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError


def test_a_gpu_has_the_colour_and_the_number_of_its_rank():
    tables = {"some": lab.visible_devices("2,0", gpus=3, nproc=3), "both": lab.visible_devices(["1", "1"], gpus=3)}
    (axes,) = figures.devices(tables).axes
    filled = {
        (round(box.get_y() + 0.36), round(box.get_x() + 0.42)): to_hex(box.get_facecolor())
        for box in axes.patches
        if box.get_facecolor()[3]
    }
    assert len(axes.patches) == 6
    assert filled == {(0, 2): "#0072b2", (0, 0): "#e69f00", (1, 1): "#0072b2"}
    (shared,) = [box for box in axes.patches if to_hex(box.get_edgecolor()) == figures.BROKEN.lower()]
    assert (round(shared.get_y() + 0.36), round(shared.get_x() + 0.42)) == (1, 1)  # the one with two ranks
    texts = {(round(text.get_position()[1]), text.get_position()[0]): text.get_text() for text in axes.texts}
    assert texts == {(0, 2): "0", (0, 0): "1", (1, 1): "0,1", (0, 2.65): "rank 2: none"}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["some", "both"]
    assert {tick: label.get_text() for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)} == {
        gpu: str(gpu) for gpu in range(3)
    }


def test_a_node_with_fewer_gpus_has_fewer_boxes():
    tables = {"two": lab.visible_devices(None, gpus=2), "four": lab.visible_devices(None, gpus=4)}
    (axes,) = figures.devices(tables).axes
    rows = [round(box.get_y() + 0.36) for box in axes.patches]
    assert (rows.count(0), rows.count(1)) == (2, 4)


def test_slices_and_many_ranks_without_a_gpu_stand_beside():
    tables = {"MIG": lab.visible_devices("MIG-a", gpus=2), "none": lab.visible_devices("", gpus=2, nproc=4)}
    (axes,) = figures.devices(tables).axes
    assert [text.get_text() for text in axes.texts] == ["rank 0: MIG-a", "rank 0: none", "and 3 more"]


def test_what_is_no_such_table_is_refused():
    with pytest.raises(InputError, match="nothing to draw"):
        figures.devices({})
    with pytest.raises(InputError, match="'x' is no table of lab.visible_devices"):
        figures.devices({"x": [1]})
    table = lab.visible_devices("0")
    for given in (table, [table], None):
        with pytest.raises(InputError, match="is no dict. Give {label: lab.visible_devices"):
            figures.devices(given)

"""backends(): the grid shows what the ranks' records say, with their number."""

import re
from collections import Counter
from types import SimpleNamespace

import pandas
import pytest
from matplotlib.colors import to_hex

import ddp_lab as lab
from ddp_lab import figures
from ddp_lab.errors import InputError


def record(collective, dtype, outcome="right", backend="gloo", device="cpu"):
    return dict(zip(("backend", "device", "collective", "dtype", "outcome"),
                    (backend, device, collective, dtype, outcome), strict=True))  # fmt: skip


def run_of(*ranks):
    return SimpleNamespace(ranks=[SimpleNamespace(rank=number, records=own) for number, own in enumerate(ranks)])


def grid(axes):
    """{(collective, dtype): (the sign in its box, whether the box is filled)}."""
    dtypes = [re.sub(r"^\d+\n", "", label.get_text()).replace("\n", "_") for label in axes.get_xticklabels()]
    collectives = [label.get_text() for label in axes.get_yticklabels()]
    signs = {}
    for text in axes.texts:
        column, row = text.get_position()
        if column == int(column):  # the others are the numbers at the ends of the rows
            signs[collectives[row], dtypes[column]] = text.get_text()
    found = {}
    for patch in axes.patches:
        place = collectives[round(patch.get_y() + 0.36)], dtypes[round(patch.get_x() + 0.42)]
        filled = patch.get_facecolor()[3] > 0 and to_hex(patch.get_facecolor()) == figures.FINE.lower()
        found[place] = signs[place], filled
    return found


def counts(axes):
    """({dtype: its number}, [the numbers at the ends of the rows])."""
    below = [label.get_text().split("\n", 1) for label in axes.get_xticklabels()]
    ends = [text.get_text() for text in axes.texts if text.get_position()[0] != int(text.get_position()[0])]
    return {name.replace("\n", "_"): int(number) for number, name in below}, [int(number) for number in ends]


def test_the_grid_is_what_the_ranks_of_a_run_have_recorded():
    run = lab.torchrun("backends", nproc=2, show="none", env={"CUDA_VISIBLE_DEVICES": ""})
    (axes,) = figures.backends(run).axes
    records = run.ranks[0].records
    done = {(r["collective"], r["dtype"]): r["outcome"] == "right" for r in records}
    assert grid(axes) == {place: ("✓", True) if right else ("–", False) for place, right in done.items()}
    by_dtype, by_collective = counts(axes)
    assert by_dtype == dict(Counter(dtype for (_, dtype), right in done.items() if right))
    per_row = Counter(collective for (collective, _), right in done.items() if right)
    assert by_collective == [per_row[collective] for collective in dict.fromkeys(r["collective"] for r in records)]
    assert axes.get_title(loc="left").startswith(f"gloo on cpu: {sum(done.values())} of {len(done)} ")


def test_what_fails_on_one_rank_is_not_done_and_wrong_is_no_refusal():
    (axes,) = figures.backends(
        run_of(
            [record("a", "x"), record("a", "y"), record("b", "x", "wrong")],
            [record("a", "x"), record("a", "y", "Invalid"), record("b", "x")],
        )
    ).axes
    assert grid(axes) == {("a", "x"): ("✓", True), ("a", "y"): ("–", False), ("b", "x"): ("wrong", False)}
    assert counts(axes) == ({"x": 1, "y": 0}, [1, 0])


def test_each_device_has_a_panel_of_its_own():
    both = [record("a", "x"), record("a", "x", "no", "other", "gpu")]
    upper, lower = figures.backends(run_of(both)).axes
    assert grid(upper) == {("a", "x"): ("✓", True)} and grid(lower) == {("a", "x"): ("–", False)}
    assert lower.get_title(loc="left").startswith("other on gpu: 0 of 1")


@pytest.mark.parametrize("records", [[], [{"loss": 1.0}], [{"backend": "gloo", "device": "cpu"}]])
def test_a_run_that_has_tried_nothing_is_refused(records):
    with pytest.raises(InputError, match="no rank has logged what it has tried"):
        figures.backends(run_of(records))


@pytest.mark.parametrize("given", [None, pandas.DataFrame(), [run_of([record("a", "x")])]], ids=str)
def test_what_is_no_run_is_refused(given):
    with pytest.raises(InputError, match="is no run. Give what lab.torchrun"):
        figures.backends(given)

"""result: a Run gives back exactly what the ranks left, and looks well wherever it is shown."""

import json
import math
import re
import shutil

import numpy as np
import pytest
from launching import leave, run_in

import ddp_lab as lab
from ddp_lab import worker
from ddp_lab.errors import InputError
from ddp_lab.launch import output, result


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def test_texts_are_what_the_rank_wrote(folder):
    leave(folder, 0, stdout=b"caf\xe9\r10%\r20%\n\nlast", stderr="größe 😀\n")
    rank = run_in(folder, 1).ranks[0]
    assert rank.stdout == "caf\ufffd\r10%\r20%\n\nlast"
    assert rank.stderr == "größe 😀\n"


def test_a_rank_that_left_nothing_has_empty_texts_and_no_exit_code(folder):
    leave(folder, 0, None)
    rank = run_in(folder, 1).ranks[0]
    assert (rank.stdout, rank.stderr, rank.records, rank.exitcode, rank.stack) == ("", "", [], None, "")
    assert dict(rank.saved) == {}


@pytest.mark.parametrize("code", [0, 3, -9])
def test_exit_codes_are_those_of_subprocess(folder, code):
    leave(folder, 0, code)
    assert run_in(folder, 1).ranks[0].exitcode == code


LOGGED = [
    {"step": 1, "loss": 0.5, "text": "größer\u2028 \x85 \x0b \x0c \x1c \r\n 😀"},
    {"nested": {"a": [1, None, True, "}"]}},
    {"nan": math.nan, "inf": -math.inf},
    {},
]


def test_records_come_back_exactly_as_they_were_logged(folder, monkeypatch):
    leave(folder, 0)
    monkeypatch.setenv("DDP_LAB_RANK_DIR", str(folder / "rank0"))
    for values in LOGGED:
        worker.log(**values)
    found = run_in(folder, 1).ranks[0].records
    assert [json.dumps(record) for record in found] == [json.dumps(record) for record in LOGGED]


@pytest.mark.parametrize("cut", ['{"step": 2, "lo', '{"a": {"b": 1}', "\n", ""])
def test_a_record_that_a_full_disk_has_cut_is_left_out(folder, cut):
    leave(folder, 0, records='{"step": 1}\n' + cut)
    assert run_in(folder, 1).ranks[0].records == [{"step": 1}]


def test_saved_objects_come_back_by_name(folder, monkeypatch):
    leave(folder, 0)
    monkeypatch.setenv("DDP_LAB_RANK_DIR", str(folder / "rank0"))
    worker.save("grid", np.arange(6).reshape(2, 3))
    worker.save("names", ["a", "ü"])
    saved = run_in(folder, 1).ranks[0].saved
    assert set(saved) == {"grid", "names"} and saved["names"] == ["a", "ü"]
    assert np.array_equal(saved["grid"], np.arange(6).reshape(2, 3))


def test_the_frame_has_a_row_for_each_value(folder):
    leave(folder, 0, records='{"step": 10, "loss": 0.5, "lr": 1}\n{"step": 20, "loss": 0.25}\n')
    leave(folder, 1, records='{"loss": 0.75}\n{"loss": 0.125}\n')
    frame = run_in(folder, 2).frame()
    assert list(frame.columns) == ["rank", "step", "name", "value"]
    assert frame.values.tolist() == [
        [0, 10, "loss", 0.5],
        [0, 10, "lr", 1],
        [0, 20, "loss", 0.25],
        [1, 0, "loss", 0.75],
        [1, 1, "loss", 0.125],
    ]


def test_the_frame_of_a_run_without_records_is_empty_but_whole(folder):
    leave(folder, 0)
    frame = run_in(folder, 1).frame()
    assert len(frame) == 0 and list(frame.columns) == ["rank", "step", "name", "value"]


def test_numbers_in_the_frame_can_be_computed_with(folder):
    leave(folder, 0, records='{"loss": 0.5}\n{"loss": 1.5}\n')
    assert run_in(folder, 1).frame().query("name == 'loss'").value.astype(float).mean() == 1.0


def test_the_plain_view_says_how_it_went_and_what_each_rank_did(folder):
    leave(folder, 0, records='{"a": 1}\n{"a": 2}\n')
    leave(folder, 1, 3)
    run = run_in(folder, 2, seconds=4.25)
    assert repr(run).splitlines() == [
        "train.py · 2 ranks · 4.2 s · ok · 2 records",
        "  <rank 0: exit code 0, 2 records>",
        "  <rank 1: exit code 3, 0 records>",
    ]
    run.error = lab.RankError("no")
    assert not run.ok and "failed" in repr(run).splitlines()[0]


def test_one_rank_and_one_record_are_not_plural(folder):
    leave(folder, 0, records='{"a": 1}\n')
    assert "1 rank · 1.0 s · ok · 1 record" in repr(run_in(folder, 1)).splitlines()[0]


def test_the_view_in_a_notebook_has_a_column_for_each_rank(folder):
    for rank in range(3):
        leave(folder, rank, stdout=f"\x1b[31mof rank {rank}\x1b[0m <b>&\n")
    page = run_in(folder, 3, name="<script>.py")._repr_html_()
    for rank in range(3):
        assert f"of rank {rank} &lt;b&gt;&amp;" in page
    assert "repeat(3,1fr)" in page and "\x1b" not in page and "<script>" not in page


def test_the_view_of_many_ranks_and_long_outputs_stays_small(folder):
    for rank in range(64):
        leave(folder, rank, stdout="".join(f"line {n} {'x' * 5000}\n" for n in range(100)))
    page = run_in(folder, 64)._repr_html_()
    assert len(page) < 50_000 and "line 99" in page and "56 more ranks" in page


def test_a_rank_that_printed_nothing_is_said_to_have(folder):
    leave(folder, 0)
    assert "printed nothing" in run_in(folder, 1)._repr_html_()


def test_the_view_names_ranks_in_readable_colours_and_scrolls_long_lines(folder):
    for rank in range(2):
        leave(folder, rank, stdout="a long line " * 15)
    page = run_in(folder, 2)._repr_html_()
    assert re.findall(r'<b style="color:([^"]*)">rank', page) == list(output.TEXT_COLORS[:2])
    pieces = re.findall(r'<pre style="([^"]*)"', page)
    assert len(pieces) == 2 and all("white-space:pre;" in style and "overflow-x:auto" in style for style in pieces)


def test_a_run_whose_folder_is_gone_says_so_in_a_line(folder):
    leave(folder, 0, stdout="x\n")
    run = run_in(folder, 1)
    shutil.rmtree(folder)
    for ask in (
        lambda: run.ranks[0].stdout,
        lambda: run.ranks[0].records,
        lambda: run.ranks[0].saved,
        lambda: run.ranks[0].exitcode,
        run.frame,
    ):
        with pytest.raises(lab.RunGoneError) as error:
            ask()
        assert str(folder) in str(error.value) and "Run the cell again" in str(error.value)
        assert "\n" not in str(error.value)
    assert "is gone" in repr(run) and "\n" not in repr(run) and "is gone" in run._repr_html_()


def test_the_run_that_ended_last_can_be_had_also_if_it_failed(monkeypatch):
    monkeypatch.setattr(result, "_latest", [])
    with pytest.raises(InputError, match="no run has ended"):
        result.last_run()
    result.remember("first"), result.remember("second")
    assert result.last_run() == "second"

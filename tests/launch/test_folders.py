"""folders: each run has its own, for its user alone; the newest finished ones stay, live ones always."""

import json
import os
import stat
import subprocess
import sys
import time

import pytest

from ddp_lab.errors import InputError
from ddp_lab.launch import folders, processes


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """Where the runs of this notebook are kept: three at most."""
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(folders, "KEPT", 3)
    monkeypatch.setattr(folders.ledger, "notebook", lambda: "05_samplers")
    return tmp_path / "home" / "05_samplers"


def names(shelf):
    return sorted(folder.name for folder in shelf.iterdir())


def test_runs_are_numbered_and_closed_to_others(shelf):
    first, second = folders.create(2), folders.create(1)
    assert [first, second] == [shelf / "0001", shelf / "0002"]
    assert sorted(p.name for p in first.glob("rank*")) == ["rank0", "rank1"]
    for folder in (shelf.parent, shelf, first, first / "rank0"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_newest_finished_runs_stay(shelf):
    for _ in range(5):
        folders.finish(folders.create(1), {"outcome": "ok"})
    assert names(shelf) == ["0003", "0004", "0005"]


def test_a_live_run_is_never_removed_and_one_whose_owner_is_gone_counts_as_finished(shelf):
    live = folders.create(1)
    lost = folders.create(1)
    owner = subprocess.Popen([sys.executable, "-c", ""])
    identity = processes.identity(owner.pid)
    owner.wait()
    (lost / "owner.json").write_text(json.dumps(identity))
    for _ in range(3):
        folders.finish(folders.create(1), {"outcome": "ok"})
    assert names(shelf) == [live.name, "0003", "0004", "0005"]


def test_a_folder_that_was_never_completed_goes_after_an_hour(shelf):
    half = folders.create(1)
    (half / "owner.json").unlink()
    folders.finish(folders.create(1), {"outcome": "ok"})
    assert not folders._is_finished(half)  # another kernel may be making it at this moment
    os.utime(half, (time.time() - 3700,) * 2)
    assert folders._is_finished(half)


def test_another_kernel_may_take_the_number_first(shelf, monkeypatch):
    folders.create(1)
    monkeypatch.setattr(type(shelf), "iterdir", lambda self: iter([]))  # as seen before the other made it
    assert folders.create(1) == shelf / "0002"


@pytest.mark.parametrize("home", ["~nobody-of-that-name/x", "/proc/none"])
def test_a_place_where_nothing_can_be_kept_is_named_with_the_cure(monkeypatch, home):
    monkeypatch.setenv("DDP_LAB_HOME", home)
    with pytest.raises(InputError, match="DDP_LAB_HOME"):
        folders.create(1)


def test_an_outcome_that_cannot_be_written_stops_nothing(shelf):
    folder = folders.create(1)
    (folder / "rank0").rmdir()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folders.finish(folder, {"outcome": "ok"})

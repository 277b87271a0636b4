"""faults: each fails as its name says, and its cure does not. A fault's test fails on the cure, and the other way."""

import sys

import pytest

import ddp_lab as lab
from ddp_lab import catalog

STALL = 6  # seconds; the groups of these scripts wait for two minutes


def faulty(name, **options):
    return lab.torchrun(f"faults/{name}", nproc=2, show="none", **options)


def cured(name, **options):
    run = faulty(f"{name}_cured", **options)
    assert run.ok and all(rank.exitcode == 0 for rank in run.ranks)
    return run


def line_of(name, code):
    """The number of the one line of a lab that has this code."""
    lines = catalog.source(name).text.splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if code in line]
    return number


def stood(hang):
    """{rank: (line, collective)} of a HangError."""
    return {spot["rank"]: (spot["line"], spot["collective"]) for spot in hang.where}


def test_every_fault_has_its_cure_and_its_tests():
    faults = [name for name in catalog.names() if name.startswith("faults/") and not name.endswith("_cured")]
    for fault in faults:
        assert f"{fault}_cured" in catalog.names()
        name = fault.removeprefix("faults/")
        assert f"test_{name}" in globals() and f"test_{name}_cured" in globals()


def test_exception_one_rank():
    with pytest.raises(lab.RankError, match="loss is nan in step 3") as error:
        faulty("exception_one_rank")
    assert error.value.rank == 1
    assert error.value.line == line_of("faults/exception_one_rank", "raise ValueError")
    assert [record["step"] for record in error.value.run.ranks[1].records] == [0, 1, 2]


def test_exception_one_rank_cured():
    for rank in cured("exception_one_rank").ranks:
        assert [record["step"] for record in rank.records] == list(range(6))
        assert ["loss" in record for record in rank.records] == [True, True, True, False, True, True]


def test_rank0_only_collective():
    with pytest.raises(lab.HangError) as hang:
        faulty("rank0_only_collective", stall=STALL)
    name = "faults/rank0_only_collective"
    assert hang.value.reason == "stall"
    assert stood(hang.value) == {
        0: (line_of(name, "dist.all_reduce"), "all_reduce"),
        1: (line_of(name, "dist.barrier"), "barrier"),
    }


def test_rank0_only_collective_cured():
    run = cured("rank0_only_collective", stall=STALL)
    assert [rank.records[0] for rank in run.ranks] == [{"right": 90 + rank, "seen": 100} for rank in (0, 1)]
    assert [rank.records[1:] for rank in run.ranks] == [[{"accuracy": (90 + 91) / 200}], []]


def test_early_exit_one_rank():
    with pytest.raises(lab.HangError) as hang:
        faulty("early_exit_one_rank", stall=STALL)
    name = "faults/early_exit_one_rank"
    where = stood(hang.value)
    assert where[0] == (line_of(name, "dist.barrier"), "barrier")
    assert where[1][0] == line_of(name, "loss.backward") and "backward" in where[1][1]
    last = [rank.records[-1]["step"] for rank in hang.value.run.ranks]
    assert last[1] == last[0] + 1


def test_early_exit_one_rank_cured():
    ranks = cured("early_exit_one_rank", stall=STALL).ranks
    assert ranks[0].records[-1]["step"] == ranks[1].records[-1]["step"] < 99  # together, and before the end


def test_killed_by_signal():
    with pytest.raises(lab.RankError, match="SIGKILL") as error:
        faulty("killed_by_signal")
    assert error.value.rank == 1
    assert error.value.run.ranks[1].exitcode == -9
    assert error.value.run.ranks[1].records[-1]["held"] > 20e6  # the record of the last moment survives


def test_killed_by_signal_cured():
    for rank in cured("killed_by_signal").ranks:
        assert [record["held"] for record in rank.records] == [4, 8, 12, 16, 20, 24]


def test_plain_python_start():
    with pytest.raises(lab.CommandError, match="environment variable RANK expected, but not set"):
        lab.command(sys.executable, "-m", catalog.module("faults/plain_python_start"), show="none")


def test_plain_python_start_cured():
    run = cured("plain_python_start")
    assert [rank.records for rank in run.ranks] == [[{"rank": rank, "world_size": 2}] for rank in (0, 1)]
    with pytest.raises(lab.CommandError, match="start this script with: torchrun"):
        lab.command(sys.executable, "-m", catalog.module("faults/plain_python_start_cured"), show="none")

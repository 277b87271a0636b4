"""The labs of DataParallel: what they log is what can be derived."""

import pandas as pd
import pytest
from doctored import doctored

import ddp_lab as lab
from ddp_lab import gpus


def test_dp_ledger_logs_what_each_device_moves_and_holds():
    (rank,) = lab.torchrun("dp_ledger", nproc=1, show="none").ranks
    size, *rest = rank.records
    assert size == {"weights": 4810 * 4, "inputs": 24 * 64 * 4, "outputs": 24 * 10 * 4}
    steps = [record for record in rest if "step" in record]
    assert [record["step"] for record in steps] == [2, 3, 4, 6, 8, 12, 16]
    assert len(rest) - len(steps) == (gpus.count() if gpus.count() > 1 else 0)
    for record in steps:
        others = record["step"] - 1
        first = pd.DataFrame(record["ledger"]).query("device == 0").set_index("phase")
        assert list(first["bytes_in"]) == [0, 0, others * size["outputs"], others * size["weights"]]
        assert list(first["bytes_out"]) == [
            others * size[name] if name else 0 for name in ("inputs", "weights", "outputs", None)
        ]
        assert len(record["peak"]["total"]) == record["step"] and "device" in record["peak"]


def test_dp_ledger_prints_what_goes_through_device_0_in_and_out():
    (rank,) = lab.torchrun("dp_ledger", nproc=1, show="none").ranks
    size, *steps = (record for record in rank.records if "gpu" not in record)
    for line, record in zip(rank.stdout.splitlines(), steps, strict=True):
        others = record["step"] - 1
        through = others * (size["inputs"] + 2 * size["outputs"] + 2 * size["weights"])
        assert line.split(":")[1].split() == [f"{through:,}", "bytes", "through", "device", "0"]


def test_dp_threads_compares_the_best_calls_and_the_slowest_process_each_with_its_share_of_the_rows(tmp_path):
    before = """
    intervals = [2, 3, 3] if rank == 0 else [5, 6, 6]  # of the processes
    intervals = [9, 8, 9, 5, 4, 5] * (rank == 0) + intervals  # before them one thread, and threads
    clock(accumulate(part for interval in intervals for part in (100, interval)))
    rows = []
    own.InPython.forward = lambda self, x: rows.append(len(x)) or x
    """
    first, second = doctored(tmp_path, "dp_threads", before, "worker.log(rows=rows[-1])\n").ranks
    assert [first.records[-1]["rows"], second.records[-1]["rows"]] == [32, 32]
    assert first.stdout.splitlines() == [
        "2 threads: 2.0 times as fast as one", "2 processes: 1.6 times as fast as one"
    ]  # fmt: skip


def test_dp_threads_runs_threads_in_one_process_and_processes_on_a_thread_each():
    run = lab.torchrun("dp_threads", nproc=2, show="none")
    records = [record for rank in run.ranks for record in rank.records]
    assert [(record["kind"], record["threads"]) for record in records] == [
        ("one thread", 1), ("threads", 2), ("processes", 1), ("processes", 1)
    ]  # fmt: skip
    assert len({record["process"] for record in records if record["kind"] != "processes"}) == 1
    assert len({record["process"] for record in records if record["kind"] == "processes"}) == 2
    assert all(record["seconds"] > 0 for record in records)
    assert run.ranks[0].stdout.count("times as fast as one") == 2


@pytest.mark.gpu
@pytest.mark.skipif(gpus.count() < 2, reason="needs two GPUs")
def test_dp_ledger_reads_the_memory_of_real_gpus():
    (rank,) = lab.torchrun("dp_ledger", nproc=1, show="none").ranks
    allocated = [record["allocated"] for record in rank.records if "gpu" in record]
    assert len(allocated) == gpus.count() and allocated[0] > max(allocated[1:]) > 0

"""Runs with count=True: what a script that knows nothing of the meter has issued, as a table over all ranks."""

import pytest
from launching import script, see

import ddp_lab as lab

TRAIN = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddp_lab import worker

dist.init_process_group()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(9, 1))
worker.log(env=[name for name in os.environ if "LAB_COUNT" in name])  # no step
for step in range(10, 13):
    model(torch.ones(4, 9)).sum().backward()
    worker.log(step=step)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_each_collective_has_its_rank_and_the_step_that_is_logged_next(tmp_path, is_warm):
    run = see(lab.torchrun, script(tmp_path, TRAIN), count=True, warm=is_warm).run
    assert run.ok and [rank.records[0] for rank in run.ranks] == [{"env": []}] * 2
    table = run.collectives
    assert list(table.columns) == ["rank", "step", "group", "op", "numel", "dtype", "bytes", "peer"]
    assert set(table["group"]) == {"default_pg"} and table["peer"].isna().all()
    for rank in (0, 1):
        own = table[table["rank"] == rank].fillna({"step": -1})
        assert own["step"].is_monotonic_increasing or own["step"].iloc[-1] == -1
        steps = {step: list(part["op"]) for step, part in own.groupby("step")}
        assert steps == {
            10: ["all_gather", "broadcast", "broadcast", "all_reduce"],  # the constructor's, too
            11: ["broadcast", "broadcast", "all_reduce"],
            12: ["all_reduce"],
            -1: ["barrier"],
        }
        averages = own[own["op"] == "all_reduce"]
        assert set(averages["numel"]) == {10} and set(averages["bytes"]) == {40}
        assert set(averages["dtype"]) == {"float32"}


def test_peers_are_named(tmp_path):
    source = """
        import os, torch
        import torch.distributed as dist
        dist.init_process_group()
        dist.send(torch.ones(3), 1) if dist.get_rank() == 0 else dist.recv(torch.ones(3), 0)
        dist.barrier()
        dist.destroy_process_group()
    """
    table = see(lab.torchrun, script(tmp_path, source), count=True).run.collectives
    assert table[["rank", "op", "peer"]].iloc[[0, 2]].values.tolist() == [[0, "send", 1], [1, "recv", 0]]
    assert table["step"].isna().all()


def test_what_was_issued_before_a_failure_is_there(tmp_path):
    source = """
        import torch.distributed as dist
        dist.init_process_group()
        dist.barrier()
        raise ValueError("enough")
    """
    seen = see(lab.torchrun, script(tmp_path, source), count=True)
    assert type(seen.error) is lab.RankError and list(seen.run.collectives["op"]) == ["barrier"] * 2


def test_a_run_without_collectives_has_an_empty_table(tmp_path):
    table = see(lab.torchrun, script(tmp_path, "print('here')"), count=True).run.collectives
    assert len(table) == 0 and "op" in table


def test_a_run_that_was_not_counted_says_how_to(tmp_path):
    run = see(lab.torchrun, "hello").run
    with pytest.raises(lab.InputError, match=r"hello were not counted. Run it with count=True \(%%torchrun --count\)"):
        run.collectives  # noqa: B018


def test_count_is_true_or_false():
    assert "count='yes' is unknown" in str(see(lab.torchrun, "hello", count="yes").error)

"""Runs with count=True: what a script that knows nothing of the meter has issued, as a table over all ranks."""

import importlib

import pandas
import pytest
from launching import leave, run_in, script, see

import ddp_lab as lab
from ddp_lab.launch.result import Run

torchrun = importlib.import_module("ddp_lab.launch.torchrun")

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


HARD = """
import contextlib, multiprocessing, os, resource
import torch
import torch.distributed as dist
from ddp_lab import worker
from ddp_lab.meters.collectives import CollectiveMeter

rows = os.path.join(os.environ["DDP_LAB_RANK_DIR"], "collectives.jsonl")

def join():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def reduce(size):
    dist.all_reduce(torch.ones(size))

def be_child():
    join()
    with CollectiveMeter() as meter:
        reduce(1)
    reduce(2)
    worker.log(child=[row["numel"] for row in meter.rows])

def ours():  # the descriptors of the rows
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # that of the listing itself
            if os.path.samestat(os.fstat(number), os.stat(rows)):
                yield number

free = os.dup(0)
os.close(free)
worker.log(low=[number for number in ours() if number <= free])
child = multiprocessing.get_context("fork").Process(target=be_child)
child.start()
child.join()

join()
reduce(3)
own = os.open("own.txt", os.O_WRONLY | os.O_CREAT)
for number in ours():
    os.dup2(own, number)
reduce(4)
worker.log(own=os.fstat(own).st_size)

before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(rows).st_size + 10, before[1]))
told = ""
try:
    reduce(5)
except OSError as error:
    told = str(error)
resource.setrlimit(resource.RLIMIT_FSIZE, before)
reduce(6)
worker.log(told=told)
for step in ([0], "last"):
    reduce(7)
    worker.log(step=step)
reduce(8)
"""


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    """A counted run of a script that forks, takes our descriptor for its own, and catches a full disk."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("hard")
        patch.chdir(folder)
        return see(lab.torchrun, script(folder, HARD), nproc=1, count=True).run


def logged(run, name):
    (value,) = [record[name] for record in run.ranks[0].records if name in record]
    return value


def test_a_forked_child_is_not_the_rank_and_may_count_for_itself(hard):
    assert logged(hard, "child") == [1]
    assert not {1, 2} & set(hard.collectives["numel"])


def test_a_file_that_has_taken_our_descriptor_stays_the_scripts(hard):
    assert logged(hard, "own") == 0 and {3, 4} <= set(hard.collectives["numel"])


def test_the_descriptor_is_not_among_the_numbers_that_a_script_opens(hard):
    assert logged(hard, "low") == []


def test_a_row_that_a_full_disk_has_cut_takes_no_other_with_it(hard):
    assert "count=True could not write to" in logged(hard, "told")
    assert list(hard.collectives["numel"]) == [3, 4, 6, 7, 7, 8]


def test_after_the_last_step_is_na_whatever_the_steps_are(hard):
    steps = list(hard.collectives["step"])
    assert steps[-2:] == ["last", pandas.NA] and steps[0] == [0]


def test_a_broken_row_is_told_and_one_that_a_kill_has_cut_is_left_out(tmp_path):
    row = '{"op": "barrier", "group": "g", "numel": 0, "dtype": "", "bytes": 0, "peer": null, "at": 0}\n'
    leave(tmp_path, 0, collectives=f"{row}{row}" + '{"op": ')
    run = run_in(tmp_path, 1)
    assert len(run.collectives) == 2
    leave(tmp_path, 0, collectives=f'{row}{{"op": {row}')
    with pytest.raises(ValueError, match="collectives.jsonl: line 2 is no row"):
        run.collectives  # noqa: B018


def test_a_run_without_collectives_has_an_empty_table(tmp_path):
    table = see(lab.torchrun, script(tmp_path, "print('here')"), count=True).run.collectives
    assert len(table) == 0 and "op" in table


def test_a_run_that_was_not_counted_says_how_to(tmp_path):
    run = see(lab.torchrun, "hello").run
    with pytest.raises(lab.InputError, match=r"hello were not counted. Run it with count=True \(%%torchrun --count\)"):
        run.collectives  # noqa: B018


def test_a_rank_that_was_not_counted_has_no_rows(tmp_path):
    leave(tmp_path, 0, collectives=b"")
    assert len(Run(tmp_path, "train.py", "", 2, 1.0, count=True).collectives) == 0


def test_a_counted_run_in_which_no_rank_got_so_far_says_so(tmp_path, monkeypatch):
    def be_interrupted(*_):
        raise torchrun.Interrupted("interrupted while torch was being loaded")

    monkeypatch.setattr(torchrun, "_server", be_interrupted)
    with pytest.raises(torchrun.Interrupted) as stopped:
        lab.torchrun(script(tmp_path, TRAIN), count=True)
    with pytest.raises(lab.InputError, match="no rank of train.py got so far .* with Interrupted: interrupted while"):
        stopped.value.run.collectives  # noqa: B018


def test_count_is_true_or_false():
    assert "count='yes' is unknown" in str(see(lab.torchrun, "hello", count="yes").error)

"""labs: they do what their docstrings say, on any number of ranks, under the launcher and by hand."""

import ast
import difflib
import json
import os
import re
import subprocess
import sys

import pytest

import ddp_lab as lab
from ddp_lab import catalog

LABS = [name for name in catalog.names() if "/" not in name]


def text(name):
    return catalog.find(name).read_text()


@pytest.mark.parametrize("nproc", [1, 3])
def test_hello_adds_over_the_ranks(nproc):
    run = lab.torchrun("hello", nproc=nproc, show="none")
    total = sum(range(1, nproc + 1))
    assert [rank.records for rank in run.ranks] == [
        [{"rank": rank, "world_size": nproc, "mine": rank + 1, "total": total}] for rank in range(nproc)
    ]


@pytest.fixture(scope="module")
def two_ranks():
    return lab.torchrun("train_ddp", nproc=2, show="none")


def test_train_ddp_reads_the_digits_on_two_ranks(two_ranks):
    _reads_the_digits(two_ranks)


@pytest.mark.parametrize("nproc", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_train_ddp_reads_the_digits_on_any_number_of_ranks(nproc):
    _reads_the_digits(lab.torchrun("train_ddp", nproc=nproc, show="none"))


def _reads_the_digits(run):
    accuracies = {rank.records[-1]["accuracy"] for rank in run.ranks}
    assert len(accuracies) == 1  # of all test images, so the same on all ranks
    (accuracy,) = accuracies
    assert 0.95 < accuracy <= 1
    assert (accuracy * 360) == pytest.approx(round(accuracy * 360))  # no image twice, none left out: 360 in all


def test_each_rank_trains_on_images_of_its_own_and_all_get_one_model(two_ranks):
    frame = two_ranks.frame()
    assert frame[frame["name"] == "weights"]["value"].nunique() == 1
    losses = [list(frame[(frame["rank"] == rank) & (frame["name"] == "loss")]["value"]) for rank in (0, 1)]
    assert len(losses[0]) == len(losses[1]) > 3
    assert all(a != b for a, b in zip(*losses, strict=True))


def test_train_single_runs_under_python_as_its_docstring_says():
    run = lab.command(sys.executable, "-m", "ddp_lab.labs.train_single", show="none")
    assert run.ranks[0].records[-1]["accuracy"] > 0.95
    assert run.ranks[0].stdout.startswith("test accuracy 9")


def test_hello_by_hand_prints_the_records_that_the_launcher_stores():
    env = {key: value for key, value in os.environ.items() if key != "DDP_LAB_RANK_DIR"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = subprocess.run(
        [*torchrun, "-m", "ddp_lab.labs.hello"], capture_output=True, text=True, timeout=100, env=env, check=True
    ).stdout
    printed = [json.loads(record) for record in re.findall(r"\{.*?\}", out)]
    stored = [rank.records[0] for rank in lab.torchrun("hello", show="none").ranks]
    assert sorted(printed, key=lambda record: record["rank"]) == stored


def test_train_ddp_differs_from_train_single_by_the_lesson_alone():
    before, after = (text(name).split('"""', 2)[2].splitlines() for name in ("train_single", "train_ddp"))
    changes = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    added = [line[1:] for line in changes if line.startswith("+")]
    removed = [line[1:] for line in changes if line.startswith("-")]
    assert len(added) <= 20 and len(removed) <= 6, "\n".join(changes)
    shown = "\n".join(added)
    for lesson in ("init_process_group", "LOCAL_RANK", "DistributedDataParallel(", "DistributedSampler(", "set_epoch"):
        assert lesson in shown


@pytest.mark.parametrize("name", catalog.names())
def test_a_lab_is_short_and_says_how_to_run_it(name):
    source = text(name)
    assert len(source.splitlines()) <= 80
    doc = ast.get_docstring(ast.parse(source))
    assert f"-m {catalog.module(name)}\n" in doc and re.search(r"Look (at|for)", doc)


@pytest.mark.parametrize("name", [name for name in catalog.names() if "init_process_group" in text(name)])
def test_a_distributed_lab_ends_as_torch_needs_it(name):
    """Without these lines some healthy processes abort at exit (torch 2.14)."""
    source = text(name)
    *_, last = source.rstrip().splitlines()
    assert "    main()\n    gc.collect()  # " in source and last.startswith("    gc.collect()")
    assert "    dist.destroy_process_group()\n\n\nif __name__" in source


@pytest.mark.parametrize("name", [name for name in catalog.names() if "init_process_group" in text(name)])
def test_no_rank_of_a_lab_can_leave_while_another_still_joins(name):
    """gloo connects the ranks pair by pair: one that joins, does nothing and ends can break off the others' joining."""
    code = text(name).split("init_process_group", 1)[1]
    assert re.search(r"all_reduce|barrier|DistributedDataParallel", code)


@pytest.mark.parametrize("name", catalog.names())
def test_a_lab_chooses_no_device_or_backend_that_a_machine_may_lack(name):
    assert not re.search(r"nccl|\.cuda\(\)|mps|device_ids|\"gloo\"", text(name))

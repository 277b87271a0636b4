"""The labs that train: they do what their docstrings say, on any number of ranks, under the launcher and by hand."""

import importlib
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
    assert set(frame[frame["name"] == "seen"]["value"]) == {10 * 719}  # of 1437 images: half of them, and one twice
    assert frame[frame["name"] == "weights"]["value"].nunique() == 1
    losses = [list(frame[(frame["rank"] == rank) & (frame["name"] == "loss")]["value"]) for rank in (0, 1)]
    assert len(losses[0]) == len(losses[1]) > 3
    assert all(a != b for a, b in zip(*losses, strict=True))


def test_train_single_runs_under_python_as_its_docstring_says():
    run = lab.command(sys.executable, "-m", "ddp_lab.labs.train_single", show="none")
    assert run.ranks[0].records[-1]["accuracy"] > 0.95
    assert run.ranks[0].records[-1]["seen"] == 10 * 1437
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


@pytest.mark.parametrize("nproc", [2, pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", ["train_init", "train_device"])
def test_ranks_that_have_only_joined_train_alone_on_all_images(name, nproc):
    run = lab.torchrun(name, "--epochs", "2", nproc=nproc, show="none")
    ends = [rank.records[-1] for rank in run.ranks]
    assert len({end["weights"] for end in ends}) == nproc  # a model for each
    assert [end["seen"] for end in ends] == [2 * 1437] * nproc
    assert all(end["accuracy"] > 0.9 for end in ends)
    with_index = ":{}" if name == "train_device" else ""
    for rank in run.ranks:
        assert re.search(rf" on \w+{with_index.format(rank.rank)}, after", rank.stdout)


@pytest.mark.parametrize("nproc", [2, pytest.param(1, marks=pytest.mark.slow), 3])
def test_wrapped_ranks_have_one_model_and_still_see_all_images_each(nproc):
    run = lab.torchrun("train_wrap", "--epochs", "2", nproc=nproc, show="none")
    ends = [rank.records[-1] for rank in run.ranks]
    assert len({(end["weights"], end["accuracy"]) for end in ends}) == 1
    assert [end["seen"] for end in ends] == [2 * 1437] * nproc
    losses = [[record["loss"] for record in rank.records[:-1]] for rank in run.ranks]
    assert all(len(set(of_a_step)) == nproc for of_a_step in zip(*losses, strict=True))  # other batches


EQUAL = 1e-12  # float64 rounds at 1e-16, and the mutations are seen above 1e-2
MUTATIONS = {  # mutation: the equalities that it breaks on two ranks and more; "gradients_to_sum" is none of them
    "none": set(),
    "no_wrap": {"gradients_to_twin", "gradients_between_ranks", "gradients_to_mean", "weights_to_twin",
                "weights_between_ranks"},
    "no_broadcast": {"gradients_to_twin", "weights_to_twin", "weights_between_ranks"},
    "frozen_apart": {"gradients_to_twin", "weights_to_twin", "weights_between_ranks"},
    "untied": {"gradients_to_twin", "weights_to_twin", "weights_between_ranks"},
    "no_sampler": {"gradients_to_twin", "weights_to_twin"},
    "unequal": {"gradients_to_twin", "weights_to_twin"},
    "sum": {"gradients_to_twin", "gradients_to_mean", "weights_to_twin"},
}  # fmt: skip


def test_every_mutation_of_the_equivalence_is_tested():
    assert list(MUTATIONS) == importlib.import_module("ddp_lab.labs.equivalence").MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_ranks_equal_one_process_with_the_whole_batch_unless_mutated(mutation):
    _is_broken_by(mutation, nproc=2)


@pytest.mark.parametrize("nproc", [3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mutation", ["none", "no_sampler", "unequal", "sum"])
def test_the_equivalence_holds_and_fails_on_any_number_of_ranks(mutation, nproc):
    _is_broken_by(mutation, nproc)


def _is_broken_by(mutation, nproc):
    for rank in lab.torchrun("equivalence", "--mutation", mutation, nproc=nproc, show="none").ranks:
        assert [record["step"] for record in rank.records] == list(range(8))
        for name in set(rank.records[0]) - {"step", "gradients_to_sum"}:
            worst = max(record[name] for record in rank.records)
            assert worst > 0.01 if name in MUTATIONS[mutation] else worst < EQUAL, (name, worst)
        to_sum = [record["gradients_to_sum"] for record in rank.records]
        assert max(to_sum) < EQUAL if mutation == "sum" else min(to_sum) > 0.01


def test_one_rank_alone_equals_its_twin_and_its_mean_is_its_sum():
    (rank,) = lab.torchrun("equivalence", nproc=1, show="none").ranks
    assert all(value < EQUAL for record in rank.records for name, value in record.items() if name != "step")


CHAIN = ["train_single", "train_init", "train_device", "train_wrap", "train_ddp"]
LESSONS = {  # lab: what its notebook says that it adds to the one before; lines added, lines taken away
    "train_init": (["init_process_group()", "seed + rank", "barrier()", "destroy_process_group()"], 9, 1),
    "train_device": (["LOCAL_RANK", "LOCAL_WORLD_SIZE"], 4, 2),
    "train_wrap": (["import DistributedDataParallel", "model = DistributedDataParallel("], 2, 1),
    "train_ddp": (["DistributedSampler(", "set_epoch(epoch)", "range(rank, len(test)", "all_reduce"], 8, 5),
}


@pytest.mark.parametrize("before, after", list(zip(CHAIN[:-1], CHAIN[1:], strict=True)))
def test_each_lab_of_the_chain_differs_from_the_one_before_by_its_lesson_alone(before, after):
    lesson, most_added, most_removed = LESSONS[after]
    changes = catalog.diff(before, after).text.splitlines()[2:]
    added = [line[1:] for line in changes if line.startswith("+")]
    removed = [line[1:] for line in changes if line.startswith("-")]
    assert len(added) <= most_added and len(removed) <= most_removed, "\n".join(changes)
    for words in lesson:
        assert any(words in line for line in added) and words not in text(before)


def test_the_whole_chain_adds_little_to_train_single():
    changes = catalog.diff("train_single", "train_ddp").text.splitlines()[2:]
    assert sum(line.startswith("+") for line in changes) <= 20
    assert sum(line.startswith("-") for line in changes) <= 7

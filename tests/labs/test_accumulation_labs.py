"""The labs of gradient accumulation: each cures one mistake, and the last trains what one process trains."""

import numpy
import pytest

import ddp_lab as lab
from ddp_lab import catalog

EQUAL = 1e-12  # float64 rounds at 1e-16, and the mistakes are seen above 1e-4
ONE_BATCH = ["--micro-batch", "64", "--window", "1"]


def weights(run):
    """The weights after each step, which are the same on all ranks, to the last bit."""
    first, *others = [numpy.array([record["weights"] for record in rank.records]) for rank in run.ranks]
    assert all((first == other).all() for other in others)
    return first


def off(run, twin):
    """How far the weights are from the twin's after each step: the largest difference."""
    return [abs(one - other).max() for one, other in zip(weights(run), weights(twin), strict=False)]


def all_reduces(run):
    rows = run.collectives.query("op == 'all_reduce' and rank == 1")
    return rows["step"].value_counts(sort=False, dropna=False).tolist()


@pytest.fixture(scope="module")
def twin():
    return lab.torchrun("accumulate_4", *ONE_BATCH, nproc=1, show="none")


@pytest.fixture(scope="module")
def runs():
    names = [f"accumulate_{number}" for number in (1, 2, 3, 4)]
    return {name: lab.torchrun(name, show="none", count=True) for name in names}


def test_each_lab_counts_as_its_notebook_says(runs):
    # 10 micro-batches in each of 2 epochs; those after the last window are all-reduced too, for the next or for nothing
    assert all_reduces(runs["accumulate_1"]) == [4, 4, 6, 4, 2]
    assert all_reduces(runs["accumulate_2"]) == all_reduces(runs["accumulate_3"]) == [1, 1, 1, 1]
    assert all_reduces(runs["accumulate_4"]) == [1, 1, 1, 1, 1, 1]


def test_each_lab_is_nearer_to_the_twin_than_the_one_before(runs, twin):
    assert weights(runs["accumulate_1"]) == pytest.approx(weights(runs["accumulate_2"]), abs=EQUAL)
    summed, divided, whole = (off(runs[f"accumulate_{number}"], twin) for number in (2, 3, 4))
    assert min(summed) > 1e-2
    assert max(divided[:2]) < EQUAL and min(divided[2:]) > 1e-3  # from the first step that a short window changes
    assert len(whole) == 6 and max(whole) < EQUAL


@pytest.mark.parametrize("nproc, micro_batch", [(4, 4), (2, 4), (1, 4)])
def test_the_last_lab_trains_the_twin_on_any_number_of_ranks(nproc, micro_batch, twin):
    window = 64 // (nproc * micro_batch)
    cut = ["--micro-batch", str(micro_batch), "--window", str(window)]
    differences = off(lab.torchrun("accumulate_4", *cut, nproc=nproc, show="none"), twin)
    assert len(differences) == 6 and max(differences) < EQUAL


@pytest.mark.parametrize("model, equals", [("layernorm", True), ("batchnorm", False), ("dropout", False)])
def test_what_depends_on_the_other_samples_or_on_chance_cannot_equal_the_twin(model, equals):
    one = lab.torchrun("accumulate_4", "--model", model, *ONE_BATCH, nproc=1, show="none")
    differences = off(lab.torchrun("accumulate_4", "--model", model, show="none"), one)
    assert max(differences) < EQUAL if equals else min(differences) > 1e-4


@pytest.mark.parametrize("number, lesson", [(2, "no_sync"), (3, "/ args.window"), (4, "min(args.window")])
def test_each_lab_differs_from_the_one_before_by_its_lesson_alone(number, lesson):
    changes = catalog.diff(f"accumulate_{number - 1}", f"accumulate_{number}").text.splitlines()[2:]
    added = [line for line in changes if line.startswith("+")]
    assert len(added) <= 6 and any(lesson in line for line in added), "\n".join(changes)
    assert lesson not in catalog.source(f"accumulate_{number - 1}").text


@pytest.fixture(scope="module")
def all_tokens():
    return lab.torchrun("accumulate_tokens", "--micro-batch", "16", nproc=1, show="none")


@pytest.mark.parametrize("nproc", [1, 2, 4])
def test_a_sum_over_all_tokens_is_the_same_however_it_is_cut(nproc, all_tokens):
    run = lab.torchrun("accumulate_tokens", "--loss", "tokens", nproc=nproc, show="none")
    assert max(off(run, all_tokens)) < EQUAL
    for step in range(4):
        records = [rank.records[step] for rank in run.ranks]
        assert {record["total"] for record in records} == {sum(record["tokens"] for record in records)}


def test_a_mean_of_means_is_another_for_each_cut(all_tokens):
    cuts = [lab.torchrun("accumulate_tokens", nproc=nproc, show="none") for nproc in (1, 2, 4)]
    assert all(min(off(run, all_tokens)) > 1e-3 for run in cuts)
    assert min(off(cuts[0], cuts[1])) > 1e-3 and min(off(cuts[1], cuts[2])) > 1e-3
    assert [rank.records[3]["micro_batches"] for rank in cuts[2].ranks] == [2, 2, 1, 1]  # unlike, and no rank waits


def test_more_ranks_than_sequences_are_told_so():
    with pytest.raises(lab.RankError, match="10 sequences in step 3: too few for 11 ranks"):
        lab.torchrun("accumulate_tokens", nproc=11, show="none")


def test_the_times_are_those_of_as_many_all_reduces_as_are_said():
    run = lab.torchrun("accumulate_time", show="none", count=True)
    records = [rank.records for rank in run.ranks]
    assert [record["window"] for record in records[0]] == [1, 2, 4, 8]
    assert records[0] == records[1]  # the slowest rank's
    buckets = run.collectives.query("rank == 0 and op == 'all_reduce' and numel > 8")
    tries, size = 8, records[0][0]["bytes"]
    by_window = buckets.groupby("step", dropna=False)["bytes"].sum()
    assert by_window[8] == tries * (8 + 1) * size and by_window[4] == tries * (4 + 1) * size
    assert all(record["each"] > 0 and record["once"] > 0 for record in records[0])

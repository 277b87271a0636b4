"""The faults of data that cannot be dealt out by a plain sampler: what is read, how often, and with which numbers."""

from collections import Counter

import pytest
from faulty import cured, equal, faulty, line_of, of_ranks, stood

import ddp_lab as lab


def reads(run, **where):
    """{sample: how often it was read, over all ranks}, of the records that have these values."""
    records = [record for rank in run.ranks for record in rank.records if "samples" in record]
    chosen = [record for record in records if where.items() <= record.items()]
    return Counter(sample for record in chosen for sample in record["samples"])


def orders(run, rank):
    """The samples that a rank has read in each epoch, in order."""
    found = {}
    for record in run.ranks[rank].records:
        if "samples" in record:
            found.setdefault(record["epoch"], []).extend(record["samples"])
    return list(found.values())


ONCE = dict.fromkeys(range(12), 1)


def test_uneven_inputs_hang():
    with pytest.raises(lab.HangError) as hang:
        faulty("uneven_inputs_hang", stall=3)
    name = "faults/uneven_inputs_hang"
    where = stood(hang.value)
    assert where[0] == (line_of(name, "dist.barrier"), "barrier")
    assert where[1][0] == line_of(name, ".backward()") and "backward" in where[1][1]
    assert [rank.records[-1] for rank in hang.value.run.ranks] == [{"batches": 2}, {"step": 1, "gradient": [[1]]}]


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_rank_without_batches_that_leaves_ends_the_others_at_once(warm):
    name = "faults/uneven_inputs_hang"
    with pytest.raises(lab.RankError, match="by peer") as error:  # closed, or reset
        lab.torchrun(name, "--leave", show="none", warm=warm)
    assert error.value.rank == 1 and error.value.line == line_of(name, ".backward()")
    assert error.value.run.ranks[0].exitcode == 0  # it has ended well, and is gone: no wait for a stall or a timeout


def test_uneven_inputs_hang_cured():
    first, second = cured("uneven_inputs_hang", stall=3).ranks
    assert [record["gradient"] for record in first.records[:-1]] == [[[1]]] * 2
    assert [record["gradient"] for record in second.records[:-1]] == [[[1]]] * 2 + [[[0.5]]] * 2
    assert (first.records[-1], second.records[-1]) == ({"batches": 2}, {"batches": 4})


def drawn(run):
    """All that was drawn for samples, and all dropout masks, of all ranks."""
    shifts = [shift for step in of_ranks(run, "shifts") for own in step for shift in own]
    return shifts, [tuple(own) for step in of_ranks(run, "kept") for own in step]


def test_same_augmentation():
    run = faulty("same_augmentation")
    shifts, masks = drawn(run)
    assert len(shifts) == 12 and set(Counter(shifts).values()) == {2}  # each number for two samples
    assert len(masks) == 6 and set(Counter(masks).values()) == {2}
    assert reads(run) == ONCE and len(of_ranks(run, "weight")) == 1


def test_same_augmentation_cured():
    run = cured("same_augmentation")
    shifts, masks = drawn(run)
    assert len(set(shifts)) == 12 and len(set(masks)) == 6
    assert reads(run) == ONCE and equal(*of_ranks(run, "weight"))  # seeded after the model was made


def test_hash_order():
    run = faulty("hash_order", warm=False, env={"PYTHONHASHSEED": "random"})  # interpreters as a terminal starts them
    ((first, second),) = of_ranks(run, "numbers")
    assert run.ok and sorted(first) == sorted(second) and first != second
    assert of_ranks(run, "trained") == [(2, 2)]  # rows that one word has trained, of all words the most


def test_hash_order_cured():
    run = cured("hash_order")
    ((first, second),) = of_ranks(run, "numbers")
    assert first == second == list(range(len(first)))  # by the alphabet: no interpreter has another
    assert of_ranks(run, "trained") == [(1, 1)]


def share_of_each(run):
    """How many samples each rank reads in an epoch: one number where the remainder is spread over the ranks."""
    epochs = {record.get("epoch") for record in run.ranks[0].records if "samples" in record}
    own = [[r["samples"] for r in rank.records if "samples" in r] for rank in run.ranks]
    return {sum(map(len, samples)) / len(epochs) for samples in own}


def test_iterable_not_split():
    run = faulty("iterable_not_split")
    assert reads(run) == dict.fromkeys(range(12), 4)  # by two workers of two ranks
    assert [rank.records[-1] for rank in run.ranks] == [{"steps": 8, "total": 48, "distinct": 12}] * 2


def test_iterable_not_split_cured():
    for nproc in (2, 3, 4):
        run = cured("iterable_not_split", nproc=nproc)
        assert reads(run) == ONCE and share_of_each(run) == {12 // nproc}
        assert run.ranks[-1].records[-1]["total"] == run.ranks[-1].records[-1]["distinct"] == 12


def test_epoch_not_in_workers():
    run = faulty("epoch_not_in_workers")
    for rank in (0, 1):
        first, second, third = orders(run, rank)
        assert first == second == third


def test_epoch_not_in_workers_cured():
    run = cured("epoch_not_in_workers")
    for rank in (0, 1):
        first, second, third = orders(run, rank)
        assert first != second != third != first
    assert all(reads(run, epoch=epoch) == ONCE for epoch in range(3))


@pytest.mark.parametrize("which", ["epoch_not_in_workers", "epoch_not_in_workers_cured"])
def test_twelve_samples_for_eight_workers_are_three_for_each_of_four_ranks(which):
    assert share_of_each(faulty(which, nproc=4)) == {3}


def test_weighted_sampler_duplicates():
    run = faulty("weighted_sampler_duplicates")
    assert orders(run, 0) == orders(run, 1)
    assert [reads(run, epoch=epoch).total() for epoch in (0, 1)] == [24, 24]


def test_weighted_sampler_duplicates_cured():
    run = cured("weighted_sampler_duplicates")
    assert orders(run, 0) != orders(run, 1)
    assert [reads(run, epoch=epoch).total() for epoch in (0, 1)] == [12, 12]
    assert not {0, 1, 2} & set(reads(run))


def test_sampler_of_positions():
    run = faulty("sampler_of_positions")
    assert all(reads(run, epoch=epoch) == ONCE for epoch in (0, 1))  # as if there were no weights
    assert orders(run, 0) == [list(range(0, 12, 2))] * 2


def test_sampler_of_positions_cured():
    run = cured("sampler_of_positions")
    assert orders(run, 0) == orders(cured("weighted_sampler_duplicates"), 0)  # two ways to write one thing
    assert reads(run).total() == 24 and not {0, 1, 2} & set(reads(run))


def test_resume_wrong_samples():
    times = Counter(reads(faulty("resume_wrong_samples")).values())
    assert times[3] == times[1] > 0 and sum(times.values()) == 12  # read three times in two epochs, and once


@pytest.mark.parametrize("nproc", [2, 3])
def test_going_on_reads_each_sample_once_in_each_epoch(nproc):
    run = cured("resume_wrong_samples", nproc=nproc)
    assert reads(run, epoch=0) == reads(run, epoch=1) == ONCE
    assert [record["step"] for record in run.ranks[0].records] == list(range(24 // nproc))


def test_resume_wrong_samples_cured():
    assert reads(cured("resume_wrong_samples")) == dict.fromkeys(range(12), 2)


def test_download_race():
    run = faulty("download_race", nproc=3)
    assert [rank.records[-1]["letters"] for rank in run.ranks] == [400, 200, 200]
    assert [len(rank.records) for rank in run.ranks] == [2, 1, 1]  # one has downloaded


def test_download_race_cured():
    run = cured("download_race", nproc=3)
    assert [rank.records[-1]["letters"] for rank in run.ranks] == [400] * 3
    assert [len(rank.records) for rank in run.ranks] == [2, 1, 1]

"""The labs of scaling: more ranks, a late one, slow loading, threads, and an optimizer that is shared out."""

import os
import statistics

import pytest

import ddp_lab as lab

WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": ""}
SMALL = ["--batch", "64", "--width", "32", "--rounds", "3"]


def scaled(nproc, *options):
    """The record of all ranks, which is the same on each, and the run."""
    run = lab.torchrun("scaling", *options, nproc=nproc, show="none", count=True)
    first, *others = [rank.records[-1] for rank in run.ranks]
    assert all(other == first for other in others)
    return first, run


@pytest.mark.parametrize("nproc", [1, 2, 4])
@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_strong_shares_out_one_batch_and_weak_gives_each_rank_its_own(kind, nproc):
    found, run = scaled(nproc, "--kind", kind, *SMALL)
    share = 64 // nproc if kind == "strong" else 64
    assert (found["ranks"], found["share"], found["threads"]) == (nproc, share, 1)
    assert found["samples_per_second"] == pytest.approx(share * nproc / found["seconds"])
    assert found["bytes"] == 4 * 4 * (32 * 32 + 32)
    assert min(found[part] for part in ("seconds", "compute", "all_reduce")) > 0


def test_its_parts_are_a_step_one_without_all_reduces_and_one_all_reduce():
    found, run = scaled(2, *SMALL)
    reduced = list(run.collectives.query("rank == 0 and op in ('all_reduce', 'barrier')")["bytes"])
    a_round = [0, found["bytes"], 0, 0, found["bytes"]]  # each part begins with a barrier
    assert reduced[: 6 * len(a_round)] == a_round * 6  # three rounds to warm up, and three that count
    for place, part in enumerate(("seconds", "compute", "all_reduce")):
        own = [rank.records[0]["own"][place] for rank in run.ranks]
        assert found[part] >= max(own) * (
            1 - 1e-6
        )  # the median of the slowest rank's is no less than any rank's median


def test_a_batch_that_cannot_be_shared_out_is_refused():
    with pytest.raises(lab.RankError) as error:
        lab.torchrun("scaling", "--batch", "65", show="none")
    assert "--batch 65: give a multiple of 2" in error.value.run.ranks[error.value.rank].stderr


LATE = 0.15  # seconds


@pytest.mark.parametrize("slow, how", [(1, "sleep"), (0, "compute")])
def test_all_wait_for_a_late_rank_in_their_backward_pass(slow, how):
    run = lab.torchrun("straggler", "--slow", str(slow), "--late", str(LATE), "--how", how, show="none")
    late, other = run.ranks[slow].records, run.ranks[1 - slow].records
    assert [record["step"] for record in other] == [record["step"] for record in late] == list(range(6))
    for mine, theirs in zip(late, other, strict=True):
        assert mine["before"] >= LATE > theirs["before"]
        assert mine["seconds"] > LATE
        assert theirs["seconds"] > LATE / 2  # its clock may start late, after the barrier
        parts = ("before", "forward", "backward", "optimizer")
        assert mine["seconds"] == pytest.approx(sum(mine[part] for part in parts))
    # In step 1 DDP makes its buckets anew: the wait is in forward, which has collectives then.
    where = [[record[part] for record in other if record["step"] != 1] for part in ("forward", "backward")]
    assert statistics.median(where[0]) < LATE / 2 < statistics.median(where[1])
    assert other[1]["forward"] > LATE / 2
    assert statistics.median(record["backward"] for record in late) < LATE / 2


def test_a_rank_that_is_late_within_its_backward_is_not_told_by_its_times():
    run = lab.torchrun("straggler", "--late", str(LATE), "--part", "backward", show="none")
    other, late = ([record["backward"] for record in rank.records] for rank in run.ranks)
    assert min(late) >= LATE and statistics.median(other) > LATE / 2
    for rank in run.ranks:
        assert statistics.median(record["before"] + record["forward"] for record in rank.records) < LATE / 2


def test_nobody_waits_where_nobody_is_late():
    run = lab.torchrun("straggler", "--slow", "-1", show="none")
    for rank in run.ranks:
        assert statistics.median(record["seconds"] for record in rank.records) < 0.1  # of 0.2


def test_a_late_rank_that_there_is_not_is_refused():
    with pytest.raises(lab.RankError) as error:
        lab.torchrun("straggler", "--slow", "2", show="none")
    assert "--slow 2: give a rank from 0 to 1, or -1" in error.value.run.ranks[error.value.rank].stderr


def test_workers_load_while_the_rank_computes():
    run = lab.torchrun("loading_bound", show="none")
    for rank in run.ranks:
        waits = {
            workers: [r["waited"] for r in rank.records if r["workers"] == workers and "waited" in r]
            for workers in (0, 2)
        }
        alone, helped = [record for record in rank.records if "share" in record]
        assert [alone["workers"], helped["workers"]] == [0, 2] and alone["samples"] == helped["samples"] == 20 * 16
        assert min(waits[0]) >= 16 * 0.002  # the loop itself loads each batch
        for record in (alone, helped):
            own = waits[record["workers"]]
            assert record["first"] == own[0] and record["share"] == pytest.approx(sum(own[1:]) / record["seconds"])
        assert helped["share"] < 0.6 * alone["share"]  # two load a batch in 16 ms, and it computes for 20


def test_a_product_is_timed_with_as_many_threads_as_are_said():
    cores = os.cpu_count()
    run = lab.torchrun("threads", "--rounds", "3", show="none")
    for rank in run.ranks:
        one, many, first = rank.records
        assert [one["threads"], many["threads"], one["ratio"]] == [1, 2 * cores, 1]
        assert many["ratio"] == pytest.approx(many["seconds"] / one["seconds"])
        assert first["at_first"] == int(first["omp"])


def test_omp_num_threads_decides_with_how_many_a_rank_begins():
    run = lab.torchrun("threads", "--threads", "1", "2", "--rounds", "1", show="none", env={"OMP_NUM_THREADS": "2"})
    for rank in run.ranks:
        assert [record["threads"] for record in rank.records[:-1]] == [1, 2]
        assert rank.records[-1] == {"omp": "2", "at_first": 2}


ADAM = 2 * (64 * 128 + 128 + 2 * (128 * 128 + 128) + 128 * 10 + 10) + 8  # and a count of steps for each tensor


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_zero_trains_what_adam_trains_and_each_rank_has_a_part_of_its_state(nproc):
    run = lab.torchrun("zero1", nproc=nproc, show="none", env=WITHOUT_GPUS)
    ends = [rank.records[-1] for rank in run.ranks]
    assert {end["adam"] for end in ends} == {ADAM} and {end["tensors"] for end in ends} == {8}
    held = [end["held"] for end in ends]
    assert sum(held) == ADAM and max(held) < ADAM * (1 / nproc + 0.1)  # it shares out whole tensors
    assert [end["gathered"] for end in ends] == [ADAM] + [None] * (nproc - 1)
    assert all(record["off"] == 0 for rank in run.ranks for record in rank.records[:-1])


def test_a_step_of_zero_sends_each_tensor_from_the_rank_that_has_updated_it():
    run = lab.torchrun("zero1", show="none", env=WITHOUT_GPUS)
    for rank in run.ranks:
        steps = [record for record in rank.records if "sent" in record and record["step"] != 1]  # there the buckets
        assert [record["step"] for record in steps] == [0, 2, 3, 4]
        assert all(record["sent"] == {"all_reduce": 1, "broadcast": 8} for record in steps)
        assert all(record["sent_by_adam"] == {"all_reduce": 1} for record in steps)

"""The faults of samplers and of evaluation: silent for the most part, and seen by counting."""

from collections import Counter

import pytest
from faulty import cured, equal, faulty, line_of, of_ranks

import ddp_lab as lab


def reads(run, **where):
    """[the samples that each rank has read, in order], of the records that have these values."""
    return [
        [s for r in rank.records if "samples" in r and where.items() <= r.items() for s in r["samples"]]
        for rank in run.ranks
    ]


def times(run, **where):
    return Counter(sum(reads(run, **where), []))


def orders(run):
    """For each rank, how many orders its epochs have."""
    epochs = [reads(run, epoch=epoch) for epoch in range(3)]
    return [len(set(map(tuple, own))) for own in zip(*epochs, strict=True)]


def test_no_set_epoch():
    run = faulty("no_set_epoch")
    assert orders(run) == [1, 1]
    assert times(run, epoch=2) == Counter(range(12))  # shared out well, and always alike


def test_no_set_epoch_cured():
    run = cured("no_set_epoch")
    assert orders(run) == [3, 3]
    assert all(times(run, epoch=epoch) == Counter(range(12)) for epoch in range(3))


def test_sampler_seed_differs():
    count = times(faulty("sampler_seed_differs"))
    assert sum(count.values()) == 16 and set(count.values()) == {1, 2}
    assert len(count) == 16 - 4 and sum(n == 2 for n in count.values()) == 4
    many = times(faulty("sampler_seed_differs", nproc=3))
    assert sum(many.values()) == 18 and len(many) < 16  # so some sample is never read


def test_sampler_seed_differs_cured():
    assert times(cured("sampler_seed_differs")) == Counter(range(16))


def test_shuffle_and_sampler():
    with pytest.raises(lab.RankError, match="sampler option is mutually exclusive with shuffle") as error:
        faulty("shuffle_and_sampler")
    assert error.value.line == line_of("faults/shuffle_and_sampler", "shuffle=True, sampler")


def test_shuffle_and_sampler_cured():
    run = cured("shuffle_and_sampler")
    assert times(run) == Counter(range(12))
    assert all(own != sorted(own) for own in reads(run))


def test_eval_padding():
    run = faulty("eval_padding", nproc=4)
    assert times(run) == Counter([*range(10), 0, 1])
    assert all(rank.records[-1] == {"counted": 12, "accuracy": 10 / 12} for rank in run.ranks)


def test_eval_padding_cured():
    run = cured("eval_padding", nproc=4)
    assert times(run) == Counter(range(10))
    assert all(rank.records[-1] == {"counted": 10, "accuracy": 0.9} for rank in run.ranks)


def test_a_size_that_divides_needs_no_padding_and_hides_the_fault():
    assert faulty("eval_padding", nproc=2).ranks[0].records[-1] == {"counted": 10, "accuracy": 0.9}


def test_mean_of_means():
    run = faulty("mean_of_means", nproc=4)
    (accuracies,) = of_ranks(run, "accuracy")
    assert equal(accuracies) and accuracies[0] == 0.75
    assert times(run) == Counter(range(10))  # read once each: what is wrong is how they are put together


def test_mean_of_means_cured():
    (accuracies,) = of_ranks(cured("mean_of_means", nproc=4), "accuracy")
    assert equal(accuracies) and accuracies[0] == pytest.approx(0.8)


def test_slow_rank_timeout():
    with pytest.raises(lab.RankError, match="Timed out waiting 3000ms") as error:
        faulty("slow_rank_timeout")
    assert error.value.rank == 1  # the one that waited; rank 0 was at work
    assert error.value.line == line_of("faults/slow_rank_timeout", "dist.all_reduce(hits)")
    batches = [record["batch"] for record in error.value.run.ranks[0].records[1:]]
    assert 0 < len(batches) < 20


def test_slow_rank_timeout_cured():
    run = cured("slow_rank_timeout")
    assert [[record["batch"] for record in rank.records[1:-1]] for rank in run.ranks] == [
        [*range(0, 20, 2)],
        [*range(1, 20, 2)],
    ]
    assert of_ranks(run, "hits") == [(200, 200)]


def trained(run):
    """[(updates, images in an update, learning rate, loss)] of each training."""
    names = ("updates", "effective_batch", "lr", "loss")
    return [tuple(record[name] for name in names) for record in run.ranks[0].records]


def test_lr_not_scaled():
    many = trained(faulty("lr_not_scaled", nproc=4))
    one = trained(faulty("lr_not_scaled", nproc=1))
    assert [counted[:3] for counted in one + many] == [(270, 16, 0.1), (69, 64, 0.1)]
    assert many[0][3] > 2 * one[0][3]


def test_lr_not_scaled_cured():
    runs = {nproc: cured("lr_not_scaled", nproc=nproc) for nproc in (1, 4)}
    ((_, _, rate, one),), ((updates, batch, grown, many),) = map(trained, runs.values())
    assert (updates, batch, grown) == (69, 64, 4 * rate)
    assert many < 2 * one
    assert equal([rank.records[-1]["loss"] for rank in runs[4].ranks])

"""The labs of notebook 05's first half: who gets what, and how much each sample counts."""

import pytest

import ddp_lab as lab


def shares(*options, nproc):
    """[(what the sampler says it has, what was read of it)] of each rank of who_gets_what."""
    run = lab.torchrun("who_gets_what", *options, nproc=nproc, show="none")
    return [
        (rank.records[0]["share"], [sample for record in rank.records[1:] for sample in record["samples"]])
        for rank in run.ranks
    ]


EXPECTED = {
    (10, 3, ""): [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]],
    (10, 3, "--drop-last"): [[0, 3, 6], [1, 4, 7], [2, 5, 8]],
    (10, 4, ""): [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]],
    (10, 4, "--drop-last"): [[0, 4], [1, 5], [2, 6], [3, 7]],
    (2, 4, ""): [[0], [1], [0], [1]],
    (2, 4, "--drop-last"): [[], [], [], []],
}


@pytest.mark.parametrize("case", EXPECTED, ids=str)
def test_the_sampler_gives_every_rank_a_stride(case):
    samples, nproc, option = case
    found = shares("--samples", str(samples), *option.split(), nproc=nproc)
    assert found == [(len(own), own) for own in EXPECTED[case]]


TENTH = [0.1] * 10
WEIGHTS = {
    "padded": [2 / 12, 2 / 12] + [1 / 12] * 8,
    "mean_of_means": [1 / 16, 1 / 16, 1 / 8, 1 / 8] * 2 + [1 / 8, 1 / 8],  # 2 batches on ranks 0 and 1, else one
    "strided": TENTH,
    "gathered": TENTH,
    "on_rank_0": TENTH,
}
READ = {"padded": 3, "mean_of_means": 3, "strided": 3, "gathered": 3, "on_rank_0": 10}  # by rank 0


@pytest.mark.parametrize("way", WEIGHTS)
def test_each_way_to_evaluate_has_its_weights(way):
    run = lab.torchrun("evaluate", "--way", way, nproc=4, show="none")
    for rank in run.ranks:
        assert rank.records[-1]["weights"] == pytest.approx(WEIGHTS[way], abs=1e-6)
    reads = [sum(len(record["samples"]) for record in rank.records[:-1]) for rank in run.ranks]
    assert reads[0] == READ[way]
    assert sum(reads) == (12 if way in ("padded", "gathered") else 10)

"""The labs about data: what they say that is read, counted and drawn is so."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import nbformat
import pytest

import ddp_lab as lab
from ddp_lab import catalog
from ddp_lab.labs.uneven import again


def samples(*runs):
    """{sample: how often it was read}, over all ranks of these runs."""
    records = [record for run in runs for rank in run.ranks for record in rank.records]
    return Counter(sample for record in records for sample in record.get("samples", []))


def uneven(way, nproc=2):
    return lab.torchrun("uneven", "--way", way, nproc=nproc, show="none", count=True)


WAYS = {  # way: steps of each rank, samples never read, samples read twice, the longest rank's gradients
    "join": ([2, 4], 0, 0, [1, 1, 0.5, 0.5]),
    "join_own_mean": ([2, 4], 0, 0, [1, 1, 1, 1]),
    "fewest": ([2, 2], 4, 0, [1, 1]),
    "most": ([4, 4], 0, 4, [1] * 4),
    "ask": ([2, 2], 4, 0, [1, 1]),
    "deal": ([3, 3], 0, 0, [1] * 3),
}


@pytest.fixture(scope="module")
def ways():
    return {way: uneven(way) for way in WAYS}


@pytest.mark.parametrize("way", WAYS)
def test_a_way_out_of_uneven_inputs_costs_what_it_says(ways, way):
    steps, never, twice, gradients = WAYS[way]
    run = ways[way]
    assert [len(rank.records) for rank in run.ranks] == steps
    times = samples(run)
    assert (12 - len(times), sum(count == 2 for count in times.values())) == (never, twice)
    assert [record["gradient"] for record in run.ranks[-1].records] == gradients


def beyond(run):
    """The collectives of a rank beyond those of any such training: see DDP's own in notebook 02."""
    own = 3 + 2 + len(run.ranks[-1].records) + 1  # made, buckets arranged anew, a bucket in each step, the barrier
    (calls,) = set(run.collectives.groupby("rank").size())  # as many on each rank
    return calls - own


def test_batches_that_come_again_are_drawn_again():
    class Loader:
        epoch = -1

        def __iter__(self):
            self.epoch += 1
            return iter([(self.epoch, 0), (self.epoch, 1)])

    assert list(islice(again(Loader()), 5)) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


def test_ways_cost_collectives(ways):
    more = {way: beyond(run) for way, run in ways.items()}
    assert more == {"join": 11, "join_own_mean": 11, "fewest": 1, "most": 1, "ask": 3, "deal": 0}


def test_join_on_three_ranks_follows_the_same_formula():
    run = uneven("join", nproc=3)
    assert beyond(run) == 2 * 6 + 3
    assert [record["gradient"] for record in run.ranks[2].records] == pytest.approx([1, 1, 2 / 3, 2 / 3, 1 / 3, 1 / 3])


def numbers(run, name):
    return [record[name] for rank in run.ranks for record in rank.records if name in record]


def test_the_seeding_recipe_gives_every_sample_numbers_of_its_own_and_the_same_in_the_next_run():
    runs = [lab.torchrun("seeding", "--seed", seed, show="none") for seed in ("3", "3", "4")]
    records = [[rank.records for rank in run.ranks] for run in runs]
    assert records[0] == records[1]
    for name in ("torch", "numpy", "random"):
        assert len(set(numbers(runs[0], name) + numbers(runs[2], name))) == 2 * 24
    assert len({tuple(kept) for kept in numbers(runs[0], "kept")}) == 24
    assert len({tuple(weights) for weights in numbers(runs[0], "weights")}) == 1
    drawn = sum(numbers(runs[0], "in_rank") + numbers(runs[2], "in_rank"), [])
    assert len(set(drawn)) == len(drawn) == 8
    assert samples(runs[0]) == dict.fromkeys(range(12), 2)
    read = [record["samples"] for record in runs[0].ranks[0].records if "samples" in record]
    assert read[:6] != read[6:]  # another order in the second epoch
    assert sorted(Counter(numbers(runs[0], "held")).values()) == [4] * 6  # two workers, two epochs


def test_without_the_recipe_ranks_would_share_numbers(tmp_path):
    """The test's own control: one seed for all ranks, and the equality that the recipe avoids is seen."""
    script = tmp_path / "one_seed.py"
    script.write_text(catalog.source("seeding").text.replace("1000 * seed + dist.get_rank()", "seed"))
    assert len(set(numbers(lab.torchrun(script, show="none"), "torch"))) == 12


@pytest.mark.parametrize("nproc", [2, 3])
def test_only_shared_buckets_spare_both_padding_and_waiting(nproc):
    total = {}
    for order in ("random", "own", "shared"):
        run = lab.torchrun("bucketing", "--order", order, nproc=nproc, show="none")
        assert Counter(sum(numbers(run, "read"), [])) == dict.fromkeys(range(96), 1)
        total[order] = {name: sum(numbers(run, name)) for name in ("tokens", "padding", "waiting")}
        sizes = [length * len(read) for length, read in zip(numbers(run, "length"), numbers(run, "read"), strict=True)]
        assert sum(sizes) == total[order]["tokens"] + total[order]["padding"]
    tokens, padding, waiting = ({way: counts[what] for way, counts in total.items()} for what in total["own"])
    assert len(set(tokens.values())) == 1
    assert padding["own"] < padding["random"] / 3 and padding["shared"] < padding["random"] / 3
    assert waiting["own"] > waiting["random"] > 5 * waiting["shared"]


def test_a_stopped_epoch_goes_on_at_any_number_of_ranks():
    for before, steps, after in [(2, 3, 3), (3, 2, 2), (2, 1, 4)]:
        first = lab.torchrun("resumable", "--steps", str(steps), nproc=before, show="none")
        read = first.ranks[0].records[-1]["read"]
        assert read == before * steps
        second = lab.torchrun("resumable", "--read", str(read), nproc=after, show="none")
        assert samples(first, second) == dict.fromkeys(range(12), 1)
        assert [rank.records[-1]["read"] for rank in second.ranks] == [12] * after


def test_skipping_batches_goes_on_rightly_at_the_old_number_of_ranks_alone():
    first = lab.torchrun("resumable", "--skip", "batches", "--steps", "3", show="none")
    skip = ["--skip", "batches", "--before", "3"]
    assert samples(first, lab.torchrun("resumable", *skip, show="none")) == dict.fromkeys(range(12), 1)
    assert len(samples(first, lab.torchrun("resumable", *skip, nproc=3, show="none"))) == 9


def test_a_barrier_moves_no_state_and_a_sent_seed_makes_the_ranks_equal():
    run = lab.torchrun("barrier_and_seed", nproc=3, show="none")
    assert numbers(run, "moved") == [False] * 3
    assert len(set(numbers(run, "after_a_barrier"))) == 3 and len(set(numbers(run, "after_a_sent_seed"))) == 1


def test_numbering_the_workers_first_spreads_the_remainder_over_the_ranks():
    run = lab.torchrun("stream_ends", show="none")
    batches = {}
    for rank in run.ranks:
        for record in rank.records[:-1]:
            batches.setdefault(record["case"], [[], []])[rank.rank].append(record["samples"])
    assert batches == {
        "10 samples, rank first": [[[0, 4], [1, 5], [8], [9]], [[2, 6], [3, 7]]],
        "10 samples, worker first": [[[0, 4], [2, 6], [8]], [[1, 5], [3, 7], [9]]],
        "9 samples, worker first": [[[0, 4], [2, 6], [8]], [[1, 5], [3, 7]]],
    }
    assert all("expected unspecified sampler option" in rank.records[-1]["error"] for rank in run.ranks)


def test_a_sampler_runs_ahead_of_the_loop_where_workers_fetch():
    for rank in lab.torchrun("read_ahead", show="none").ranks:
        *counted, skipped, begun = rank.records
        own, fetched = ([r for r in counted if r["workers"] == workers] for workers in (0, 2))
        assert [r["handed_out"] for r in own] == [r["trained"] for r in own] == list(range(1, 13))
        assert fetched[2]["handed_out"] > 3 and fetched[-1] == {"workers": 2, "trained": 12, "handed_out": 12}
        assert skipped == {"got": [3], "loaded_by_islice": 4} and begun == {"got": [3], "loaded_from_there": 1}


def test_a_file_written_aside_is_whole_and_every_rank_downloads_it():
    run = lab.torchrun("written_aside", show="none")
    assert [rank.records for rank in run.ranks] == [[{"downloaded": "data.txt"}, {"letters": 400, "of": 400}]] * 2


SHOWN = {  # a lab: where the part begins and ends that notebook 05 shows of it
    "who_gets_what": ("    dist.init_process_group()", "        worker.log(step"),
    "evaluate": ("def add_up(", "    return accuracy"),
    "uneven": ("    files = ", "            worker.log("),
    "faults/same_augmentation": ("class Shifted", "        worker.log(step"),
    "seeding": ("def seed_all", '        return drawn | {"random"'),
    "barrier_and_seed": ("    torch.manual_seed(dist", "    worker.log(after_a_sent_seed"),
    "stream_ends": ("class Stream", "        return iter("),
    "bucketing": ("def shared_buckets", "    return [steps[place]"),
    "resumable": ("class Rest", "        return len("),
    "read_ahead": ("class Counting", "    worker.log(got=next(iter"),
    "faults/download_race": ("def prepare", "    dist.barrier()"),
    "written_aside": ("def download", "    worker.log("),
}


def test_the_notebook_shows_of_each_lab_the_part_that_it_means():
    notebook = nbformat.read(Path(__file__).parents[2] / "notebooks" / "05_samplers.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells)
    parts = dict(re.findall(r'lab\.source\("([^"]+)", lines=\((\d+, \d+)\)\)', code))
    assert set(parts) == set(SHOWN)
    for name, (begins, ends) in SHOWN.items():
        first, *_, last = lab.source(name, lines=tuple(map(int, parts[name].split(", ")))).text.splitlines()
        assert first.startswith(begins) and last.startswith(ends), (name, first, last)

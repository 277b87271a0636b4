"""The labs of notebook 02's second half: an all-reduce made of sends, what it costs, DDP and BatchNorm by hand."""

import math

import numpy
import pytest
from doctored import SQUARES, doctored

import ddp_lab as lab
from ddp_lab import catalog


def counted(name, *args, nproc):
    return lab.torchrun(name, *args, nproc=nproc, count=True, show="none")


def moved(run, op="send"):
    calls = run.collectives
    totals = calls[calls["op"] == op].groupby("rank")["bytes"].sum()
    return [int(totals.get(rank, 0)) for rank in range(len(run.ranks))]


def chunks(run):
    """[of each rank: [its chunks in each round]]"""
    return [[record["chunks"] for record in rank.records if "chunks" in record] for rank in run.ranks]


def is_the_sum(run):
    return [rank.records[-1]["to_all_reduce"] for rank in run.ranks] == [0] * len(run.ranks)


@pytest.mark.parametrize("nproc", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_the_ring_sends_its_share_to_the_right_and_reduces(nproc):
    run = counted("ring", nproc=nproc)
    size = run.ranks[0].records[-1]["size"]
    everybody = (10**nproc - 1) // 9  # 11, 111, 1111
    assert is_the_sum(run)
    assert moved(run) == moved(run, "recv") == [2 * (nproc - 1) * size // nproc] * nproc
    calls = run.collectives
    sends = calls[calls["op"] == "send"]
    assert set(zip(sends["rank"], sends["peer"], strict=True)) == {(r, (r + 1) % nproc) for r in range(nproc)}
    for rank, rounds in enumerate(chunks(run)):
        assert len(rounds) == 1 + 2 * (nproc - 1)
        assert rounds[0] == [10**rank] * nproc and rounds[-1] == [everybody] * nproc
        complete = [own.count(everybody) for own in rounds]
        assert complete == [0] * (nproc - 1) + list(range(1, nproc + 1))  # one after the first phase, then one a round


def test_the_ring_takes_tensors_that_its_ranks_do_not_divide(tmp_path):
    """Also with fewer numbers than ranks: some chunks are empty."""
    script = tmp_path / "odd.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from ddp_lab import worker\n"
        "from ddp_lab.labs.ring import ring\n"
        "dist.init_process_group()\n"
        "for numel in (1, 2, 7, 1001):\n"
        "    t = torch.arange(numel, dtype=torch.float64) + dist.get_rank()\n"
        "    expected = t.clone()\n"
        "    ring(t)\n"
        "    dist.all_reduce(expected)\n"
        "    worker.log(step=numel, gap=(t - expected).abs().max())\n"
        "dist.destroy_process_group()\n"
    )
    run = lab.torchrun(str(script), nproc=3, show="none")
    assert [[record["gap"] for record in rank.records] for rank in run.ranks] == [[0.0] * 4] * 3


def test_through_rank_0_all_goes_through_rank_0():
    run = counted("ring_rivals", "--way", "through_rank_0", nproc=3)
    size = run.ranks[0].records[-1]["size"]
    assert is_the_sum(run) and moved(run) == moved(run, "recv") == [2 * size, size, size]


@pytest.mark.parametrize("nproc", [2, 4])
def test_doubling_takes_as_many_rounds_as_it_can_double(nproc):
    run = counted("ring_rivals", nproc=nproc)
    size, rounds = run.ranks[0].records[-1]["size"], int(math.log2(nproc))
    assert is_the_sum(run) and moved(run) == moved(run, "recv") == [rounds * size] * nproc
    for own in chunks(run):
        assert [f"{value:.0f}".count("1") for (value,) in own] == [2**number for number in range(rounds + 1)]


def test_doubling_refuses_a_number_of_ranks_that_is_no_power_of_two():
    lab.torchrun("ring_rivals", nproc=3, show="none", expect="doubling takes 2, 4, 8, ... ranks, not 3")


@pytest.mark.slow  # the notebook runs it, too
def test_ring_times_has_a_time_of_each_way_for_each_size_the_same_on_all_ranks():
    run = lab.torchrun("ring_times", nproc=2, show="none")
    ways = {"one_round", "through_rank_0", "ring", "doubling", "all_reduce"}
    first, second = (rank.records for rank in run.ranks)
    assert first == second and [row["size"] for row in first] == [4**power for power in range(5, 13)]
    assert all(set(row) == {"step", "size", *ways} and min(row[way] for way in ways) > 0 for row in first)


def test_cost_all_reduce_times_its_sizes_and_the_pieces():
    run = counted("cost_all_reduce", nproc=2)
    *rows, pieces = run.ranks[0].records
    assert [row["size"] for row in rows] == [4**power for power in range(5, 14)]
    assert all(row["seconds"] > 0 for row in rows) and pieces["in_256"] > pieces["in_one"] > 0
    assert run.ranks[0].records == run.ranks[1].records
    calls = run.collectives
    sizes = calls[(calls["op"] == "all_reduce") & (calls["rank"] == 0)]
    assert set(sizes["bytes"]) >= {row["size"] for row in rows}  # what is said to be reduced is
    last = sizes[sizes["step"].isna()]["bytes"].value_counts()
    assert last[4096] == 4 * 256 and last[2**20] == 25  # so many tries, each of 256 pieces or of one


def test_a_time_of_an_all_reduce_is_that_of_the_slowest_rank_in_its_best_try(tmp_path):
    run = doctored(tmp_path, "cost_all_reduce", "own.SIZES = own.SIZES[:1]\n" + SQUARES)
    assert [rank.records[0]["seconds"] for rank in run.ranks] == [2, 2]


def test_each_way_has_its_own_time_that_of_the_slowest_rank_in_its_best_try(tmp_path):
    run = doctored(tmp_path, "ring_times", "own.SIZES = own.SIZES[:1]\n" + SQUARES)
    ways = {"one_round": 2 * 1, "through_rank_0": 2 * 5, "ring": 2 * 9, "doubling": 2 * 13, "all_reduce": 2 * 17}
    assert [rank.records for rank in run.ranks] == [[{"step": 0, "size": 1024, **ways}]] * 2


@pytest.mark.parametrize("version", [1, 2, 3])
def test_ddp_by_hand_tells_its_own_time_from_ddps(version, tmp_path):
    first, second = (rank.records[0] for rank in doctored(tmp_path, f"ddp_by_hand_{version}", SQUARES).ranks)
    assert [(own["seconds"], own["ddp_seconds"]) for own in (first, second)] == [(1, 3), (2, 6)]


STEPS = 12
VERSIONS = {1: 13, 2: 1, 3: 13}  # all-reduces a step: 16 tensors, two of them frozen, two the same weight


@pytest.mark.parametrize("nproc", [3, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", VERSIONS)
def test_ddp_by_hand_has_ddps_gradients_in_every_step(version, nproc):
    run = counted(f"ddp_by_hand_{version}", nproc=nproc)
    for rank in run.ranks:
        assert [record["step"] for record in rank.records] == list(range(STEPS))
        assert max(record["gradients_to_ddp"] for record in rank.records) < 1e-12
        assert min(record["least"] for record in rank.records) > 1e-3  # there is something to be equal
    calls = run.collectives
    mine = calls[(calls["op"] == "all_reduce") & (calls["group"] == "default_pg")]
    assert set(mine.groupby(["rank", "step"]).size()) == {VERSIONS[version]}
    carried = calls[calls["op"] == "all_reduce"].groupby(["group", "rank"])["bytes"].sum()
    assert carried.nunique() == 1  # as many bytes as DDP


MUTATIONS = {
    "nothing reduced": (1, "            dist.all_reduce(p.grad)\n", ""),
    "a sum": (1, "            p.grad /= world_size\n", ""),
    "not broadcast": (1, "dist.broadcast(p.detach(), src=0)", "dist.barrier()"),
    "not copied back": (2, "            p.grad.copy_(part.view_as(p))  # and back\n", "            pass\n"),
    "one gradient short": (2, "torch.cat([p.grad.flatten() for p in params])", "params[0].grad.flatten()"),
    "a sum, by hooks": (3, "        p.grad /= world_size\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mistake_in_ddp_by_hand_shows(mutation, tmp_path):
    version, old, new = MUTATIONS[mutation]
    text = catalog.find(f"ddp_by_hand_{version}").read_text()
    assert old in text
    script = tmp_path / "mutated.py"
    script.write_text(text.replace(old, new))
    run = lab.torchrun(str(script), nproc=2, show="none", check=False)
    assert not run.ok or max(record["gradients_to_ddp"] for record in run.ranks[0].records) > 1e-6


@pytest.mark.parametrize("before, after, most", [(1, 2, 8), (2, 3, 16)])
def test_each_version_differs_from_the_one_before_by_little(before, after, most):
    changes = catalog.diff(f"ddp_by_hand_{before}", f"ddp_by_hand_{after}").text.splitlines()[2:]
    assert 0 < sum(line[0] in "+-" for line in changes) <= most


@pytest.fixture(scope="module")
def shares():
    return lab.torchrun("batchnorm_shares", nproc=3, show="none")


def test_batchnorm_on_shares_is_that_of_the_share(shares):
    for rank in shares.ranks:
        x, y = (numpy.array(rank.records[0][name]) for name in ("x", "y"))
        w, b = (numpy.array(rank.records[0][name]) for name in ("w", "b"))
        assert numpy.allclose(y, w * (x - x.mean(0)) / numpy.sqrt(x.var(0) + 1e-5) + b)
        gaps = [record["to_whole"] for record in rank.records if "to_whole" in record]
        assert len(gaps) == 2 and min(min(gap.values()) for gap in gaps) > 1e-3
        assert "expected input tensor to be on GPU" in rank.records[-1]["error"]
    assert [len(rank.records[0]["x"]) for rank in shares.ranks] == [4, 3, 2]


def test_one_rank_with_all_rows_is_the_whole_batch():
    (rank,) = lab.torchrun("batchnorm_shares", nproc=1, show="none").ranks
    assert max(max(record["to_whole"].values()) for record in rank.records if "to_whole" in record) < 1e-12

"""The faults of launching and devices: each fails as its name says, and its cure does not."""

import pytest
from faulty import cured, faulty, line_of, of_ranks

import ddp_lab as lab
from ddp_lab import catalog, gpus

WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": ""}


def test_local_rank_argument():
    with pytest.raises(lab.RankError, match=r"Invalid device string: '(cpu|cuda|xpu):None'") as error:
        faulty("local_rank_argument")
    assert error.value.line == line_of("faults/local_rank_argument", "device = torch.device(")


def test_local_rank_argument_cured():
    run = cured("local_rank_argument")
    assert [rank.records for rank in run.ranks] == [[{"local_rank": rank, "total": [2]}] for rank in (0, 1)]


def test_backend_unavailable():
    text = "ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in"  # the second: a wheel for CPUs
    with pytest.raises(lab.RankError, match=text) as error:
        faulty("backend_unavailable", env=WITHOUT_GPUS)
    assert error.value.line == line_of("faults/backend_unavailable", "dist.init_process_group(")


def test_backend_unavailable_cured():
    run = cured("backend_unavailable", env=WITHOUT_GPUS)
    assert of_ranks(run, "backend") == [("cpu:gloo", "cpu:gloo")] and of_ranks(run, "total") == [([2], [2])]


def by_python(name):
    return lab.command("python", "-m", catalog.module(f"faults/{name}"), show="none")


def test_port_in_use():
    with pytest.raises(lab.CommandError) as error:
        by_python("port_in_use")
    (rank,) = error.value.run.ranks
    assert "Process 0 terminated" in rank.stderr and "EADDRINUSE" in rank.stderr  # the rank that is to listen
    assert rank.records == []


def test_port_in_use_cured():
    records = by_python("port_in_use_cured").ranks[0].records
    assert sorted(record["rank"] for record in records) == [0, 1]
    assert [record["total"] for record in records] == [3, 3]


def threads(run):
    """(threads of all ranks together, cores)."""
    (counted,), (cores,) = of_ranks(run, "threads"), of_ranks(run, "cores")
    assert all(ms > 0 for ms in of_ranks(run, "ms")[0])
    return sum(counted), cores[0]


def test_threads_oversubscribed():
    counted, cores = threads(faulty("threads_oversubscribed"))
    assert counted == 2 * cores


def test_threads_oversubscribed_cured():
    counted, cores = threads(cured("threads_oversubscribed"))
    assert counted <= max(2, cores)  # a rank has one at least


@pytest.mark.gpu
@pytest.mark.skipif(gpus.count() < 1, reason="needs a GPU")
def test_cuda_visible_late():
    assert of_ranks(faulty("cuda_visible_late", nproc=1), "available") == [(True,)]


@pytest.mark.gpu
@pytest.mark.skipif(gpus.count() < 1, reason="needs a GPU")
def test_cuda_visible_late_cured():
    assert of_ranks(cured("cuda_visible_late", nproc=1), "available") == [(False,)]


@pytest.mark.gpu
@pytest.mark.skipif(gpus.count() < 2, reason="needs two GPUs")
def test_all_on_gpu0():
    with pytest.raises(lab.RankError, match="Duplicate GPU|using the same GPU|ncclInvalidUsage") as error:
        faulty("all_on_gpu0")
    assert of_ranks(error.value.run, "index") == [(0, 0)]


@pytest.mark.gpu
@pytest.mark.skipif(gpus.count() < 2, reason="needs two GPUs")
def test_all_on_gpu0_cured():
    assert of_ranks(cured("all_on_gpu0"), "index") == [(0, 1)]

"""bench_dp_vs_ddp: two figures where there are GPUs, and none where there are not."""

import re

import pytest
from doctored import doctored

import ddp_lab as lab
from ddp_lab import gpus
from ddp_lab.labs.bench_dp_vs_ddp import compared


def test_without_gpus_a_small_twin_runs_and_no_figure_is_claimed():
    (first, second) = lab.torchrun("bench_dp_vs_ddp", show="none", env={"CUDA_VISIBLE_DEVICES": ""}).ranks
    *rows, last = first.stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["DataParallel", "DDP"]
    assert last == "a small twin on the CPU: both figures need a GPU for each rank"
    own, record = first.records
    assert record["real"] is False and record["dp_bytes"] == record["ddp_bytes"] == 0
    for row, seconds in zip(rows, (record["dp_seconds"], record["ddp_seconds"]), strict=True):
        assert float(re.search(r"([\d.]+) ms a step", row)[1]) == pytest.approx(1000 * seconds, abs=0.05)
        assert int(re.search(r"(\d+) images/s", row)[1]) == pytest.approx(64 / seconds, abs=0.5)
    (other,) = second.records
    assert not second.stdout and record["ddp_seconds"] == max(own["own_seconds"], other["own_seconds"])


def test_ddp_gets_a_share_of_what_dataparallel_gets_and_the_slowest_rank_counts(tmp_path):
    before = """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    seen = []

    def measure(model, images, labels, device, gpus):
        seen.append([images.flatten(1).sum(1), labels])
        return [1.0 + rank, 0]

    own.measure = measure
    """
    after = "worker.log(images=[len(images) for images, _ in seen], labels=seen[-1][1], all=seen[0][1])\n"
    first, second = doctored(tmp_path, "bench_dp_vs_ddp", before, after).ranks
    assert (first.records[1]["dp_seconds"], first.records[1]["ddp_seconds"]) == (1, 2)
    one, other = first.records[-1], second.records[-1]
    assert one["images"] == [64, 32] and other["images"] == [32]
    assert sorted(one["labels"] + other["labels"]) == sorted(one["all"])


@pytest.mark.gpu
@pytest.mark.skipif(gpus.count() < 2, reason="needs two GPUs")
def test_with_gpus_it_prints_both_figures():
    run = lab.torchrun("bench_dp_vs_ddp", nproc=2, show="none", timeout=600)
    record = run.ranks[0].records[-1]
    dp, ddp = ([record[f"{way}_seconds"], record[f"{way}_bytes"]] for way in ("dp", "ddp"))
    assert record["real"] and run.ranks[0].stdout.splitlines()[-1] == compared(dp, ddp)
    assert min(dp[1], ddp[1]) > 4 * 25e6  # ResNet-50 has 25 million weights


@pytest.mark.parametrize(
    "dp, ddp, text",
    [
        ([1.37, 100], [1.0, 77], "speed +37%, memory -23%"),
        ([1.0, 100], [2.0, 150], "speed -50%, memory +50%"),
        ([1.0, 100], [1.0, 100], "speed +0%, memory +0%"),
    ],
)
def test_speed_is_in_images_a_second_and_memory_that_of_the_fullest_gpu(dp, ddp, text):
    assert compared(dp, ddp) == text

"""The labs on launching and backends: what they record is what the launcher has set, and what the backend has done."""

import os
from collections import Counter

import pandas
import pytest
from doctored import doctored

import ddp_lab as lab
from ddp_lab import catalog
from ddp_lab.labs import backends, launched

MODULE = catalog.module("launched")


def test_launched_records_the_variables_of_each_rank_and_what_was_added():
    run = lab.torchrun("launched", "--name", "mine", "--local-rank=7", nproc=3, show="none")
    for rank in run.ranks:
        (record,) = rank.records
        assert (record["who"], record["added"]) == ("mine", "--local-rank=7")
        assert (record["RANK"], record["LOCAL_RANK"]) == (str(rank.rank),) * 2
        assert (record["WORLD_SIZE"], record["LOCAL_WORLD_SIZE"], record["GROUP_RANK"]) == ("3", "3", "0")
        assert record["CUDA_VISIBLE_DEVICES"] == os.environ.get("CUDA_VISIBLE_DEVICES")
        assert set(record) == {"who", "added", "parent", *launched.NAMES} and record["parent"] > 1


def test_launched_by_python_knows_no_rank():
    (record,) = lab.command("python", "-m", MODULE, show="none").ranks[0].records
    assert record["RANK"] is None and record["WORLD_SIZE"] is None and record["added"] == ""


@pytest.fixture(scope="module")
def tried():
    run = lab.torchrun("backends", nproc=2, show="none", env={"CUDA_VISIBLE_DEVICES": ""})
    return [pandas.DataFrame(rank.records) for rank in run.ranks]


def test_backends_tries_each_collective_with_each_dtype_once_and_the_ranks_agree(tried):
    first, second = tried
    assert first.equals(second)  # a refusal on one rank alone would leave the other waiting
    assert set(first["backend"]) == {"gloo"} and set(first["device"]) == {"cpu"}
    pairs = Counter(zip(first["collective"], first["dtype"], strict=True))
    assert set(pairs.values()) == {1} and len(pairs) == 12 * len(backends.DTYPES)
    assert list(dict.fromkeys(first["dtype"])) == backends.DTYPES


def test_gloo_does_float32_and_refuses_what_it_cannot_do_and_is_never_wrong(tried):
    outcome = tried[0].set_index(["collective", "dtype"])["outcome"]
    assert (outcome.xs("float32", level="dtype") == "right").all()
    assert "wrong" not in set(outcome)
    assert outcome["all_reduce SUM", "int16"] == "Invalid scalar type"
    assert "can't be cast" in outcome["all_reduce AVG", "int64"]


def test_backends_tells_right_from_wrong_and_from_a_refusal(tmp_path):
    before = """
    def refuse():
        raise ValueError("not this one\\nand more")

    own.DTYPES = ["float32"]
    own.attempts = lambda mine, rank, size: {
        "right": (lambda: None, mine, [rank + 1]),
        "wrong": (lambda: None, mine, [rank + 2]),
        "refused": (refuse, mine, [rank + 1]),
    }
    """
    for rank in doctored(tmp_path, "backends", before).ranks:
        cpu = [record for record in rank.records if record["device"] == "cpu"]
        assert {r["collective"]: r["outcome"] for r in cpu} == {
            "right": "right", "wrong": "wrong", "refused": "not this one"
        }  # fmt: skip


def test_backends_expects_the_numbers_of_as_many_ranks_as_there_are():
    run = lab.torchrun("backends", nproc=3, show="none", env={"CUDA_VISIBLE_DEVICES": ""})
    for rank in run.ranks:
        outcomes = {record["outcome"] for record in rank.records if record["dtype"] == "float64"}
        assert outcomes == {"right"}

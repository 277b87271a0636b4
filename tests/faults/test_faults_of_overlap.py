"""The faults of overlap and scaling, and their cures."""

import pytest
from faulty import cured, equal, faulty, line_of, of_ranks

import ddp_lab as lab

NEEDLESS = "did not find any unused parameters in the forward pass"


def sent(run, op="all_reduce"):
    """{step: [dtypes]} of what rank 0 has sent."""
    rows = run.collectives.query("rank == 0 and op == @op")
    return {step: list(own["dtype"]) for step, own in rows.groupby("step")}


def last(run, name):
    """What rank 0 and rank 1 have logged last under this name: the same."""
    found = of_ranks(run, name)[-1]
    assert found[0] == found[1]
    return found[0]


def test_find_unused_needless():
    run = faulty("find_unused_needless", count=True)
    # The buckets are those of the constructor, in the opposite order of the layers, which is the wrong one here: a
    # bucket is sent only after those before it, so all wait for the last gradients.
    assert of_ranks(run, "ready") == [([11, 12, 12, 12, 12, 12, 12],) * 2] * 4
    assert last(run, "rebuilt") is None
    assert sent(run) == {step: ["float32"] * 7 + ["int32"] for step in range(4)}  # the buckets; which were used
    assert all(NEEDLESS in rank.stderr for rank in run.ranks)


def test_find_unused_needless_cured():
    run = cured("find_unused_needless", count=True)
    assert of_ranks(run, "ready") == [([12],) * 2] + [([2, 4, 6, 8, 10, 12],) * 2] * 3
    assert last(run, "rebuilt") == [4 * (128 * 128 + 128)] * 6
    assert sent(run) == {0: ["float32"]} | {step: ["float32"] * 6 for step in (1, 2, 3)}
    assert not any(NEEDLESS in rank.stderr for rank in run.ranks)


def test_small_buckets():
    run = faulty("small_buckets", count=True)
    assert sent(run) == {0: ["float32"]} | {step: ["float32"] * 40 for step in range(1, 8)}
    assert len(of_ranks(run, "seconds")) == 8


def test_small_buckets_cured():
    run = cured("small_buckets", count=True)
    assert sent(run) == {step: ["float32"] for step in range(8)}
    assert len(of_ranks(run, "seconds")) == 8


ALL, LAYER = 4 * 4 * (256 * 256 + 256), 4 * (256 * 256 + 256)  # bytes


def test_measured_first_steps():
    run = faulty("measured_first_steps", count=True)
    assert of_ranks(run, "buckets") == [([ALL],) * 2, ([LAYER] * 4,) * 2]
    assert sent(run, "broadcast")[1] == ["int32"] * 2  # the new buckets
    assert [record["step"] for record in run.ranks[0].records if "seconds" in record] == [0, 1]


def test_measured_first_steps_cured():
    run = cured("measured_first_steps", count=True)
    assert of_ranks(run, "buckets") == [([LAYER] * 4,) * 2] * 2
    assert [record["step"] for record in run.ranks[0].records if "seconds" in record] == [2, 3]
    assert not {2, 3} & sent(run, "broadcast").keys()


def test_static_graph_changes():
    with pytest.raises(lab.RankError, match="Your training graph has changed in this iteration") as error:
        faulty("static_graph_changes", count=True)
    assert error.value.line == line_of("faults/static_graph_changes", ".backward()")
    assert of_ranks(error.value.run, "gradients") == [([1.5],) * 2] * 2
    assert sent(error.value.run) == {0: ["int32", "float32"], 1: ["float32"]}


def test_static_graph_changes_cured():
    run = cured("static_graph_changes", count=True)
    assert of_ranks(run, "gradients") == [([1.5],) * 2] * 2 + [([1.5, 1.5],) * 2] * 2
    assert sent(run) == {step: ["float32", "int32"] for step in range(4)}  # what static_graph does once


STATE = 2 * 2 * (64 * 64 + 64) + 4  # Adam's two for each parameter, and a count of steps for each tensor


def test_zero_state_not_consolidated():
    with pytest.raises(lab.RankError, match="Optimizer state has not been consolidated on this rank") as error:
        faulty("zero_state_not_consolidated")
    assert error.value.rank == 0
    assert error.value.line == line_of("faults/zero_state_not_consolidated", "optimizer.state_dict()")
    assert [rank.records for rank in error.value.run.ranks] == [[{"held": STATE // 2}]] * 2


def test_zero_state_not_consolidated_cured():
    first, second = (rank.records for rank in cured("zero_state_not_consolidated").ranks)
    assert first == [{"held": STATE // 2}, {"saved": STATE}] and second == [{"held": STATE // 2}]


def test_slow_rank_everyone_waits():
    run = faulty("slow_rank_everyone_waits")
    assert of_ranks(run, "evaluated") == [(360, 0)] * 4
    assert len(of_ranks(run, "waited")) == 4
    assert of_ranks(run, "accuracy") == of_ranks(cured("slow_rank_everyone_waits"), "accuracy")


def test_slow_rank_everyone_waits_cured():
    run = cured("slow_rank_everyone_waits")
    assert of_ranks(run, "evaluated") == [(180, 180)] * 4
    assert all(equal(step) for step in of_ranks(run, "accuracy"))

"""The faults of collectives: where the ranks of a hang stand, and the numbers of those that are silent."""

import pytest
from faulty import STALL, cured, faulty, line_of, stood

import ddp_lab as lab


def hangs(name, nproc=2):
    with pytest.raises(lab.HangError) as hang:
        faulty(name, nproc=nproc, stall=STALL / 2)
    assert hang.value.reason == "stall"
    return hang.value


def after(run, name):
    """For each rank what it had after each collective of that name."""
    records = [[record for record in rank.records if record.get("collective") == name] for rank in run.ranks]
    return [[record["after"] for record in own] for own in records]


def test_collective_order():
    name = "faults/collective_order"
    reduces, sends = line_of(name, "dist.all_reduce(loss)"), line_of(name, "dist.broadcast(weights")
    assert stood(hangs("collective_order")) == {0: (reduces, "all_reduce"), 1: (sends, "broadcast")}


def test_collective_order_cured():
    for rank in cured("collective_order").ranks:
        assert rank.records == [{"loss": [11.0], "weights": [1.0, 2.0]}]


def test_collective_order_silent():
    run = faulty("collective_order_silent")
    assert after(run, "loss") == [[[21.0]], [[12.0]]]  # 1 + 20, 10 + 2
    assert after(run, "error") == [[[12.0]], [[21.0]]]


def test_collective_order_silent_cured():
    run = cured("collective_order_silent")
    assert after(run, "loss") == [[[11.0]]] * 2 and after(run, "error") == [[[22.0]]] * 2


def test_send_send():
    line = line_of("faults/send_send", "dist.send(")
    assert stood(hangs("send_send")) == {0: (line, "send"), 1: (line, "send")}


def test_send_send_cured():
    assert after(cured("send_send"), "send, recv") == [[[10.0]], [[1.0]]]


def test_skip_batch_one_rank():
    name = "faults/skip_batch_one_rank"
    hang = hangs("skip_batch_one_rank")
    places = {0: (line_of(name, "dist.all_reduce(loss)"), "all_reduce"), 1: (line_of(name, "barrier()"), "barrier")}
    assert stood(hang) == places
    sums = [{record["step"]: record["after"][0] for record in rank.records} for rank in hang.run.ranks]
    assert sums == [{0: 11, 1: 22, 2: 43, 3: 54}, {0: 11, 1: 22, 3: 43, 4: 54}]  # from step 2 on, of two steps


def test_skip_batch_one_rank_cured():
    for rank in cured("skip_batch_one_rank").ranks:
        assert {record["step"]: record["after"][0] for record in rank.records} == {0: 11, 1: 22, 3: 44, 4: 55}


def test_strided_collective():
    run = faulty("strided_collective")
    assert after(run, "first column") == [[[11, 22, 3, 4]], [[11, 22, 30, 40]]]  # the first two in memory


def test_strided_collective_cured():
    assert after(cured("strided_collective"), "first column") == [[[11, 2, 33, 4]], [[11, 20, 33, 40]]]


def test_shape_mismatch():
    assert after(faulty("shape_mismatch"), "counts") == [[[1, 2, 3]], [[1, 2, 3, 40]]]


def test_shape_mismatch_cured():
    assert after(cured("shape_mismatch"), "counts") == [[[1, 2, 3, 0]]] * 2


def test_reduce_op_mismatch():
    assert after(faulty("reduce_op_mismatch"), "numbers") == [[[11, 22, 30, 40]]] * 2


def test_reduce_op_mismatch_cured():
    assert after(cured("reduce_op_mismatch"), "numbers") == [[[11, 22, 33, 44]]] * 2


def test_dtype_mismatch():
    run = faulty("dtype_mismatch")
    assert [rank.records[0]["dtype"] for rank in run.ranks] == ["torch.float32", "torch.int32"]
    ((floats,), (whole,)) = after(run, "numbers")
    assert floats == pytest.approx([1, 2, 3, 4], abs=1e-3)  # what rank 1 adds to them are the bits of tiny floats
    assert whole[0] == 0x3F800000  # the bits of 1.0


def test_dtype_mismatch_cured():
    assert after(cured("dtype_mismatch"), "numbers") == [[[11, 22, 33, 44]]] * 2


def test_async_not_waited():
    run = faulty("async_not_waited")
    assert run.ok and after(run, "total")[0] == [[1.0]]  # rank 1 may find its own number or the sum


def test_async_not_waited_cured():
    assert after(cured("async_not_waited"), "total") == [[[11.0]]] * 2


def test_group_created_by_some():
    name = "faults/group_created_by_some"
    where = {spot["rank"]: spot["line"] for spot in hangs("group_created_by_some").where}
    assert where == {0: line_of(name, "dist.new_group()"), 1: line_of(name, "dist.barrier()")}


def test_group_created_by_some_cured():
    assert [rank.records for rank in cured("group_created_by_some").ranks] == [
        [{"rank": rank, "groups": "made"}] for rank in (0, 1)
    ]


def test_not_in_group():
    with pytest.raises(lab.RankError, match="Global rank 0 is not part of group") as error:
        faulty("not_in_group", nproc=3)
    assert error.value.rank in (1, 2) and error.value.line == line_of("faults/not_in_group", "dist.broadcast(")


def test_not_in_group_cured():
    assert after(cured("not_in_group", nproc=3), "numbers") == [[], [[10.0]], [[10.0]]]

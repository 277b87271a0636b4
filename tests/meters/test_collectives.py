"""The meter of collectives against counts by hand."""

import textwrap

import pytest

import ddp_lab as lab

BEGIN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker
from ddp_lab.meters.collectives import CollectiveMeter


def full(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


def step(model, *shape):
    model(torch.ones(*shape)).sum().backward()


def log(name, meter):
    worker.log(name=name, rows=meter.rows, table=meter.table())


dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
"""
END = "\ndist.barrier()\ndist.destroy_process_group()\n"


def counted(folder, body, nproc=2, begin=BEGIN):
    """Run a body on ranks: for each rank {name: rows} of what it has logged."""
    path = folder / "counted.py"
    path.write_text(begin + textwrap.dedent(body) + END)
    run = lab.torchrun(path, nproc=nproc, show="none")
    return [{record["name"]: record["rows"] for record in rank.records} for rank in run.ranks]


def brief(rows):
    return [(row["op"], row["numel"], row["dtype"], row["bytes"]) for row in rows]


CALLS = {  # what is called, with tensors of three elements on two ranks: what rank 0 and rank 1 hand in, and the peer
    "dist.all_reduce(full(3))": ("all_reduce", 3, 3),
    "dist.all_reduce(full(3), async_op=True).wait()": ("all_reduce", 3, 3),
    "dist.broadcast(full(3), src=0)": ("broadcast", 3, 3),
    "dist.reduce(full(3), dst=1)": ("reduce", 3, 3),
    "dist.all_gather([full(3), full(3)], full(3))": ("all_gather", 3, 3),
    "dist.all_gather_single(full(6), full(3))": ("all_gather", 3, 3),
    "dist.reduce_scatter(full(3), [full(3), full(3)])": ("reduce_scatter", 6, 6),
    "dist.reduce_scatter_single(full(3), full(6))": ("reduce_scatter", 6, 6),
    "dist.gather(full(3), [full(3), full(3)] if rank == 0 else None, dst=0)": ("gather", 3, 3),
    "dist.scatter(full(3), [full(3), full(3)] if rank == 0 else None, src=0)": ("scatter", 6, 0),
    "dist.all_to_all([full(3), full(3)], [full(3), full(3)])": ("all_to_all", 6, 6),
    "dist.all_to_all_single(full(6), full(6))": ("all_to_all", 6, 6),
    "dist.all_reduce_coalesced([full(3), full(4)])": ("all_reduce", 7, 7),
    "dist.barrier()": ("barrier", 0, 0),
}


def test_each_call_is_one_row_with_what_the_rank_hands_in(tmp_path):
    lines = [f"with CollectiveMeter() as meter:\n    {call}\nlog({call!r}, meter)" for call in CALLS]
    for rank, found in enumerate(counted(tmp_path, "\n".join(lines))):
        for call, (op, *numel) in CALLS.items():
            dtype = "float32" if numel[rank] else ""
            expected = {"op": op, "group": "default_pg", "numel": numel[rank], "dtype": dtype}
            assert found[call] == [expected | {"bytes": 4 * numel[rank], "peer": None}], call


def test_send_and_receive_name_their_peer_and_count_the_buffer(tmp_path):
    first, second = counted(
        tmp_path,
        """
        with CollectiveMeter() as meter:
            if rank == 0:
                dist.send(full(5), 1)
                dist.recv(full(6), 1)
                request = dist.isend(full(2), 1)
                dist.recv(full(4, dtype=torch.float64))
                request.wait()
            else:
                dist.recv(full(5), 0)
                dist.send(full(6), 0)
                request = dist.isend(full(4, dtype=torch.float64), 0)
                dist.recv(full(2))
                request.wait()
        log("all", meter)
        """,
    )
    tell = lambda rows: [(row["op"], row["numel"], row["bytes"], row["peer"]) for row in rows]  # noqa: E731
    assert tell(first["all"]) == [("send", 5, 20, 1), ("recv", 6, 24, 1), ("send", 2, 8, 1), ("recv", 4, 32, None)]
    assert tell(second["all"]) == [("recv", 5, 20, 0), ("send", 6, 24, 0), ("send", 4, 32, 0), ("recv", 2, 8, None)]


@pytest.mark.parametrize("dtype, size", [("float16", 2), ("bfloat16", 2), ("int64", 8), ("uint8", 1), ("bool", 1)])
def test_types_are_named_as_torch_prints_them(tmp_path, dtype, size):
    body = f"with CollectiveMeter() as meter:\n    dist.all_reduce(full(5, dtype=torch.{dtype}))\nlog('it', meter)\n"
    for found in counted(tmp_path, body):
        assert brief(found["it"]) == [("all_reduce", 5, dtype, 5 * size)]


def test_of_a_sparse_tensor_its_values_and_indices_are_counted(tmp_path):
    body = """
    with CollectiveMeter() as meter:
        dist.all_reduce(torch.sparse_coo_tensor([[0, 7]], torch.ones(2), (100,)))
    log("it", meter)
    """
    for found in counted(tmp_path, body):
        assert brief(found["it"]) == [("all_reduce", 2, "float32", 2 * 4 + 2 * 8)]


def test_ddp_from_its_constructor_to_its_third_step(tmp_path):
    body = """
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    with CollectiveMeter() as meter:
        model = DistributedDataParallel(net)
    log("made", meter)
    for number in range(3):
        with CollectiveMeter() as meter:
            step(model, 4, 3)
        log(f"step {number}", meter)
    with CollectiveMeter() as meter, model.no_sync():
        step(model, 4, 3)
    log("no_sync", meter)
    """
    parameters = 3 * 2 + 2 + 2 * 1 + 1
    average = ("all_reduce", parameters, "float32", 4 * parameters)
    for found in counted(tmp_path, body):
        made = brief(found["made"])
        # How many parameters there are, their shapes, and the weights themselves.
        assert [row[0] for row in made] == ["all_gather", "broadcast", "broadcast"]
        assert made[0][1:] == (1, "int64", 8) and made[1][2] == "int64"
        assert made[2] == ("broadcast", parameters, "float32", 4 * parameters)
        assert brief(found["step 0"]) == brief(found["step 2"]) == [average]
        # In the second step the ranks agree on the order in which gradients came: four numbers and one, and a bucket.
        assert brief(found["step 1"]) == [("broadcast", 5, "int32", 20), ("broadcast", 1, "int32", 4), average]
        assert found["no_sync"] == []


def test_buckets_each_are_a_row_and_together_all_gradients(tmp_path):
    body = """
    net = nn.Sequential(*[nn.Linear(600, 600, bias=False) for _ in range(8)])
    model = DistributedDataParallel(net, bucket_cap_mb=2)
    for number in range(3):
        with CollectiveMeter() as meter:
            step(model, 1, 600)
        log(number, meter)
    """
    for found in counted(tmp_path, body):
        one = 600 * 600
        assert brief(found[0]) == [("all_reduce", 8 * one, "float32", 4 * 8 * one)]  # the first: all in one
        assert brief(found[2]) == [("all_reduce", 2 * one, "float32", 4 * 2 * one)] * 4  # 2 MB begun: two in each


def test_tied_parameters_count_once_and_frozen_ones_not_at_all(tmp_path):
    body = """
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 5, bias=False))
    net[1].weight = net[0].weight
    net[2].weight.requires_grad_(False)
    model = DistributedDataParallel(net)
    with CollectiveMeter() as meter:
        step(model, 2, 4)
    log("it", meter)
    """
    for found in counted(tmp_path, body):
        assert brief(found["it"]) == [("all_reduce", 16, "float32", 64)]


def test_the_fp16_hook_halves_the_bytes(tmp_path):
    body = """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    model = DistributedDataParallel(nn.Linear(9, 1))
    model.register_comm_hook(None, fp16_compress_hook)
    with CollectiveMeter() as meter:
        step(model, 2, 9)
    log("it", meter)
    """
    for found in counted(tmp_path, body):
        assert brief(found["it"]) == [("all_reduce", 10, "float16", 20)]


@pytest.mark.parametrize("synced", [True, False])
def test_buffers_are_sent_at_each_forward_of_the_training(tmp_path, synced):
    body = f"""
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    model = DistributedDataParallel(net, forward_sync_buffers={synced})
    for number in range(3):
        with CollectiveMeter() as meter:
            step(model, 4, 3)
        log(number, meter)
    """
    buffers = [("broadcast", 10, "float32", 40), ("broadcast", 1, "int64", 8)]
    average = ("all_reduce", 3 * 5 + 5 + 10, "float32", 4 * 30)
    for found in counted(tmp_path, body):
        assert brief(found[0]) == brief(found[2]) == [*(buffers if synced else []), average]


def test_groups_are_told_by_their_description_or_name_and_peers_by_their_global_rank(tmp_path):
    body = """
    with CollectiveMeter() as meter:
        pair = dist.new_group([0, 2], group_desc="the even ones")
        plain = dist.new_group([1, 2])
        if rank != 1:
            dist.all_reduce(full(3), group=pair)
            dist.send(full(1), 2, group=pair) if rank == 0 else dist.recv(full(1), 0, group=pair)
        if rank != 0:
            dist.all_reduce(full(4), group=plain)
        dist.all_reduce(full(5))
    log(plain.group_name if rank else "", meter)
    """
    found = counted(tmp_path, body, nproc=3)
    name = next(iter(found[1]))
    listed = [rows for rank in found for rows in rank.values()]
    tell = [[(row["op"], row["group"], row["numel"], row["peer"]) for row in rows] for rows in listed]
    even, plain, all_of_them = ("all_reduce", "the even ones", 3, None), ("all_reduce", name, 4, None), "default_pg"
    whole = ("all_reduce", all_of_them, 5, None)
    assert tell[0] == [even, ("send", "the even ones", 1, 2), whole]
    assert tell[1] == [plain, whole]
    assert tell[2] == [even, ("recv", "the even ones", 1, 0), plain, whole]


def test_meters_nest_and_none_counts_what_is_outside(tmp_path):
    body = """
    from torch.distributed import distributed_c10d
    own = distributed_c10d._register_process_group
    dist.all_reduce(full(1))
    outer, inner = CollectiveMeter(), CollectiveMeter()
    with outer:
        dist.all_reduce(full(2))
        with inner:
            dist.all_reduce(full(3))
        dist.all_reduce(full(4))
        try:
            with inner:
                dist.all_reduce(full(5))
                raise KeyError
        except KeyError:
            pass
    dist.all_reduce(full(6))
    log("outer", outer)
    log("inner", inner)
    assert distributed_c10d._register_process_group is own
    """
    for found in counted(tmp_path, body):
        assert [row["numel"] for row in found["outer"]] == [2, 3, 4, 5]
        assert [row["numel"] for row in found["inner"]] == [3, 5]


def test_it_may_begin_before_there_is_a_group_and_end_after(tmp_path):
    join = "dist.init_process_group()\n"
    begin = BEGIN.replace(join, f"meter = CollectiveMeter().__enter__()\n{join}")
    body = """
    dist.all_reduce(full(7))
    dist.destroy_process_group()
    meter.__exit__(None, None, None)
    log("it", meter)
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    """
    for found in counted(tmp_path, body, begin=begin):
        assert brief(found["it"]) == [("all_reduce", 7, "float32", 28)]


def test_it_changes_no_result(tmp_path):
    body = """
    import contextlib

    def train(meter):
        torch.manual_seed(rank)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with meter:
            for _ in range(20):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    meter = CollectiveMeter()
    without, counted = train(contextlib.nullcontext()), train(meter)
    assert all(map(torch.equal, without, counted))
    log("it", meter)
    """
    for found in counted(tmp_path, body):
        assert sum(row["op"] == "all_reduce" for row in found["it"]) == 20


def test_the_table_has_a_line_for_each_kind(tmp_path):
    body = """
    with CollectiveMeter() as meter:
        for _ in range(3):
            dist.all_reduce(full(1000))
        dist.barrier()
        dist.all_reduce(full(2, dtype=torch.float16))
    worker.log(name="it", rows=meter.table())
    """
    assert counted(tmp_path, body)[0]["it"].splitlines() == [
        "op          group       dtype    calls  numel   bytes",
        "all_reduce  default_pg  float32      3  3,000  12,000",
        "barrier     default_pg               1      0       0",
        "all_reduce  default_pg  float16      1      2       4",
    ]


def test_a_torch_without_the_hooks_is_told(tmp_path):
    body = """
    from torch.distributed import distributed_c10d
    own = distributed_c10d._register_process_group
    del distributed_c10d._register_process_group
    try:
        CollectiveMeter().__enter__()
    except RuntimeError as error:
        worker.log(name="it", rows=str(error))
    distributed_c10d._register_process_group = own
    """
    assert "has no hooks on process groups" in counted(tmp_path, body)[0]["it"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """For each of two ranks, what the meter has counted in scripts that do odd things, by name."""
    body = """
    import contextlib, functools, gc
    from torch.distributed import distributed_c10d as c10d
    from ddp_lab.meters import collectives

    def hooks():
        return sum(isinstance(it, functools.partial) and it.func is collectives._note for it in gc.get_objects())

    own = c10d._register_process_group
    meter = CollectiveMeter()
    meter.__exit__(None, None, None)
    with meter:
        dist.all_reduce(full(1))
        meter.rows = []
        dist.all_reduce(full(2))
    dist.all_reduce(full(3))
    log("reset", meter)

    with CollectiveMeter() as meter, contextlib.suppress(RuntimeError):  # gloo reduces no complex ones
        dist.all_reduce(full(3, dtype=torch.complex64))
        dist.reduce(full(3, dtype=torch.complex64), 0)
    log("complex", meter)

    def pass_on(group, size):
        call = group.send if rank == 0 else group.recv
        call([full(size)], 1 - rank, 0).wait()

    held = dist.new_group([0, 1], group_desc="held")
    with CollectiveMeter() as meter:
        pass_on(held, 1)
        dist.destroy_process_group(held)
        pass_on(held, 2)
    pass_on(held, 3)
    log("destroyed", meter)
    worker.log(name="hooks", rows=hooks())

    called = []
    with CollectiveMeter() as meter:
        ours = c10d._register_process_group

        def tool(name, group):
            called.append(name)
            ours(name, group)

        c10d._register_process_group = tool
        dist.all_reduce(full(4), group=dist.new_group([0, 1]))
    kept = [c10d._register_process_group is tool]
    dist.all_reduce(full(5), group=dist.new_group([0, 1]))
    kept.append(hooks())
    with CollectiveMeter() as again:
        dist.all_reduce(full(6), group=dist.new_group([0, 1]))
    log("tool", meter)
    log("tool again", again)
    worker.log(name="tool kept", rows=[*kept, c10d._register_process_group is tool, len(called)])
    c10d._register_process_group = own

    def fail(*_):
        raise KeyError("the first group")

    watch, collectives._watch = collectives._watch, fail
    with contextlib.suppress(KeyError):
        CollectiveMeter().__enter__()
    collectives._watch = watch
    with CollectiveMeter() as meter:
        dist.all_reduce(full(7), group=dist.new_group([0, 1]))
    log("failed", meter)
    assert c10d._register_process_group is own
    dist.destroy_process_group()

    class Mine(dist.ProcessGroup):
        def allreduce(self, tensors, options=None):
            done = torch.futures.Future()
            done.set_result(tensors)
            return torch._C._distributed_c10d._create_work_from_future(done)

    dist.Backend.register_backend("mine", lambda *_: Mine(0, 1), devices=["cpu"])
    with CollectiveMeter() as meter:
        dist.init_process_group("mine", store=dist.HashStore(), rank=0, world_size=1)
        with CollectiveMeter():
            dist.all_reduce(full(8))
    log("python", meter)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    """
    return counted(tmp_path_factory.mktemp("odd"), body)


def test_rows_may_be_taken_away_inside_and_an_end_without_a_begin_is_none(odd):
    assert all(brief(found["reset"]) == [("all_reduce", 2, "float32", 8)] for found in odd)


def test_complex_tensors_are_counted_as_torch_hands_them_on(odd):
    expected = [("all_reduce", 6, "float32", 24), ("reduce", 3, "complex64", 24)]
    assert all(brief(found["complex"]) == expected for found in odd)


def test_a_group_that_is_destroyed_inside_is_counted_to_the_end_and_has_no_hook_after_it(odd):
    for rank, found in enumerate(odd):
        assert [(row["numel"], row["peer"]) for row in found["destroyed"]] == [(1, 1 - rank), (2, 1 - rank)]
        assert found["hooks"] == 0


def test_what_another_tool_has_put_around_ours_stays_and_nothing_is_counted_twice(odd):
    for found in odd:
        assert [row["numel"] for row in found["tool"]] == [4]
        assert [row["numel"] for row in found["tool again"]] == [6]
        assert found["tool kept"] == [True, 0, True, 3]


def test_a_meter_that_could_not_begin_leaves_nothing_behind(odd):
    assert all([row["numel"] for row in found["failed"]] == [7] for found in odd)


def test_a_group_written_in_python_goes_past_the_meter_and_breaks_nothing(odd):
    assert all(found["python"] == [] for found in odd)


def test_a_row_that_finds_no_room_fails_the_call_it_is_about(tmp_path):
    (tmp_path / "collectives.jsonl").symlink_to("/dev/full")
    body = f"""
    from ddp_lab.meters import collectives
    model = DistributedDataParallel(nn.Linear(2, 1))
    collectives.count_into({str(tmp_path)!r})
    told = []
    for call in (lambda: dist.all_reduce(full(2)), lambda: step(model, 4, 2)):
        try:
            call()
        except OSError as error:
            told.append(str(error))
    worker.log(name="it", rows=told)
    import os
    os._exit(0)  # the barrier at the end would be counted, too
    """
    (found,) = counted(tmp_path, body, nproc=1)
    assert len(found["it"]) == 2
    assert all("count=True could not write to" in text and "No space left" in text for text in found["it"])

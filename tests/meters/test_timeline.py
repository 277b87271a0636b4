"""The timeline of a traced run: real runs whose order of things is known, and traces written by hand."""

import json
import textwrap

import pandas
import pytest

import ddp_lab as lab
from ddp_lab.launch.result import Run
from ddp_lab.meters.timeline import overlap

BEGIN = """
import time
import torch
import torch.distributed as dist
from torch.nn import Linear, Sequential
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from ddp_lab import worker

dist.init_process_group()
rank = dist.get_rank()
"""
END = "\ndist.barrier()\ndist.destroy_process_group()\n"


def traced(folder, body, **options):
    path = folder / "train.py"
    path.write_text(BEGIN + textwrap.dedent(body) + END)
    return lab.torchrun(path, show="none", trace=True, **options)


def pairs(rows):
    return list(zip(rows["begin"], rows["end"], strict=True))


SLEEPING = """
class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.1)
        return gradient

class Layer(Linear):
    def forward(self, x):
        return super().forward(Sleep.apply(x))

model = DistributedDataParallel(Sequential(*[Layer(16, 16) for _ in range(3)]), bucket_cap_mb=0.0001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10, 15):
    optimizer.zero_grad()
    model(torch.ones(2, 16, requires_grad=True)).sum().backward()
    before = time.time()
    optimizer.step()
    worker.log(step=step, before=before, after=time.time())
"""


@pytest.fixture(scope="module", params=[True, False], ids=["warm", "cold"])
def sleeping(request, tmp_path_factory):
    """Each layer's backward sleeps before it computes: the bucket of the layer behind travels meanwhile."""
    return traced(tmp_path_factory.mktemp("sleeping"), SLEEPING, warm=request.param)


def test_each_step_of_each_rank_has_its_rows(sleeping):
    table = sleeping.timeline()
    assert list(table.columns) == ["rank", "step", "kind", "name", "bytes", "begin", "end"]
    assert table["begin"].min() == 0 and table["begin"].is_monotonic_increasing
    assert (table["end"] >= table["begin"]).all()
    bucket = 4 * (16 * 16 + 16)
    for rank in (0, 1):
        own = table[table["rank"] == rank]
        assert set(own["step"].dropna()) == {10, 11, 12, 13, 14} and str(own["step"].dtype) == "Int64"
        assert own[own["step"].isna()][["kind", "name"]].values.tolist() == [["communication", "barrier"]]
        for step in (12, 13, 14):
            rows = own[own["step"] == step]
            computing = rows[rows["kind"] != "communication"]
            assert list(computing["kind"]) == ["forward", "backward", "optimizer"]
            assert list(computing["name"]) == ["DistributedDataParallel.forward", "backward", "SGD"]
            assert computing["bytes"].isna().all()
            moving = rows[rows["kind"] == "communication"]
            assert list(moving["name"]) == ["all_reduce"] * 3 and set(moving["bytes"]) == {bucket}
        first = own[(own["step"] == 10) & (own["name"] == "all_reduce")]
        assert list(first["bytes"]) == [3 * bucket]  # one bucket of everything
        assert {"all_gather", "broadcast"} <= set(own[own["step"] == 10]["name"])  # the constructor's


def test_buckets_travel_while_backward_computes(sleeping):
    table = sleeping.timeline().query("step >= 12")
    for (_, _), rows in table.groupby(["rank", "step"]):
        ((begin, end),) = pairs(rows[rows["kind"] == "backward"])
        assert end - begin >= 0.3  # three layers, and each sleeps
        moving = pairs(rows[rows["kind"] == "communication"])
        assert all(begin < since < end for since, _ in moving)  # a sleep comes after the last of them, too
    assert sleeping.overlap() > 0.5 and sleeping.overlap(rank=0) > 0.5


def test_the_ranks_have_one_clock_as_exact_as_is_said(sleeping):
    table = sleeping.timeline().query("kind == 'optimizer'").set_index(["rank", "step"])
    least, most = [], []  # of what is between the table's clock and that of the script
    for rank in sleeping.ranks:
        for record in rank.records:
            row = table.loc[(rank.rank, record["step"])]
            least.append(record["before"] - row["begin"])
            most.append(record["after"] - row["end"])
    error = sleeping.timeline().attrs["clock_error"]
    assert 0 < error < 0.01 and "clock_error (seconds)" in sleeping.timeline().attrs["clock"]
    assert max(least) - 2 * error <= min(most) + 2 * error


def test_no_rank_has_the_result_before_all_have_begun(sleeping):
    table = sleeping.timeline()
    error = table.attrs["clock_error"]
    calls = table[table["name"] == "all_reduce"].assign(number=lambda rows: rows.groupby("rank").cumcount())
    for _, call in calls.groupby("number"):
        assert len(call) == 2 and call["end"].min() >= call["begin"].max() - 2 * error


def test_one_trace_has_a_process_for_each_rank_on_the_clock_of_the_table(sleeping):
    path = sleeping.merged_trace()
    assert path.parent == sleeping.dir
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0 (train.py)", "rank 1 (train.py)"]
    assert {e["pid"] for e in events} == set(names)
    table = sleeping.timeline()
    zero = None
    for rank in (0, 1):
        ours = [e for e in events if names[e["pid"]] == f"rank {rank} (train.py)"]
        steps = sorted(e["ts"] for e in ours if e["name"] == "Optimizer.step#SGD.step")
        rows = table[(table["rank"] == rank) & (table["kind"] == "optimizer")]
        apart = [ts / 1e6 - begin for ts, begin in zip(steps, rows["begin"], strict=True)]
        zero = apart[0] if zero is None else zero
        assert apart == pytest.approx([zero] * 5, abs=1e-6)
    arrows = [{e["id"] for e in events if e["ph"] in "sf" and e["pid"] == pid} for pid in names]
    assert arrows[0] and not arrows[0] & arrows[1]


BY_HAND = """
model = Sequential(*[Linear(16, 16) for _ in range(3)])
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    mse_loss(model(torch.ones(2, 16)), torch.ones(2, 16)).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
"""


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    return traced(tmp_path_factory.mktemp("by_hand"), BY_HAND)


def test_what_is_sent_after_backward_is_not_hidden(by_hand):
    assert by_hand.overlap(first=0) == 0 and by_hand.overlap() == 0
    for _, rows in by_hand.timeline().groupby(["rank", "step"]):
        assert list(rows["kind"]) == ["forward", "backward", *["communication"] * 6, "optimizer"]
        assert set(rows["name"]) == {"forward", "backward", "all_reduce", "Adam"}
        spans = pairs(rows)
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))


def test_without_logged_steps_optimizer_steps_are_counted(by_hand):
    table = by_hand.timeline()
    assert list(table[table["kind"] == "optimizer"].groupby("rank")["step"].apply(list)) == [[0, 1, 2, 3]] * 2
    assert set(table[table["step"].isna()]["name"]) == {"barrier"}


LATE = {
    "DDP": """
        model = DistributedDataParallel(Linear(16, 16))
        for step in range(3):
            time.sleep(0.2 * rank)
            model(torch.ones(2, 16)).sum().backward()
            worker.log(step=step)
    """,
    "a hook that waits": """
        model = Linear(16, 16)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        for step in range(3):
            time.sleep(0.2 * rank)
            model(torch.ones(2, 16)).sum().backward()
            worker.log(step=step)
    """,
    "a hook that waits for a future": """
        model = Linear(16, 16)
        def send(p):
            dist.all_reduce(p.grad, async_op=True).get_future().wait()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(send)
        for step in range(3):
            time.sleep(0.2 * rank)
            model(torch.ones(2, 16)).sum().backward()
            worker.log(step=step)
    """,
}


@pytest.mark.parametrize("name", LATE)
def test_a_rank_that_waits_does_not_compute(tmp_path, name):
    run = traced(tmp_path, LATE[name])
    table = run.timeline()
    for _, rows in table[(table["rank"] == 0) & (table["step"] >= 1)].groupby("step"):
        moving, computing = pairs(rows[rows["kind"] == "communication"]), pairs(rows[rows["kind"] == "backward"])
        assert max(end - begin for begin, end in moving) > 0.1  # rank 1 comes 0.2 s later
        assert sum(end - begin for begin, end in computing) < 0.1
    assert run.overlap(first=1, rank=0) < 0.5
    if name == "a hook that waits":
        assert run.overlap(first=0) == 0  # though all of it lies within loss.backward()


# ---- traces written by hand: begin and end in ms

BASE = 1_790_000_000_000_000_000


def event(name, begin, end, thread=1, cat="cpu_op", pid=7, **args):
    own = {"ph": "X", "name": name, "ts": 1000.0 * begin, "dur": 1000.0 * (end - begin), "pid": pid, "tid": thread}
    return own | {"cat": cat, "args": {key.replace("_", " "): value for key, value in args.items()}}


def node(begin, end, thread=1):
    return event("autograd::engine::evaluate_function: AddmmBackward0", begin, end, thread)


def ours(name, begin, end, thread=1):
    return event(f"ddp_lab: {name}", begin, end, thread, "user_annotation")


def gloo(name, begin, end, thread=2, kinds=("float",), shapes=((5,),)):
    own = event(f"gloo:{name}", begin, end, thread, "user_annotation")
    return own | {"args": {"Input type": list(kinds), "Input Dims": [list(shape) for shape in shapes]}}


def written(folder, *ranks, base=(BASE, BASE)):
    for rank, events in enumerate(ranks):
        (folder / f"rank{rank}").mkdir(exist_ok=True)
        content = {"baseTimeNanoseconds": base[rank], "traceEvents": events}
        (folder / f"rank{rank}" / "trace.json").write_text(json.dumps(content))
    return Run(folder, "train.py", "", len(ranks), 1.0, trace=True)


def rows_of(run, *columns):
    table = run.timeline()
    table = table.assign(begin=(1000 * table["begin"]).round(6), end=(1000 * table["end"]).round(6))
    return table[list(columns or ("kind", "begin", "end"))].values.tolist()


def test_backward_goes_from_the_first_node_to_the_last_without_the_waits_in_it(tmp_path):
    run = written(tmp_path, [
        ours("backward", 0, 100), ours("backward", 41, 44),  # the second inside the first: reentrant checkpointing
        node(10, 20), node(22, 50), ours("wait", 30, 35), ours("wait", 36, 37, thread=9), node(42, 43), node(60, 70),
        node(120, 130),  # in no pass
    ])  # fmt: skip
    assert rows_of(run) == [["backward", 0, 20], ["backward", 25, 60]]  # from 10 on


def test_a_wait_begins_with_the_call_of_its_collective_if_nothing_else_came_between(tmp_path):
    run = written(tmp_path, [
        ours("backward", 0, 100), node(0, 100),
        event("c10d::allreduce_", 10, 20), event("aten::view", 12, 13), ours("wait", 25, 30),  # as dist.all_reduce does
        event("c10d::allreduce_", 40, 45), event("aten::mul", 46, 48), ours("wait", 50, 60),  # async_op=True
        event("c10d::allreduce_", 65, 69, thread=8), ours("wait", 70, 80),
    ])  # fmt: skip
    spans = [(0, 10), (30, 50), (60, 70), (80, 100)]
    assert rows_of(run) == [["backward", begin, end] for begin, end in spans]


def test_a_pass_without_nodes_has_no_row(tmp_path):
    run = written(tmp_path, [ours("backward", 0, 10), gloo("all_reduce", 0, 1)])
    assert rows_of(run) == [["communication", 0, 1]]


@pytest.mark.parametrize("kinds, shapes, size", [
    (["float"], [[3, 2]], 24), (["c10::BFloat16"], [[3]], 6), (["long int"], [[]], 8), (["bool"], [[5]], 5),
    (["float", "float"], [[2], [2]], 16), (["of no known kind"], [[2]], None), ([], [], None), (["float"], [], None),
])  # fmt: skip
def test_bytes_are_those_of_the_tensors(tmp_path, kinds, shapes, size):
    run = written(tmp_path, [gloo("all_reduce", 0, 1, kinds=kinds, shapes=shapes)])
    (found,) = run.timeline()["bytes"]
    assert found is pandas.NA if size is None else found == size


def test_a_row_belongs_to_the_step_that_is_logged_next(tmp_path):
    calls = [gloo("all_reduce", at, at + 3) for at in (0, 10, 20)]
    run = written(tmp_path, [*calls, ours('step "one"', 5, 5), ours("step [2]", 12, 12)])
    assert rows_of(run, "step", "begin") == [["one", 0], [[2], 10], [pandas.NA, 20]]
    assert run.overlap(first=1) == 0  # steps of any kind can be counted


def test_traces_that_count_from_different_moments_are_put_on_one_clock(tmp_path):
    run = written(tmp_path, [gloo("all_reduce", 10, 20)], [gloo("all_reduce", 5, 20)], base=(BASE, BASE + 2_000_000))
    assert rows_of(run, "rank", "begin", "end") == [[1, 0, 15], [0, 3, 13]]


def clocks(before, reading, after):
    """The profiler's ranges end and begin at `before` and `after`; the system's clock was read between them."""
    return [ours("clock", before - 1, before), ours(f"clock {BASE + int(reading * 1e6)}", after, after + 1)]


@pytest.mark.parametrize("reading, error", [(5.5, 0.25), (5.9, 0.25), (5.1, 0.25), (9, 4), (2, 4)])
def test_the_clocks_error_is_what_all_readings_leave_open_or_the_worst_where_they_disagree(tmp_path, reading, error):
    events = [*clocks(1, 1.25, 1.5), *clocks(5, reading, 6), gloo("all_reduce", 7, 8)]
    run = written(tmp_path, events, [gloo("all_reduce", 7, 8)])
    assert run.timeline().attrs["clock_error"] == pytest.approx(error / 1000)


def table_of(*rows):
    return pandas.DataFrame(rows, columns=["rank", "step", "kind", "begin", "end"])


def test_the_share_is_of_the_time_in_which_something_travels():
    table = table_of(
        (0, 0, "communication", 0, 90),  # before `first`
        (0, 1, "backward", 0, 10), (0, 1, "communication", 5, 15), (0, 1, "communication", 6, 9),  # 5 of 10
        (1, 5, "communication", 0, 4), (1, 6, "communication", 5, 15), (1, 6, "backward", 20, 30),  # 0 of 10
        (1, pandas.NA, "communication", 20, 30),  # after the last step
    )  # fmt: skip
    assert overlap(table, 1) == 5 / 20
    assert overlap(table[table["rank"] == 0], 1) == 0.5
    assert overlap(table, 2) is None


def test_what_cannot_be_told_is_refused(by_hand):
    for first in (-1, 1.5, True, "2"):
        with pytest.raises(lab.InputError, match="is no number of steps"):
            by_hand.overlap(first=first)
    with pytest.raises(lab.InputError, match="no rank 2 in a run of 2 ranks"):
        by_hand.overlap(rank=2)
    with pytest.raises(lab.InputError, match="no communication from its step 4 on"):
        by_hand.overlap(first=4)


def launch(number, at, thread=1):
    return event("cudaLaunchKernel", at, at + 0.1, thread, "cuda_runtime", correlation=number)


def kernel(name, number, begin, end, **args):
    return event(name, begin, end, 3, "kernel", 0, correlation=number, **args)


GPU = [  # a step on a GPU: what the CPU has asked for, in 10 ms, and what the GPU did, in 100
    event("DistributedDataParallel.forward", 0, 2), launch(1, 1), kernel("gemm", 1, 5, 20),
    ours("backward", 3, 9), node(4, 6, thread=5), launch(2, 4.5, 5), launch(3, 5.5, 5),
    kernel("gemm", 2, 20, 40), kernel("gemm", 3, 45, 60), ours("wait", 5, 5.2, thread=5),
    launch(4, 5.6, 5), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 4, 46, 80,
                              Collective_name="allreduce", In_msg_nelems=1000, dtype="Float"),
    launch(5, 8), kernel("copy_bucket_to_grad", 5, 80, 90),  # by DDP, when the buckets are there: no node's
    event("Optimizer.step#SGD.step", 9, 10, cat="user_annotation"), launch(6, 9.5),
    event("Memcpy DtoD (Device -> Device)", 90, 95, 3, "gpu_memcpy", 0, correlation=6),
    ours("step 0", 10, 10),
    event("DistributedDataParallel.forward", 5, 20, 3, "gpu_user_annotation", 0),
    event("ddp_lab: backward", 20, 90, 3, "gpu_user_annotation", 0),
    event("Optimizer.step#SGD.step", 90, 95, 3, "gpu_user_annotation", 0),
]  # fmt: skip


def test_what_a_gpu_does_has_its_own_times(tmp_path):
    """Written after what kineto documents; no GPU has made such a trace here."""
    run = written(tmp_path, GPU)
    assert rows_of(run, "step", "kind", "name", "bytes", "begin", "end") == [  # from 5 ms on
        [0, "forward", "DistributedDataParallel.forward", pandas.NA, 0, 15],
        [0, "backward", "backward", pandas.NA, 15, 55],
        [0, "communication", "all_reduce", 4000, 41, 75],
        [0, "optimizer", "SGD", pandas.NA, 85, 90],
    ]
    assert run.overlap(first=0) == pytest.approx(14 / 34)


def test_the_gpus_of_each_rank_are_processes_of_their_own(tmp_path):
    name = {"ph": "M", "name": "process_name", "ts": 0, "tid": 0, "args": {"name": "python"}}
    events = [*GPU, name | {"pid": 7}, name | {"pid": 0}, name | {"pid": "Spans"}]
    merged = json.loads(written(tmp_path, events, events).merged_trace().read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in merged if e["name"] == "process_name"}
    assert sorted(names.values()) == [f"rank {rank}{gpu} (train.py)" for rank in (0, 1) for gpu in ("", " GPU 0")]
    kernels = {names[e["pid"]] for e in merged if e.get("cat") == "kernel"}
    assert kernels == {"rank 0 GPU 0 (train.py)", "rank 1 GPU 0 (train.py)"}


# ---- what was not traced


@pytest.mark.parametrize("ask", [Run.timeline, Run.overlap, Run.merged_trace])
def test_a_run_that_was_not_traced_says_how_to(tmp_path, ask):
    (tmp_path / "rank0").mkdir()
    run = Run(tmp_path, "train.py", "", 1, 1.0)
    with pytest.raises(lab.InputError, match=r"were not traced. Run it with trace=True \(%%torchrun --trace\)"):
        ask(run)
    run = Run(tmp_path, "train.py", "", 1, 1.0, trace=True)
    run.error = ValueError("enough")
    with pytest.raises(lab.InputError, match="no rank of train.py got so far .* It ended with ValueError: enough"):
        ask(run)


def test_a_rank_without_a_trace_has_no_rows(tmp_path):
    run = written(tmp_path, [], [gloo("all_reduce", 0, 1)])
    (tmp_path / "rank0" / "trace.json").unlink()
    assert rows_of(run, "rank") == [[1]]


@pytest.mark.parametrize("content", ['{"traceEvents": [', "[]", '{"traceEvents": []}'])
def test_a_trace_that_is_cut_is_told(tmp_path, content):
    run = written(tmp_path, [])
    (tmp_path / "rank0" / "trace.json").write_text(content)
    with pytest.raises(ValueError, match="trace.json is no whole trace"):
        run.timeline()


def test_a_run_in_which_nothing_happens_has_an_empty_table(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('here')")
    run = lab.torchrun(path, nproc=1, show="none", trace=True)
    assert len(run.timeline()) == 0 and "kind" in run.timeline() and run.merged_trace().exists()


def test_trace_is_true_or_false():
    with pytest.raises(lab.InputError, match="trace='yes' is unknown"):
        lab.torchrun("hello", trace="yes")
